"""What editors and `help` know of the names of `import istar_nb`, and the list of notebooks: `python tools/surface.py`
writes all three files.

`__init__.pyi` says which module has a name. `_docstrings.py` has a docstring for each, made of the first line and the
comments that its notebook has, of the errors that its code raises, and of the examples that run in nbs/api.ipynb.
"""
import ast
import sys
from functools import cache
from pathlib import Path
from textwrap import indent

import nbformat
import rooms

sys.path.insert(0, str(Path(__file__).resolve().parent))
from docs_api import Module, called, kind_of, parameters

from istar_nb.base.checks import in_words

HEAD = "# Written by tools/surface.py, which `make notebooks` runs: do not edit.\n"


class Surface:
    "The public names of the package in the repository `root`."
    def __init__(self, root):
        self.package, self.module = root/"istar_nb", cache(self.read)
        tree = ast.parse((self.package/"__init__.py").read_text(encoding="utf-8"))
        table = next(ast.literal_eval(node.value) for node in tree.body
                     if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_public")
        self.owners = {name: module for owners in table.values() for module, names in owners.items()
                       for name in names.split()}
        self.examples = {}
        for cell in nbformat.read(root/"nbs"/"api.ipynb", 4).cells:
            if not cell.source.startswith("#| example"): continue
            for node in ast.parse(cell.source).body:
                shown = ast.get_source_segment(cell.source, node)
                used = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "inb"]
                for name in (n.attr for n in used): self.examples.setdefault(name, shown)

    def read(self, module): return Module(self.package/f"{module.replace('.', '/')}.py", self.package)

    def making(self, module, node):
        "The module and definition whose parameters make `node`: itself, or for a class the first base that has some."
        if isinstance(node, ast.ClassDef) and not parameters(node):
            for base in map(ast.unparse, node.bases):
                if base in module.classes: return self.making(module, module.classes[base])
                for found in ast.parse("\n".join(module.lines)).body:
                    if isinstance(found, ast.ImportFrom) and found.level and base in (n.name for n in found.names):
                        folder = module.name.split(".")[0] if found.level == 1 else ""
                        owner = self.module(".".join(filter(None, (folder, found.module))))
                        if base in owner.classes: return self.making(owner, owner.classes[base])
        return module, node

    def raised(self, module, node):
        "The errors that a definition raises itself: (kind, message); a class raises what its making raises."
        if isinstance(node, ast.ClassDef): body = [n for n in node.body if called(n) in ("__init__", "__post_init__")]
        else: body = [node]
        found = [n for part in body for n in ast.walk(part)]
        own = {n.id for n in found if isinstance(n, ast.Name)}
        helpers = [n for n in ast.parse("\n".join(module.lines)).body
                   if isinstance(n, ast.FunctionDef) and n.name[0] == "_" and n.name in own]
        every = [*found, *(n for helper in helpers for n in ast.walk(helper))]
        calls = [n.exc for n in every if isinstance(n, ast.Raise) and isinstance(n.exc, ast.Call) and n.exc.args]
        checks = [n for n in every if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
                  and n.func.id in ("check_number", "check_choice") and isinstance(n.args[0], ast.Constant)]
        said = [(ast.unparse(call.func), message(call.args[0])) for call in calls]
        return dict.fromkeys([*said, *map(wanted, checks)])

    def docstring(self, name):
        "The docstring of a public name: its first lines, Args, Returns, Raises and an Example."
        module = self.module(self.owners[name])
        node = next(node for found, node in module.public if found == name)
        text, (module, made) = [ast.get_docstring(node) or ""], self.making(module, node)
        init = [n for n in getattr(made, "body", ()) if called(n) == "__init__"]
        said = module.said(init[0] if init else made)
        args = [f"{arg}{f' ({kind})' * bool(kind)}: {said.get(arg.strip('*'), '')}".rstrip(": ")
                + f"{'; ' if arg in said else ': '}default {value}."*bool(value)
                for arg, kind, value, _ in parameters(made)]
        back = kind_of(getattr(node, "returns", None))
        parts = {"Args": args, "Returns": [": ".join(filter(None, [back, said.get("return", "")]))]*bool(back),
                 "Raises": [": ".join(error) for error in self.raised(module, made)],
                 "Example": [">>> " + self.examples[name].replace("\n", "\n... ")] if name in self.examples else []}
        text += [f"{title}:\n{indent(chr(10).join(lines), '    ')}" for title, lines in parts.items() if lines]
        return "\n\n".join(text) + "\n"

    def files(self):
        "Path -> text of what is made."
        lines = [f"from .{module} import {name} as {name}" for name, module in self.owners.items()]
        entries = [f"    {name!r}: {self.docstring(name)!r}," for name in self.owners]
        return {self.package/"__init__.pyi": "\n".join([HEAD, "__version__: str", *lines, ""]),
                self.package/"_docstrings.py": "\n".join([HEAD, "docstrings = {", *entries, "}", ""]),
                self.package.parent/"docs"/"notebooks.md": rooms.table(self.package.parent)}


def wanted(call):
    "What a call of `check_number` or `check_choice` raises: (kind, message)."
    name, _, *rest = call.args
    if ast.unparse(call.func) == "check_choice": return "ValueError", f"`{message(name)}` must be one of …, not …"
    interval = message(rest[0]) if rest else "(-inf, inf)"
    return "TypeError, ValueError", f"`{message(name)}` must be {in_words(interval, bool(call.keywords))}, not …"


def message(node):
    "The text of an error, with … for what it fills in."
    if isinstance(node, ast.Constant): return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp): return message(node.left) + message(node.right)
    return "…"


def write(root):
    for path, text in Surface(root).files().items(): path.write_text(text, encoding="utf-8")


def stale(root):
    "The generated files that are not what the notebooks say now."
    return [path.name for path, text in Surface(root).files().items()
            if not path.exists() or path.read_text(encoding="utf-8") != text]


if __name__ == "__main__": write(Path(__file__).resolve().parents[1])
