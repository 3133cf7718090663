"""Build the documentation site: `python tools/docs.py` writes site/, and needs no network.

Notebooks, modules and the pages of docs/ become Markdown, of which mkdocs makes the site; a broken link or anchor or a
missing picture stops it. `python tools/docs.py readme` writes README.md and its figures from nbs/index.ipynb.
"""
import logging
import os
import posixpath
import re
import sys
import time
from collections import Counter
from configparser import ConfigParser
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent))
import docs_api
from docs_pages import page, readme

# what they are on the site
FOLDERS = {"nbs": "explanation", "nbs/experiments": "evidence", "nbs/howto": "howto", "docs": "", "": ""}
DECADES = ["Measuring", "Regularizers", "Training", "Statistics and reports", "In notebooks", "How claims are judged",
           "Command line and names"]
FIRST = ["index", "start", "gallery", "troubleshooting", "cite", "changelog", "contributing"]
WORDS = {"train", "test", "main"}      # of ordinary prose: linked as `train()` only
CODE = r"^```.*?^```[ \t]*$"


def place(file):
    "The site's Markdown file for a file of the repository: the folder is the kind of page; leading numbers only order."
    folder, name = posixpath.split(file)
    if file in ("nbs/index.ipynb", "nbs/start.ipynb", "nbs/gallery.ipynb"): folder = ""
    return posixpath.join(FOLDERS.get(folder, folder.removeprefix("docs/")),
                          re.sub(r"^\d+_", "", name.lower()).rpartition(".")[0] + ".md")


def slug(text): return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", text)).strip("-").lower()


def outside(pattern, change, text):
    "`text` with `change` made everywhere but in what `pattern` finds."
    pieces = re.split(f"({pattern})", text, flags=re.M | re.S)
    return "".join(piece if i % 2 else change(piece) for i, piece in enumerate(pieces))


def relink(text, link):
    "Rewrite the targets of links outside code."
    return outside(CODE + r"|`[^`\n]+`", partial(re.sub, r"(?<=\]\()[^)\s]+", lambda m: link(m[0])), text)


class Site:
    "All Markdown of the site, written into `folder`."
    def __init__(self, root, folder):
        self.root, self.folder, parser = root, folder, ConfigParser(delimiters=["="])
        parser.read(root/"settings.ini", encoding="utf-8")
        self.settings = parser["DEFAULT"]
        self.package = self.settings["lib_path"]
        self.modules = {path.stem: docs_api.Module(path) for path in sorted((root/self.package).glob("[!_]*.py"))}
        found = [*(root/"nbs").rglob("*.ipynb"), *(root/"docs").rglob("*.md"),
                 *(root/"docs"/"explore").glob("index.html"), *root.glob("C*.md")]
        files = sorted(path.relative_to(root).as_posix() for path in found)
        self.places = {file: place(file) for file in files if not re.search(r"/[._]", file)}
        self.exports = {file: self.exported(file) for file in self.places if re.match(r"nbs/\d", file)}
        self.names = self.find_names()
        for file, here in self.places.items():
            self.add_explorers(here) if file.endswith(".html") else self.add_page(file, here)
        self.add_reference()
        for path in (root/"docs").rglob("*.*"):
            part = path.relative_to(root/"docs")
            if path.suffix not in (".md", ".yml") and part.parts[0] not in ("images", "overrides", "explore"):
                self.write(part.as_posix(), path.read_bytes())

    def write(self, name, data):
        (self.folder/name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder/name).write_bytes(data.encode() if isinstance(data, str) else data)

    def exported(self, file):
        "The name of the module that a notebook exports, if it does."
        found = re.search(r"#\| default_exp (\w+)", (self.root/file).read_text(encoding="utf-8"))
        return found[1] if found and found[1] in self.modules else ""

    # -- links

    def find_names(self):
        "Where a backticked name leads: the entry of the only definition of that name, or a notebook or module."
        entries = [(name, f"reference/{module.name}.md#{name}") for module in self.modules.values()
                   for name, _ in module.public]
        once = Counter(name for name, _ in entries)
        return ({name: to for name, to in entries if once[name] == 1}
                | {Path(file).stem: self.places[file] for file in self.exports}
                | {f"{self.package}.{name}": f"reference/{name}.md" for name in self.modules})

    def find(self, name, here):
        "The link from page `here` to what has the name; None for a name that is unknown or a word of prose."
        to = self.names.get(name) or self.names.get(name.removesuffix("()").removeprefix(f"{self.package}."))
        return posixpath.relpath(to, posixpath.dirname(here)) if to and name not in WORDS else None

    def link_names(self, text, here):
        "Link the names of prose: backticked, outside fences, headings, links and outputs."
        def linked(match): return f"[{match[0]}]({to})" if (to := self.find(match[1], here)) else match[0]
        change = partial(re.sub, r"(?<!`)`([\w.]+(?:\(\))?)`(?!`)", linked)
        return outside(CODE + r"|^#[^\n]*$|\[[^\]\n]*\]\([^)\n]*\)|<pre.*?</pre>", change, text)

    def to_file(self, target, file, here):
        "Where a link in the repository's `file` leads on its page `here`: a page of the site, or the repository's own."
        path, _, anchor = target.partition("#")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(file), path)) if path else file
        if found in self.places:
            to = posixpath.relpath(self.places[found], posixpath.dirname(here)) if path else ""
            return to + (anchor and "#" + (anchor if anchor in self.names else slug(anchor)))
        elsewhere = path and not found.startswith("docs/") and (self.root/found).exists()
        return f'{self.settings["git_url"]}/blob/{self.settings["branch"]}/{found}' if elsewhere else target

    # -- pages

    def add_page(self, file, here):
        "A notebook or a text as Markdown, with its links rewritten; its pictures go beside it."
        pictures, folder = [], posixpath.dirname(here)
        def save(ending, data):
            pictures.append(f"figures/{Path(here).stem}-{len(pictures) + 1}.{ending}")
            self.write(posixpath.join(folder, pictures[-1]), data)
            return pictures[-1]
        if file.endswith(".md"): text = (self.root/file).read_text(encoding="utf-8")
        else:
            up, module = posixpath.relpath(".", folder), self.exports.get(file)
            copy = f"notebooks/{file.removeprefix('nbs/')}"
            links = ([f"[Reference of `{self.package}.{module}`]({up}/reference/{module}.md)"]*bool(module)
                     + [f"[Download the notebook]({up}/{copy}){{ download }}"])
            below = " ".join(links) + "\n{ .page-links data-search-exclude }" if here != "index.md" else ""
            text = page(self.root/file, below, partial(self.find, here=here), save)
            self.write(copy, (self.root/file).read_bytes())
        self.write(here, self.link_names(relink(text, partial(self.to_file, file=file, here=here)), here))

    def add_reference(self):
        "A page for each module, and one that lists them all."
        about = {module: f"Explained, tested and drawn in the notebook [`{Path(file).stem}`](../{self.places[file]})."
                 for file, module in self.exports.items()}
        pages = {name: docs_api.page(module, self.package, about.get(name, ""), partial(self.find, here="reference/x"))
                 for name, module in self.modules.items()}
        pages["index"] = docs_api.overview(self.modules.values(), self.package, about)
        for name, text in pages.items():
            self.write(f"reference/{name}.md", self.link_names(text, f"reference/{name}.md"))

    def add_explorers(self, here):
        "The page of the explorers, which is HTML as it is, with its scripts and figures."
        from explore import files
        made = {f"explore/{name}": data for name, data in files().items()}
        body = re.search(r"<body>(.*)</body>", made.pop("explore/index.html").decode(), re.S)[1]
        title = re.search(r"<h1>(.*?)</h1>", body)
        for name, data in (made | {here: f"# {title[1]}\n\n{body.replace(title[0], '')}"}).items():
            self.write(name, data)

    @property
    def nav(self):
        "The tree of pages: the kinds of page, the notebooks of a decade under its name."
        def of(folder, first):
            return sorted((to for to in self.places.values() if posixpath.dirname(to) == folder),
                          key=lambda to: not to.endswith(first))
        stems = sorted((file > "nbs", Path(file).stem, to)
                       for file, to in self.places.items() if to.startswith("explanation/"))
        decades = [[to for _, stem, to in stems if stem.startswith(f"{i}")] for i in range(len(DECADES))]
        named = [{name: pages} if pages else {} for name, pages in zip(DECADES, decades)]
        tree = {"Start": [f"{name}.md" for name in FIRST if f"{name}.md" in self.places.values()],
                "How-to": of("howto", "index.md"),
                "Explanation": named[:4] + named[6:], "Explorers": of("explore", "index.md") + named[4:5],
                "Reference": ["reference/index.md", *(f"reference/{name}.md" for name in self.modules)],
                "Evidence": of("evidence", ("index.md", "findings.md")) + named[5:6]}
        return [{kind: pages} for kind, every in tree.items() if (pages := [item for item in every if item])]


def build_site(root, folder):
    "Have mkdocs make the site of its Markdown."
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort, ConfigurationError
    start = time.time()
    with TemporaryDirectory() as pages:
        site = Site(root, Path(pages))
        own = site.settings
        options = dict(site_name=own["title"], site_description=own["description"],
                       copyright=f'Copyright {own["copyright"]}', site_url=f'{own["doc_host"]}{own["doc_baseurl"]}/')
        try:
            build(load_config(str(root/"docs"/"mkdocs.yml"), docs_dir=pages, site_dir=str(folder), nav=site.nav,
                              strict=True, **options))
        except (Abort, ConfigurationError) as error: sys.exit(f"docs: {error}")
    print(f"site/index.html: {len(list(folder.rglob('*.html')))} pages in {time.time() - start:.1f} s")


def write_readme(root):
    "Write README.md and its figures from nbs/index.ipynb, touching only what changed."
    made = {}
    def save(ending, data):
        made[name := f"docs/images/readme-{len(made) + 1}.{ending}"] = data
        return f"../{name}"
    def link(target):
        return target if re.match(r"[a-z]+:|#", target) else posixpath.normpath(posixpath.join("nbs", target))
    text = relink(readme(root/"nbs"/"index.ipynb", save), link)
    for old in (root/"docs"/"images").glob("readme-*"):
        if old.relative_to(root).as_posix() not in made: old.unlink()
    for name, data in {**made, "README.md": text.encode()}.items():
        if (root/name).exists() and (root/name).read_bytes() == data: continue
        (root/name).parent.mkdir(parents=True, exist_ok=True)
        (root/name).write_bytes(data)
        print(f"wrote {name}")


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    if sys.argv[1:] == ["readme"]: write_readme(here)
    elif not sys.argv[1:]: build_site(here, here/"site")
    else: sys.exit("usage: python tools/docs.py [readme]")
