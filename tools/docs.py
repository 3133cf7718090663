"""Build the documentation site: `python tools/docs.py` writes site/, and needs no network.

Notebooks, modules and the pages of docs/ become Markdown, of which mkdocs makes the site; a broken link or anchor or a
missing picture stops it. `python tools/docs.py readme` writes README.md and its figures from nbs/index.ipynb.
"""
import logging
import os
import re
import sys
import time
from fnmatch import filter as matching
from pathlib import Path, PurePosixPath
from posixpath import dirname, join, normpath, relpath
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory

os.environ["NO_MKDOCS_2_WARNING"] = "1"
from fastcore.foundation import read_config_file
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort, ConfigurationError

sys.path.insert(0, str(Path(__file__).resolve().parent))
import docs_api
import docs_pages
import rooms
from surface import Surface

FOLDERS = {"nbs/experiments/": "evidence/", r"nbs/(?=howto/|[^/]+$)|docs/": "", "nbs/": "explanation/",
           r"\w+/(?=.*\.py$)": "reference/"}
WORDS = {"train", "test", "main"}      # of ordinary prose: linked as `train()` only
PROSE = re.compile(r"""
    ^```.*?^```[ \t]*$ | <pre.*?</pre> | ^\#[^\n]*$     # in code, outputs and headings nothing; elsewhere
  | `(?P<name>[\w.]+(\(\))?)`(?![^\[\]\n]*\]\()         # a name that is not the text of a link,
  | `[^`\n]+`                                           # nothing in other code,
  | (?<=\]\()(?P<target>[^)\s]+)                        # and where a link leads
""", re.MULTILINE | re.DOTALL | re.VERBOSE)


def relink(text, link, find=lambda name: None):
    "Markdown with the targets of links made `link(target)`, and with a link on each name that `find(name)` has."
    def change(match):
        if match["target"]: return link(match["target"])
        return f"[{match[0]}]({to})" if match["name"] and (to := find(match["name"])) else match[0]
    return PROSE.sub(change, text)


def place(file):
    "The site's Markdown file for a file of the repository: the folder is the kind of page; leading numbers only order."
    for pattern, folder in FOLDERS.items(): file = re.sub(f"^({pattern})", folder, file)
    return re.sub(r"\.\w+$", ".md", re.sub(r"(^|/)\d+_", r"\1", file.lower()))


def relative(target, page):
    "A link to `target`, from the site's root, as a `page` there writes it; other links stay."
    if not target.startswith("/"): return target
    path, mark, anchor = target.partition("#")
    return f"{relpath(path, '/' + dirname(page))}{mark}{anchor}"


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class Site:
    "All Markdown of the site, written into `folder`, with relative links, so that any generator can build it."
    def __init__(self, root, folder):
        self.root, self.folder = root, folder
        self.settings = read_config_file(root/"settings.ini", delimiters=["="])
        self.package = self.settings["lib_path"]
        patterns = "nbs/**/*.ipynb", "docs/**/*.md", "docs/explore/index.html", "C*.md", f"{self.package}/**/[!_]*.py"
        found = [path.relative_to(root).as_posix() for pattern in patterns for path in sorted(root.glob(pattern))]
        self.places = ({f"{self.package}/__init__.py": "reference/index.md"}
                       | {file: place(file) for file in found if not re.search(r"/[._]", file)})
        self.modules = {file: docs_api.Module(root/file, root/self.package) for file in found if file.endswith(".py")}
        self.names = self.find_names()
        self.owners = Surface(root).owners if (root/self.package/"__init__.py").exists() else {}
        for file in self.places: self.add(file)
        copytree(root/"docs", folder, dirs_exist_ok=True,
                 ignore=ignore_patterns("*.md", "*.yml", "images", "overrides", "explore"))

    def find_names(self):
        "Where a backticked name leads: the entry of the only definition of that name, or a notebook or module."
        names = {}
        for file, module in self.modules.items():
            for name, _ in module.public: names[name] = None if name in names else f"/{self.places[file]}#{name}"
            names |= {f"{self.package}.{module.name}": f"/{self.places[file]}",
                      Path(module.notebook).stem: f"/{self.places[module.notebook]}"}
        return names

    def find(self, name):
        "The link to what has the name; None for a name that is unknown or a word of prose."
        if name in WORDS: return None
        return self.names.get(name) or self.names.get(name.removesuffix("()").removeprefix(f"{self.package}."))

    def link(self, target, file):
        "Where a link in the repository's `file` leads: to a page of the site, or to a file of the repository."
        path, mark, anchor = target.partition("#")
        if anchor not in self.names: anchor = anchor.lower()    # JupyterLab's have the case of the heading
        if not path: return f"#{anchor}"
        found = normpath(join(dirname(file), path))
        if found in self.places: return f"/{self.places[found]}{mark}{anchor}"
        if not Path(f"{self.root}/{found}").exists(): return target
        return f'{self.settings["git_url"]}/blob/{self.settings["branch"]}/{found}'

    def add(self, file):
        "The page of a file of the repository."
        place = self.places[file]
        if file.endswith(".ipynb"): text = self.notebook(file)
        elif file.endswith(".html"): text = self.explorers()
        elif file in self.modules: text = docs_api.page(self.modules[file], self.package, self.find)
        elif file.endswith(".py"): text = docs_api.overview(self.modules.values(), self.package, self.owners)
        else: text = (self.root/file).read_text(encoding="utf-8")
        folder = re.fullmatch(r"docs/(?:explanation/)?(\w+)/index.md", file)
        if folder and (self.root/"nbs"/folder[1]).is_dir():
            text = rooms.page(text, rooms.rooms(self.root/"nbs"/folder[1], self.root/self.package))
            file = f"nbs/{folder[1]}/index.md"    # where its links start
        def near(target): return target and relative(target, place)
        text = relink(text, lambda target: near(self.link(target, file)), lambda name: near(self.find(name)))
        write(self.folder/place, text.encode())

    def notebook(self, file):
        "A notebook as Markdown; its figures and the notebook itself go beside it."
        cells, here = docs_pages.cells(self.root/file), PurePosixPath(self.places[file])
        figures, copy = here.parent/"figures"/here.stem, f"notebooks/{file.removeprefix('nbs/')}"
        for i, data in enumerate(docs_pages.figures(cells), 1): write(self.folder/f"{figures}-{i}.png", data)
        write(self.folder/copy, (self.root/file).read_bytes())
        made, module = next(((f, m.name) for f, m in self.modules.items() if m.notebook == file), ("", ""))
        reference = f"/{self.places.get(made)}"
        links = f"[Reference of `{self.package}.{module}`]({reference}) "*bool(module)
        links += f"[Download the notebook](/{copy}){{ download }} {self.elsewhere(file)}"
        return docs_pages.page(cells, links, reference, f"/{figures}")

    def elsewhere(self, file):
        "Where a notebook opens without an installation, and the cell that Colab needs first."
        git, branch = self.settings["git_url"], self.settings["branch"]
        repository = git.removeprefix("https://github.com/")
        name = repository.partition("/")[2]
        first = (f"!git clone --depth 1 --branch {branch} {git}\n%pip install --quiet './{name}[notebooks]'\n"
                 f"%cd {name}/{dirname(file)}")
        return (f"[Colab](https://colab.research.google.com/github/{repository}/blob/{branch}/{file}) "
                f"[Binder](https://mybinder.org/v2/gh/{repository}/{branch}?labpath={file})\n"
                "{ .page-links data-search-exclude }\n\n"
                + docs_pages.folded("The first cell in Colab", docs_pages.fence(first, "python")))

    def explorers(self):
        "The page of the explorers, which is HTML as it is, with its scripts and figures."
        from explore import files
        made = files()
        text = made.pop("index.html").decode()
        for name, data in made.items(): write(self.folder/"explore"/name, data)
        return re.sub(r".*<body>(.*)<h1>(.*?)</h1>(.*)</body>.*", r"# \2\n\n\1\3", text, flags=re.DOTALL)

    def summary(self):
        "llms.txt: the site's pages with one line each, its subtitle or first sentence (llmstxt.org)."
        base = f'{self.settings["doc_host"]}{self.settings["doc_baseurl"]}'
        lines = [f'# {self.settings["title"]}', "", f'> {self.settings["description"]}', ""]
        for place in sorted(self.places.values()):
            text = re.sub(r"<[^>]+>", "", (self.folder/place).read_text(encoding="utf-8"))
            title = re.search(r"^# (.+)", text, re.M)
            said = re.search(r"^(?:> )?([A-Z].+?)(?:[.:](?= )|$)", text[title.end():], re.M)
            line = re.sub(r"\[(.+?)\]\(.*?\)", r"\1", said[1] if said else title[1])
            lines.append(f"- [{title[1]}]({base}/{place[:-3]}.html): {line}")
        return "\n".join(lines) + "\n"

    def nav(self, items, left):
        "The navigation of docs/mkdocs.yml, in which each pattern names the files of `left` that no earlier one does."
        pages = []
        for item in items:
            if isinstance(item, str): pages += [left.pop(file) for file in matching(left, item)]
            else: pages += [{name: inside} for name, every in item.items() if (inside := self.nav(every, left))]
        return pages


def build_site(root, folder):
    "Have mkdocs make the site of its Markdown."
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    start = time.time()
    with TemporaryDirectory() as pages:
        site = Site(root, Path(pages))
        own = site.settings
        try:
            config = load_config(str(root/"docs"/"mkdocs.yml"), docs_dir=pages, site_dir=str(folder), strict=True,
                                 site_name=own["title"], site_description=own["description"],
                                 copyright=f'Copyright {own["copyright"]}',
                                 site_url=f'{own["doc_host"]}{own["doc_baseurl"]}/')
            config.nav = site.nav(config.nav, dict(site.places))
            build(config)
            write(folder/"llms.txt", site.summary().encode())
        except (Abort, ConfigurationError) as error: sys.exit(f"docs: {error}")
    print(f"site/index.html: {len(list(folder.rglob('*.html')))} pages in {time.time() - start:.1f} s")


def write_readme(root):
    "Write README.md and its figures from nbs/index.ipynb."
    def link(target): return target if re.match(r"[a-z]+:|#", target) else normpath(join("nbs", target))
    cells, figures = docs_pages.cells(root/"nbs"/"index.ipynb"), "docs/images/readme"
    for old in root.glob(f"{figures}-*"): old.unlink()
    for i, data in enumerate(docs_pages.figures(cells), 1): write(root/f"{figures}-{i}.png", data)
    write(root/"README.md", relink(docs_pages.readme(cells, figures), link).encode())


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    if sys.argv[1:] == ["readme"]: write_readme(here)
    elif not sys.argv[1:]: build_site(here, here/"site")
    else: sys.exit("usage: python tools/docs.py [readme]")
