"What editors and `help` know of `import istar_nb`: in step with the notebooks, and resolved by a type checker."
import inspect
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import istar_nb as inb

root = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(root/"tools"))

import surface


def test_a_change_of_a_comment_makes_them_stale(monkeypatch):
    monkeypatch.setattr(surface.Surface, "docstring", lambda self, name: "other")
    assert surface.stale(root) == ["_docstrings.py"]


def test_a_docstring_says_shapes_errors_and_an_example():
    said = inb.isoscore_star.__doc__
    assert said.startswith("IsoScore* of `x`") and "x (Tensor | np.ndarray): (n, d) float" in said
    assert "Returns:\n    Tensor: () in [0, 1]" in said and "Raises:\n    ValueError: `cov_ref` is needed" in said
    assert "Example:\n    >>> inb.isoscore_star(x, cov_ref=" in said
    assert "target (float | None): score in (0, 1)" in inb.IStar.__doc__ and "reference_points" in inb.IStar.__doc__


def test_every_function_and_class_with_arguments_describes_them():
    for name in inb._owners: assert getattr(inb, name).__doc__.strip(), name
    silent = [name for name in inb._owners if "Args:" not in getattr(inb, name).__doc__]
    def takes_some(made): return inspect.isclass(made) or inspect.signature(made).parameters
    silent = [name for name in silent if takes_some(getattr(inb, name))]
    assert silent == ["Regularizer"]    # a base class


def test_a_type_checker_resolves_the_lazy_names(tmp_path):
    "Without the stub every name is an unknown `object`, also one that does not exist."
    (tmp_path/"pyrefly.toml").write_text(f'preset = "default"\nsearch-path = ["{root.as_posix()}"]\n', encoding="utf-8")
    (tmp_path/"use.py").write_text("import torch\nfrom typing import assert_type\nimport istar_nb as inb\n"
                                   "assert_type(inb.isoscore(torch.ones(4, 2)), int)\ninb.isoscor\n", encoding="utf-8")
    said = subprocess.run([Path(sys.executable).parent/"pyrefly", "check", "--python-interpreter-path", sys.executable,
                           "use.py"], cwd=tmp_path, capture_output=True, encoding="utf-8").stdout
    assert "assert_type(Tensor, int)" in said and "No attribute `isoscor`" in said, said


def test_other_nbdev_projects_can_link_to_names_here():
    "What the installation declares under the entry point group `nbdev` exists, and knows the public names."
    found = entry_points(group="nbdev")["istar_nb"].load()
    assert {"settings", "syms"} <= set(found)
    for public, owner in inb._owners.items():
        assert f"istar_nb.{owner}.{public}" in found["syms"][f"istar_nb.{owner}"], public
