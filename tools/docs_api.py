"""Read signatures, docstrings and parameter comments from the exported modules, without importing them.

The documentation needs what is written, not what runs: reading it with `ast` and `tokenize` takes milliseconds, shows
annotations and defaults as the author spelled them, and needs none of the optional packages.
"""
import ast
import io
import re
import tokenize
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@dataclass
class Param:
    "One parameter, or one field of a dataclass, as it is written."
    name: str
    star: str = ""     # "", "*" or "**"
    type: str = ""
    default: str = ""
    doc: str = ""

    @property
    def signature(self):
        text = f"{self.star}{self.name}" + (f": {self.type}" if self.type else "")
        if not self.default: return text
        return text + (f" = {self.default}" if self.type else f"={self.default}")


@dataclass
class Symbol:
    "A function, class or method of an exported module."
    name: str          # qualified in its module: "Moments.update"
    module: "Module"
    node: ast.AST
    params: list = field(default_factory=list)
    returns: Param | None = None

    @property
    def line(self): return min([self.node.lineno] + [d.lineno for d in self.node.decorator_list])
    @property
    def source(self): return "\n".join(self.module.lines[self.line-1:self.node.end_lineno])
    @property
    def doc(self): return ast.get_docstring(self.node) or ""
    @property
    def is_class(self): return isinstance(self.node, ast.ClassDef)
    @property
    def decorators(self): return [ast.unparse(d) for d in self.node.decorator_list]
    @property
    def bases(self): return [ast.unparse(b) for b in self.node.bases] if self.is_class else []
    @property
    def has_fields(self): return self.is_class and bool(self.params) and f"{self.name}.__init__" not in self.module.symbols
    @property
    def is_called(self): return not self.is_class or self.has_fields or f"{self.name}.__init__" in self.module.symbols
    @property
    def is_property(self): return any(re.fullmatch(r"(functools\.)?(cached_)?property", d) for d in self.decorators)

    @property
    def methods(self):
        "Public methods that say what they do, in the order of the source."
        return [s for s in self.module.symbols.values() if s.name.rpartition(".")[0] == self.name
                and is_public(s.name) and (s.doc or any(p.doc for p in s.params))]

    @property
    def signature(self):
        "The signature on one line where it fits, else one parameter a line."
        if self.is_property: return self.name + (f": {self.returns.type}" if self.returns and self.returns.type else "")
        if self.is_class and not self.is_called:
            return f"class {self.name}" + (f"({', '.join(self.bases)})" if self.bases else "")
        word = "class " if self.is_class else "async def " if isinstance(self.node, ast.AsyncFunctionDef) else "def "
        end = f" -> {self.returns.type}" if self.returns and self.returns.type else ""
        parts = list(self._parts())
        text = f"{word}{self.name}({', '.join(parts)}){end}"
        if len(text) <= 80 or not parts: return text
        return f"{word}{self.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"

    def _parts(self):
        init = self.module.symbols.get(f"{self.name}.__init__") if self.is_class else self
        args = init.node.args if init else ast.arguments(posonlyargs=[], args=[], kwonlyargs=[])
        positional, keyword = {a.arg for a in args.posonlyargs}, {a.arg for a in args.kwonlyargs}
        for i, p in enumerate(self.params):
            if p.name in keyword and not any(q.name in keyword or q.star == "*" for q in self.params[:i]): yield "*"
            yield p.signature
            if p.name in positional and not any(q.name in positional for q in self.params[i+1:]): yield "/"


def is_public(name): return not any(part.startswith("_") and part != "__call__" for part in name.split("."))


class Module:
    "One exported module: its source, comments and definitions."
    def __init__(self, path, package):
        self.path, self.source = path, path.read_text(encoding="utf-8")
        self.name = ".".join(path.relative_to(package).with_suffix("").parts)
        self.lines, self.tree = self.source.splitlines(), ast.parse(self.source)
        self.symbols = {s.name: s for s in self._walk(self.tree.body, "")}
        for symbol in self.symbols.values(): self._document(symbol)

    def _walk(self, body, prefix):
        for node in body:
            if isinstance(node, Definition):
                yield Symbol(prefix + node.name, self, node)
                if isinstance(node, ast.ClassDef): yield from self._walk(node.body, f"{prefix}{node.name}.")

    @cached_property
    def comments(self):
        "Line number -> (column, text, whether the line holds nothing else)."
        tokens = tokenize.generate_tokens(io.StringIO(self.source).readline)
        return {t.start[0]: (t.start[1], t.string.lstrip("#: ").strip(), t.line.lstrip().startswith("#"))
                for t in tokens if t.type == tokenize.COMMENT}

    def _comment(self, first, last):
        "The comment behind line `last`, with lines that continue it below, else the comment lines above `first`."
        column, text, alone = self.comments.get(last, (0, "", True))
        if not alone:
            while (below := self.comments.get(last := last + 1)) and below[2] and below[0] == column: text += " " + below[1]
            return text
        above = []
        while (comment := self.comments.get(first := first - 1)) and comment[2]: above.insert(0, comment[1])
        return " ".join(above)

    def _text(self, node):
        "The source of `node` on one line."
        return re.sub(r"\s*\n\s*", " ", ast.get_source_segment(self.source, node)) if node else ""

    def _type(self, node):
        "An annotation as it is written, evenly spaced, without the quotes of a forward reference."
        return re.sub(r"\s*\|\s*", " | ", re.sub(r",\s*(?=\S)", ", ", self._text(node).strip("\"'")))

    def _document(self, symbol):
        "Fill in the parameters of `symbol`, and what it returns."
        if symbol.is_class:
            init = self.symbols.get(f"{symbol.name}.__init__")
            symbol.params = self._arguments(init.node, method=True) if init else self._fields(symbol)
        else:
            symbol.params = self._arguments(symbol.node, method="." in symbol.name and "staticmethod" not in symbol.decorators)
            symbol.returns = self._returns(symbol.node)

    def _closing(self, node):
        "The line that closes the signature of `node`; a comment there is about what comes back."
        if node.returns: return node.returns.end_lineno
        args = node.args
        parts = (*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg, *args.defaults, *args.kw_defaults)
        ends = [part.end_lineno for part in parts if part]
        last, body = max(ends, default=node.lineno), node.body[0].lineno
        for n in range(last, body + 1):
            code = self.lines[n-1][:self.comments[n][0] if n in self.comments else None]
            if n == body or code.rstrip().endswith(":"): return n if n > last or last == node.lineno else None

    def _arguments(self, node, method):
        args = node.args
        positional = args.posonlyargs + args.args
        rows = list(zip(positional, [None]*(len(positional) - len(args.defaults)) + args.defaults, [""]*len(positional)))
        if args.vararg: rows.append((args.vararg, None, "*"))
        rows += zip(args.kwonlyargs, args.kw_defaults, [""]*len(args.kwonlyargs))
        if args.kwarg: rows.append((args.kwarg, None, "**"))
        ends = [(default or arg).end_lineno for arg, default, _ in rows]
        params = []
        for i, (arg, default, star) in enumerate(rows):
            shared = ends[i] in ends[i+1:] or ends[i] == self._closing(node)
            doc = "" if shared else self._comment(arg.lineno if i and ends[i-1] < arg.lineno else 0, ends[i])
            params.append(Param(arg.arg, star, self._type(arg.annotation), self._text(default), doc))
        return params[1:] if method else params

    def _returns(self, node):
        closing = self._closing(node)
        doc = self._comment(0, closing) if closing and closing < node.body[0].lineno else ""
        return Param("", type=self._type(node.returns), doc=doc) if node.returns or doc else None

    def _fields(self, symbol):
        "The fields of a dataclass, named tuple or typed dictionary."
        made = any("dataclass" in d for d in symbol.decorators) or {"NamedTuple", "TypedDict"} & {b.split(".")[-1] for b in symbol.bases}
        return [Param(n.target.id, "", self._type(n.annotation), self._text(n.value), self._comment(n.lineno, n.end_lineno))
                for n in symbol.node.body if made and isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
                and "ClassVar" not in ast.unparse(n.annotation)]


def read_modules(package):
    "Every exported module under the folder `package`, by its name."
    paths = sorted(p for p in Path(package).rglob("*.py") if not p.name.startswith("_"))
    return {m.name: m for m in (Module(p, Path(package)) for p in paths)}
