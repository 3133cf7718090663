"What `03_cli` cannot host: pipes, odd files and names, places that cannot be written, other terminals, an accelerator."
import gzip
import io
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from processes import Process
from simulated import Accelerator

import istar_nb as inb
from istar_nb.text import encoders, tasks
from istar_nb.report import model_measures
from istar_nb.training import updates
from istar_nb.app import measuring
from istar_nb.app.cli import main
from istar_nb.text.encoders import load_encoder
from istar_nb.penalties.isolayer import ClsModel, IsoBN
from istar_nb.training.records import RunRecord, iterate_records, save_record
from istar_nb.training.runs import RunConfig
from istar_nb.text.tasks import TASKS, load_task

# test_typed draws a figure of every command
pytestmark = [pytest.mark.system, pytest.mark.usefixtures("blank_figures")]

SENTENCES = [row["sentence"] for row in load_task("stdlib-docs").train[:1500]]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    "Run `istar` in this process and in a temporary folder; returns its exit code and what it printed."
    monkeypatch.chdir(tmp_path)
    def run(*words):
        torch.manual_seed(0)    # tiny models are drawn at random
        try: main([*map(str, words)])
        except SystemExit as stop: return stop.code, "".join(capsys.readouterr())
        return 0, "".join(capsys.readouterr())
    return run


@pytest.fixture
def measure(run):
    "Measure with a tiny model; returns what the JSON holds."
    def measure(*words):
        code, said = run("measure", "--model", "tiny-bert", "--no-progress", *words)
        assert code == 0, said
        return json.loads(Path("isotropy/isotropy.json").read_text(encoding="utf-8"))
    return measure


# Texts ---------------------------------------------------------------------------------------------------------------

def fifo(content:bytes, folder:Path)->Path:
    "A named pipe that gives its content once."
    path = folder/"pipe"
    os.mkfifo(path)
    threading.Thread(target=path.write_bytes, args=(content,), daemon=True).start()
    return path


def descriptor(content:bytes, folder:Path)->Path:
    "What a shell makes of <(...)."
    end, start = os.pipe()
    def write():
        with open(start, "wb") as file: file.write(content)
    threading.Thread(target=write, daemon=True).start()
    return Path(f"/dev/fd/{end}")


def test_a_pipe_gives_all_its_texts(measure, tmp_path):
    "More than one buffer holds."
    texts = [" ".join(SENTENCES[i:i+10]) for i in range(0, len(SENTENCES), 10)]
    content, short = "\n".join(texts).encode(), ("--tokens", "mean", "--max-length", 16)
    assert len(content) > 2**16
    Path("file.txt").write_bytes(content)
    stored = measure("--text", "file.txt", *short)
    for pipe, name in ((fifo, "pipe"), (descriptor, "a pipe")):    # a descriptor has only a number
        piped = measure("--text", pipe(content, tmp_path), *short)
        assert piped["measures"] == stored["measures"]
        assert piped["source"].startswith(f"{len(texts):,} texts of {name}, ")


@pytest.fixture
def standard_input():
    "Put something else in the place of this process's standard input."
    kept = os.dup(0)
    yield lambda file: os.dup2(file.fileno(), 0)
    os.dup2(kept, 0)
    os.close(kept)


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_a_limit_ends_an_endless_standard_input(name, measure, standard_input):
    with subprocess.Popen(["yes", "A line without end."], stdout=subprocess.PIPE) as endless:
        standard_input(endless.stdout)
        found = measure("--text", name, "--tokens", "mean", "--limit", 9)
        endless.kill()
    assert (all(layers["1"]["count"] == 9 for layers in found["measures"].values())
            and found["source"].startswith("9 texts"))


def test_how_lines_end_does_not_matter(measure):
    "CRLF, blank lines, a byte order mark, a final newline."
    texts = [*SENTENCES[:20], "Grüße an 世界"]
    plain, found = "\n".join(texts), []
    for text in (plain, "\r\n".join(texts), "\n\n \n".join(texts) + "\n", f"\ufeff{plain}", f"{plain}\n"):
        Path("texts.txt").write_bytes(text.encode())
        found.append(measure("--text", "texts.txt", "--tokens", "mean")["measures"])
    assert found == found[:1]*5


@pytest.mark.parametrize("content, message", [
    (b"", "no text"), (b"\n \r\n\t\n", "no text"), ("one\ntwo\nGrüße".encode("latin-1"), "not UTF-8 in line 3"),
    ("one\ntwo".encode("utf-16"), "not UTF-8 in line 1"),
    (gzip.compress(b"one\ntwo"), "not UTF-8 in line 1"), (None, "there is no .txt file in")],
                         ids=["empty", "blank", "latin-1", "UTF-16", "gzip", "folder"])
def test_a_file_without_texts_is_refused(content, message, run):
    if content is None: Path("odd.txt").mkdir()
    else: Path("odd.txt").write_bytes(content)
    code, said = run("measure", "--model", "tiny-bert", "--text", "odd.txt", "--no-progress")
    assert code == 2 and "odd.txt" in said and message in said and not Path("isotropy").exists()


def test_a_table_has_a_name(run, tmp_path):
    "The ending says how a table is read, so one cannot come through a pipe without a name."
    (tmp_path/"table.csv").write_text("text\n", encoding="utf-8")
    pipe = fifo(b"text,label\none,1\n", tmp_path)
    code, said = run("measure", "--model", "tiny-bert", "--text", pipe, "--column", "text")
    assert code == 2 and "must end in .csv" in said
    code, said = run("measure", "--model", "tiny-bert", "--text", "-", "--column", "text")
    assert code == 2 and "the standard input is read line by line" in said
    code, said = run("measure", "--model", "tiny-bert", "--text", "table.csv", "--column", "text")
    assert code == 2 and "has no text" in said


@pytest.mark.parametrize("words", [("--tokens", "cls"), ("--layers", "1"), ("--limit", "3"), ("--model", "tiny-bert"),
                                   ("--max-length", "8")], ids=lambda words: words[0])
def test_options_of_models_are_refused_for_embeddings(words, run):
    np.save("cloud.npy", np.eye(8))
    code, said = run("measure", "cloud.npy", *words)
    assert code == 2 and f"{words[0]} " in said and "no meaning with" in said and "--embeddings" not in said


@pytest.mark.parametrize("command", ["compare vectors.npy vectors.npy", "health vectors.npy"])
@pytest.mark.parametrize("option", ["--limit", "--column", "--max-length"])
def test_options_of_texts_are_refused_without_them(command, option, run):
    np.save("vectors.npy", np.random.default_rng(0).normal(size=(60, 8)))
    code, said = run(*command.split(), option, "7")
    assert code == 2 and option in said and "no meaning without them" in said


def test_isoscore_star_is_shown_beside_isoscore(run, measure):
    "With texts, with a column of a table, and with points; the plain scores stay as they are."
    texts, others = SENTENCES[:8], SENTENCES[8:40]
    Path("texts.txt").write_text("\n".join(texts), encoding="utf-8")
    Path("others.txt").write_text("\n".join(others), encoding="utf-8")
    plain = measure("--text", "texts.txt")["measures"]["tiny-bert"]
    found = measure("--text", "texts.txt", "--zeta", 0.3, "--reference", "others.txt")
    assert found["source"].endswith("IsoScore* with ζ = 0.3")
    layers = found["measures"]["tiny-bert"]
    for name, summary in layers.items():
        assert {k: v for k, v in summary.items() if k != "isoscore_star"} == plain[name] and "isoscore_star" in summary
    torch.manual_seed(0)
    assert inb.measure("tiny-bert", texts, zeta=0.3, reference=others).measures["tiny-bert"] == layers
    for name, part in dict(texts=texts, others=others).items():
        pd.DataFrame(dict(said=part)).to_csv(f"{name}.csv", index=False)
    for reference in ("others.csv", "others.txt"):
        words = "--text", "texts.csv", "--column", "said", "--zeta", 0.3, "--reference", reference
        assert measure(*words)["measures"]["tiny-bert"] == layers
    x = np.random.default_rng(0).normal(size=(60, 4))*[3, 1, 1, 1]
    np.save("x.npy", x[:20])
    np.save("rest.npy", x[20:])
    code, said = run("measure", "x.npy", "--zeta", 0.3, "--reference", "rest.npy")
    direct = inb.isoscore_star(x[:20], torch.from_numpy(np.cov(x[20:].T)), 0.3).item()
    assert code == 0 and "IsoScore*" in said and f"{direct:.3f}" in said and "with the ζ named above" in Path(
        "isotropy/isotropy.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("words, message", [
    (["--zeta", 0.2], "--reference is needed when --zeta is above 0"),
    (["--reference", "texts.txt"], "no meaning when --zeta is 0"),
    (["--zeta", 2, "--reference", "texts.txt"], "--zeta must be"),
    (["--zeta", 0.2, "--reference", "text.txt"], "--reference: there is no file or folder text.txt (did you"),
    (["--zeta", 0.2, "--reference", "empty.txt"], "empty.txt has no text"),
    (["--zeta", 0.2, "--reference", "texts.txt", "--tokens", "audit"], "no meaning with --tokens audit"),
    (["--device", "cpu", "--tokens", "audit"], "--device has no meaning with --tokens audit")])
def test_a_reference_that_does_not_fit_is_refused(words, message, run):
    Path("texts.txt").write_text("One.\nTwo.", encoding="utf-8")
    Path("empty.txt").write_text("", encoding="utf-8")
    code, said = run("measure", "--model", "tiny-bert", "--text", "texts.txt", "--no-progress", *words)
    assert code == 2 and message in said and not Path("isotropy").exists()


def test_embeddings_that_cannot_be_measured_are_named(run):
    pd.DataFrame(dict(a=[], b=[]), dtype="float32").to_parquet("empty.parquet")
    np.save("good.npy", np.random.default_rng(0).normal(size=(20, 4)))
    np.save("bad.npy", np.full((20, 4), np.inf))
    code, said = run("measure", "--embeddings", "empty.parquet")
    assert code == 2 and "empty.parquet" in said and "has no points" in said
    code, said = run("compare", "good.npy", "bad.npy")
    assert code == 2 and "bad.npy" in said and "not finite" in said


def test_a_file_that_cannot_be_read_is_named(run):
    Path("secret.txt").write_text("One.", encoding="utf-8")
    Path("secret.txt").chmod(0)
    if os.access("secret.txt", os.R_OK): pytest.skip("this user may read everything")
    code, said = run("measure", "--text", "secret.txt")
    assert code == 2 and "secret.txt" in said


# What has no measure -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("tokens, texts", [("cls", SENTENCES[:30]), ("cls", SENTENCES[:1]), ("mean", SENTENCES[:1]),
                                           ("mean", ["Equal."]*30), ("real", ["Equal."]*3)])
def test_a_layer_without_a_value_is_a_gap(tokens, texts, run):
    Path("texts.txt").write_text("\n".join(texts), encoding="utf-8")
    code, printed = run("measure", "--model", "tiny-bert", "--text", "texts.txt", "--tokens", tokens, "--no-progress")
    layers = json.loads(Path("isotropy/isotropy.json").read_text(encoding="utf-8"))["measures"]["tiny-bert"]
    page = Path("isotropy/isotropy.html").read_text(encoding="utf-8")
    assert list(layers) == ["0", "1", "2", "pooled"]
    without = {name for name, summary in layers.items() if "reason" in summary}
    assert without if tokens != "real" else not without
    for name in without:
        reason = layers[name]["reason"]
        assert (set(layers[name]) == {"count", "reason"} and reason in page and reason in " ".join(printed.split())
                and "–" in printed)


def test_gpt2_has_no_point_for_an_empty_text(monkeypatch, measure):
    "Its tokenizer makes no token of a text that a task's file leaves empty."
    rows = [dict(sentence=text) for text in ("", *SENTENCES[:20], "")]
    monkeypatch.setattr(tasks, "load_task", lambda *args: type("Data", (), dict(task=TASKS["cola"], train=rows)))
    found = measure("--model", "tiny-gpt2", "--task", "cola", "--tokens", "mean")
    assert found["measures"]["tiny-gpt2"]["2"]["count"] == 20 and found["source"].startswith("22 texts")


# Two things beside each other ----------------------------------------------------------------------------------------

def test_both_things_that_are_compared_are_shown(run):
    for folder in ("a", "b"):
        Path(folder).mkdir()
        np.save(f"{folder}/x.npy", np.random.default_rng(len(folder)).normal(size=(60, 8)))
    Path("texts.txt").write_text("\n".join(SENTENCES[:20]), encoding="utf-8")
    def labels(*words):
        code, said = run("compare", *words, "--no-progress")
        assert code == 0, said
        names, page = (list(json.loads(Path("comparison/comparison.json").read_text(encoding="utf-8"))["measures"]),
                       Path("comparison/comparison.html").read_text(encoding="utf-8"))
        assert all(name in said and page.count(f"<h2>{name}</h2>") == 1 for name in names)
        return names
    assert labels("a/x.npy", "b/x.npy") == ["a/x.npy", "b/x.npy"]
    assert labels("a/x.npy", "a/x.npy") == ["a/x.npy (1)", "a/x.npy (2)"]
    assert labels("tiny-bert", "tiny-bert", "texts.txt") == ["tiny-bert (1)", "tiny-bert (2)"]


@pytest.mark.parametrize("name", ["$a_b$ [red]x[bold] :smile:.npy", "_hidden.npy", "[x].npy",
                                  pytest.param("it's \"Käse\" &amp; <b>.npy", marks=pytest.mark.any_names)])
def test_names_are_shown_as_they_are(name, run, drawn):
    import html
    np.save(name, np.random.default_rng(0).normal(size=(60, 8)))
    np.save("other.npy", np.random.default_rng(0).normal(size=(60, 8)))
    code, said = run("compare", name, "other.npy")
    assert code == 0 and name in said, said
    page = Path("comparison/comparison.html").read_text(encoding="utf-8")
    assert f"<h2>{name}</h2>" in html.unescape(page) and "<b>" not in page


@pytest.mark.any_names
def test_a_model_folder_with_an_odd_name(run, drawn):
    name = "m$x_1$ [bold]ö"
    model, tokenizer = load_encoder("tiny-bert")
    for part in (model, tokenizer): part.save_pretrained(name)
    code, said = run("compare", name, "tiny-bert", "stdlib-docs", "--limit", "40", "--no-progress")
    assert code == 0 and name in said, said


# Refused before any work ---------------------------------------------------------------------------------------------

@pytest.fixture
def no_work(monkeypatch):
    "Fail if a model is loaded or a task read."
    def work(*args, **kwargs): raise AssertionError("there was work before the refusal")
    for module, name in [(encoders, "load_encoder"), (tasks, "load_task"), (updates, "load_task"),
                         (updates, "load_encoder"), (model_measures, "measure_embeddings")]:
        monkeypatch.setattr(module, name, work)


@pytest.mark.parametrize("words", ["measure --task cola --max-length -5", "measure --task cola --batch-tokens -1",
                                   "measure --task cola --batch-tokens 0", "measure --task cola --limit 0",
                                   "train --checkpoint-every -1", "train --processes 0",
                                   "sweep grid.yaml --checkpoint-every 0", "sweep grid.yaml --workers 0"])
def test_impossible_numbers_are_refused_first(words, run, no_work):
    Path("grid.yaml").write_text("base: {model: tiny-bert, limit: 64, epochs: 1}\nseeds: [0]\nruns: [{method: none}]\n",
                                 encoding="utf-8")
    code, said = run(*words.split())
    assert code == 2 and words.split()[-2] in said and not Path("runs").exists(), said


@pytest.mark.parametrize("place", ["file/below", "file", "/proc/nobody/here", "/dev/null/x", "link/x"])
@pytest.mark.parametrize("words",
                         ["measure --task cola --out", "demo --out", "train --save-model",
                          "runs --root store --export", "sweep grid.yaml --root", "sweep grid.yaml --checkpoints",
                          "train --root", "train --checkpoints", "pretrain grid.yaml --root"])
def test_places_that_cannot_be_written_are_refused_first(words, place, run, no_work):
    Path("file").write_text("", encoding="utf-8")
    Path("link").symlink_to("nowhere")
    Path("store").mkdir()
    Path("grid.yaml").write_text("base: {model: tiny-bert, limit: 64}\nseeds: [0]\nruns: [{}]\n", encoding="utf-8")
    code, said = run(*words.split(), f"{place}/x.csv" if "--export" in words else place)
    assert code == 2 and words.split()[-1] in said and not Path("runs").exists(), said
    assert Path("file").read_text(encoding="utf-8") == ""


def test_room_for_special_tokens_and_layers_are_checked_before_measuring(run):
    for words, message in [("--max-length 2", "--max-length"), ("--layers 1,3", "tiny-bert: --layers names layer 3")]:
        code, said = run("measure", "--model", "tiny-bert", "--task", "stdlib-docs", "--no-progress", *words.split())
        assert code == 2 and message in said and not Path("isotropy").exists()


def test_a_full_disk_costs_no_numbers(run, monkeypatch):
    "They are printed before they are written."
    from istar_nb.report import reports
    def full(*_): raise OSError(28, "No space left on device")
    monkeypatch.setattr(reports, "write_file", full)
    np.save("x.npy", np.random.default_rng(0).normal(size=(60, 8)))
    code, said = run("measure", "--embeddings", "x.npy")
    assert code == 2 and "No space left" in said and "IsoScore" in said, said


def test_nothing_stays_of_a_refused_command(run):
    assert run("measure", "--task", "colour", "--out", "deep/er/folder")[0] == 2 and not list(Path().iterdir())


def test_a_saved_model_is_never_overwritten(run, no_work):
    "Another run's model may be there, and it took hours."
    Path("tuned").mkdir()
    Path("tuned/model.safetensors").write_bytes(b"of another run")
    code, said = run("train", "--model", "tiny-bert", "--save-model", "tuned")
    assert code == 2 and "--save-model tuned holds something that this run has not made" in said, said
    assert said.count("\n") == 1
    assert Path("tuned/model.safetensors").read_bytes() == b"of another run" and not Path("runs").exists()


def test_the_same_command_may_save_its_model_again_and_another_may_not(run):
    "A run whose disk was full is told to go on by the same command."
    words = ["train", "stdlib-docs", "--model", "tiny-bert", "--limit", "16", "--validation-limit", "8",
             "--epochs", "1", "--save-model", "tuned"]
    assert run(*words)[0] == 0
    weights = Path("tuned/model.safetensors").read_bytes()
    Path("tuned/model.safetensors").unlink()    # as if it had been stopped while it wrote
    assert run(*words)[0] == 0 and Path("tuned/model.safetensors").read_bytes() == weights
    code, said = run(*words, "--seed", "1")
    assert code == 2 and "--save-model tuned holds something" in said, said


def test_a_measurement_names_its_outlier_dimensions(run):
    x = np.random.default_rng(0).normal(size=(200, 32))
    x[:, [3, 17]] *= 50
    np.save("x.npy", x)
    assert run("measure", "x.npy")[0] == 0
    values = json.loads(Path("isotropy/isotropy.json").read_text(encoding="utf-8"))["measures"]["x.npy"]["points"]
    assert values["outliers"] == [3, 17] and values["outlier_count"] == 2


# Paths ---------------------------------------------------------------------------------------------------------------

def test_the_home_folder_has_its_short_name_everywhere(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(home := tmp_path/"ho me"))
    (home/"tasks/glue/cola").mkdir(parents=True)
    rows = "".join(json.dumps(dict(sentence=text, label=i % 2)) + "\n"
                   for i, text in enumerate(SENTENCES[:64])).encode()
    for split in ("train", "validation"): (home/f"tasks/glue/cola/{split}.jsonl.gz").write_bytes(gzip.compress(rows))
    for part in load_encoder("tiny-bert"): part.save_pretrained(home/"model")
    np.save(home/"x.npy", np.random.default_rng(0).normal(size=(60, 8)))
    (home/"texts.txt").write_text("\n".join(SENTENCES[:20]))
    for words in ["measure --model ~/model --text ~/texts.txt --out ~/report --no-progress",
                  "compare ~/x.npy ~/x.npy --out ~/report",
                  "measure --model tiny-bert --task cola --data-dir ~/tasks --out ~/report --no-progress",
                  "train --model ~/model --task cola --data-dir ~/tasks --limit 32 --epochs 1 --root ~/runs "
                  "--save-model ~/tuned --no-progress",
                  "runs --root ~/runs --export ~/new/runs.csv"]:
        code, said = run(*words.split())
        assert code == 0, said
        assert not words.startswith("train") or "model shards" not in said, "a bar of transformers"
    assert {path.name for path in home.iterdir()} >= {"report", "runs", "tuned", "new"} and not Path("~").exists()
    assert ((home/"tuned/model.safetensors").is_file() and (home/"new/runs.csv").is_file()
            and (home/"report/isotropy.html").is_file() and (home/"report/comparison.html").is_file())


# Stores --------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("command", ["measure", "runs", "train", "sweep"])
def test_only_what_resumes_promises_to(command, monkeypatch, capsys):
    def stopped(words): raise KeyboardInterrupt
    monkeypatch.setattr("istar_nb.app.cli._carry_out", stopped)
    with pytest.raises(SystemExit) as end: main([command])
    said = capsys.readouterr().err
    assert end.value.code == 130 and "stopped" in said
    assert ("resume" in said) == (command in ("train", "sweep"))


def test_a_store_that_is_not_there_is_an_error(run):
    Path("store").mkdir()
    Path("file").write_text("", encoding="utf-8")
    assert run("runs", "--root", "store")[0] == 0, "a store without runs is one"
    for words in (["--root", "nowhere"], ["--root", "file"], ["--root", "store", "--against", "nowhere"],
                  ["--root", "memory://nothing"]):
        code, said = run("runs", *words)
        assert code == 2 and words[-1] in said


def test_a_sweep_with_failed_runs_says_so_by_its_exit_code(run):
    Path("grid.yaml").write_text("base: {model: tiny-bert, limit: 64, validation_limit: 50, epochs: 1}\n"
                                 "seeds: [0]\nruns: [{method: none}, {method: istar, lam: 1, layers: [[9]]}]\n",
                                 encoding="utf-8")
    code, said = run("sweep", "grid.yaml", "--no-progress")
    assert code == 1 and "1 of 2 runs are done and recorded in runs; 1 failed" in said
    assert run("sweep", "grid.yaml", "--no-progress", "--dry-run")[0] == 0


def test_an_undefined_score_is_recorded(run, tmp_path):
    "Every label is the same, so that Pearson's correlation is 0/0 before and after training."
    folder = tmp_path/"tasks"/TASKS["stsb"].path
    folder.mkdir(parents=True)
    rows = "".join(json.dumps(dict(sentence1=text, sentence2=text, label=2.5)) + "\n"
                   for text in SENTENCES[:40]).encode()
    for split in ("train", "validation"): (folder/f"{split}.jsonl.gz").write_bytes(gzip.compress(rows))
    code, said = run("train", "--task", "stsb", "--model", "tiny-bert", "--epochs", "1", "--data-dir", "tasks",
                     "--no-progress")
    assert code == 0 and "pearson – after 1 epoch" in said, said
    record, = iterate_records("runs")
    assert (record.status == "done" and record.score is None
            and all(epoch["pearson"] is None is epoch["spearman"] for epoch in record.epochs))
    code, said = run("runs", "--where", "task=stsb")
    assert code == 0 and "done" in said and "–" in said


@pytest.fixture
def many_options(tmp_path):
    "A store of runs that differ in several options."
    settings = [dict(), dict(lr=5e-6, seed=1), dict(batch_size=8, weight_decay=0.1), dict(warmup=0.25, limit=4000)]
    for more in settings:
        config = RunConfig(method="istar", lam=-0.25, model="tiny-bert", max_length=100 + len(more), **more)
        epochs = [dict(isoscore=0.54321)]
        record = RunRecord(asdict(config.complete), config.id, "done", "accuracy", 0.12345, epochs)
        save_record(record, tmp_path/"store")
    return tmp_path/"store"


def test_a_pipe_gets_every_option_and_every_digit(many_options, run):
    code, said = run("runs", "--root", many_options)
    assert code == 0 and "…" not in said
    heads, = (line.split() for line in said.splitlines() if line.startswith(" id "))
    assert set(heads) >= {"lr", "batch_size", "weight_decay", "warmup", "limit", "max_length", "seconds"}
    assert said.count("0.1235") == said.count("0.5432") == 4 and said.count(" 5e-06 ") == 1


@pytest.mark.parametrize("width, there", [(82, set()), (110, {"batch_size", "lr"}), (300, {"seconds"})])
def test_a_terminal_leaves_out_options_and_no_digits(many_options, run, monkeypatch, width, there):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in dict(TERM="xterm", COLUMNS=str(width), NO_COLOR="1").items(): monkeypatch.setenv(name, value)
    code, said = run("runs", "--root", many_options)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines()
    heads, = (line.split() for line in lines if line.split()[:1] == ["id"])
    assert code == 0 and "…" not in said and max(map(len, lines)) <= width
    assert set(heads) >= {"id", "status", "task", "method", "seed", "metric", "score", "isoscore"} | there
    assert said.count("0.1235") == said.count("0.5432") == 4
    out = {"batch_size", "lr", "weight_decay", "warmup", "max_length", "limit", "seconds"} - set(heads)
    note = " ".join(lines).partition("no room for")[2]
    assert all(name in note for name in out) and ("--export writes all columns" in note) == bool(out)


def test_runs_say_how_sure_an_isoscore_is_and_which_collapsed(run, tmp_path):
    "New records have the unbiased score; an old one has the plug-in alone, and its answers tell that it collapsed."
    new = dict(isoscore=0.107, isoscore_unbiased=0.1934, isoscore_unbiased_se=0.0123, tokens=1103, sentences=277,
               majority_share=0.6)
    ends = [new, new | dict(majority_share=1.), dict(isoscore=0.053, predictions="1"*277)]
    for seed, end in enumerate(ends):
        config = RunConfig(task="cola", model="tiny-bert", seed=seed)
        record = RunRecord(asdict(config.complete), config.id, "done", "matthews", 0., [end], data=dict(validation=277))
        for store in ("new" if seed < 2 else "old", "all"): save_record(record, tmp_path/store)
    said = {store: run("runs", "--root", store)[1] for store in ("new", "old", "all")}
    assert said["new"].count("0.193 ± 0.012") == 2 and "0.107" not in said["new"] and said["new"].count(" 277 ") == 4
    assert "1,103" in said["new"] and "1 of 2 finished runs gave every row one answer" in said["new"]
    assert "0.0530" in said["old"] and "unbiased" not in said["old"]
    assert "the run gave every row one answer" in said["old"]
    assert "0.0530" in said["all"] and "0.193 ± 0.012" in said["all"]
    assert "2 of 3 finished runs gave every row one answer, or nearly every one (not learned yet)" in said["all"]
    code, listed = run("runs", "--root", "all", "--where", "collapsed=yes")
    assert code == 0 and "2 rows of all" in listed


# Other terminals, another device -------------------------------------------------------------------------------------

@pytest.fixture
def shown(tmp_path):
    "What a terminal must show of a measurement, once it is over: a score of each layer."
    (tmp_path/"Käse.txt").write_text("\n".join(SENTENCES[:20]), encoding="utf-8")
    def shown():
        values = json.loads((tmp_path/"isotropy/isotropy.json").read_text(encoding="utf-8"))["measures"]["tiny-bert"]
        assert "Käse" in (tmp_path/"isotropy/isotropy.html").read_text(encoding="utf-8")
        return [f"{values[layer]['mean_cosine']:.3f}" for layer in "012"]
    return shown


def report_in_latin(*words):
    "`istar` where its output is of Latin letters."
    sys.stdout, sys.argv = io.TextIOWrapper(open(1, "wb", closefd=False), "latin-1"), ["istar", *words]
    main()


MEASURE = ["measure", "--model", "tiny-bert", "--text", "Käse.txt", "--no-progress"]


@pytest.mark.any_names
def test_a_report_survives_a_narrow_terminal(shown, tmp_path):
    process = Process(report_in_latin, *MEASURE, folder=tmp_path, COLUMNS=40, NO_COLOR=1)
    said = process.wait()
    assert process.code == 0 and all(number in said for number in shown()), said


@pytest.mark.any_names
def test_python_starts_the_command_as_a_module_where_there_are_no_letters(shown, tmp_path):
    "A new interpreter, whose file names and output are ASCII, reads, measures and draws."
    done = subprocess.run([sys.executable, "-m", "istar_nb.app.cli", *MEASURE], capture_output=True, timeout=600,
                          cwd=tmp_path, env=os.environ | dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"))
    assert done.returncode == 0 and all(number.encode() in done.stdout for number in shown()), done.stderr


def test_a_reader_that_stops_early_is_no_mistake(tmp_path):
    command = f"{sys.executable} -c 'from istar_nb.app.cli import main; main()' tasks | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, encoding="utf-8",
                          cwd=tmp_path, timeout=600)
    assert "Broken pipe" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [("train", "--epochs", "1", "--validation-limit", "50"), ("measure",)],
                         ids=lambda words: words[0])
def test_a_log_holds_lines_only(words, run):
    "Bars that are drawn again and again in their place are for terminals."
    code, said = run(*words, "--model", "tiny-bert", "--task", "stdlib-docs", "--limit", "64")
    assert code == 0 and not set("\r\x1b") & set(said), said


def test_a_model_is_measured_on_the_accelerator(measure, monkeypatch):
    "Batches follow the model, and the numbers are the CPU's."
    seen, whole = [], model_measures.read_layers
    def noted(model, *args, **options):
        seen.append(next(model.parameters()).device.type)
        return whole(model, *args, **options)
    monkeypatch.setattr(model_measures, "read_layers", noted)
    def found(): return measure("--task", "stdlib-docs", "--limit", "60", "--tokens", "mean")["measures"]["tiny-bert"]
    here = found()
    with Accelerator(): there = found()
    assert seen == ["cpu", "sim"]
    for layer, summary in here.items():
        for name, value in summary.items():
            close = value if value is None or isinstance(value, str) else pytest.approx(value, rel=2e-3, abs=1e-4)
            assert there[layer][name] == close, (layer, name)


def test_a_saved_model_with_its_layer_is_fine_tuned_again(run):
    "Its encoder goes under a new head, whatever labels the old one had."
    model, tokenizer = load_encoder("tiny-bert")
    ClsModel(model, 3, IsoBN(32)).save_pretrained("saved")
    tokenizer.save_pretrained("saved")
    for method in ("isobn", "none"):
        code, said = run("train", "--model", "saved", "--method", method, "--limit", "64", "--validation-limit", "50",
                         "--epochs", "1", "--no-progress")
        assert code == 0, said
    code, said = run("measure", "--model", "saved", "--task", "stdlib-docs", "--limit", "20", "--no-progress")
    assert code == 0, said


def sweep_unheard(*words):
    "`istar` with its output closed, for which Python has no stream."
    os.close(1)
    sys.stdout, sys.argv = None, ["istar", *words]
    main()


def sweep_after_a_line(*words):
    "`istar` whose reader goes away after one line."
    subprocess.run(["bash", "-o", "pipefail", "-c", f"istar {' '.join(words)} | head -1"], check=True)


@pytest.mark.parametrize("started", [sweep_after_a_line, sweep_unheard], ids=lambda started: started.__name__)
def test_a_sweep_outlives_its_reader(started, tmp_path):
    "Every run is carried out and recorded, although nobody reads what the sweep says."
    (tmp_path/"grid.yaml").write_text("base: {model: tiny-bert, limit: 64, validation_limit: 50, epochs: 1}\n"
                                      "seeds: [0]\nruns: [{method: none}, {method: istar, lam: 1}]\n",
                                      encoding="utf-8")
    process = Process(started, "sweep", "grid.yaml", "--no-progress", folder=tmp_path)
    said = process.wait()
    assert process.code == 0 and "Traceback" not in said, said
    assert len(list(iterate_records(tmp_path/"runs"))) == 2


def test_what_is_shown_beside_a_measurement_can_be_measured_again(run):
    "The layers of MiniLM that are its least and most isotropic ones; other versions of Python have other docstrings."
    from istar_nb.report.reports import READING
    assert run("measure", "--task", "stdlib-docs", "--limit", "300", "--layers", "5,6", "--no-progress")[0] == 0
    found = json.loads(Path("isotropy/isotropy.json").read_text(encoding="utf-8"))["measures"]["minilm"]
    for name in ("isoscore", "isoscore_unbiased", "mean_cosine", "sv_anisotropy_centred"):
        assert sorted(found[layer][name] for layer in "56") == pytest.approx(READING[name][1], rel=0.1)


def test_a_limit_takes_texts_of_every_class(measure):
    "The rows of `stdlib-docs` are sorted by topic, so that its first ones are all about one."
    rows = load_task("stdlib-docs").train
    assert len({row["label"] for row in rows[:40]}) == 1
    part = measuring.spread_rows(rows, 40)
    assert len(part) == 40 and len({row["label"] for row in part}) == len({row["label"] for row in rows})
    measured = measure("--task", "stdlib-docs", "--limit", 40, "--tokens", "mean")
    Path("same.txt").write_text("\n".join(row["sentence"] for row in part), encoding="utf-8")
    assert measure("--text", "same.txt", "--tokens", "mean")["measures"] == measured["measures"]


# Judging tables of one's own -----------------------------------------------------------------------------------------

def table(arms, cell="{:.2f}", head="arm,seed,score", more="", seeds=6, encoding="utf-8"):
    "A CSV file in which each arm scores more than the one before."
    rows = [f"{arm},{seed},{cell.format(i/10 + seed*(i + 10)/1000)}{more}" for i, arm in enumerate(arms)
            for seed in range(seeds)]
    Path("runs.csv").write_bytes("\n".join([head, *rows, ""]).encode(encoding))


@pytest.mark.parametrize("arms", [["NA", "None"], ["1.0", "1"], ["True", "on"], ["010", "10"], ["null", "1e3"],
                                  ["nan", "1:30"]])
@pytest.mark.parametrize("declared", [True, False])
def test_arms_are_called_what_is_typed(arms, declared, run):
    table(arms)
    Path("declared.yaml").write_text(f"- run: {arms[1]}\n  against: {arms[0]}\n  primary: yes\n", encoding="utf-8")
    code, said = run("judge", "runs.csv", *(["--contrasts", "declared.yaml"] if declared else ["--baseline", arms[0]]))
    assert code == 0 and f"{arms[1]} − {arms[0]}" in said and "higher" in said, said


def test_a_column_called_status_has_words_of_its_own(run):
    table(["plain", "new"], head="arm,seed,score,status", more=",finished")
    code, said = run("judge", "runs.csv", "--baseline", "plain")
    assert code == 0 and "higher" in said and "failed" not in said, said


@pytest.mark.parametrize("written, said", [
    (dict(cell="{:.1f}%"), "column 'score' is '0.0%' in line 2"),
    (dict(cell="{:.2f} (best)"), "column 'score' is '0.00 (best)'"),
    (dict(arms=["naïve", "new"], encoding="latin-1"), "runs.csv cannot be read as a table"),
    (dict(arms=["", "new"]), "`runs` has a run without an arm"), (dict(arms=["plain"]), "one arm alone, 'plain'")])
def test_what_is_wrong_with_a_table_is_named(written, said, run):
    table(**dict(arms=["plain", "new"]) | written)
    code, found = run("judge", "runs.csv", "--baseline", "plain")
    assert code == 2 and said in found.replace("--runs", "`runs`") and found.count("\n") == 1, found


def test_a_missing_score_may_be_called_so(run):
    table(["plain", "new"])
    Path("runs.csv").write_bytes(Path("runs.csv").read_bytes().replace(b"0.00", b"NA"))
    code, said = run("judge", "runs.csv", "--baseline", "plain")
    assert code == 0 and "1x baseline failed" in " ".join(said.split()), said


@pytest.mark.parametrize("contrast, said", [
    ("ratio: true", "unknown key 'ratio'"), ("primary: 1", "`primary` must be bool"),
    ("margin: .inf", "margin` must be a number greater than 0, not inf"),
    ("margin: .nan", "margin` must be"), ("margin: '0.1'", "margin` must be a number"), ("value:", "no column ''")])
def test_a_contrast_that_says_something_else_is_refused(contrast, said, run):
    table(["plain", "new"])
    Path("declared.yaml").write_text(f"- {{run: new, against: plain, {contrast}}}", encoding="utf-8")
    code, found = run("judge", "runs.csv", "--contrasts", "declared.yaml")
    assert code == 2 and said in found.replace("--margin", "margin`").replace("--value", "value`"), found


@pytest.mark.parametrize("again", ["{run: new, against: plain}", "{run: plain, against: new, primary: true}",
                                   "{run: new, against: plain, margin: 0.1, primary: no}"])
def test_a_contrast_comes_once(again, run):
    table(["plain", "new"])
    Path("declared.yaml").write_text(f"[{{run: new, against: plain, primary: true}}, {again}]", encoding="utf-8")
    code, said = run("judge", "runs.csv", "--contrasts", "declared.yaml")
    assert code == 2 and "twice" in said, said


def test_many_seeds_are_tested_by_random_assignments(run):
    table(["plain", "new"], seeds=21)
    said = " ".join(run("judge", "runs.csv", "--baseline", "plain")[1].split())
    assert "tested by 99,999 random assignments of signs" in said and "all assignments" not in said, said
