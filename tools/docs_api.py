"""The reference: Markdown of a module, read from its source with `ast`, so that no optional package is needed.

The comment beside a parameter or field says what it is (fastcore's "docments"); one where the signature ends, what is
returned.
"""
import ast
import html
import io
import re
import tokenize

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    "A module's public definitions: (name, node) pairs, methods behind their class."
    def __init__(self, path):
        self.name, source = path.stem, path.read_text(encoding="utf-8")
        self.lines = source.splitlines()
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        self.comments = {t.start[0]: t.string.lstrip("# ").strip() for t in tokens if t.type == tokenize.COMMENT}
        tree = ast.parse(source).body
        self.classes = {node.name: node for node in tree if isinstance(node, ast.ClassDef)}
        for node in self.classes.values(): self.inherit(node)
        self.public = [found for node in tree for found in self.definitions(node)]

    def inherit(self, node):
        "Give a class what its private bases define: they are steps on the way to it, and have no entry of their own."
        for base in [self.classes[b.id]
                     for b in node.bases if isinstance(b, ast.Name) and b.id[0] == "_" and b.id in self.classes]:
            own, start = {called(n) for n in node.body}, ast.get_docstring(node) is not None
            node.body[start:start] = [n for n in base.body if called(n) not in own | {None}]
            node.bases += [*base.decorator_list, *base.bases]    # a dataclass makes one of those that build on it

    def definitions(self, node, owner=""):
        if not isinstance(node, Function | ast.ClassDef) or node.name[0] == "_" and node.name != "__call__": return
        if owner and not ast.get_docstring(node) and not self.said(node): return
        yield owner + node.name, node
        for inner in node.body*isinstance(node, ast.ClassDef): yield from self.definitions(inner, f"{node.name}.")

    def said(self, node):
        "Name -> comment, of parameters, fields and `return`."
        if isinstance(node, ast.ClassDef):
            owners = {n.lineno: n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}
        else:
            args = [n for n in ast.walk(node.args) if isinstance(n, ast.arg)]
            last = max([node.lineno, *(n.end_lineno for n in ast.walk(node.args) if hasattr(n, "end_lineno"))])
            body = node.body[0].lineno
            end = range(node.returns.end_lineno, body) if node.returns else range(last + (last > node.lineno), body)
            owners = {arg.lineno: arg.arg for arg in args} | dict.fromkeys(end, "return")
        return {name: self.comments[line] for line, name in owners.items() if line in self.comments}

    def source(self, node):
        return "\n".join(self.lines[min(n.lineno for n in (node, *node.decorator_list))-1:node.end_lineno])


def called(node):
    "The name of a method or a field, None of anything else."
    return getattr(node, "name", None) or getattr(getattr(node, "target", None), "id", None)


def written(node): return ast.unparse(node).strip("'\"") if node else ""


def parameters(node):
    "(name, type, default) of a function's parameters or a class's fields."
    if isinstance(node, ast.ClassDef):
        init = [n for n in node.body if getattr(n, "name", "") == "__init__"]
        if init: return parameters(init[0])
        made = re.search("dataclass|NamedTuple|TypedDict",
                         " ".join(map(ast.unparse, (*node.decorator_list, *node.bases))))
        return [(n.target.id, written(n.annotation), written(n.value)) for n in node.body if made
                and isinstance(n, ast.AnnAssign) and "ClassVar" not in ast.unparse(n.annotation)]
    a, plain = node.args, node.args.posonlyargs + node.args.args
    rows = [*zip(plain, [None]*(len(plain) - len(a.defaults)) + a.defaults), (a.vararg, None),
            *zip(a.kwonlyargs, a.kw_defaults), (a.kwarg, None)]
    return [(f"{'*'*((arg is a.vararg) + 2*(arg is a.kwarg))}{arg.arg}", written(arg.annotation), written(value))
            for arg, value in rows
            if arg and arg.arg != "self" and not (arg.arg == "cls" and node.decorator_list)]


def signature(name, node):
    "As it is called; a property has none."
    if any("property" in ast.unparse(d) for d in node.decorator_list):
        return f"{name}: {written(node.returns)}".removesuffix(": ")
    inside = ", ".join(p + (f": {kind}" if kind else "") + (f" = {value}" if value else "")
                       for p, kind, value in parameters(node))
    if isinstance(node, ast.ClassDef): return f"class {name}" + f"({inside})"*bool(inside)
    return f"def {name}({inside})" + f" -> {written(node.returns)}"*bool(node.returns)


def literal(text):
    "`text` with the marks of Markdown escaped, outside backticks."
    pieces = re.split(r"(`[^`]+`)", text)
    return "".join(p if i % 2 else re.sub(r"([\\*_{}\[\]|$])", r"\\\1", html.escape(p, quote=False))
                   for i, p in enumerate(pieces))


def table(node, said, find):
    "Markdown of the parameters; empty if no comment describes any. `find(name)` is a link to that name, or None."
    def known(match): return f"[{match[0]}]({to})" if (to := find(match[0])) else match[0]
    def code(text): return f"<code>{re.sub(r'[A-Z][A-Za-z]+', known, literal(text))}</code>" if text else ""
    rows = [(f"`{name}`", code(kind), code(value), literal(said.get(name.strip("*"), "")))
            for name, kind, value in parameters(node)]
    back = written(getattr(node, "returns", None))
    if back or "return" in said: rows.append(("*returns*", code(back), "", literal(said.get("return", ""))))
    if not said or not rows: return ""
    lines = [" | ".join(row).join("||") for row in [("Name", "Type", "Default", "Meaning"), ("---",)*4, *rows]]
    return '<div class="api-parameters" markdown="1">\n\n' + "\n".join(lines) + "\n\n</div>"


def page(module, package, about, find):
    "The reference page of a module; `about` is a line that leads to its notebook."
    parts = [f"# {package}.{module.name}", about]
    for name, node in module.public:
        init = next((n for n in getattr(node, "body", []) if getattr(n, "name", "") == "__init__"), node)
        parts += [f"##{'#'*('.' in name)} `{name}` {{ #{name} }}",
                  f"```python {{ .signature }}\n{signature(name, node)}\n```",
                  ast.get_docstring(node), table(node, module.said(init), find)]
        if "." not in name:
            parts.append(f'<details class="folded" markdown="1"><summary>Source of '
                         f'{name}</summary>\n\n```python\n{module.source(node)}\n```\n\n</details>')
    return "\n\n".join(filter(None, parts))


def overview(modules, package, about):
    "One page that lists everything public; `about` maps a module's name to a line on it."
    parts = ["# Reference", "Everything public, module by module."]
    for module in modules:
        rows = [f"| [`{name}`]({module.name}.md#{name}) | {(ast.get_docstring(node) or '').partition(chr(10))[0]} |"
                for name, node in module.public if "." not in name]
        parts += [f"## {package}.{module.name} {{ #{module.name} }}", about.get(module.name, ""),
                  "\n".join(["| Name | What it is |", "|---|---|", *rows])]
    return "\n\n".join(parts)
