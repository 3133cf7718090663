"""A notebook as Markdown: for the site (`page`) and for a repository's front page (`readme`).

Directives at the top of a cell: `#| hide` hides it, `#| echo: false` its code, `#| output: false` its result,
`#| code-fold: true` folds the code; `#| fig-cap:` and `#| fig-alt:` caption and describe a figure.
"""
import ast
import html
import re
from base64 import b64decode
from io import BytesIO
from itertools import count, groupby

import nbformat
from nbconvert.filters import strip_ansi
from PIL import Image

IMPORTS, ASSERTS = (ast.Import, ast.ImportFrom), (ast.Assert, ast.For, ast.With)
FORMS = "image/png", "text/html", "text/markdown", "text/plain"     # the first that an output has is shown


class Cell:
    "A cell with its directives and magics taken off the source."
    def __init__(self, raw):
        self.is_code, self.source, self.said, self.tree, self.outputs = raw.cell_type == "code", raw.source, {}, [], []
        if not self.is_code: return
        said = self.said = {key: value.strip(" \"'")
                            for key, value in re.findall(r"^#\|[ \t]*([\w-]+):?(.*)$", raw.source, re.M)}
        self.source = re.sub(r"^(#\||%).*\n?", "", raw.source, flags=re.M).strip()
        self.shows_code = self.source and said.get("echo") != "false"
        self.language = "sh" if re.search("^%%bash", raw.source, re.M) else "python"
        if self.language == "python": self.tree = ast.parse(self.source).body
        self.alt = said.get("fig-alt") or said.get("fig-cap") or "Figure"
        if said.get("output") != "false": self.outputs = [output(raw) for raw in raw.get("outputs", [])]

    @property
    def fold(self):
        "The line over a cell that only prepares or only checks, which the site folds; else empty."
        if not self.tree or not self.shows_code: return ""
        if all(isinstance(n, IMPORTS) for n in self.tree) or "error_of" in (getattr(n, "name", "") for n in self.tree):
            return "Show setup"
        inside = [n for top in self.tree for n in (top, *getattr(top, "body", ()))]
        return "Show tests" if not self.outputs and all(isinstance(n, ASSERTS) for n in inside) else ""


def output(raw):
    "(form, value) of a stored output; the form is one of FORMS, or text or error for what is only text."
    if raw.output_type == "error": return "error", f"{raw.ename}: {raw.evalue}"
    data = raw.get("data") or {"text/plain": raw.text}
    form = next(form for form in FORMS if form in data)
    if form != "text/plain": return form, data[form]
    return "text", re.sub(r" +$", "", strip_ansi(data[form]), flags=re.M).rstrip()


def cells(path):
    "The cells of a notebook that are not hidden."
    return [cell for cell in map(Cell, nbformat.read(path, 4).cells) if not cell.said.keys() & {"hide", "default_exp"}]


def figures(cells):
    "PNG files of the figures, in their order."
    return [b64decode(value) for cell in cells for form, value in cell.outputs if form == "image/png"]


def size(value):
    "Width and height at which a page, which has 96 dots an inch, shows a figure, which has more for sharp screens."
    image = Image.open(BytesIO(b64decode(value)))
    return tuple(round(length*96/dots) for length, dots in zip(image.size, image.info["dpi"]))


def fence(code, language): return f"```{language}\n{code}\n```"
def folded(title, text):
    return f'<details class="folded" markdown="1"><summary>{title}</summary>\n\n{text}\n\n</details>'


def shown(form, value, cell, places):
    "Markdown of an output on the site; `places` is where the figures to come are."
    if form == "text/markdown": return f'<div class="output rich" markdown="1">\n\n{value}\n\n</div>'
    if form == "text/html":
        plain_table = re.sub(r"<style scoped>.*?</style>|</?div>", "", value, flags=re.S).strip()
        return f'<div class="output rich" tabindex="0" data-search-exclude>{plain_table}</div>'
    if form != "image/png":
        return f'<pre class="output {form}" tabindex="0" data-search-exclude>{html.escape(value, quote=False)}</pre>'
    caption = cell.said.get("fig-cap")
    under = f'<figcaption markdown="span">{caption}</figcaption>\n' if caption else ""
    width, height = size(value)    # so that a page knows its room before it comes
    picture = f"![{cell.alt}]({next(places)}){{ loading=lazy width={width} height={height} }}"
    return f'<figure class="output" markdown="span">\n{picture}\n{under}</figure>'


def body(cell, reference, places):
    "Markdown of one cell of the site: its prose, or its code and what it shows."
    if not cell.is_code: return cell.source.replace("$$\n$$", "$$\n\n$$")   # formulas one under another
    public = [n.name for n in cell.tree if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name[0] != "_"]
    names = [f'<span id="{name}"></span>[`{name}`]({reference}#{name})' for name in public if "export" in cell.said]
    code = [fence(cell.source, cell.language)] if cell.shows_code else []
    if cell.said.get("code-fold") == "true": code = [folded("Show code", *code)]
    results = [shown(form, value, cell, places) for form, value in cell.outputs]
    return "\n\n".join([" ".join(names) + "\n{ .entries }"]*bool(names) + code + results)


def page(cells, links, reference, figures):
    """The Markdown of a notebook; `links` goes under its title.

    `reference` is the page of the module it exports, and its figures are `figures`-1.png and so on.
    """
    places, parts = (f"{figures}-{i}.png" for i in count(1)), []
    for fold, group in groupby(cells, key=lambda cell: cell.fold):
        text = "\n\n".join(body(cell, reference, places) for cell in group)
        parts.append(folded(fold, text) if fold else text)
    return re.sub(r"\A# .+\n*(>.*(\n|$))*", lambda title: f"{title[0].rstrip()}\n\n{links}\n\n", "\n\n".join(parts))


def readme(cells, figures):
    "The notebook as Markdown for a repository's front page; its figures are `figures`-1.png and so on."
    parts, number = ["<!-- Written from nbs/index.ipynb by `make notebooks`: change it there. -->"], count(1)
    for cell in cells:
        if not cell.is_code: parts.append(cell.source)
        elif cell.shows_code: parts.append(fence(cell.source, cell.language))
        for form, value in cell.outputs:
            if form == "image/png":
                parts.append(f'<img src="{figures}-{next(number)}.png" width="{size(value)[0]}" alt="{cell.alt}">')
            else: parts.append(value if form == "text/markdown" else fence(value, "text"))
    return "\n\n".join(part.strip() for part in parts) + "\n"
