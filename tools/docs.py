"""Build the documentation site from the notebooks: `python tools/docs.py` writes site/, and needs no network.

`python tools/docs.py readme` writes README.md and its figures from nbs/index.ipynb.
Anything that would mislead a reader stops the build: a broken link, a missing picture, an entry that is out of date.
"""
import json
import logging
import os
import posixpath
import re
import sys
import tempfile
import time
import unicodedata
from configparser import ConfigParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent))
from docs_api import read_modules
from docs_pages import Index, Notebook, Page, colour, readme, slug

sections = ["Measuring", "Regularizers", "Training", "Reports", "Explore", "Evidence", "Command line"]  # one for each decade
texts = ["CHANGELOG.md", "CONTRIBUTING.md"]  # pages that are not notebooks


def settings(root):
    parser = ConfigParser(delimiters=["="])
    parser.read(root/"settings.ini", encoding="utf-8")
    return parser["DEFAULT"]


def notebook_paths(root):
    paths = (root/"nbs").rglob("*.ipynb")
    return sorted(p for p in paths if not any(part.startswith((".", "_")) for part in p.relative_to(root).parts))


class Site:
    "Everything the site is made of, before mkdocs lays it out."
    def __init__(self, root):
        self.root, self.settings = root, settings(root)
        self.repository = f'{self.settings["git_url"]}/blob/{self.settings["branch"]}'
        self.modules = read_modules(root/self.settings["lib_path"])
        self.notebooks = [Notebook(path, root, self.modules) for path in notebook_paths(root)]
        self.problems = [problem for nb in self.notebooks for problem in nb.problems]
        self.index = Index(self.notebooks, self.modules)
        self.pages = {}
        for nb in self.notebooks: self.add_notebook(nb)
        for name in texts: self.add_text(name)
        for module in self.modules.values(): self.add_source(module)
        self.add_reference()

    def url_of(self, file):
        "The address of a repository file: a page of the site, else its place in the repository; None if there is none."
        if file in self.index.pages: return self.index.pages[file].url
        if file == "README.md": return "index.html"
        if file in texts: return text_url(file)
        library = self.settings["lib_path"] + "/"
        if file.startswith(library) and (name := file.removeprefix(library).removesuffix(".py").replace("/", ".")) in self.modules:
            return f"source/{name}.html"
        return f"{self.repository}/{file}" if not file.startswith("..") and (self.root/file).exists() else None

    def new_page(self, url, title, **options):
        page = self.pages[url] = Page(url, title, self, **options)
        return page

    def add_notebook(self, nb):
        page = self.new_page(nb.url, nb.title, notebook=nb, description=nb.subtitle, where=nb.where)
        page.add(f"<h1>{page.inline(nb.title)}</h1>")
        if nb.subtitle: page.add(f'<p class="subtitle">{page.inline(nb.subtitle)}</p>')
        if nb.url != "index.html": page.add(self.notebook_links(page, nb))
        for cell in nb.cells: page.add_cell(cell)

    def notebook_links(self, page, nb):
        links = [f'<a href="{page.relative("notebooks/" + nb.where.removeprefix("nbs/"))}" download>Notebook</a>']
        if nb.module: links[:0] = [f"<code>{self.settings['lib_path']}.{nb.module.name}</code>",
                                   f'<a href="{page.relative(f"source/{nb.module.name}.html")}">Source</a>']
        if nb.symbols: links.append('<button type="button" class="all-source">Show all source</button>')
        return f'<p class="page-links" data-search-exclude>{"".join(links)}</p>'

    def add_text(self, name):
        path = self.root/name
        if not path.exists(): return
        text = path.read_text(encoding="utf-8")
        title = re.match(r"# +(.+)", text)[1]
        page = self.new_page(text_url(name), title, where=name)
        page.add(f"<h1>{page.inline(title)}</h1>", page.prose(text.partition("\n")[2]))

    def add_source(self, module):
        "A page with the module's code, a line an anchor."
        where, title = module.path.relative_to(self.root).as_posix(), f"{self.settings['lib_path']}.{module.name}"
        page = self.new_page(f"source/{module.name}.html", title, where=where)
        lines = "\n".join(f'<span id="L{i}" class="line">{line}</span>' for i, line in enumerate(colour(module.source).split("\n"), 1))
        nb = next((nb for nb in self.notebooks if nb.module is module), None)
        made = f' Made from <a href="{page.relative(nb.url)}">{page.inline(nb.title)}</a>.' if nb else ""
        page.add(f"<h1>{page.title}</h1>", f'<p class="subtitle"><code>{page.where}</code>.{made}</p>',
                 f'<div class="highlight source"><pre><code>{lines}</code></pre></div>')

    def add_reference(self):
        "One page that lists everything public."
        page = self.new_page("reference.html", "API reference", description="Everything public, by module.")
        page.add("<h1>API reference</h1>", '<p class="subtitle">Everything public, by module.</p>')
        for nb in self.notebooks:
            named = [s for s in nb.symbols.values() if "." not in s.name]
            if not named: continue
            name = f"{self.settings['lib_path']}.{nb.module.name}" if nb.module else nb.title
            anchor = page.add_heading(2, f"<code>{name}</code>", slug(name))
            rows = "".join(f'<tr><td><a href="{page.relative(nb.url)}#{s.name}"><code>{s.name}</code></a></td>'
                           f'<td>{page.inline(s.doc.partition(chr(10))[0])}</td></tr>' for s in named)
            page.add(f'<h2 id="{anchor}"><a href="{page.relative(nb.url)}"><code>{name}</code></a></h2>',
                     f'<div class="table"><table class="api-list"><tbody>{rows}</tbody></table></div>')

    @property
    def nav(self):
        "The tree of pages at the left."
        def page(url): return posixpath.splitext(url)[0] + ".md"
        here = [nb for nb in self.notebooks if "/" not in nb.url and nb.path.stem != "index"]
        groups = [[page(nb.url) for nb in here if nb.path.stem.startswith(str(i))] for i in range(len(sections))]
        rest = [page(nb.url) for nb in here if not nb.path.stem.startswith(tuple(map(str, range(len(sections)))))]
        nav = [{"Overview": "index.md"}, *rest, *({name: group} for name, group in zip(sections, groups) if group)]
        experiments = [page(nb.url) for nb in sorted(self.notebooks, key=lambda nb: not nb.url.endswith("/findings.html")) if nb.url.startswith("experiments/")]
        if experiments: nav.append({"Experiments": experiments})
        return nav + [{"Project": ["reference.md", *(page(text_url(name)) for name in texts if text_url(name) in self.pages)]}]


def text_url(name): return name.lower().removesuffix(".md") + ".html"


# ---- mkdocs

def make_plugin(site):
    "The mkdocs plugin that hands over our pages."
    from mkdocs.plugins import BasePlugin
    from mkdocs.structure.files import File, InclusionLevel
    from mkdocs.structure.toc import get_toc

    class Pages(BasePlugin):
        def on_files(self, files, *, config):
            for url, page in site.pages.items():
                meta = {"title": plain_title(page.title)} | ({"description": page.description} if page.description else {})
                if url.startswith("source/") or url == "reference.html": meta["search"] = {"exclude": True}
                if not page.headings: meta["hide"] = ["toc"]
                level = InclusionLevel.NOT_IN_NAV if url.startswith("source/") else InclusionLevel.UNDEFINED
                text = f"---\n{json.dumps(meta)}\n---\n"
                files.append(File.generated(config, posixpath.splitext(url)[0] + ".md", content=text, inclusion=level))
                for name, data in page.files.items(): files.append(File.generated(config, name, content=data))
            for name, path in assets(site).items(): files.append(File.generated(config, name, abs_src_path=str(path)))
            return files

        def on_page_content(self, html, *, page, config, files):
            page.toc = get_toc(site.pages[page.url or "index.html"].toc)
            return site.pages[page.url or "index.html"].body

    return Pages()


def plain_title(title):
    "A title as plain text: Greek letters for their LaTeX names, no marks."
    def letter(match):
        size = "CAPITAL" if match[1][0].isupper() else "SMALL"
        try: return unicodedata.lookup(f"GREEK {size} LETTER {match[1].upper()}")
        except KeyError: return match[0]
    title = re.sub(r"\$([^$]+)\$", lambda m: re.sub(r"[_{}]", "", re.sub(r"\\([A-Za-z]+)", letter, m[1])), title)
    return re.sub(r"`|\\(?=[*_])", "", title)


def assets(site):
    "Files that the site serves as they are: styles, scripts, fonts, and the notebooks."
    docs = site.root/"docs"
    found = {p.relative_to(docs).as_posix(): p for p in docs.rglob("*") if p.is_file() and p.relative_to(docs).parts[0] in ("assets", "katex")}
    return found | {"notebooks/" + nb.where.removeprefix("nbs/"): nb.path for nb in site.notebooks}


def lay_out(site, folder):
    "Run mkdocs over the pages of `site` into `folder`."
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort, ConfigurationError
    own = site.settings
    with tempfile.TemporaryDirectory() as empty:
        try:
            config = load_config(str(site.root/"docs"/"mkdocs.yml"), docs_dir=empty, site_dir=str(folder), nav=site.nav, strict=True,
                                 site_name=own["title"], site_description=own["description"], copyright=f'Copyright {own["copyright"]}',
                                 site_url=f'{own["doc_host"]}{own["doc_baseurl"]}/')
            config.extra["social"] = [{"icon": "fontawesome/brands/github", "link": own["git_url"], "name": "The repository"}]
            config.plugins["pages"] = make_plugin(site)
            build(config)
        except (Abort, ConfigurationError) as error: sys.exit(f"docs: {error}")


# ---- links

def links_in(text):
    "The targets and the anchors of a finished page."
    text = re.sub(r"<script\b.*?</script>|<style\b.*?</style>|<!--.*?-->", "", text, flags=re.S)
    tags = re.findall(r"<[a-zA-Z][^>]*>", text)
    values = lambda names: {m for tag in tags for m in re.findall(rf'\s(?:{names})="?([^"\s>]*)', tag)}
    return {target.replace("&amp;", "&") for target in values("href|src")}, values("id|name")


def broken_links(folder):
    "Links of the finished pages that lead nowhere inside `folder`."
    paths = [p for p in sorted(folder.rglob("*.html")) if p.name != "404.html"]  # that one has absolute links
    pages = {p.relative_to(folder).as_posix(): links_in(p.read_text(encoding="utf-8")) for p in paths}
    for name, (targets, _) in pages.items():
        for target in sorted(targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc: continue
            file = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path))) if parts.path else name
            if file == "." or (folder/file).is_dir(): file = posixpath.normpath(posixpath.join(file, "index.html"))
            if not (folder/file).is_file(): yield f"{name}: {target} does not exist"
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file][1] | {"__top", "__skip"}:
                yield f"{name}: {target} has no such anchor"


# ---- commands

def stop_on(problems):
    for problem in sorted(set(problems)): print(f"docs: {problem}", file=sys.stderr)
    if problems: sys.exit(1)


def build_site(root, folder):
    start, site = time.time(), Site(root)
    stop_on(site.problems)
    lay_out(site, folder)
    stop_on(list(broken_links(folder)))
    print(f"site/index.html: {len(site.pages)} pages in {time.time() - start:.1f} s")


def write_readme(root):
    "Write README.md and its figures from nbs/index.ipynb, touching only what changed."
    notebook = Notebook(root/"nbs"/"index.ipynb", root, {})
    folder, figures, problems = root/"docs"/"images", {}, list(notebook.problems)

    def save(data, ending):
        name = f"readme-{len(figures) + 1}.{ending}"
        figures[name] = data
        return f"docs/images/{name}"

    def link(target):
        if re.match(r"[a-z][a-z+.-]*:|//|#", target): return target
        path, mark, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join("nbs", path))
        if not (root/file).exists(): problems.append(f"nbs/index.ipynb: broken link to {target}")
        return file + mark + anchor

    text = readme(notebook, save, link)
    stop_on(problems)
    for name, data in figures.items(): write(folder/name, data)
    for old in folder.glob("readme-*"):
        if old.name not in figures: old.unlink()
    if write(root/"README.md", text.encode()): print("wrote README.md")


def write(path, data):
    "Write `data` unless the file holds it already; say whether it was written."
    if path.exists() and path.read_bytes() == data: return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return True


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    if sys.argv[1:] == ["readme"]: write_readme(here)
    elif not sys.argv[1:]: build_site(here, here/"site")
    else: sys.exit("usage: python tools/docs.py [readme]")
