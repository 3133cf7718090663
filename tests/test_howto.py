"Start and How-to stay short, and what they say of adding a method, a task or a measure is true."
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import Process
from transformers import BertForSequenceClassification

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[1]
pages = [ROOT/"nbs"/"start.ipynb", *sorted((ROOT/"nbs"/"howto").glob("*.ipynb"))]


def cells(path, kind):
    return ["".join(cell["source"])
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", pages, ids=lambda path: path.stem)
def test_a_page_is_short(path):
    assert 100 < len(re.sub(r"```.*?```", "", "\n".join(cells(path, "markdown")), flags=re.S).split()) <= 1500


def run_loop(monkeypatch, *wanted):
    "What the page's loop defines, and of each of its passes whether it had gradients and whether dropout was on."
    modes, plain = [], BertForSequenceClassification.forward
    def noted(self, *args, **kwargs):
        modes.append((torch.is_grad_enabled(), self.training))
        return plain(self, *args, **kwargs)
    monkeypatch.setattr(BertForSequenceClassification, "forward", noted)
    with tempfile.TemporaryDirectory() as folder:
        names = dict(folder=SimpleNamespace(name=folder, cleanup=lambda: None))
        for cell in cells(ROOT/"nbs"/"howto"/"3_penalty.ipynb", "code"):
            if any(words in cell for words in ("import istar_nb", "load_encoder(", *wanted)): exec(cell, names)
    return names, modes


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("loop", [["optimizer.step()"], ["import lightning", "lightning.Trainer("]], ids=str)
def test_a_printed_loop_trains_with_dropout_and_collects_without(loop, monkeypatch):
    names, modes = run_loop(monkeypatch, *loop)
    assert {dropout for gradients, dropout in modes if gradients} == {True}
    assert {dropout for gradients, dropout in modes if not gradients} == {False}, "the reference's passes"
    assert names["model"].training


def copied(folder):
    "A copy of the package, which may be changed."
    return Path(shutil.copytree(ROOT/"istar_nb", folder/"istar_nb"))


def put_before(module, line, text):
    "Put text before a line of a module that begins like this."
    content = module.read_text(encoding="utf-8")
    assert content.count(f"\n{line}") == 1, line
    module.write_text(content.replace(f"\n{line}", f"\n{text.rstrip()}\n{line}"), encoding="utf-8")


def command(folder, words):
    "What the program `istar` of the package in a folder does."
    for name in [name for name in sys.modules if name.partition(".")[0] == "istar_nb"]: del sys.modules[name]
    sys.path.insert(0, str(folder))
    import istar_nb.app.cli
    assert Path(istar_nb.__file__).is_relative_to(folder)
    istar_nb.app.cli.main(words)


def istar(folder, words):
    "What `istar` of the package in a folder prints."
    process = Process(command, folder, words, folder=folder)
    said = process.wait()
    assert not process.code, said
    return said


def printed():
    "The blocks of Python that CONTRIBUTING prints: a task; a measure, its value and its name."
    return re.findall(r"```python\n(.*?)```", (ROOT/"CONTRIBUTING.md").read_text(encoding="utf-8"), re.S)


def test_a_task_is_a_row(tmp_path):
    put_before(copied(tmp_path)/"text"/"tasks.py", '    Task("stdlib-docs"', printed()[0])
    for split in ("train", "validation"):
        path = tmp_path/"data"/"imdb"/f"{split}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(json.dumps(dict(text=f"A film of {i} hours.", label=i % 2)) + "\n"
                                               for i in range(32)).encode()))
    assert "Maas et al. 2011" in istar(tmp_path, ["tasks"])
    istar(tmp_path,
          "train --task imdb --model tiny-bert --epochs 1 --root records --data-dir data --no-progress".split())
    record, = (json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path/"records").glob("*.json"))
    assert (record["config"]["task"], record["metric"], record["status"]) == ("imdb", "accuracy", "done")


def test_a_measure_is_a_function_a_value_and_a_name(tmp_path):
    package, (_, function, value, name) = copied(tmp_path), printed()
    with (package/"geometry"/"measures.py").open("a", encoding="utf-8") as file: file.write(f"\n\n{function}")
    put_before(package/"geometry"/"halves.py", "from .measures import", "from .measures import stable_rank_of")
    put_before(package/"geometry"/"halves.py", "                sv_anisotropy=shares[0]", value)
    put_before(package/"report"/"figures.py", '    "two_nn": ', name)
    istar(tmp_path, "measure --model tiny-bert --task stdlib-docs --limit 100 --out report --no-progress".split())
    values = json.loads((tmp_path/"report"/"isotropy.json").read_text(encoding="utf-8"))["measures"]["tiny-bert"]["2"]
    assert abs(values["stable_rank"]*values["sv_anisotropy_centred"] - 1) < 1e-5 and values["stable_rank_se"] > 0
    assert "stable rank" in (tmp_path/"report"/"isotropy.html").read_text(encoding="utf-8")


def method():
    "What the page on methods prints: the class and its row."
    page = ROOT/"nbs"/"howto"/"5_method.ipynb"
    defined = next(cell for cell in cells(page, "code") if cell.startswith("class VarianceShare"))
    return defined, *re.findall(r"```python\n(.*?)```", "\n".join(cells(page, "markdown")), re.S)


def test_a_method_is_a_class_and_a_row(tmp_path):
    "As the page prints them, put into a copy of the package."
    page, package, (defined, row) = ROOT/"nbs"/"howto"/"5_method.ipynb", copied(tmp_path), method()
    put_before(package/"training"/"runs.py", '    "none": Method(', row)
    with (package/"penalties"/"regularizers.py").open("a", encoding="utf-8") as file: file.write(f"\n\n{defined}\n")

    command = next(re.findall(r"istar (train .*--method variance.*)", cell)
                   for cell in cells(page, "markdown") if "--method variance" in cell)[0]
    words = (command.replace("minilm", "tiny-bert").split()
             + "--power 3 --limit 64 --epochs 1 --max-length 16 --root records --no-progress".split())
    istar(tmp_path, words)
    record, = (json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path/"records").glob("*.json"))
    assert (record["config"]["method"], record["config"]["lam"], record["status"]) == ("variance", 0.1, "done")
    assert record["config"]["power"] == 3.


def put_into(notebook, line, text):
    "Put text before a line of a notebook's exported cell that begins like this; a cell at its end without a line."
    content = json.loads(notebook.read_text(encoding="utf-8"))
    if line is None:
        content["cells"].append(dict(cell_type="code", id="added", metadata={}, outputs=[], execution_count=None,
                                     source=f"#| export\n{text}"))
    else:
        cell, = (cell for cell in content["cells"]
                 if "".join(cell["source"]).startswith("#| export") and f"\n{line}" in "".join(cell["source"]))
        cell["source"] = "".join(cell["source"]).replace(f"\n{line}", f"\n{text.rstrip()}\n{line}", 1)
    notebook.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    "A copy of the repository with a task, a measure and a method in its notebooks, exported."
    folder, (task, function, value, name) = tmp_path_factory.mktemp("extended"), printed()
    defined, row = method()
    left = shutil.ignore_patterns("__pycache__", ".*", "_proc", "experiments")
    for part in ("nbs", "istar_nb", "tests"): shutil.copytree(ROOT/part, folder/part, ignore=left)
    shutil.copytree(ROOT/"results"/"benchmarks", folder/"results"/"benchmarks")
    for part in ("conftest.py", "pytest.ini", "settings.ini"): shutil.copy(ROOT/part, folder)
    for stem, line, text in [
            ("00_regularizers", None, defined),
            ("02_runs", '    "none": Method(', row), ("03_tasks", '    Task("stdlib-docs"', task),
            ("04_measures", None, function),
            ("06_halves", *(f"from istar_nb.geometry.measures import{name}" for name in ("", " stable_rank_of"))),
            ("06_halves", "                sv_anisotropy=shares[0]", value), ("01_figures", '    "two_nn": ', name)]:
        put_into(next((folder/"nbs").rglob(f"{stem}.ipynb")), line, text)
    program = "from nbdev.doclinks import nbdev_export; nbdev_export()"
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True,
                   env=os.environ | dict(PYTHONPATH=str(folder)))
    return folder


def test_additions_break_no_notebook_that_lists_what_there_is(extended):
    listing = ["geometry/06_halves", "text/03_tasks", "training/02_runs", "report/01_figures",
               "report/04_reports"]
    tests = [*(f"nbs/{name}.ipynb" for name in listing), "tests/test_tasks.py::test_every_task_states_itself"]
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=extended,
                         env=os.environ | dict(PYTHONPATH=str(extended)), capture_output=True, encoding="utf-8")
    assert not run.returncode, run.stdout[-3000:] + run.stderr[-3000:]
