"""A notebook as Markdown: for the site (`page`) and for a repository's front page (`readme`).

Directives at the top of a cell: `#| hide` hides it, `#| echo: false` its code, `#| output: false` its result,
`#| code-fold: true` folds the code; `#| fig-cap:` and `#| fig-alt:` caption and describe a figure.
"""
import ast
import html
import re
from base64 import b64decode
from itertools import groupby

import nbformat

IMPORTS, ASSERTS = (ast.Import, ast.ImportFrom), (ast.Assert, ast.For, ast.With)


class Cell:
    "A cell with its directives and magics taken off the source."
    def __init__(self, raw):
        self.is_code, self.raw, self.source, self.said = raw.cell_type == "code", raw, raw.source, {}
        if not self.is_code: return
        self.said = {key: value.strip(" \"'")
                     for key, value in re.findall(r"^#\|[ \t]*([\w-]+):?(.*)$", raw.source, re.M)}
        self.source = re.sub(r"^(#\||%(?!%)).*\n?", "", raw.source, flags=re.M).strip()
        self.language = "sh" if re.match(r"!|%%bash|%%sh", self.source) else "python"
        self.source = re.sub(r"^%%.*\n|^!", "", self.source, flags=re.M)
        self.tree = ast.parse(self.source).body if self.language == "python" else []

    @property
    def hidden(self): return self.raw.cell_type == "raw" or "hide" in self.said or "default_exp" in self.said

    @property
    def shows_code(self): return self.is_code and self.source and self.said.get("echo") != "false"

    @property
    def alt(self): return self.said.get("fig-alt") or self.said.get("fig-cap") or "Figure"

    @property
    def defined(self):
        "The public names that an exported cell defines."
        return [n.name for n in self.tree if "export" in self.said and isinstance(n, ast.FunctionDef | ast.ClassDef)
                and n.name[0] != "_"]

    @property
    def fold(self):
        "The line over a cell that only prepares or only checks, which the site folds; else empty."
        if not self.shows_code or not self.tree: return ""
        if all(isinstance(n, IMPORTS) for n in self.tree) or "error_of" in (getattr(n, "name", "") for n in self.tree):
            return "Show setup"
        return "Show tests" if not self.raw.outputs and all(isinstance(n, ASSERTS) for top in self.tree
                                                            for n in (top, *getattr(top, "body", ()))) else ""

    @property
    def outputs(self):
        "What the cell shows, as (kind, value): a text, an error, HTML, Markdown, or a picture as (ending, bytes)."
        if self.said.get("output") == "false": return []
        shown = [output(raw) for raw in self.raw.get("outputs", [])]
        drawn = any(kind == "picture" for kind, _ in shown)
        return [(kind, value) for kind, value in shown if value
                and not (drawn and kind == "text" and re.match(r"\s*[\[(]?<(Axes|Figure)", value))]


def output(raw):
    "(kind, value) of a stored output: the first of its forms that a page can hold."
    if raw.output_type == "stream": return "text", plain(raw.text)
    if raw.output_type == "error": return "error", plain(f"{raw.ename}: {raw.evalue}")
    if "image/png" in raw.data: return "picture", ("png", b64decode(raw.data["image/png"]))
    kinds = {"image/svg+xml": "html", "text/html": "html", "text/markdown": "markdown",
             "application/vnd.jupyter.widget-view+json": "widget"}
    return next(((kinds[form], raw.data[form]) for form in kinds if form in raw.data),
                ("text", plain(raw.data.get("text/plain", ""))))


def plain(text):
    "`text` as a terminal leaves it: no colours, and of lines drawn over each other the last."
    text = re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text)
    return "\n".join(line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")).rstrip()


def cells(path): return [cell for cell in map(Cell, nbformat.read(path, 4).cells) if not cell.hidden]
def fence(code, language): return f"```{language}\n{code}\n```"
def folded(title, text):
    return f'<details class="folded" markdown="1"><summary>{title}</summary>\n\n{text}\n\n</details>'


def shown(kind, value, alt, caption, save):
    "Markdown of an output on the site; `save(ending, bytes)` keeps a picture and returns its place."
    if kind == "widget": return '<p class="output widget">Open this notebook in JupyterLab to use the controls.</p>'
    if kind == "markdown": return f'<div class="output rich" markdown="1">\n\n{value}\n\n</div>'
    if kind == "html":
        plain_table = re.sub(r"<style scoped>.*?</style>|</?div>", "", value, flags=re.S).strip()
        return f'<div class="output rich" tabindex="0" data-search-exclude>{plain_table}</div>'
    if kind != "picture":
        return f'<pre class="output {kind}" tabindex="0" data-search-exclude>{html.escape(value, quote=False)}</pre>'
    under = f'<figcaption markdown="span">{caption}</figcaption>\n' if caption else ""
    return f'<figure class="output" markdown="span">\n![{alt}]({save(*value)}){{ loading=lazy }}\n{under}</figure>'


def body(cell, find, save):
    "Markdown of one cell of the site: its prose, or its code and what it shows."
    if not cell.is_code: return cell.source.replace("$$\n$$", "$$\n\n$$")   # formulas one under another
    names = [f'<span id="{name}"></span>[`{name}`]({to})' for name in cell.defined if (to := find(name))]
    code = [fence(cell.source, cell.language)] if cell.shows_code else []
    if cell.said.get("code-fold") == "true": code = [folded("Show code", *code)]
    results = [shown(*o, cell.alt, cell.said.get("fig-cap"), save) for o in cell.outputs]
    return "\n\n".join([" ".join(names) + "\n{ .entries }"]*bool(names) + code + results)


def page(path, links, find, save):
    "The Markdown of a notebook; `links` goes under its title, `find(name)` is a link to what has the name."
    every, parts = cells(path), []
    for fold, group in groupby(every, key=lambda cell: cell.fold):
        text = "\n\n".join(body(cell, find, save) for cell in group)
        parts.append(folded(fold, text) if fold else text)
    return re.sub(r"\A(# .+\n*(?:>.*(?:\n|$))*)", lambda m: f"{m[1].rstrip()}\n\n{links}\n\n",
                  "\n\n".join(parts), count=1)


def readme(path, save):
    "The notebook as Markdown for a repository's front page."
    parts = ["<!-- Written from nbs/index.ipynb by `make notebooks`: change it there. -->"]
    for cell in cells(path):
        if not cell.is_code or cell.shows_code:
            parts.append(fence(cell.source, cell.language) if cell.is_code else cell.source)
        for kind, value in cell.outputs:
            if kind == "picture": parts.append(f"![{cell.alt}]({save(*value)})")
            else: parts.append(value if kind == "markdown" else fence(value, "text"))
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"
