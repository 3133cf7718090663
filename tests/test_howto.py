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
from transformers import BertForSequenceClassification

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


def istar(folder, words):
    "What `istar` of the package in a folder prints."
    run = subprocess.run([sys.executable, "-c", "import sys; from istar_nb.cli import main; sys.exit(main())", *words],
                         cwd=folder,
                         env=os.environ | dict(PYTHONPATH=str(folder)), capture_output=True, encoding="utf-8")
    assert not run.returncode, run.stdout + run.stderr
    return run.stdout


def printed():
    "The blocks of Python that CONTRIBUTING prints: a task; a measure, its value and its name."
    return re.findall(r"```python\n(.*?)```", (ROOT/"CONTRIBUTING.md").read_text(encoding="utf-8"), re.S)


def test_a_task_is_a_row(tmp_path):
    put_before(copied(tmp_path)/"tasks.py", '    Task("stdlib-docs"', printed()[0])
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
    with (package/"measures.py").open("a", encoding="utf-8") as file: file.write(f"\n\n{function}")
    put_before(package/"sums.py", "from .measures import", "from .measures import stable_rank_of")
    put_before(package/"sums.py", "                  sv_anisotropy_raw=", value)
    put_before(package/"figures.py", '    "two_nn": ', name)
    istar(tmp_path, "measure --model tiny-bert --task stdlib-docs --limit 100 --out report --no-progress".split())
    values = json.loads((tmp_path/"report"/"isotropy.json").read_text(encoding="utf-8"))["measures"]["tiny-bert"]["2"]
    assert abs(values["stable_rank"]*values["sv_anisotropy_centred"] - 1) < 1e-5 and values["stable_rank_se"] > 0
    assert "stable rank" in (tmp_path/"report"/"isotropy.html").read_text(encoding="utf-8")


def test_a_method_is_a_class_a_factory_and_a_row(tmp_path):
    "As the page prints them, put into a copy of the package."
    page = ROOT/"nbs"/"howto"/"5_method.ipynb"
    defined = next(cell for cell in cells(page, "code")
                   if cell.startswith("class VarianceShare")).replace("inb.Regularizer", "Regularizer")
    factory, row = re.findall(r"```python\n(.*?)```", "\n".join(cells(page, "markdown")), re.S)
    package = copied(tmp_path)
    put_before(package/"methods.py", "METHODS = {", f"{factory}\n")
    put_before(package/"methods.py", '    "none": Method(', row)
    with (package/"regularizers.py").open("a", encoding="utf-8") as file: file.write(f"\n\n{defined}\n")

    command = next(re.findall(r"istar (train .*--method variance.*)", cell)
                   for cell in cells(page, "markdown") if "--method variance" in cell)[0]
    words = (command.replace("minilm", "tiny-bert").split()
             + "--limit 64 --epochs 1 --max-length 16 --root records --no-progress".split())
    istar(tmp_path, words)
    record, = (json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path/"records").glob("*.json"))
    assert (record["config"]["method"], record["config"]["lam"], record["status"]) == ("variance", 0.1, "done")
