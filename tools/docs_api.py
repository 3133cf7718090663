"""The reference: Markdown of a module, read from its source with `ast`, so that no optional package is needed.

The comment beside a parameter or field says what it is (fastcore's "docments"); one where the signature ends, what is
returned.
"""
import ast
import io
import re
import tokenize

from docs_pages import fence, folded

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    "A module's public definitions: (name, node) pairs, methods behind their class."
    def __init__(self, path, package):    # the folder of the package
        self.file, source = path.relative_to(package).as_posix(), path.read_text(encoding="utf-8")
        self.name = self.file.removesuffix(".py").replace("/", ".")
        self.lines, self.notebook = source.splitlines(), re.search(r"File to edit: (?:\.\./)+(\S+\.ipynb)", source)[1]
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        self.comments = {t.start[0]: t.string.strip("# ") for t in tokens if t.type == tokenize.COMMENT}
        tree = ast.parse(source).body
        self.classes = {node.name: node for node in tree if isinstance(node, ast.ClassDef)}
        for node in self.classes.values(): self.inherit(node)
        self.public = [found for node in tree for found in self.definitions(node)]

    def inherit(self, node):
        "Give a class what its private bases define: they are steps on the way to it, and have no entry of their own."
        for name in [ast.unparse(base) for base in node.bases]:
            if name[0] != "_" or name not in self.classes: continue
            base = self.classes[name]
            every = {called(n): n for n in [*base.body, *node.body]}.values()
            node.body = sorted(every, key=lambda n: not isinstance(n, ast.Expr))    # the docstring comes first
            node.bases += [*base.decorator_list, *base.bases]    # a dataclass makes one of those that build on it

    def definitions(self, node, owner=""):
        if not isinstance(node, Function | ast.ClassDef) or node.name[0] == "_" and node.name != "__call__": return
        if owner and not ast.get_docstring(node) and not self.said(node): return
        yield owner + node.name, node
        for inner in node.body*isinstance(node, ast.ClassDef): yield from self.definitions(inner, f"{node.name}.")

    def about(self, file):
        "Where the module is explained, for a page of the package's `file`."
        link = f"{'../'*(file.count('/') + 1)}{self.notebook}"
        return f"Explained, tested and drawn in the notebook [`{self.notebook.split('/')[-1][:-6]}`]({link})."

    def said(self, node):
        "Name -> comment, of parameters, fields and `return`."
        owners = {line: name.strip("*") for name, _, _, line in parameters(node)}
        if isinstance(node, Function):
            end = max(node.lineno, node.body[0].lineno - 1)
            if node.returns or end not in owners: owners[end] = "return"
        return {name: self.comments[line] for line, name in owners.items() if line in self.comments}

    def source(self, node):
        return "\n".join(self.lines[min(n.lineno for n in (node, *node.decorator_list))-1:node.end_lineno])


def called(node):
    "The name of a method or a field; the kind of anything else."
    return getattr(node, "name", None) or getattr(getattr(node, "target", None), "id", type(node))


def written(node): return ast.unparse(node) if node else ""


def kind_of(annotation): return written(annotation).strip("'\"")    # a name in quotation marks is one too


def parameters(node):
    "(name, type, default, line) of a function's parameters, or of those or the fields that make a class."
    if isinstance(node, ast.ClassDef):
        init = [n for n in node.body if called(n) == "__init__"]
        if init: return parameters(init[0])
        made = any(re.search("dataclass|NamedTuple", ast.unparse(n)) for n in (*node.decorator_list, *node.bases))
        return [(n.target.id, kind_of(n.annotation), written(n.value), n.lineno) for n in node.body
                if made and isinstance(n, ast.AnnAssign) and "ClassVar" not in ast.unparse(n.annotation)]
    a, plain = node.args, node.args.posonlyargs + node.args.args
    values = dict(zip(plain[::-1], a.defaults[::-1])) | dict(zip(a.kwonlyargs, a.kw_defaults))
    stars = {a.vararg: "*", a.kwarg: "**"}
    return [(stars.get(arg, "") + arg.arg, kind_of(arg.annotation), written(values.get(arg)), arg.lineno)
            for arg in (*plain, a.vararg, *a.kwonlyargs, a.kwarg)
            if arg and arg.arg != "self" and not (arg.arg == "cls" and node.decorator_list)]


def signature(name, node):
    "As it is called; a property has none."
    back = kind_of(getattr(node, "returns", None))
    if any("property" in ast.unparse(d) for d in node.decorator_list): return f"{name}: {back}".removesuffix(": ")
    inside = ", ".join(p + (f": {kind}" if kind else "") + (f" = {value}" if value else "")
                       for p, kind, value, _ in parameters(node))
    if isinstance(node, ast.ClassDef): return f"class {name}" + f"({inside})"*bool(inside)
    return f"def {name}({inside})" + f" -> {back}"*bool(back)


def literal(text):
    "`text` with the marks of Markdown escaped, outside backticks."
    marks = {"<": "&lt;", "&": "&amp;"}
    return re.sub(r"(`[^`]+`)|([\\*_{}\[\]|$<&])", lambda m: m[1] or marks.get(m[2], f"\\{m[2]}"), text)


def table(node, said, find):
    "Markdown of the parameters; empty if no comment describes any. `find(name)` is a link to that name, or None."
    def known(match): return f"[{match[0]}]({to})" if (to := find(match[0])) else match[0]
    def code(text): return f"<code>{re.sub(r'[A-Z][A-Za-z]+', known, literal(text))}</code>" if text else ""
    rows = [(f"`{name}`", code(kind), code(value), literal(said.get(name.strip("*"), "")))
            for name, kind, value, _ in parameters(node)]
    back = kind_of(getattr(node, "returns", None))
    if back or "return" in said: rows.append(("*returns*", code(back), "", literal(said.get("return", ""))))
    if not said or not rows: return ""
    lines = [" | ".join(row).join("||") for row in [("Name", "Type", "Default", "Meaning"), ("---",)*4, *rows]]
    return '<div class="api-parameters" markdown="1">\n\n' + "\n".join(lines) + "\n\n</div>"


def page(module, package, find):
    "The reference page of a module."
    parts = [f"# {package}.{module.name}", module.about(module.file)]
    for name, node in module.public:
        parts += [f"##{'#'*('.' in name)} `{name}` {{ #{name} }}",
                  f"```python {{ .signature }}\n{signature(name, node)}\n```",
                  ast.get_docstring(node), table(node, module.said(node), find)]
        if "." not in name: parts.append(folded(f"Source of {name}", fence(module.source(node), "python")))
    return "\n\n".join(filter(None, parts))


def overview(modules, package, owners):
    "One page: what `import` of the package offers, by module in `owners`, and then everything in its modules."
    modules = list(modules)
    said = {(module.name, name): (module.file, (ast.get_docstring(node) or "").partition("\n")[0])
            for module in modules for name, node in module.public}
    rows = [f"| [`{name}`]({said[owner, name][0]}#{name}) | {said[owner, name][1]} |" for name, owner in owners.items()]
    table = "\n".join(["| Name | What it is |", "|---|---|", *rows])
    parts = ["# Reference", *[f"What `import {package}` offers.", table, "The modules below also hold what only the "
                              "package itself needs."]*bool(rows)]
    for module in modules:
        rows = [f"| [`{name}`]({module.file}#{name}) | {(ast.get_docstring(node) or '').partition(chr(10))[0]} |"
                for name, node in module.public if "." not in name]
        parts += [f"## {package}.{module.name} {{ #{module.name} }}", module.about("__init__.py"),
                  "\n".join(["| Name | What it is |", "|---|---|", *rows])]
    return "\n\n".join(parts)
