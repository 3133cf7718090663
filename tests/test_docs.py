"""The documentation tools, on a small repository made here, and the real site: no notebook can host its own build."""
import base64
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT/"tools"))

import docs
from docs_api import Module
from docs_pages import Cell, plain, relink

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()

MODULE = '''
from dataclasses import dataclass

def score(
    x:list,       # (n, d) rows; `None` is refused
                  # and so is nothing
    scale:float|None=None, # in (0, 1]
    *,
    # how often, 2*3*4 at most
    times:int=1,
)->"Result":      # the score of `x`
    "Score of $x$; see `Result.merge`."
    return x

@dataclass
class Result:
    "What came out."
    value:float=0.  # in [0, 1]
    def merge(self, other): # both in one
        "Merge two."
        return self
'''


def code(source, *outputs): return {"cell_type": "code", "source": source, "metadata": {}, "outputs": list(outputs), "execution_count": None}
def prose(source): return {"cell_type": "markdown", "source": source, "metadata": {}}
def text(value): return {"output_type": "stream", "name": "stdout", "text": value}
def data(**forms): return {"output_type": "display_data", "metadata": {}, "data": {k.replace("__", "/"): v for k, v in forms.items()}}


@pytest.fixture
def repo(tmp_path):
    "A repository with one module, its notebook, an experiment and a start page; `write` adds a notebook."
    shutil.copytree(ROOT/"docs", tmp_path/"docs", ignore=shutil.ignore_patterns("images"))
    shutil.copy(ROOT/"settings.ini", tmp_path)
    for folder in ("lib", "nbs/experiments"): (tmp_path/folder).mkdir(parents=True)
    settings = (tmp_path/"settings.ini").read_text(encoding="utf-8")
    (tmp_path/"settings.ini").write_text(re.sub(r"^lib_path = .*$", "lib_path = lib", settings, flags=re.M))
    (tmp_path/"lib"/"scores.py").write_text(MODULE)
    definitions = MODULE.split("\n\n")
    write(tmp_path, "00_scores", code("#| default_exp scores"), prose("# Scores of $\\Sigma$\n\n> Short\n\nA line:\n- `score` and $a_i*b_i*c$\n- [there](experiments/one.ipynb#A-Heading)"),
          code("#| export\n" + definitions[1]), code("#| export\n" + definitions[2]),
          code("#| hide\nsecret = 1", text("secret")), code("#| echo: false\nsilent = 1", text("\x1b[31mheard\x1b[0m")),
          code("frame", data(text__html='<style scoped>td{}</style><table border="1" class="dataframe"><tr><td>7</td></tr></table>', text__plain="7")),
          code("ax", data(text__plain="<Axes: >"), data(image__png=PNG, text__plain="<Figure>")),
          code("slider", data(**{"application__vnd.jupyter.widget-view+json": "{}", "text__plain": "IntSlider()"})),
          code("1/0", {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "division by zero", "traceback": ["/somewhere"]}))
    write(tmp_path, "experiments/one", prose("# One\n\n## A Heading\n\n[back](../00_scores.ipynb#Result.merge) [set](../../settings.ini)"))
    write(tmp_path, "index", prose("# Start\n\n> Here\n\n[scores](00_scores.ipynb) and `[no](link)`"), code("ax", data(image__png=PNG)), code("2", data(text__plain="2")))
    return tmp_path


def write(root, name, *cells):
    (root/"nbs"/f"{name}.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


def build(root):
    docs.build_site(root, root/"site")
    return (root/"site"/"scores.html").read_text(encoding="utf-8")


def test_page(repo, capsys):
    page = build(repo)
    out = capsys.readouterr()
    assert out.out.startswith("site/index.html: ") and out.out.count("\n") == 1 and not out.err
    assert '<h3 id="score"><code>score</code>' in page and '<h4 id="Result.merge">' in page
    assert 'href="#Result.merge"><code>Result.merge</code>' in page  # a cross reference inside a docstring
    assert 'href="experiments/one.html#a-heading"' in page
    assert '<span class="math">a_i*b_i*c</span>' in page and "<li>" in page  # a list right under a line, as in JupyterLab
    assert "2*3*4 at most" in page and "(n, d) rows; <code>None</code> is refused and so is nothing" in page
    assert "heard" in page and "secret" not in page and "silent" not in page and "\x1b" not in page
    assert '<table class="dataframe">' in page and "<style scoped>" not in page
    assert page.count("figures/scores-1.png") == 1 and "&lt;Axes" not in page
    assert "open this notebook in JupyterLab" in page and "IntSlider" not in page
    assert "<b>ZeroDivisionError</b>: division by zero" in page and "somewhere" not in page
    assert not (repo/"_proc").exists()


def test_source_links_lead_to_the_definition(repo):
    page, lines = build(repo), MODULE.splitlines()
    found = dict(re.findall(r'id="([\w.]+)"><code>.*?href="source/scores\.html#L(\d+)"', page))
    assert {name: lines[int(n) - 1].strip() for name, n in found.items()} == {
        "score": "def score(", "Result": "@dataclass", "Result.merge": "def merge(self, other): # both in one"}
    source = (repo/"site"/"source"/"scores.html").read_text(encoding="utf-8")
    assert all(f'id="L{n}"' in source for n in found.values())


def test_search_and_toc(repo):
    page = build(repo)
    entries = {e["location"] for e in json.loads((repo/"site"/"search"/"search_index.json").read_text(encoding="utf-8"))["docs"]}
    assert {"scores.html#score", "scores.html#Result.merge", "experiments/one.html#a-heading"} <= entries
    assert not any(e.startswith("source/") for e in entries)
    toc = page.split('data-md-component="toc"')[1].split("</nav>\n")[0]
    assert re.findall(r'href="#([\w.]+)"', toc)[:3] == ["score", "Result", "Result.merge"]


@pytest.mark.parametrize("cell, message", [
    (prose("[x](02_none.ipynb)"), "nbs/01_bad.ipynb: broken link to 02_none.ipynb"),
    (prose("[x](00_scores.ipynb#nowhere)"), "bad.html: scores.html#nowhere has no such anchor"),
    (prose("![x](none.png)"), "nbs/01_bad.ipynb: no picture none.png"),
    (code("show_doc(nothing)"), "show_doc(nothing) names nothing that is exported"),
    (code("#| default_exp scores\n#| export\ndef score(x): return 2"), "`score` differs from scores.py; run `make notebooks`"),
])
def test_what_would_mislead_stops_the_build(repo, capsys, cell, message):
    write(repo, "01_bad", prose("# Bad"), cell)
    with pytest.raises(SystemExit) as stop: build(repo)
    assert stop.value.code and message in capsys.readouterr().err


def test_a_notebook_needs_a_title(repo, capsys):
    write(repo, "01_bad", prose("Text"))
    with pytest.raises(SystemExit): build(repo)
    assert "nbs/01_bad.ipynb: no `# Title`" in capsys.readouterr().err


def test_readme(repo, capsys):
    docs.write_readme(repo)
    text = (repo/"README.md").read_text(encoding="utf-8")
    assert "[scores](nbs/00_scores.ipynb) and `[no](link)`" in text
    assert "![Figure](docs/images/readme-1.png)" in text and "```python\n2\n```\n\n```text\n2\n```" in text
    assert (repo/"docs"/"images"/"readme-1.png").read_bytes() == base64.b64decode(PNG)
    before = (repo/"README.md").stat().st_mtime_ns
    docs.write_readme(repo)
    assert (repo/"README.md").stat().st_mtime_ns == before and capsys.readouterr().out == "wrote README.md\n"
    write(repo, "index", prose("# Start"))
    docs.write_readme(repo)
    assert not list((repo/"docs"/"images").iterdir())


def test_comments_agree_with_docments(tmp_path):
    "fastcore's reader of the same convention is the oracle."
    from fastcore.docments import docments
    source = MODULE.replace("                  # and so is nothing\n", "").replace('"Result"', "list")
    (tmp_path/"m.py").write_text(source)
    sys.path.insert(0, str(tmp_path))
    try: import m
    finally: sys.path.remove(str(tmp_path))
    for symbol, made in ((Module(tmp_path/"m.py", tmp_path).symbols[name], getattr(m, name)) for name in ("score", "Result")):
        theirs = {k: v for k, v in docments(made).items() if k not in ("self", "return")}
        assert {p.name: p.doc or None for p in symbol.params} == theirs
        assert [p.name for p in symbol.params] == list(inspect.signature(made).parameters)


def test_cells():
    assert Cell(code("#| code-fold: true\n#| fig-cap: \"A: b\"\n%matplotlib inline\nx\ny #| hide_line")).source == "x"
    assert Cell(code('#| fig-cap: "A: b"\nx')).text("fig-cap") == "A: b"
    assert plain("0%\r50%\r100%\n\x1b[1mok\x1b[0m") == "100%\nok"
    assert relink("[a](b) `[c](d)` [`e`](f)\n```\n[g](h)\n```", str.upper) == "[a](B) `[c](d)` [`e`](F)\n```\n[g](h)\n```"


def test_the_real_site(tmp_path, capsys):
    "Every link holds, and nothing is fetched from elsewhere."
    docs.build_site(ROOT, tmp_path/"site")
    assert capsys.readouterr().out.count("\n") == 1
    for page in (tmp_path/"site").rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)|<link[^>]*rel="?(?:stylesheet|icon)"?[^>]*href="([^"]+)', page.read_text())
        assert not [url for pair in loaded for url in pair if url.startswith(("http", "//"))], page


@pytest.mark.skipif(not shutil.which("node"), reason="node is not installed: the formulas are not compiled")
def test_every_formula_compiles():
    "KaTeX itself accepts every formula of the site."
    from html import unescape
    found = [unescape(f) for page in docs.Site(ROOT).pages.values() for f in re.findall(r'<(?:div|span) class="math">(.*?)</(?:div|span)>', page.body, re.S)]
    script = f"const k = require({json.dumps(str(ROOT/'docs'/'katex'/'katex.min.js'))});" + """
      for (const f of JSON.parse(require('fs').readFileSync(0))) try { k.renderToString(f, {displayMode: true, strict: false}) } catch (e) { console.log(e.message) }"""
    run = subprocess.run(["node", "-e", script], input=json.dumps(found), capture_output=True, text=True)
    assert not run.returncode and not run.stdout, run.stdout + run.stderr
