"Start and How-to stay short, and what they say of adding a method, a task or a measure is true."
import gzip
import json
import os
import re
import shutil
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


def take(folder):
    "Import the package in a folder from now on, whatever has been imported."
    for name in [name for name in sys.modules if name.partition(".")[0] == "istar_nb"]: del sys.modules[name]
    sys.path.insert(0, str(folder))
    import istar_nb
    assert Path(istar_nb.__file__).is_relative_to(folder)


def commands(folder, *lines):
    "What the program `istar` of the package in a folder does with some lines, one after the other."
    take(folder)
    import istar_nb.app.cli
    for line in lines: istar_nb.app.cli.main(line.split())


def tried(folder, *tests):
    "What pytest does in a folder that has a package of its own."
    take(folder)
    os.environ.pop("ISTAR_DATA", None)    # which the shortened page on tasks would not put back
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", *tests]))


def printed():
    "The blocks of Python that CONTRIBUTING prints: a task; a measure, its value and its name."
    return re.findall(r"```python\n(.*?)```", (ROOT/"CONTRIBUTING.md").read_text(encoding="utf-8"), re.S)


def method():
    "What the page on methods prints: the class and its row."
    page = ROOT/"nbs"/"howto"/"5_method.ipynb"
    defined = next(cell for cell in cells(page, "code") if cell.startswith("class VarianceShare"))
    return defined, *re.findall(r"```python\n(.*?)```", "\n".join(cells(page, "markdown")), re.S)


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
    process = Process(exec, program, {}, folder=folder, PYTHONPATH=folder)
    said = process.wait()
    assert not process.code, said
    return folder


@pytest.fixture(scope="module")
def carried_out(extended):
    "Its folder once its `istar` has carried out everything in one process, and what that said."
    for split in ("train", "validation"):
        path = extended/"data"/"imdb"/f"{split}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(json.dumps(dict(text=f"A film of {i} hours.", label=i % 2)) + "\n"
                                               for i in range(32)).encode()))
    shown = next(re.findall(r"istar (train .*--method variance.*)", cell)
                 for cell in cells(ROOT/"nbs"/"howto"/"5_method.ipynb", "markdown") if "--method variance" in cell)[0]
    small = "--limit 64 --validation-limit 64 --epochs 1 --max-length 16 --no-progress"
    process = Process(commands, extended, "tasks",
                      "train --task imdb --model tiny-bert --epochs 1 --root of-task --data-dir data --no-progress",
                      f"{shown.replace('minilm', 'tiny-bert')} --power 3 --root of-method {small}",
                      "measure --model tiny-bert --task stdlib-docs --limit 100 --out report --no-progress",
                      folder=extended)
    said = process.wait()
    assert not process.code, said
    return extended, said


def record_in(folder):
    record, = (json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json"))
    return record


def test_a_task_is_a_row(carried_out):
    folder, said = carried_out
    assert "Maas et al. 2011" in said
    record = record_in(folder/"of-task")
    assert (record["config"]["task"], record["metric"], record["status"]) == ("imdb", "accuracy", "done")


def test_a_measure_is_a_function_a_value_and_a_name(carried_out):
    report = carried_out[0]/"report"
    values = json.loads((report/"isotropy.json").read_text(encoding="utf-8"))["measures"]["tiny-bert"]["2"]
    assert abs(values["stable_rank"]*values["sv_anisotropy_centred"] - 1) < 1e-5 and values["stable_rank_se"] > 0
    assert "stable rank" in (report/"isotropy.html").read_text(encoding="utf-8")


def test_a_method_is_a_class_and_a_row(carried_out):
    record = record_in(carried_out[0]/"of-method")
    assert (record["config"]["method"], record["config"]["lam"], record["status"]) == ("variance", 0.1, "done")
    assert record["config"]["power"] == 3.


def shorten(notebook, last):
    "Leave the cells of a notebook up to the one that begins like this."
    content = json.loads(notebook.read_text(encoding="utf-8"))
    place, = (i for i, cell in enumerate(content["cells"]) if "".join(cell["source"]).startswith(last))
    notebook.write_text(json.dumps(content | dict(cells=content["cells"][:place + 1])), encoding="utf-8")


def test_additions_break_no_notebook_that_lists_what_there_is(extended):
    "Cells after the last list of measures or tasks are left out: no addition is in them, and every lesson runs them."
    listing = ["geometry/06_halves", "text/03_tasks", "training/02_runs", "report/01_figures", "report/04_reports"]
    shorten(extended/"nbs/geometry/06_halves.ipynb", "points = torch.randn(300, 40, generator=rng)")
    shorten(extended/"nbs/text/03_tasks.ipynb", "assert [task_title(name)")
    tests = [*(f"nbs/{name}.ipynb" for name in listing), "tests/test_tasks.py::test_every_task_states_itself"]
    process = Process(tried, extended, *tests, folder=extended, PYTHONPATH=extended)
    said = process.wait()
    assert not process.code and said.count(".") >= len(tests), said[-6000:]
