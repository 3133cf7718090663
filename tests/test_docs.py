"""The documentation tools, on a small repository made here, and the real site: no notebook can host its own build."""
import base64
import html
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from browser import browser_page, needs_chromium
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT/"tools"))

import docs
from docs_api import Module, parameters
from docs_pages import Cell, cells, plain

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()

MODULE = '''
from dataclasses import dataclass

def score(
    x:list,       # (n, d) rows; `None` is refused
    scale:float|None=None, # in (0, 1]
    *,
    times:int=1,  # 2*3*4 at most
)->"Result":      # the score of `x`
    "Score of $x$; see `Result.merge`."
    return x

@dataclass
class _Value:
    "A step on the way."
    value:float=0.  # in [0, 1]
    def merge(self, other): # both in one
        "Merge two."
        return self
    def close(self): "Said of this one alone."

@dataclass
class Result(_Value):
    "What came out."
    seen:int=1      # how many there were
    def close(self): pass
'''


def code(source, *outputs):
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": list(outputs), "execution_count": None}
def prose(source): return {"cell_type": "markdown", "source": source, "metadata": {}}
def text(value): return {"output_type": "stream", "name": "stdout", "text": value}
def data(**forms):
    return {"output_type": "display_data", "metadata": {}, "data": {k.replace("__", "/"): v for k, v in forms.items()}}
def cell(raw): return Cell(nbformat.from_dict(raw))


@pytest.fixture
def repo(tmp_path):
    "A repository with one module, its notebook, an experiment and a start page; `write` adds a notebook."
    for part in ("assets", "katex", "overrides", "mkdocs.yml"):
        (shutil.copytree if (ROOT/"docs"/part).is_dir()
         else shutil.copy)(ROOT/"docs"/part, (tmp_path/"docs").mkdir(exist_ok=True) or tmp_path/"docs"/part)
    for folder in ("lib", "nbs/experiments"): (tmp_path/folder).mkdir(parents=True)
    settings = (ROOT/"settings.ini").read_text(encoding="utf-8")
    (tmp_path/"settings.ini").write_text(re.sub(r"^lib_path = .*$", "lib_path = lib", settings, flags=re.M))
    (tmp_path/"lib"/"scores.py").write_text(MODULE)
    definitions = MODULE.split("\n\n")
    write(tmp_path, "00_scores", code("#| default_exp scores"), prose("# Scores of things\n\n> Short"),
          prose("The `score` and $a_i*b_i*c$\n\n- [there](experiments/one.ipynb#A-Heading)"),
          code("import torch\nfrom pathlib import Path"), code("#| export\n" + definitions[1]),
          code("#| export\n" + definitions[2]),
          code("assert score([]) == []"), code("for i in range(3):\n    assert i < 3"),
          code("assert seen\nseen", text("seen")),
          code("#| hide\nsecret = 1", text("secret")), code("#| echo: false\nsilent = 1", text("\x1b[31mheard\x1b[0m")),
          code("frame",
               data(text__html='<div>\n<style scoped>td{}</style><table border="1" '
                               'class="dataframe"><tr><td>7</td></tr></table>\n</div>', text__plain="7")),
          code("#| fig-alt: The score of [x] rises with n\nax", data(text__plain="<Axes: >"),
               data(image__png=PNG, text__plain="<Figure>")),
          code("#| fig-cap: It rises\n#| code-fold: true\nax", data(image__png=PNG)),
          code("slider", data(**{"application__vnd.jupyter.widget-view+json": "{}", "text__plain": "IntSlider()"})),
          code("1/0", {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "division by zero",
                       "traceback": ["/somewhere"]}))
    write(tmp_path, "experiments/one",
          prose("# One\n\n## A Heading\n\n[back](../00_scores.ipynb#score) [set](../../settings.ini)"))
    write(tmp_path, "index", prose("# Start\n\n> Here\n\n[scores](00_scores.ipynb) and `[no](link)`"),
          code("ax", data(image__png=PNG)), code("2", data(text__plain="2")))
    return tmp_path


def write(root, name, *cells):
    (root/"nbs"/f"{name}.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4,
                                                        "nbformat_minor": 4}))


def build(root):
    "The site's pages of the notebook and of the module."
    docs.build_site(root, root/"site")
    return [BeautifulSoup((root/"site"/name).read_text(encoding="utf-8"), "html.parser").article
            for name in ("explanation/scores.html", "reference/scores.html")]


def test_a_notebook_page(repo, capsys):
    page, _ = build(repo)
    said = capsys.readouterr()
    assert said.out.startswith("site/index.html: ") and said.out.count("\n") == 1 and not said.err
    links = {a.text: a.get("href") for a in page.find_all("a")}
    assert (links["there"] == "../evidence/one.html#a-heading"
            and links["score"] == links["Reference of lib.scores"] + "#score")
    assert (links["Download the notebook"] == "../notebooks/00_scores.ipynb"
            and (repo/"site"/"notebooks"/"00_scores.ipynb").exists())
    assert (page.find(class_="arithmatex").text == r"\(a_i*b_i*c\)" and page.find(id="score")
            and "def score(" in page.text)
    assert "heard" in page.text and "secret" not in page.text and "silent" not in page.text and "\x1b" not in page.text
    assert (page.find("table", class_="dataframe").text.strip() == "7" and not page.find("style")
            and "Axes" not in page.text)
    assert ([image["alt"] for image in page.find_all("img")] == ["The score of [x] rises with n", "It rises"]
            and page.figcaption.text == "It rises")
    assert "Open this notebook in JupyterLab" in page.text and "IntSlider" not in page.text
    assert page.find(class_="error").text == "ZeroDivisionError: division by zero"


def test_what_only_prepares_or_checks_is_folded(repo):
    page, _ = build(repo)
    folds = {fold.summary.text: fold.text for fold in page.find_all("details")}
    assert list(folds) == ["Show setup", "Show tests", "Show code"]
    assert "import torch" in folds["Show setup"] and "def" not in folds["Show setup"]
    assert "score([])" in folds["Show tests"] and "i < 3" in folds["Show tests"] and "seen" not in folds["Show tests"]
    assert (cell(code("rng = 1\ndef error_of(f): return f")).fold == "Show setup"
            and not cell(code("x = 1\nassert x")).fold)


def test_a_reference_page(repo):
    _, page = build(repo)
    assert [h.get("id") for h in page.find_all(["h2", "h3"])] == ["score", "Result", "Result.merge"]
    assert page.find("a", string="Result.merge")["href"] == "scores.html#Result.merge"  # a name inside a docstring
    rows = [[td.get_text() for td in tr.find_all("td")] for tr in page.table.find_all("tr")][1:]
    assert rows == [["x", "list", "", "(n, d) rows; None is refused"], ["scale", "float | None", "None", "in (0, 1]"],
                    ["times", "int", "1", "2*3*4 at most"], ["returns", "Result", "", "the score of x"]]
    assert page.table.find_all("tr")[-1].find_all("td")[1].a["href"] == "scores.html#Result"


def test_search_and_contents(repo):
    build(repo)
    entries = {e["location"]: e["text"]
               for e in json.loads((repo/"site"/"search"/"search_index.json").read_text(encoding="utf-8"))["docs"]}
    assert {"reference/scores.html#score", "reference/scores.html#Result.merge",
            "evidence/one.html#a-heading"} <= set(entries)
    assert "heard" not in "".join(entries.values())
    toc = BeautifulSoup((repo/"site"/"reference"/"scores.html").read_text(encoding="utf-8"),
                        "html.parser").find(attrs={"data-md-component": "toc"})
    assert [a["href"] for a in toc.find_all("a")] == ["#score", "#Result", "#Result.merge"]


@pytest.mark.parametrize("raw, message", [
    (prose("[x](02_none.ipynb)"), "02_none.ipynb"),
    (prose("[x](00_scores.ipynb#nowhere)"), "does not contain an anchor '#nowhere'"),
    (prose("![x](none.png)"), "none.png"),
])
def test_what_would_mislead_stops_the_build(repo, caplog, raw, message):
    write(repo, "01_bad", prose("# Bad"), raw)
    with pytest.raises(SystemExit) as stop: build(repo)
    assert stop.value.code and message in caplog.text


def test_readme(repo, capsys):
    docs.write_readme(repo)
    made = (repo/"README.md").read_text(encoding="utf-8")
    assert "[scores](nbs/00_scores.ipynb) and `[no](link)`" in made
    assert "![Figure](docs/images/readme-1.png)" in made and "```python\n2\n```\n\n```text\n2\n```" in made
    assert (repo/"docs"/"images"/"readme-1.png").read_bytes() == base64.b64decode(PNG)
    before = (repo/"README.md").stat().st_mtime_ns
    docs.write_readme(repo)
    assert ((repo/"README.md").stat().st_mtime_ns == before
            and capsys.readouterr().out == "wrote docs/images/readme-1.png\nwrote README.md\n")
    write(repo, "index", prose("# Start"))
    docs.write_readme(repo)
    assert not list((repo/"docs"/"images").iterdir())


def test_comments_agree_with_docments(tmp_path):
    "fastcore's reader of the same convention is the oracle."
    from fastcore.docments import docments
    (tmp_path/"m.py").write_text(MODULE.replace('"Result"', "list"))
    sys.path.insert(0, str(tmp_path))
    try: import m
    finally: sys.path.remove(str(tmp_path))
    module = Module(tmp_path/"m.py")
    for name, node in module.public[:2]:
        theirs = {k: v for k, v in docments(getattr(m, name)).items() if v and k != "self"}
        inherited = {"value"} if name == "Result" else set()    # theirs has the own fields alone
        ours = {k: v for k, v in module.said(node).items() if k not in inherited}
        assert theirs == ours
        assert [p for p, *_ in parameters(node)] == list(inspect.signature(getattr(m, name)).parameters)


def test_cells():
    assert cell(code("#| code-fold: true\n#| fig-cap: \"A: b\"\n%matplotlib inline\nx")).source == "x"
    assert cell(code('#| fig-cap: "A: b"\nx')).said["fig-cap"] == "A: b"
    shell = cell(code("!istar measure\n!istar runs"))
    assert (shell.source, shell.language) == ("istar measure\nistar runs", "sh")
    assert plain("0%\r50%\r100%\n\x1b[1mok\x1b[0m") == "100%\nok"
    assert docs.relink("[a](b) `[c](d)` [`e`](f)\n```\n[g](h)\n```",
                       str.upper) == "[a](B) `[c](d)` [`e`](F)\n```\n[g](h)\n```"


# ---- the real site

@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")/"site"
    docs.build_site(ROOT, folder)
    return folder


def test_nothing_is_fetched_from_elsewhere_and_katex_only_where_it_is_needed(site):
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)'
                            r'|<link[^>]*rel="?(?:stylesheet|icon)"?[^>]*href="([^"]+)', page)
        assert not [url for pair in loaded for url in pair if url.startswith(("http", "//"))], path
        assert ("katex.min.js" in page) == ('class="arithmatex"' in page), path


@pytest.mark.skipif(not shutil.which("node"), reason="node is not installed: the formulas are not compiled")
def test_every_formula_compiles(site):
    "KaTeX itself accepts every formula of the site."
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    formula = re.compile(r'<(\w+) class="arithmatex">(.*?)</\1>', re.S)
    formulas = [text for page in pages for _, text in formula.findall(page)]
    assert len(formulas) == sum(page.count('class="arithmatex"') for page in pages)
    found = [html.unescape(text).strip()[2:-2] for text in formulas]
    script = f"const k = require({json.dumps(str(ROOT/'docs'/'katex'/'katex.min.js'))});" + """
      for (const f of JSON.parse(require('fs').readFileSync(0)))
        try { k.renderToString(f, {displayMode: true, strict: false}) }
        catch (e) { console.log(e.message) }"""
    run = subprocess.run(["node", "-e", script], input=json.dumps(found), capture_output=True, encoding="utf-8")
    assert found and not run.returncode and not run.stdout, run.stdout + run.stderr


@pytest.fixture(scope="module")
def page(site):
    with browser_page(dark=True) as page:
        yield page
        assert not page.errors and not page.elsewhere


@needs_chromium
def test_formulas_are_drawn_from_files(site, page):
    page.open((site/"explanation"/"scores.html").as_uri())
    assert (page.run("document.querySelectorAll('.katex').length") > 20
            and not page.run("document.querySelectorAll('.katex-error').length"))


@needs_chromium
def test_links_to_the_next_page_can_be_read_in_the_dark(site, page):
    "A contrast of at least 4.5, as WCAG 2 wants it."
    page.open((site/"explanation"/"scores.html").as_uri())
    colours = page.run("""[document.body, ...document.querySelectorAll(".md-footer__direction, .md-footer__title")].map(
      (e, i) => getComputedStyle(e)[i ? "color" : "backgroundColor"].match(/[\\d.]+/g).map(Number))""")
    back, *front = map(luminance, colours)
    assert page.text("[data-md-color-scheme]") and back < 0.02 and len(front) >= 2
    assert min((max(back, light) + 0.05)/(min(back, light) + 0.05) for light in front) >= 4.5


def luminance(colour):
    "Relative luminance of red, green and blue in 0…255."
    parts = [value/12.92 if value <= 0.04045 else ((value + 0.055)/1.055)**2.4
             for value in (part/255 for part in colour[:3])]
    return sum(weight*part for weight, part in zip((0.2126, 0.7152, 0.0722), parts))


@needs_chromium
@pytest.mark.parametrize("words", ["install", "quickstart", "own data", "csv", "cite", "troubleshooting"])
def test_search_finds(site, page, words):
    page.open((site/"index.html").as_uri() + f"?q={words.replace(' ', '%20')}")
    page.wait("document.querySelectorAll('.md-search-result__item').length")


def test_every_figure_says_what_it_shows():
    notebooks = [path for path in (ROOT/"nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts]
    alts = [(path.stem, cell.alt) for path in notebooks
            for cell in cells(path) if cell.is_code and any(kind == "picture" for kind, _ in cell.outputs)]
    assert len(alts) > 80 and [name for name, alt in alts if len(alt.split()) < 5] == []


def test_the_table_of_evidence_lists_every_page_by_its_title():
    "A page that gets another title, or a new page, is in the table as well."
    table = (ROOT/"docs"/"evidence"/"index.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (.+) \| \[[^\]]+\]\(\S+/experiments/(\w+)\.ipynb\) \|$", table, re.MULTILINE))
    pages = {path.stem: nbformat.read(path, 4).cells[0].source.splitlines()[0].removeprefix("# ")
             for path in (ROOT/"nbs"/"experiments").glob("*.ipynb")}
    assert {page: question for question, page in rows.items()} == pages
