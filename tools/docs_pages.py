"""Turn notebooks into pages: HTML for the site, Markdown for the README.

A notebook is read as JupyterLab reads it (CommonMark with `$` mathematics), so a page looks as its author saw it. In
place of an exported cell stands the entry of what it defines: signature, parameters, source.
"""
import ast
import base64
import html
import json
import posixpath
import re
from functools import partial

from markdown_it import MarkdownIt
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from docs_api import Definition, is_public

hidden = {"hide", "exporti"}
ambiguous = {"train", "test", "main"}  # words of ordinary prose: linked as `train()` only


def escape(text): return html.escape(text, quote=False)
def colour(code, language="python"):
    "Highlighted HTML of `code`, without the element around it."
    try: lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound: return escape(code)
    return highlight(code, lexer, HtmlFormatter(nowrap=True)).rstrip("\n")


def code_block(code, language="python", kind=""):
    return f'<div class="highlight {kind}"><pre><code>{colour(code, language)}</code></pre></div>'


def slug(text):
    "The anchor of a heading."
    text = re.sub(r"<[^>]+>|[^\w\s-]", "", html.unescape(text)).strip().lower()
    return re.sub(r"[\s-]+", "-", text) or "section"


# ---- cells

def text_of(value): return "".join(value) if isinstance(value, list) else value


class Cell:
    "A notebook cell with its directives (`#| key: value`) taken off the source."
    directive = re.compile(r"^#\|[ \t]*([\w-]+):?[ \t]*(.*)\n?", re.M)

    def __init__(self, raw):
        self.type, self.raw = raw["cell_type"], raw
        source = text_of(raw["source"])
        self.directives = dict(self.directive.findall(source)) if self.type == "code" else {}
        if self.type == "code":
            source = re.sub(r"^.*#\|[ \t]*hide_line[ \t]*$\n?", "", source, flags=re.M)
            source = self.directive.sub("", source)
        language = re.match(r"%%(bash|sh|html|javascript|js|latex)\b.*\n", source)
        self.language = language[1] if language else "python"
        self.source = re.sub(r"^%.*\n?", "", source, flags=re.M).strip() if self.type == "code" else source

    def off(self, key): return self.directives.get(key, "").strip().lower() == "false"
    def text(self, key): return self.directives.get(key, "").strip().strip("\"'")

    @property
    def exported(self): return "export" in self.directives or "exports" in self.directives
    @property
    def hidden(self):
        return bool(hidden & self.directives.keys()) or self.off("include") or "default_exp" in self.directives and not self.exported
    @property
    def shows_code(self): return bool(self.source) and not self.off("echo")

    @property
    def tree(self):
        "The parsed source; empty where it is not plain Python."
        try: return ast.parse(self.source).body if self.type == "code" and self.language == "python" else []
        except SyntaxError: return []

    @property
    def shown_docs(self):
        "The arguments of `show_doc(...)` calls, when the cell holds nothing else."
        calls = [n.value for n in self.tree if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)
                 and ast.unparse(n.value.func) == "show_doc" and n.value.args]
        return [ast.unparse(c.args[0]) for c in calls] if len(calls) == len(self.tree) else []

    @property
    def outputs(self):
        "What the cell shows, as (kind, value) pairs."
        if self.off("output"): return []
        raw = [o for o in self.raw.get("outputs", []) if not (self.off("warning") and o.get("name") == "stderr")]
        pairs = [output(o, self.directives.get("filter_stream", "").split()) for o in raw]
        drawn = any(kind == "image" for kind, _ in pairs)
        shown = []
        for kind, value in pairs:
            if not value or drawn and kind == "text" and re.match(r"\s*[\[(]?<(Axes|Figure|[\w.]+ at 0x)", value): continue
            if kind == "text" and shown and shown[-1][0] == "text": shown[-1] = ("text", shown[-1][1].rstrip("\n") + "\n" + value)
            else: shown.append((kind, value))
        return shown


def plain(text):
    "`text` as a terminal leaves it: no colours, and of lines drawn over each other the last."
    text = re.sub(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])", "", text)
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def output(raw, words=()):
    "(kind, value) of one stored output; the first of its forms that a page can hold."
    if raw["output_type"] == "stream":
        lines = plain(text_of(raw["text"])).split("\n")
        return "text", "\n".join(l for l in lines if not any(w in l for w in words))
    if raw["output_type"] == "error": return "error", plain(f'{raw["ename"]}: {raw["evalue"]}')
    data = {kind: text_of(value) for kind, value in raw["data"].items()}
    if "application/vnd.jupyter.widget-view+json" in data: return "widget", "widget"
    for kind in ("image/svg+xml", "image/png", "image/jpeg"):
        if kind in data: return "image", (kind, data[kind], raw.get("metadata", {}).get(kind, {}))
    for kind in ("html", "markdown", "latex"):
        if f"text/{kind}" in data: return kind, (data[f"text/{kind}"], plain(data.get("text/plain", "")))
    return "text", plain(data.get("text/plain", ""))


def image_bytes(kind, data): return data.encode() if kind == "image/svg+xml" else base64.b64decode(data)
def suffix(kind): return {"image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpg"}[kind]


# ---- notebooks

class Notebook:
    "A notebook, the page it becomes (`url`), and the symbols the page has an entry for."
    def __init__(self, path, root, modules):
        self.path, self.where = path, path.relative_to(root).as_posix()
        self.cells = [Cell(raw) for raw in json.loads(path.read_text(encoding="utf-8"))["cells"]]
        name = "index" if path.stem == "index" else re.sub(r"^\d+\w*?_", "", path.stem)
        self.url = posixpath.join(*path.relative_to(root/"nbs").parent.parts, f"{name}.html")
        self.module = modules.get(next((c.directives["default_exp"].strip() for c in self.cells if "default_exp" in c.directives), ""))
        self.title, self.subtitle = self._heading()
        self.symbols, self.problems = {}, [] if self.title else [f"{self.where}: no `# Title` in the first markdown cell"]
        asked = {name for cell in self.cells if not cell.hidden for name in cell.shown_docs}
        for cell in self.cells:
            cell.entries = [] if cell.hidden else list(self._entries(cell, asked, modules))
            self.symbols |= {s.name: s for entry in cell.entries for s in (entry, *entry.shown_methods)}

    def _heading(self):
        "Title and subtitle; both leave the cell they stand in."
        cell = next((c for c in self.cells if c.type == "markdown"), None)
        found = cell and re.match(r"\s*# +(.+?)[ \t]*(?:\n\s*((?:>.*(?:\n|$))+)|$|\n)", cell.source)
        if not found: return "", ""
        cell.heading, cell.source = cell.source, cell.source[found.end():]
        return found[1], " ".join(re.findall(r"^> ?(.*)$", found[2] or "", re.M)).strip()

    def _entries(self, cell, asked, modules):
        if cell.exported and self.module:
            for node in cell.tree:
                if not isinstance(node, Definition) or not is_public(node.name) or node.name in asked: continue
                symbol = self.module.symbols.get(node.name)
                written = symbol and ast.dump(ast.parse(symbol.source).body[0]) == ast.dump(node)
                if not written: self.problems.append(f"{self.where}: `{node.name}` differs from {self.module.path.name}; run `make notebooks`")
                if symbol: yield self._with_methods(symbol, asked)
        for name in cell.shown_docs:
            owners = [m for m in (self.module, *modules.values()) if m and name.removeprefix(f"{m.name}.") in m.symbols]
            if owners: yield self._with_methods(owners[0].symbols[name.removeprefix(f"{owners[0].name}.")], asked)
            else: self.problems.append(f"{self.where}: show_doc({name}) names nothing that is exported")

    def _with_methods(self, symbol, asked):
        symbol.shown_methods = [m for m in symbol.methods if m.name not in asked]
        for m in symbol.shown_methods: m.shown_methods = []
        return symbol


class Index:
    "Where everything is: symbol -> page and anchor, file -> page."
    def __init__(self, notebooks, modules):
        self.notebooks, self.modules, self.names = notebooks, modules, {}
        self.pages = {nb.where: nb for nb in notebooks}
        for nb in notebooks:
            for name, symbol in nb.symbols.items():
                for key in (name, f"{symbol.module.name}.{name}"): self.names.setdefault(key, []).append((nb, name))

    def find(self, text, here):
        "The url that `text`, the inside of a pair of backticks, should lead to, or None."
        called = text.endswith("()")
        name = text.removesuffix("()").removeprefix("istar_nb.")
        if name in ambiguous and not called: return None
        found = self.names.get(name, [])
        found = [f for f in found if f[0] is here] or found
        if len({f[0].url for f in found}) == 1: return f"{found[0][0].url}#{found[0][1]}"
        module = self.modules.get(name) if not called else None
        return next((nb.url for nb in self.notebooks if module and nb.module is module and nb is not here), None)


# ---- Markdown

def math(text, display):
    tag = "div" if display else "span"
    return f'<{tag} class="math">{escape(text.strip())}</{tag}>'


def make_markdown():
    "The renderer of prose; `env['page']` is the page it renders for."
    md = MarkdownIt("commonmark", {"html": True, "highlight": lambda code, name, attrs: colour(code.rstrip("\n"), name or "text")})
    md.enable(["table", "strikethrough"])
    md.use(dollarmath_plugin, double_inline=True, allow_labels=False).use(amsmath_plugin)
    rules = {"math_inline": False, "math_inline_double": True, "math_block": True, "amsmath": True}
    for name, display in rules.items():
        md.add_render_rule(name, lambda self, tokens, i, *_, display=display: math(tokens[i].content, display))
    for rule in (code_inline, fence, heading_open, heading_close, link_open, image): md.add_render_rule(rule.__name__, rule)
    md.add_render_rule("table_open", lambda *_: '<div class="table"><table>\n')
    md.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return md


def code_inline(self, tokens, i, options, env):
    text, page = tokens[i].content, env["page"]
    depth = sum({"link_open": 1, "link_close": -1}.get(t.type, 0) for t in tokens[:i])
    url = None if depth or env.get("heading") else page.index.find(text, page.notebook)
    code = f"<code>{escape(text)}</code>"
    return f'<a class="xref" href="{page.relative(url)}">{code}</a>' if url else code


def fence(self, tokens, i, options, env):
    words = tokens[i].info.split()
    return code_block(tokens[i].content.rstrip("\n"), words[0] if words else "text") + "\n"


def heading_open(self, tokens, i, options, env):
    page, level, env["heading"] = env["page"], int(tokens[i].tag[1]), True
    text = self.renderInline(tokens[i+1].children, options, env)
    env["anchor"] = page.add_heading(level, text, slug(tokens[i+1].content))
    return f'<h{level} id="{env["anchor"]}">'


def heading_close(self, tokens, i, options, env):
    env["heading"] = False
    return f'{permalink(env["anchor"])}</{tokens[i].tag}>\n'


def link_open(self, tokens, i, options, env):
    tokens[i].attrSet("href", env["page"].target(tokens[i].attrs["href"]))
    return self.renderToken(tokens, i, options, env)


def image(self, tokens, i, options, env):
    alt = self.renderInlineAsText(tokens[i].children, options, env)
    return f'<img src="{env["page"].asset(tokens[i].attrs["src"])}" alt="{html.escape(alt)}" loading="lazy">'


def permalink(anchor): return f'<a class="headerlink" href="#{anchor}" title="Link to this section" data-search-exclude>¶</a>'

markdown = make_markdown()
remarks = make_markdown().disable("emphasis")  # comments hold stars and underscores that mean what they are


# ---- pages

class Page:
    "A page of the site under construction: its body, headings and figures."
    def __init__(self, url, title, site, notebook=None, description="", where=""):
        self.url, self.title, self.notebook, self.description = url, title, notebook, description
        self.site, self.index, self.where = site, site.index, where
        self.parts, self.headings, self.files, self.cell = [], [], {}, None
        self.taken = set(notebook.symbols) if notebook else set()
        self.entered = set()

    @property
    def body(self): return "\n".join(self.parts)

    def add(self, *parts): self.parts += parts
    def prose(self, text, md=markdown): return md.render(text, {"page": self})
    def inline(self, text, md=markdown): return md.renderInline(text, {"page": self})
    def relative(self, url):
        path, mark, anchor = url.partition("#")
        return (posixpath.relpath(path, posixpath.dirname(self.url) or ".") if path != self.url else "") + mark + anchor

    def add_heading(self, level, text, anchor):
        "Enter a heading in the table of contents and return its anchor, made unique."
        base, n = anchor, 1
        while anchor in self.taken: anchor, n = f"{base}-{n}", n + 1
        self.taken.add(anchor)
        self.headings.append((level, anchor, text))
        return anchor

    @property
    def toc(self):
        "The headings as the nested tokens that mkdocs expects."
        top = {"level": 0, "children": []}
        path = [top]
        for level, anchor, text in self.headings:
            while path[-1]["level"] >= level: path.pop()
            item = {"level": level, "id": anchor, "name": text, "children": []}
            path[-1]["children"].append(item)
            path.append(item)
        return top["children"]

    def target(self, href):
        "Where a link written in a notebook leads on the site."
        if re.match(r"[a-z][a-z+.-]*:|//", href): return href
        path, _, anchor = href.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(self.where), path)) if path else self.where
        nb = self.index.pages.get(file)
        if anchor: anchor = "#" + (anchor if nb and anchor in nb.symbols else slug(anchor))
        url = self.site.url_of(file)
        if url is None: self.site.problems.append(f"{self.where}: broken link to {href}")
        return href if url is None else url + anchor if "://" in url else self.relative(url + anchor) or "#"

    def asset(self, src):
        "Carry a picture over to the site and return its place there."
        if re.match(r"[a-z]+:", src):
            name = src.removeprefix("attachment:")
            forms = (self.cell and self.cell.raw.get("attachments", {}).get(name, {})) or {}
            for kind, data in forms.items(): return self.save(image_bytes(kind, data), suffix(kind))
            return src
        file = posixpath.normpath(posixpath.join(posixpath.dirname(self.where), src))
        if not (self.site.root/file).is_file():
            self.site.problems.append(f"{self.where}: no picture {src}")
            return src
        return self.save((self.site.root/file).read_bytes(), file.rpartition(".")[2])

    def save(self, data, ending):
        stem = self.url.removesuffix(".html").replace("/", "-")
        name = f"figures/{stem}-{len(self.files) + 1}.{ending}"
        self.files[name] = data
        return self.relative(name)

    # -- outputs

    def show(self, kind, value):
        "HTML of one output."
        if kind == "text": return f'<aside class="output" data-search-exclude><pre>{escape(value.rstrip())}</pre></aside>'
        if kind == "error":
            name, _, message = value.partition(": ")
            return f'<aside class="output error" data-search-exclude><pre><b>{escape(name)}</b>: {escape(message)}</pre></aside>'
        if kind == "widget": return '<aside class="output widget"><p>Interactive: open this notebook in JupyterLab to use the controls.</p></aside>'
        if kind == "image": return self.figure(*value)
        if kind == "markdown": return f'<aside class="output rich">{self.prose(value[0])}</aside>'
        if kind == "latex": return f'<aside class="output rich">{math(value[0].strip().strip("$"), True)}</aside>'
        text = re.sub(r"<style scoped>.*?</style>", "", value[0], flags=re.S)
        text = re.sub(r'<table border="1" class="dataframe">', '<table class="dataframe">', text)
        return f'<aside class="output rich math-text" data-search-exclude>{text}</aside>'

    def figure(self, kind, data, about):
        caption, alt = self.cell.text("fig-cap"), self.cell.text("fig-alt") or self.cell.text("fig-cap")
        src = self.save(image_bytes(kind, data), suffix(kind))
        width = f' width="{about["width"]}"' if about.get("width") else ""
        alt = html.escape(alt or f"Figure {len(self.files)} of {self.title}")
        under = f"<figcaption>{self.inline(caption)}</figcaption>" if caption else ""
        return f'<figure class="output"><img src="{src}" alt="{alt}"{width} loading="lazy">{under}</figure>'

    # -- API entries

    def entry(self, symbol, level=3, opened=""):
        "Signature, description, parameters, source and methods of `symbol`."
        first = symbol.name not in self.entered
        self.entered.add(symbol.name)
        anchor = f' id="{symbol.name}"' if first else ""
        label = symbol.name if level == 3 else symbol.name.rpartition(".")[2]
        if first: self.headings.append((level, symbol.name, f'<code>{escape(label)}</code>'))
        source = self.relative(f"source/{symbol.module.name}.html#L{symbol.line}")
        self.add(f'<section class="api api-{"class" if symbol.is_class else "function"}">',
                 f'<h{level}{anchor}><code>{escape(symbol.name)}</code>{permalink(symbol.name)}'
                 f'<a class="api-source" href="{source}" data-search-exclude>source</a></h{level}>',
                 code_block(symbol.signature, kind="api-signature"))
        bases = symbol.bases if symbol.is_called else []  # else the signature names them
        if bases: self.add(f'<p class="api-bases">Bases: {", ".join(self.inline(f"`{b}`") for b in bases)}</p>')
        if symbol.doc: self.add(self.prose(symbol.doc))
        self.add(self.parameters(symbol), self.folded("Source", symbol.source, opened))
        for method in symbol.shown_methods: self.entry(method, level + 1)
        self.add("</section>")

    def parameters(self, symbol):
        "The table of parameters; empty where nothing is said about any."
        rows, back = symbol.params, symbol.returns
        if not any(p.doc for p in rows) and not (back and back.doc): return ""
        if not rows:
            return f'<p class="api-bases">Returns {self.typed(back.type)}: {self.inline(back.doc, remarks)}</p>'
        cell = lambda text: f"<td>{self.typed(text)}</td>"
        row = lambda name, p: f"<td>{name}</td>{cell(p.type)}{cell(p.default)}<td>{self.inline(p.doc, remarks)}</td></tr>"
        lines = ["<tr>" + row(f"<code>{p.star}{p.name}</code>", p) for p in rows]
        if back: lines.append('<tr class="api-returns">' + row("returns", back))
        head = "".join(f"<th>{name}</th>" for name in ("Field" if symbol.has_fields else "Parameter", "Type", "Default", "Description"))
        return (f'<div class="table"><table class="api-parameters"><thead><tr>{head}</tr></thead>'
                f'<tbody>{"".join(lines)}</tbody></table></div>')

    def typed(self, text):
        "Code with each name the site knows made a link."
        if not text: return ""
        known = lambda m: (url := self.index.find(m[0], self.notebook)) and f'<a href="{self.relative(url)}">{m[0]}</a>' or m[0]
        return "<code>" + re.sub(r"\b[A-Z]\w+\b", known, escape(text)) + "</code>"

    def folded(self, title, code, opened=""):
        return f'<details class="api-code" {opened}><summary>{title}</summary>{code_block(code)}</details>'

    # -- cells

    def add_cell(self, cell):
        self.cell = cell
        if cell.hidden or cell.type == "raw": return
        if cell.type == "markdown": return self.add(self.prose(cell.source))
        if cell.entries:
            for symbol in cell.entries: self.entry(symbol, 4 if "." in symbol.name else 3, "open" if "exports" in cell.directives else "")
        elif cell.exported: self.add_exported(cell)
        elif cell.shows_code and not cell.shown_docs:
            code = code_block(cell.source, cell.language, "input")
            summary = cell.text("code-summary") or "Code"
            self.add(self.folded(summary, cell.source) if cell.text("code-fold") == "true" else code)
        if not cell.shown_docs: self.add(*(self.show(*o) for o in cell.outputs))

    def add_exported(self, cell):
        "Exported constants and helpers have no entry; their source stands folded, imports not at all."
        names = [n for node in cell.tree for n in defined(node)]
        if names and cell.shows_code: self.add(self.folded("Source of " + ", ".join(f"<code>{escape(n)}</code>" for n in names), cell.source))


def defined(node):
    "The names a top-level statement defines."
    if isinstance(node, Definition): return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [t.id for t in targets if isinstance(t, ast.Name) and t.id != "__all__"]


# ---- README

def readme(notebook, save, link):
    "The notebook as Markdown for a repository's front page; `save(bytes, ending)` keeps a figure, `link` rewrites a target."
    parts = ["<!-- Written from nbs/index.ipynb by `make notebooks`: change it there. -->"]
    for cell in notebook.cells:
        if cell.hidden or cell.type == "raw": continue
        if cell.type == "markdown": parts.append(relink(getattr(cell, "heading", cell.source), link))
        else:
            if cell.shows_code: parts.append(f"```{cell.language}\n{cell.source}\n```")
            parts += [readme_output(cell, kind, value, save) for kind, value in cell.outputs]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def relink(text, link):
    "Rewrite the targets of links and pictures outside code."
    pieces = re.split(r"(^```.*?^```[ \t]*$|`[^`\n]+`(?!\]))", text, flags=re.M | re.S)
    swap = partial(re.sub, r"(\]\()([^)\s]+)", lambda m: m[1] + link(m[2]))
    return "".join(piece if i % 2 else swap(piece) for i, piece in enumerate(pieces))


def readme_output(cell, kind, value, save):
    if kind == "image":
        alt = cell.text("fig-alt") or cell.text("fig-cap") or "Figure"
        return f"![{alt}]({save(image_bytes(*value[:2]), suffix(value[0]))})"
    if kind == "markdown": return value[0]
    if kind == "widget": return ""
    text = value[1] or value[0] if isinstance(value, tuple) else value
    return f"```text\n{text.rstrip()}\n```"
