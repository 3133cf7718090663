"The exported library: in step with the notebooks, light to import, arrows only downward."
import ast
import functools
import json
import re
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from contextlib import suppress
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

root = Path(__file__).resolve().parents[1]
# a folder may import what is in it at a smaller number, and the folders before it
FOLDERS = ("base", "geometry", "penalties", "text", "training", "sweeps", "report", "embeddings", "app", "study")
numbered = sorted(path for folder in FOLDERS for path in (root/"nbs"/folder).glob("[0-9]*.ipynb"))
notebooks = {f"{path.parent.name}.{re.sub(r'^[0-9]+_', '', path.stem)}": path for path in numbered}
modules = {".".join(p.relative_to(root/"istar_nb").with_suffix("").parts): p
           for p in sorted((root/"istar_nb").rglob("*.py")) if not p.stem.startswith("_")}


def imports(path):
    "Top-level packages and istar_nb modules that a file imports anywhere."
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import): yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.level:
            yield ".".join(["istar_nb", *path.relative_to(root/"istar_nb").parts[:-node.level], node.module or ""])
        elif isinstance(node, ast.ImportFrom): yield node.module


def test_every_module_comes_from_a_notebook():
    "What it holds is compared by `make check`."
    assert set(modules) == set(notebooks) and len({path.stem for path in modules.values()}) == len(modules)


def test_folders_stay_small():
    assert all(len(list((root/"nbs"/folder).glob("[0-9]*.ipynb"))) <= 12 for folder in FOLDERS if folder != "study")


@pytest.mark.parametrize("module", modules)
def test_imports_point_downward_and_never_to_the_tools(module):
    floor = {name: (FOLDERS.index(path.parent.name), int(path.stem[:2])) for name, path in notebooks.items()}
    for name in imports(modules[module]):
        package, _, other = name.partition(".")
        assert package not in ("nbdev", "fastcore", "execnb"), f"{module} imports {name}"
        if package != "istar_nb" or not other: continue
        if module == "app.commands" and other.startswith("study.pretrain"): continue    # late, for `istar pretrain`
        below = (FOLDERS.index(other), 99) if other in FOLDERS else floor[other]
        assert below < floor[module], f"{module} imports {name}"


def test_a_name_has_one_owner():
    "A public name is defined in one room; the study may use its words once more."
    owners = {}
    for module, path in modules.items():
        if module.startswith("study."): continue
        names = next(ast.literal_eval(node.value) for node in ast.parse(path.read_text(encoding="utf-8")).body
                     if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
        for name in names: owners.setdefault(name, []).append(module)
    assert not (twice := {name: found for name, found in owners.items() if len(found) > 1}), twice


def imported(notebook):
    "What the cells of a notebook import."
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code": continue
        with suppress(SyntaxError):    # a cell of another program
            for node in ast.walk(ast.parse("".join(cell["source"]))):
                if isinstance(node, ast.Import): yield from (alias.name for alias in node.names)
                if isinstance(node, ast.ImportFrom) and not node.level: yield node.module


def test_what_pip_installs_runs_every_notebook(tmp_path):
    "Every module of the package, and every package of others, that a notebook imports."
    subprocess.run([sys.executable, "setup.py", "-q", "build_py", "--build-lib", tmp_path], cwd=root, check=True,
                   capture_output=True)
    extras = declared("requirements", "notebooks_requirements")
    assert declared("notebooks_requirements") <= declared("dev_requirements")
    wanted = {name: path.stem for path in (root/"nbs").rglob("[!._]*.ipynb") for name in imported(path)}
    for name, notebook in wanted.items():
        package = name.partition(".")[0]
        if package == "istar_nb":
            place = tmp_path/name.replace(".", "/")
            assert place.is_dir() or place.with_suffix(".py").is_file(), f"{notebook} imports {name}"
        elif package not in sys.stdlib_module_names:
            known = {distribution.lower() for distribution in distributions().get(package, [package])}
            assert known & (extras | {"ipython"}), f"{notebook} imports {name}"    # which ipywidgets and Jupyter need


@pytest.mark.parametrize("name, absent", [
    ("isoscore", "transformers accelerate datasets matplotlib pandas scipy sklearn torchmetrics rich"),
    ("measure", "torchmetrics ray")])
def test_a_name_imports_nothing_heavier_than_it_needs(name, absent):
    code = f"import sys, istar_nb; istar_nb.{name}; print([m for m in {absent.split()} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8",
                          check=True).stdout.strip() == "[]"


def test_help_needs_neither_torch_nor_transformers():
    code = ("import sys\ntry:\n import istar_nb.app.cli as c; c.main(['--help'])\n"
            "except SystemExit: print('LOADED', [m for m in ('torch', 'transformers') if m in sys.modules])")
    assert "LOADED []" in subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8",
                                         check=True).stdout


def declared(*keys):
    "The distributions of some lists in settings.ini; without a name, of the library and all extras but two."
    parser = ConfigParser(delimiters=["="])
    parser.read(root/"settings.ini", encoding="utf-8")
    settings, others = parser["DEFAULT"], ("dev_requirements", "notebooks_requirements")
    keys = keys or [key for key in settings if key.endswith("requirements") and key not in others]
    return {re.match(r"[\w.-]+", requirement)[0].lower() for key in keys for requirement in settings[key].split()}


def test_every_requirement_is_imported_and_somebody_says_what_for():
    contributing = (root/"CONTRIBUTING.md").read_text(encoding="utf-8")
    table = contributing.partition("## What each package is for")[2].partition("\n## ")[0]
    named = {name.lower() for name in re.findall(r"`([\w.-]+)`(?=[^|\n]*\|.*\|)", table)}
    used = {known.lower() for path in modules.values() for name in imports(path)
            for known in distributions().get(name.partition(".")[0], [])}
    assert named == declared("requirements") and named <= used


def test_tools_that_read_pyproject_learn_what_settings_say():
    parser = ConfigParser(delimiters=["="])
    parser.read(root/"settings.ini", encoding="utf-8")
    project = tomllib.loads((root/"pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project.pop("name") == parser["DEFAULT"]["lib_name"]
    assert project.pop("requires-python") == f">={parser['DEFAULT']['min_python']}"
    assert list(project) == ["dynamic"]    # all else is said once


distributions = functools.cache(packages_distributions)   # it reads every package's list of files


@pytest.mark.parametrize("path", modules.values(), ids=lambda p: p.stem)
def test_every_import_is_declared(path):
    known, packages = (distributions(), {name.partition(".")[0] for name in imports(path)}
                       - set(sys.stdlib_module_names) - {"istar_nb"})
    undeclared = {package
                  for package in packages if declared().isdisjoint(name.lower() for name in known.get(package, []))}
    assert not undeclared, f"{path.stem} imports {', '.join(sorted(undeclared))}, which settings.ini does not require"
