"Own data: real files of every kind through the command line, sweeps and Python; mistakes give a message, no record."
import json
import os
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pyarrow
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from istar_nb import measure
from istar_nb.app.cli import main
from istar_nb.app.measuring import TextOptions
from istar_nb.text.frames import column_texts, read_alike, read_splits
from istar_nb.training.records import answers_of, iterate_records
from istar_nb.training.runs import RunConfig
from istar_nb.sweeps.sweeps import sweep
from istar_nb.report.judging import judge
from istar_nb.text.tasks import Task, load_task, own_task
from istar_nb.training.training import train
from toy_task import write_model

pytestmark = pytest.mark.system

words = "bright dull slow sharp warm cold plain odd rich thin".split()


def frame(n=60, pairs=False):
    "Invented reviews: the label follows from the first word."
    draw = np.random.default_rng(0)
    rows = [dict(review=f"A {a} film about a {b} city, number {i}.",
                 sentiment=("good", "bad", "mixed")[words.index(a) % 3], stars=words.index(b)/2)
            for i, (a, b) in enumerate(draw.choice(words, (n, 2)).tolist())]
    return pd.DataFrame(rows).assign(**(dict(reply=[f"Reply {i} is here." for i in range(n)]) if pairs else {}))


def write(folder, ending, table=None):
    "The table as a file of this kind, or as a folder."
    table, path = frame() if table is None else table, folder/f"films.{ending}"
    if ending == "csv": table.to_csv(path, index=False)
    if ending == "tsv": table.to_csv(path, index=False, sep="\t")
    if ending == "jsonl": table.to_json(path, orient="records", lines=True)
    if ending == "parquet": table.to_parquet(path)
    if ending in ("files", "saved"):
        path = folder/"films"
        path.mkdir()
    if ending == "files":
        for name, part in (("train", table[:40]), ("validation", table[40:])):
            part.to_csv(path/f"{name}.csv", index=False)
    if ending == "saved":
        import datasets
        datasets.Dataset.from_pandas(table, preserve_index=False).save_to_disk(str(path))
    return path


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "files", "saved"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, ending):
    task = own_task(write(tmp_path, ending), "review", "sentiment")
    data, expected = load_task(task), load_task(Task.from_frame(frame(), "review", "sentiment"))
    assert (task.name, task.kind, task.labels) == ("films", "classification", ("bad", "good", "mixed"))
    if ending == "files":
        assert ((len(data.train), len(data.validation)) == (40, 20)
                and sorted(map(str, data.train + data.validation))
                == sorted(map(str, expected.train + expected.validation)))
    else: assert data.sha256 == expected.sha256


def test_pairs_of_a_frame_are_those_of_its_file(tmp_path):
    table = frame(pairs=True)
    task = Task.from_frame(table, "review", "sentiment", "reply")
    assert task.texts == ("review", "reply") and load_task(task).train[0]["reply"].startswith("Reply ")
    of_file = own_task(write(tmp_path, "csv", table), "review", "sentiment", "reply")
    assert load_task(task).sha256 == load_task(of_file).sha256


def test_the_split_keeps_every_class_and_is_always_the_same():
    table = pd.DataFrame(dict(text=[f"Row {i}." for i in range(200)], kind=["common"]*180 + ["rare"]*20))
    data = load_task(Task.from_frame(table, "text", "kind"))
    assert [row["label"] for row in data.validation].count(1) == 4 and len(data.validation) == 40
    assert data.sha256 == load_task(Task.from_frame(table, "text", "kind")).sha256


def istar(*words):
    "The exit code of a command."
    try: main(list(map(str, words)))
    except SystemExit as e: return e.code
    return 0


small = ["--model", "tiny-bert", "--epochs", "1", "--max-length", "16", "--no-progress"]


@pytest.mark.parametrize("label, kind", [("sentiment", "classification"), ("stars", "regression")])
def test_train_on_a_csv_with_a_penalty(tmp_path, capsys, label, kind):
    path, root = write(tmp_path, "csv"), tmp_path/"runs"
    assert istar("train", "--train", path, "--text", "review", "--label", label, "--method", "istar", "--lam", "1",
                 "--root", root, *small) == 0
    out = capsys.readouterr().out
    [record] = iterate_records(root)
    assert f"films: {kind} of {label!r}" in out and record.config["task"] == "films" and record.status == "done"
    assert (record.data["kind"] == kind and record.data["source"] == "own"
            and record.data["train"] + record.data["validation"] == 60)
    assert record.data["labels"] == (["bad", "good", "mixed"] if label == "sentiment" else [])
    assert record.data["sha256"] == load_task(own_task(path, "review", label)).sha256


def test_a_validation_file_pairs_and_a_configuration_file(tmp_path):
    table = frame(pairs=True)
    path = write(tmp_path, "csv", table[:40])
    table[40:].to_json(tmp_path/"dev.jsonl", orient="records", lines=True)
    (tmp_path/"run.yaml").write_text(f"train: {path}\nvalidation: {tmp_path/'dev.jsonl'}\ntext: review\ntext2: "
                                     "reply\nlabel: sentiment\nlr: 1e-3\n", encoding="utf-8")
    assert istar("train", "--config", tmp_path/"run.yaml", "--seed", "3", "--root", tmp_path/"runs", *small) == 0
    [record] = iterate_records(tmp_path/"runs")
    assert ((record.data["train"], record.data["validation"]) == (40, 20)
            and (record.config["lr"], record.config["seed"], record.config["text2"]) == (1e-3, 3, "reply"))


def test_changed_rows_are_not_taken_up_in_silence(tmp_path):
    path = write(tmp_path, "csv")
    config = RunConfig(train=str(path), text="review", label="sentiment", model="tiny-bert", epochs=1, max_length=16)
    first = train(config, tmp_path/"runs", progress=False)
    assert train(config, tmp_path/"runs", progress=False).started == first.started
    frame(80).to_csv(path, index=False)
    with pytest.raises(ValueError, match="other data"): train(config, tmp_path/"runs", progress=False)
    assert train(config, tmp_path/"runs", progress=False, remake=True).data["sha256"] != first.data["sha256"]


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_a_sweep_over_own_data(tmp_path, executor, forked_workers):
    base = dict(train=str(write(tmp_path, "csv")), text="review", label="sentiment",
                model=str(write_model(tmp_path/"model")), epochs=1, max_length=16)
    runs = [dict(), dict(method="cosreg"), dict(text="nothing")]
    records = sweep(dict(base=base, seeds=[0], runs=runs), executor=executor, workers=1, threads=1,
                    root=tmp_path/"runs", progress=False)
    assert ({r.status for r in records[:-1]} == {"done"} and records[-1].status == "failed"
            and "no column 'nothing'" in records[-1].error)
    assert (len(list(iterate_records(tmp_path/"runs"))) == len(runs) - 1
            and {r.config["task"] for r in records} == {"films"})


mistakes = [(["--train", "films.csv", "--text", "review"], "--label is missing"),
            (["--text", "review"], "give --train"),
            (["--train", "films.csv", "--text", "reviews", "--label", "sentiment"],
             "no column 'reviews' (did you mean review?); it has 'review', 'sentiment'"),
            (["--train", "nowhere.csv", "--text", "review", "--label", "sentiment"], "no file or folder"),
            (["--train", "films.txt", "--text", "review", "--label", "sentiment"], "must end in"),
            (["--train", "gaps.csv", "--text", "review", "--label", "sentiment"], "empty in line 4"),
            (["--train", "one.csv", "--text", "review", "--label", "sentiment"], "at least two classes"),
            (["--train", "films.csv", "--text", "stars", "--label", "sentiment"], "text is wanted"),
            (["--train", "films.csv", "--text", "review", "--label", "sentiment", "--task", "cola"],
             "give one of them"),
            (["--train", "films.csv", "--validation", "odd.csv", "--text", "review", "--label", "sentiment"],
             "no training row has: strange"),
            (["--train", "broken.parquet", "--text", "review", "--label", "sentiment"], "cannot be read as a table"),
            (["--train", "cola.csv", "--text", "review", "--label", "sentiment"], "rename the file")]


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    "Files with something wrong in them."
    folder = tmp_path_factory.mktemp("wrong")
    table = frame()
    write(folder, "csv")
    table.to_csv(folder/"cola.csv", index=False)
    table.assign(sentiment="good").to_csv(folder/"one.csv", index=False)
    table.assign(sentiment="strange").to_csv(folder/"odd.csv", index=False)
    table.assign(review=table.review.where(table.index != 2)).to_csv(folder/"gaps.csv", index=False)
    (folder/"films.txt").write_text("one\n", encoding="utf-8")
    (folder/"broken.parquet").write_bytes(b"no table")
    return folder


@pytest.mark.parametrize("words, said", mistakes, ids=[said for _, said in mistakes])
def test_a_mistake_costs_a_message(wrong, monkeypatch, capsys, words, said):
    monkeypatch.chdir(wrong)
    assert istar("train", *words, *small) == 2
    out = capsys.readouterr()
    assert said in out.err and "Traceback" not in out.err and not (wrong/"runs").exists()


@pytest.mark.parametrize("ending", ["csv.gz", "csv.xz", "csv.bz2", "jsonl.gz", "tsv.gz", "parquet"])
def test_a_file_that_is_damaged_or_empty_is_named(tmp_path, capsys, ending):
    table, path = frame(400), tmp_path/f"films.{ending}"
    if ending == "parquet": table.to_parquet(path)
    elif "json" in ending: table.to_json(path, orient="records", lines=True)
    else: table.to_csv(path, index=False, sep="\t" if "tsv" in ending else ",")
    whole = path.read_bytes()
    middle = len(whole)//2
    for damaged in (whole[:middle], whole[:middle] + b"\xff\x00"*200 + whole[middle + 400:], b""):
        path.write_bytes(damaged)
        for words in (["train", "--train", path, "--text", "review", "--label", "sentiment", *small],
                      ["measure", "--text", path, "--column", "review", "--model", "tiny-bert", "--no-progress"]):
            assert istar(*words) == 2
            said = capsys.readouterr().err
            assert f"{path} cannot be read as a table: " in said and "Traceback" not in said


def test_measuring_a_column_with_the_last_token_and_a_comparison(tmp_path, capsys):
    path = write(tmp_path, "csv")
    assert istar("compare", "tiny-gpt2", "tiny-bert", path, "--column", "review", "--tokens", "last", "--no-progress",
                 "--out", tmp_path) == 0
    out, found = capsys.readouterr().out, json.loads((tmp_path/"comparison.json").read_text(encoding="utf-8"))
    assert ("tiny-bert minus tiny-gpt2" in out and found["measures"]["tiny-gpt2"]["2"]["count"] == 60
            and "60 texts of review of films.csv" in found["source"])
    for words in (["--text", path], ["--text", path, "--column", "nothing"],
                  ["--task", "stdlib-docs", "--column", "review"]):
        assert istar("measure", *words, "--no-progress", "--out", tmp_path) == 2
        assert "column" in capsys.readouterr().err


@pytest.mark.parametrize("classes", [3, 10, 11, 14])
def test_answers_of_many_classes_can_be_read_back(classes, tmp_path):
    "Up to ten classes a record keeps a digit a row, beyond that a list."
    names = [f"kind {i}" for i in range(classes)]
    table = pd.DataFrame([dict(text=f"Sentence {i} is of {names[i % classes]}.", kind=names[i % classes])
                          for i in range(12*classes)])
    task = own_task(write(tmp_path, "csv", table), "text", "kind")
    config = RunConfig(train=str(tmp_path/"films.csv"), text="text", label="kind", model="tiny-bert", epochs=1,
                       batch_size=16)
    record = train(config, tmp_path/"runs", progress=False)
    again = next(iter(iterate_records(tmp_path/"runs")))
    found = answers_of(again)
    assert len(task.labels) == classes and len(found) == record.data["validation"] and found.dtype == np.int64
    assert np.bincount(found).max()/len(found) == pytest.approx(record.epochs[-1]["majority_share"])
    assert set(found.tolist()) <= set(range(classes))


@pytest.mark.parametrize("ending, separator", [("csv", ","), ("csv.gz", ","), ("tsv", "\t")])
def test_labels_that_turn_into_words_late_are_words(ending, separator, tmp_path):
    "Hundreds of thousands of rows with numbers, and then one without."
    rows, path = 300_000, tmp_path/f"late.{ending}"
    labels = [str(i % 2) for i in range(rows)] + ["odd"]*40
    pd.DataFrame(dict(text=["A text."]*len(labels), label=labels)).to_csv(path, index=False, sep=separator)
    read = read_splits(path)["train"]
    assert [row["label"] for row in read] == labels


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_name_with_wildcards_is_the_name_of_one_file(ending, tmp_path, monkeypatch):
    "Brackets and stars are part of a name: no other file is read instead of it, or beside it."
    here = tmp_path/"in [1]"
    (here/"wanted").mkdir(parents=True)
    monkeypatch.chdir(here)
    wanted = write(here/"wanted", ending)
    other = write(here, ending, frame().assign(review="another file"))
    rows = read_splits(wanted)["train"]
    assert rows[0]["review"] != "another file"
    for name, neighbour in (("films[1]", "films1"), ("film*", "films"), ("films?", "filmsX")):
        wanted, other = wanted.rename(here/f"{name}.{ending}"), other.rename(here/f"{neighbour}.{ending}")
        assert read_splits(wanted)["train"] == rows == read_splits(Path(wanted.name))["train"]


@pytest.mark.parametrize("below", ["fold [1]", "what?", "plain"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "folders", "saved"])
def test_a_folder_with_wildcards_in_its_name_is_read(kind, below, tmp_path, monkeypatch):
    "The rows of both splits, from an absolute name and from relative ones."
    folder = tmp_path/below/"data"
    folder.parent.mkdir()
    if kind != "saved": folder.mkdir()
    else:
        table = Dataset.from_pandas(frame(), preserve_index=False)
        DatasetDict(train=table, validation=table).save_to_disk(str(tmp_path/"saved"))
        (tmp_path/"saved").rename(folder)
    for split in () if kind == "saved" else ("train", "validation"):
        place, ending = (folder/split, "csv") if kind == "folders" else (folder, kind)
        place.mkdir(exist_ok=True)
        write(place, ending).rename(place/f"{split}.{ending}")
    rows = frame().to_dict("records")
    assert read_splits(folder) == dict(train=rows, validation=rows)
    monkeypatch.chdir(folder)
    assert read_splits(Path()) == read_splits(Path("../data")) == dict(train=rows, validation=rows)


@pytest.mark.parametrize("first", ["0,Slow, very slow,bad", "7,Slow, very slow,bad", "0,Slow, very, slow,bad"])
def test_a_comma_too_many_in_the_first_row_shifts_no_column(first, tmp_path):
    path = tmp_path/"films.csv"
    path.write_text(f"id,text,label\n{first}\n1,Bright,good\n2,Dull,bad\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2 has more cells than the header"): read_splits(path)


@pytest.mark.parametrize("content, said", [
    ('text,label\nDull,0\n"Great" film,1\n', "line 3 has a cell that begins with a quotation mark"),
    ("text,label\nDull\rfilm,0\nGreat,1\n", "line 2 has a carriage return inside a cell"),
    ("text,label\nDull,0\nCaf\udce9,1\n", "not UTF-8 in line 3")])
def test_what_a_file_with_commas_loses_is_named_by_its_line(content, said, tmp_path):
    path = tmp_path/"films.csv"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=said): read_splits(path)


def test_columns_that_are_not_used_may_hold_anything(tmp_path):
    rows = "".join(f"{10**25 + i},text {i},{i % 2},{'' if i else 'x'}\n" for i in range(20))
    (tmp_path/"ids.csv").write_text("id,text,label,note\n" + rows, encoding="utf-8")
    assert load_task(own_task(str(tmp_path/"ids.csv"), "text", "label")).train[0] == dict(text="text 0", label=0)


@pytest.mark.parametrize("labels", [pd.to_datetime(["2020", "2021"]*8), [[1], [2]]*8, [(1, 2), (3, 4)]*8])
def test_labels_that_are_neither_text_nor_numbers_are_named(labels):
    with pytest.raises(ValueError, match="labels must be text or numbers, and are (Timestamp|list|tuple)"):
        Task.from_frame(pd.DataFrame(dict(text=["Some words."]*16, label=labels)), "text", "label")


@pytest.mark.parametrize("text, message", [("cut \ud83d", "half a character in row 3"), ([], "empty in row 3")])
def test_a_text_that_no_tokenizer_reads_is_named(text, message):
    rows = [dict(text="Some words.", label=i % 2) for i in range(20)]
    rows[3]["text"] = text
    with pytest.raises(ValueError, match=message): Task.from_frame(rows, "text", "label")


@pytest.mark.parametrize("columns", [("review", "sentiment", "review"), ("review", "review", None)])
def test_texts_and_labels_are_different_columns(columns):
    with pytest.raises(ValueError, match="must be different columns, not review, "): Task.from_frame(frame(), *columns)


def test_an_infinite_label_and_a_share_are_named_as_the_user_knows_them():
    table = pd.DataFrame(dict(text=["Some words."]*60, stars=np.arange(60.)/7))
    with pytest.raises(ValueError, match="`hold_out`"): Task.from_frame(table, "text", "stars", hold_out=0)
    for endless in (float("inf"), 10**400):
        rows = table.to_dict("records")
        rows[40]["stars"] = endless
        with pytest.raises(ValueError, match="column 'stars' is infinite or too large in row 40"):
            Task.from_frame(rows, "text", "stars")
    runs = pd.DataFrame(dict(arm=["a", "b"], seed=0, score=[0.5, 10**400]))
    with pytest.raises(ValueError, match="column 'score' is 1000.* in row 1"): judge(runs, "a")


def test_a_table_of_arrow_is_a_table():
    table = pyarrow.Table.from_pandas(frame(), preserve_index=False)
    first, second = (Task.from_frame(form, "review", "sentiment").labels for form in (table, frame()))
    assert first == second


@pytest.mark.parametrize("source", ["memory", "folder", "parquet"])
def test_names_of_classes_that_a_dataset_knows_are_kept(source, tmp_path):
    "Without them the numbers of many classes would be measured values."
    names = [f"intent {i}" for i in range(30)]
    kinds = Features(text=Value("string"), label=ClassLabel(names=names))
    rows = Dataset.from_dict(dict(text=["a text"]*90, label=[*range(30)]*3), features=kinds)
    if source == "folder": rows.save_to_disk(tmp_path/"intents")
    if source == "parquet": rows.to_parquet(tmp_path/"intents.parquet")
    task = (Task.from_frame(rows, "text", "label") if source == "memory"
            else own_task(next(tmp_path.iterdir()), "text", "label", None, None))
    assert task.kind == "classification" and set(task.labels) == set(names)


def test_a_row_without_a_label_is_named():
    "Data sets of the hub mark such rows by -1."
    kinds = Features(text=Value("string"), label=ClassLabel(names=["poor", "good"]))
    rows = Dataset.from_dict(dict(text=["a", "b", "c", "d"], label=[0, 1, -1, 1]), features=kinds)
    with pytest.raises(ValueError, match="column 'label' is empty in row 2"): Task.from_frame(rows, "text", "label")


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_a_named_pipe_gives_the_rows_of_its_file(ending, tmp_path):
    "Whatever has to be read twice to be understood: quotation marks, codes that begin with a zero."
    table = pd.DataFrame(dict(text=['The "parcel" is lost.', "It is here."], code=["007", "12"]))
    path, pipe = write(tmp_path, ending, table), tmp_path/f"pipe.{ending}"
    os.mkfifo(pipe)
    content = path.read_bytes()
    def open_pipe(): threading.Thread(target=lambda: pipe.write_bytes(content), daemon=True).start()
    open_pipe()
    assert read_splits(pipe) == read_splits(path) == dict(train=table.to_dict("records"))
    (tmp_path/"other").mkdir()
    plain = table.assign(code=["7", "12"])    # numbers, if they stand alone
    numbers = write(tmp_path/"other", ending, plain)
    open_pipe()
    assert read_alike(numbers, pipe) == [dict(train=plain.to_dict("records")), read_splits(path)]


def test_a_folder_without_training_rows_is_not_measured_on_those_it_learns_from(tmp_path):
    "A single table is divided, whatever its name; of several, one must be for training."
    rows = "text,label\n" + "".join(f"Text {i}.,{i % 2}\n" for i in range(20))
    (tmp_path/"validation.csv").write_text(rows, encoding="utf-8")
    task = load_task(own_task(tmp_path, "text", "label"))
    assert (len(task.train), len(task.validation)) == (16, 4)
    (tmp_path/"test.csv").write_text(rows, encoding="utf-8")
    with pytest.raises(ValueError, match="has the splits test, validation, and none called train"):
        own_task(tmp_path, "text", "label")


@pytest.mark.parametrize("place", [dict(ISTAR_WATCHED="1"), dict(WORLD_SIZE="2", RANK="1")])
def test_a_pipe_is_for_one_process(place, tmp_path, monkeypatch):
    "Each of several would wait for rows that another one has read."
    os.mkfifo(tmp_path/"pipe.csv")
    for name, value in place.items(): monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="pipe.csv is a pipe, which only one process can read"):
        own_task(tmp_path/"pipe.csv", "text", "label")


def test_a_folder_for_validation_must_say_which_split_it_is(tmp_path):
    table = pd.DataFrame(dict(text=["Good.", "Bad."]*6, label=["good", "bad"]*6))
    train, rest = write(tmp_path, "csv", table), tmp_path/"rest"
    DatasetDict(first=Dataset.from_pandas(table), second=Dataset.from_pandas(table)).save_to_disk(str(rest))
    with pytest.raises(ValueError, match="`validation` .* has the splits first, second"):
        own_task(train, "text", "label", validation=rest)


def test_every_split_of_a_folder_is_measured(tmp_path):
    for name in ("train", "test"):
        pd.DataFrame(dict(text=[f"A {name}."]*12)).to_csv(tmp_path/f"{name}.csv", index=False)
    texts, _ = TextOptions(str(tmp_path), "text").read()
    assert {text for text, in texts} == {"A train.", "A test."}


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_cell_of_blanks_is_no_text(ending, tmp_path):
    table = pd.DataFrame(dict(text=["A text.", "   ", "", "\u00a0", None, "Another."]))
    write = {".csv": table.to_csv, ".tsv": partial(table.to_csv, sep="\t"), ".parquet": table.to_parquet,
             ".jsonl": partial(table.to_json, orient="records", lines=True)}[ending]
    write(tmp_path/f"table{ending}", **{} if ending == ".jsonl" else dict(index=False))
    assert list(column_texts(tmp_path/f"table{ending}", "text")) == ["A text.", "Another."]


def test_what_is_hidden_in_a_folder_is_neither_text_nor_points(tmp_path):
    for folder in (".", ".ipynb_checkpoints", "deep"):
        (tmp_path/folder).mkdir(exist_ok=True)
        (tmp_path/folder/"texts.txt").write_text(f"In {folder}.", encoding="utf-8")
        np.save(tmp_path/folder/"points.npy", np.eye(8))
    (tmp_path/"._texts.txt").write_bytes(b"\xff")
    assert [text for text, in TextOptions(str(tmp_path)).read()[0]] == ["In deep.", "In .."]
    assert measure(tmp_path).measures[tmp_path.name]["points"]["count"] == 16


def test_a_folder_is_read_where_the_temporary_folder_is_a_link(tmp_path, monkeypatch):
    "As on a Mac; and a table whose name begins like that of a description is a table."
    (tmp_path/"real").mkdir()
    (tmp_path/"link").symlink_to(tmp_path/"real")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path/"link"))
    for name, text in (("dataset_info_mine.csv", "text\na\n"), ("rows.jsonl", '{"text": "a"}\n')):
        folder = tmp_path/name.partition(".")[2]
        folder.mkdir()
        (folder/name).write_text(text, encoding="utf-8")
        assert read_splits(folder) == dict(train=[dict(text="a")])


@pytest.mark.parametrize("text", ['\n[\n{"a": 1}]', '\n{"a": 1}\n', '{"a": 1}'])
def test_json_is_read_however_it_is_laid_out(text, tmp_path):
    (tmp_path/"a.json").write_text(text, encoding="utf-8")
    assert read_splits(tmp_path/"a.json") == dict(train=[dict(a=1)])
    (tmp_path/"a.json").write_text("[1, 2]", encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.json cannot be read .*rows as dictionaries"):
        read_splits(tmp_path/"a.json")


@pytest.mark.parametrize("kind", ["csv", "tsv.gz", "jsonl"])
def test_texts_of_a_table_are_read_in_parts(kind, tmp_path):
    "As many as are needed; the same as when all is read, wherever the table is and whatever its cells hold."
    texts = [f'Text {i}, "in parts"' + "\n and on"*(kind != "tsv.gz" and i % 7 == 0) for i in range(40_000)]
    table = pd.DataFrame(dict(number=range(len(texts)), text=texts))
    path = write(tmp_path, kind, table) if kind != "tsv.gz" else tmp_path/"films.tsv.gz"
    if kind == "tsv.gz": table.to_csv(path, sep="\t", index=False)
    assert list(column_texts(path, "text")) == texts == [row["text"] for row in read_splits(path)["train"]]
    fsspec.filesystem("memory").pipe_file(f"/texts/{path.name}", path.read_bytes())
    assert list(column_texts(f"memory://texts/*.{kind}", "text")) == texts
    if kind != "jsonl": return
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"number":30000', b'"number":'))
    read = column_texts(path, "text")
    assert next(read) == texts[0]
    with pytest.raises(ValueError, match="line 30001 is no JSON"): list(read)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_memory_does_not_grow_with_the_rows_of_a_table(kind, tmp_path):
    "Twenty times the rows, in processes of their own."
    program = """if True:
        import re, sys
        from pathlib import Path
        from istar_nb.text.frames import column_texts
        count = sum(1 for text in column_texts(sys.argv[1], "text"))
        # `ru_maxrss` would begin with what the process has that starts this one
        print(count, re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])"""
    def peak(rows): # in MB
        path = tmp_path/f"{rows}.{kind}"
        with path.open("w", encoding="utf-8") as file:
            if kind == "csv": file.write("number,text\n")
            for i in range(rows):
                text = f"A sentence, {'which is not short '*6}{i}"
                file.write(f'{i},"{text}"\n' if kind == "csv" else json.dumps(dict(number=i, text=text)) + "\n")
        count, used = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True,
                                     check=True).stdout.split()
        assert int(count) == rows
        return int(used)/1024
    assert peak(600_000) < peak(30_000) + 25


def test_a_model_is_measured_on_tables_wherever_they_are(tmp_path, capsys):
    write_model(model := f"{tmp_path}/tiny")
    table = frame()
    write(tmp_path, "csv", table[:40])
    write(tmp_path, "jsonl", table[40:])
    alone = measure(model, table.review.tolist()).measures
    assert measure(model, f"{tmp_path}/films.*", column="review", processes=2).measures == alone
    (tmp_path/"films.csv").unlink()
    rest = measure(model, table.review[40:].tolist()).measures
    assert measure(model, f"file://{tmp_path}/films.*l", column="review").measures == rest
    assert istar("measure", f"file://{tmp_path}/films.jsonl", "--column", "review", "--model", model,
                 "--no-progress", "--out", tmp_path/"out") == 0, capsys.readouterr().err
    assert json.loads((tmp_path/"out"/"isotropy.json").read_text(encoding="utf-8"))["measures"] == rest


@pytest.mark.system
def test_a_decoder_with_random_weights_is_the_same_on_every_process():
    "One vector a text, and more of them than the intrinsic dimension is computed from."
    texts = [f"a {word} word and number {i}" for i in range(350) for word in "good bad fine poor sound weak".split()]
    alone, shared = (measure("tiny-gpt2", texts, tokens="last", processes=k, progress=False) for k in (1, 2))
    assert alone.measures == shared.measures
