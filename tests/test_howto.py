"Start and How-to stay short, and what How-to says of adding a method is true; the notebooks themselves run as every other."
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pages = [ROOT/"nbs"/"start.ipynb", *sorted((ROOT/"nbs"/"howto").glob("*.ipynb"))]


def cells(path, kind): return ["".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", pages, ids=lambda path: path.stem)
def test_a_page_is_short(path):
    assert 100 < len(re.sub(r"```.*?```", "", "\n".join(cells(path, "markdown")), flags=re.S).split()) <= 1500


def test_a_method_is_a_class_a_factory_and_a_row(tmp_path):
    "As the page prints them, put into a copy of the package."
    page = ROOT/"nbs"/"howto"/"5_method.ipynb"
    defined = next(cell for cell in cells(page, "code") if cell.startswith("class VarianceShare")).replace("inb.Regularizer", "Regularizer")
    factory, row = re.findall(r"```python\n(.*?)```", "\n".join(cells(page, "markdown")), re.S)
    package = tmp_path/"istar_nb"
    shutil.copytree(ROOT/"istar_nb", package, ignore=shutil.ignore_patterns("__pycache__"))
    methods, head = (package/"methods.py").read_text(encoding="utf-8"), "METHODS = {\n"
    assert methods.count(head) == 1
    (package/"methods.py").write_text(methods.replace(head, f"{factory}\n\n{head}{row}"), encoding="utf-8")
    with (package/"regularizers.py").open("a", encoding="utf-8") as file: file.write(f"\n\n{defined}\n")

    command = next(re.findall(r"istar (train .*--method variance.*)", cell) for cell in cells(page, "markdown") if "--method variance" in cell)[0]
    words = command.replace("minilm", "tiny-bert").split() + "--limit 64 --epochs 1 --max-length 16 --root records --no-progress".split()
    run = subprocess.run([sys.executable, "-c", "import sys; from istar_nb.cli import main; sys.exit(main())", *words], cwd=tmp_path,
                         env=os.environ | dict(PYTHONPATH=str(tmp_path)), capture_output=True, text=True)
    assert not run.returncode, run.stdout + run.stderr
    record, = (json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path/"records").glob("*.json"))
    assert (record["config"]["method"], record["config"]["lam"], record["status"]) == ("variance", 0.1, "done")
