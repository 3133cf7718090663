"What is typed first, and what is typed wrong: `istar` carries it out or answers with one line that helps."
import base64
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from processes import Process, wait_for

from istar_nb.app import cli
from istar_nb.app.cli import _sections, options_of
from istar_nb.app.cli import commands, main
from istar_nb.sweeps.grids import load_records
from istar_nb.text.encoders import load_encoder
from istar_nb.text.tasks import load_task
from istar_nb.training.records import save_record

root = Path(__file__).resolve().parents[1]
SENTENCES = [row["sentence"] for row in load_task("stdlib-docs").train[:40]]
EXAMPLES = [line.split("  ")[0] for command in commands.values()
            for line in _sections(command)[1].splitlines()]
DRAWN = [next(example for example in EXAMPLES if example.startswith(f"istar {name}"))
         for name in ("measure", "compare", "health", "demo")]

pytestmark = pytest.mark.usefixtures("blank_figures")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    "Run `istar` in this process and in a folder with files to name; returns its exit code and what it printed."
    monkeypatch.chdir(tmp_path)
    Path("sentences.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    Path("films.csv").write_text("text,sentiment\n" + "".join(
        f"\"{text.replace(chr(34), '')}\",{'good' if i % 2 else 'bad'}\n" for i, text in enumerate(SENTENCES)),
        encoding="utf-8")
    np.save("vectors.npy", np.random.default_rng(0).normal(size=(60, 8)))
    for name in ("grid", "run"): Path(f"{name}.yaml").write_text(
        "model: tiny-bert\nlimit: 64\nvalidation_limit: 64\nepochs: 1\n", encoding="utf-8")
    small = dict(texts="stdlib-docs", hold_out=0.05, vocabulary=600, length=32, depth=1, width=32, heads=2, steps=4,
                 batch_size=16, evaluate_every=4)
    Path("models.yaml").write_text(json.dumps(dict(base=small)), encoding="utf-8")
    def run(*words):
        torch.manual_seed(0)
        try: main([*map(str, words)])
        except SystemExit as stop: return stop.code, "".join(capsys.readouterr())
        return 0, "".join(capsys.readouterr())
    return run


def values(folder="isotropy"):
    "The measures that `istar measure` wrote."
    return json.loads(Path(folder, "isotropy.json").read_text(encoding="utf-8"))["measures"]


def start(*words, **more):
    "`istar` in a process of its own."
    program = [sys.executable, "-c", "from istar_nb.app.cli import main; main()"]
    return subprocess.Popen([*program, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


# A word alone --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("word, option", [("sentences.txt", "--text"), ("vectors.npy", "--embeddings"),
                                          ("stdlib-docs", "--task"), ("texts", "--text"),
                                          ("two words [x]/a b.txt", "--text")])
def test_what_is_measured_may_stand_alone(word, option, run):
    for folder in ("texts", "two words [x]"):
        Path(folder).mkdir()
        Path(folder, "a b.txt").write_text("\n".join(SENTENCES[:20]), encoding="utf-8")
    more = [] if option == "--embeddings" else ["--model", "tiny-bert", "--limit", 20]
    found = []
    for words in ([word], [option, word]):
        code, said = run("measure", *words, *more, "--no-progress")
        assert code == 0, said
        found.append(values())
    assert found[0] == found[1]


def test_a_folder_of_tables_is_measured_by_its_column(run):
    Path("tables").mkdir()
    for i in range(2): pd.DataFrame(dict(text=SENTENCES[i::2])).to_csv(f"tables/{i}.csv", index=False)
    code, said = run("measure", "tables", "--column", "text", "--model", "tiny-bert", "--tokens", "mean",
                     "--no-progress")
    assert code == 0 and values()["tiny-bert"]["1"]["count"] == len(SENTENCES), said
    code, said = run("measure", "tables")
    assert code == 2 and "--column" in said


@pytest.mark.system
def test_a_run_a_table_or_a_task_may_stand_alone(run):
    small = ["--model", "tiny-bert", "--epochs", "1", "--no-progress"]
    for words in (["run.yaml"], ["films.csv", "--text", "text", "--label", "sentiment", *small],
                  ["stdlib-docs", "--limit", "64", "--validation-limit", "64", *small]):
        code, said = run("train", *words, "--root", "store")
        assert code == 0, said
    code, said = run("runs", "store")
    assert code == 0 and "2 rows of store" in said, said    # one run has two descriptions
    assert set(load_records("store").task) == {"stdlib-docs", "films"}


# One line that helps -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("words, parts", [
    ("mesure x", ["no command mesure", "measure?"]), ("sentences.txt", ["istar measure sentences.txt?"]),
    ("measure --layer 3", ["unrecognized arguments: --layer", "--layers?"]), ("train --batchsize 3", ["--batch-size?"]),
    ("measure sentence.txt", ["sentence.txt", "sentences.txt?"]), ("measure minilm", ["--model"]),
    ("measure", ["name what to measure", "istar measure sentences.txt"]), ("sweep", ["GRID is missing"]),
    ("train --method istr", ["'none', 'istar'", "istar?"]), ("train --task sst-2", ["sst2?"]),
    ("train --model tiny-brt", ["--model", "tiny-bert?"]), ("measure --task sts-b", ["task 'sts-b'", "stsb?"]),
    ("measure films.csv --column txt", ["column 'txt'", "text?"]), ("measure films.csv", ["--column"]),
    ("train films.csv --text txt --label sentiment", ["text?"]), ("runs --where taks=cola", ["--root runs"]),
    ("sweep bad.yaml", ["'laers'", "layers?"]), ("sweep worse.yaml", ["'run'", "runs?"]),
    ("train --limit many", ["--limit must be a whole number, not 'many'"]),
    ("train --limit", ["--limit expected one argument"]),
    ("train --lam 0.1", ["--lam is 0.1"]), ("train --method istar", ["give --lam, --relative or --target"]),
    ("measure cola", ["--data-dir", "--hub"]), ("measure nothing", ["no file, folder or task nothing"]),
    ("measure empty", ["there is no .txt file in empty"]), ("runs a b", ["unrecognized arguments: b", "commas"]),
    ("tasks cola", ["unrecognized arguments: cola"]),
    ("measure --layers 0,x sentences.txt", ["--layers must be a whole number, not 'x'"]),
    ("train --hold_out 2", ["--hold-out?"]),
    ("train --hold-out 2", ["--hold-out must be"]), ("train --config missing.yaml", ["--config", "missing.yaml"]),
    ("train --target 0.5", ["--target changes nothing with method 'none'", "--method"]),
    ("train --depth 3 --epochs 1", ["--depth changes nothing"]),
    ("train --method istar --lam 1 --epochs 1 --lam-start 2", ["--lam-start is 2", "nothing is penalised"]),
    ("sweep grid.yaml --selection-seeds 3", ["--selection-seeds needs --select"]),
    ("sweep grid.yaml --executor local --gpus-per-run 1", ["--gpus-per-run is an option of executor 'ray'"]),
    ("health vectors.npy --k 3", ["--k needs --relevant"]), ("runs --root films.csv", ["films.csv is a file"]),
    ("demo --method istar", ["--method", "--strength"]), ("measure saved", ["--model"])])
def test_a_mistake_is_answered_with_one_line(words, parts, run, monkeypatch):
    monkeypatch.delenv("ISTAR_DATA", raising=False)
    for folder in ("empty", "saved"): Path(folder).mkdir()
    Path("saved/config.json").write_text("{}", encoding="utf-8")
    Path("bad.yaml").write_text("laers: 3\n", encoding="utf-8")
    Path("worse.yaml").write_text("run: [{}]\nbase: {}\n", encoding="utf-8")
    code, said = run(*words.split())
    said = said.removeprefix("starting …\n")    # where what is wrong is only seen then
    assert code == 2 and all(part in said for part in parts), said
    assert said.startswith("istar: ") and said.count("\n") == 1 and "`lam`" not in said, said
    assert not Path("isotropy").exists() and not list(Path().glob("runs/*.json"))


MISSING = ["measure --text missing.txt", "measure missing.npy", "measure --embeddings m.npy",
           "train --config missing.yaml", "train missing.csv --text a --label b", "sweep missing.yaml",
           "pretrain missing.yaml", "demo --train missing.csv --text a --label b"]


def test_a_missing_file_is_named_before_anything_heavy_is_imported(tmp_path):
    code = ("import sys\nfrom istar_nb.app.cli import main\nfor typed in sys.argv[1:]:\n try: main(typed.split())\n"
            " except SystemExit as e: print(e.code, [m for m in ('torch', 'pandas') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code, *MISSING], capture_output=True, encoding="utf-8",
                          cwd=tmp_path, timeout=300)
    said = done.stderr.splitlines()
    assert done.stdout == "2 []\n"*len(MISSING) and len(said) == len(MISSING), done
    assert [words for words, line in zip(MISSING, said) if "there is no" not in line] == []


@pytest.mark.parametrize("words", ["--layers 0,2", "--layers=0,2", "--layers 0 --layers 2"])
def test_several_values_have_commas_between_them(words, run):
    code, said = run("measure", "--model", "tiny-bert", "--no-progress", *words.split(), "sentences.txt")
    assert code == 0, said
    assert set(values()["tiny-bert"]) - {"pooled"} == {"0", "2"}


@pytest.mark.system
def test_seeds_and_conditions_take_commas_too(run):
    code, said = run("sweep", "grid.yaml", "--seeds", "0,1", "--no-progress")
    assert code == 0 and "2 of 2 runs" in said, said
    code, said = run("runs", "--where", "seed=1,status=done")
    assert code == 0 and "1 rows of runs" in said, said


# What a command leaves as it was -------------------------------------------------------------------------------------

def test_an_explorer_does_not_take_the_place_of_another_page(run, provide, capsys):
    provide()
    Path("site").mkdir()
    Path("site/index.html").write_text("mine", encoding="utf-8")
    capsys.readouterr()    # what the runs that were made here have printed
    code, said = run("runs", "--explore", "site")
    assert code == 2 and said.startswith("istar: --explore site holds another index.html"), said
    assert Path("site/index.html").read_bytes() == b"mine"
    assert [run("runs", "--explore", "page")[0] for _ in range(2)] == [0, 0], "its own page may be written again"


def test_a_judgement_is_written_and_takes_no_margin_for_contrasts(run, provide):
    provide()
    words = ["judge", "table.csv", "--baseline", "plain", "--export", "notes.csv"]
    assert "written to notes.csv" in run(*words)[1]
    code, said = run("judge", "runs", "--contrasts", "declared.yaml", "--margin", "0.1")
    assert code == 2 and "each of" in said and "its own" in said, said


@pytest.mark.parametrize("tokens", ["real", "audit"])
def test_a_model_of_random_weights_is_the_same_for_every_command(tokens, run):
    found = []
    for seed in (1, 2):
        torch.random.default_generator.manual_seed(seed)
        main(["measure", "sentences.txt", "--model", "tiny-bert", "--tokens", tokens, "--max-length", "6",
              "--out", str(seed), "--no-progress"])
        found.append(json.loads(Path(str(seed), "isotropy.json").read_text(encoding="utf-8")))
    assert found[0]["measures"] == found[1]["measures"] and "at most 6 tokens of each text" in found[0]["source"]


@pytest.mark.system
def test_a_text_of_spaces_alone_is_empty(run):
    Path("blank.csv").write_text("text,sentiment\ngood film,good\n   ,bad\n", encoding="utf-8")
    code, said = run("train", "blank.csv", "--text", "text", "--label", "sentiment", "--model", "tiny-bert")
    assert code == 2 and "column 'text' is empty in line 3" in said, said


# Help ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", commands)
@pytest.mark.parametrize("width", ["60", "100"])
def test_help_opens_with_examples_and_fits(name, width, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    code, said = run(name, "--help")
    assert code == 0 and "None" not in said and "{" not in said and "STR" not in said
    assert 0 < said.index("\nexamples:\n  istar ") < (said + "\n  --").index("\n  --")
    for option, *_ in options_of(commands[name]):
        assert f"\n  --{option.replace('_', '-')}" in said, option
    prose = [line for line in said.splitlines() if not line.startswith(("  istar", "usage"))]
    assert max(map(len, prose)) <= int(width), max(prose, key=len)


def test_the_overview_names_every_command(run):
    whole = run("--help")
    assert whole[0] == 0 and all(f"\n  {name} " in whole[1] for name in commands)
    assert run("-h") == whole and run() == (2, whole[1]) and run("-V") == run("--version")


@pytest.fixture
def provide(finished): return lambda: write_inputs(finished)


def write_inputs(finished):
    "What the examples of `judge` and `compare` name: a table of scores, runs, contrasts, points and checkpoints."
    rows = [dict(arm=arm, seed=seed, score=0.5 + seed/100 + (arm == "istar")/20) for arm in ("plain", "istar")
            for seed in range(5)]
    pd.DataFrame(rows).to_csv("table.csv", index=False)
    small = dict(model="tiny-bert", task="stdlib-docs", limit=64, validation_limit=64, epochs=1)
    for seed in range(2):
        for arm in (dict(), dict(method="istar", lam=1.0)):
            save_record(finished(seed=seed, **small, **arm), "runs")
    Path("declared.yaml").write_text("[{run: istar lam=1, against: none, primary: true}]", encoding="utf-8")
    for name in ("float32", "int8"): np.save(f"{name}.npy", np.random.default_rng(0).normal(size=(60, 8)))
    encoder = load_encoder("tiny-bert")
    for step in (1, 2):
        for part in (encoder.model, encoder.tokenizer): part.save_pretrained(f"training/checkpoint-{step}")


def provide_labels():
    "What the examples of `health` name: pairs of texts and of rows with a score, and what is relevant to a row."
    pairs = pd.DataFrame([(i, i + 1, i % 3) for i in range(0, 24, 2)], columns=["first", "second", "score"])
    pairs.to_csv("rows.csv", index=False)
    texts = {name: pairs[name].map(SENTENCES.__getitem__) for name in ("first", "second")}
    pairs.assign(**texts).to_csv("pairs.csv", index=False)
    pairs[["first", "second"]].to_csv("found.csv", index=False)


@pytest.mark.parametrize("example", DRAWN)
def test_the_first_examples_of_what_draws_work_with_their_figures(example, run, provide, drawn):
    carry_out(example, run, provide)
    page = "".join(path.read_text(encoding="utf-8") for path in Path().rglob("*.html"))
    figures = [base64.b64decode(figure) for figure in re.findall(r'src="data:image/png;base64,([^"]+)"', page)]
    assert figures and all(figure.startswith(b"\x89PNG") and len(figure) > 5000 for figure in figures)


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example not in DRAWN])
def test_examples_in_the_help_work(example, run, provide): carry_out(example, run, provide)


def carry_out(example, run, provide):
    "They are read in full; what takes long is carried out with a small model."
    _, name, *words = example.split()
    if name in ("train", "demo", "measure") and "cola" not in words and "vectors.npy" not in words:
        words += ["--model", "tiny-bert"]*("--model" not in words) + ["--limit", "64"]
        if name in ("train", "demo"): words += ["--epochs", "1", "--validation-limit", "64"]
    if name == "runs":
        root = ["--root", "demo/records"] if "demo/records" in words else []
        assert run("train", "run.yaml", "--method", "istar", "--lam", "1", "--no-progress", *root)[0] == 0
    if name in ("judge", "compare"): provide()
    if name == "health": provide_labels()
    if name in ("health", "compare"): words = ["tiny-gpt2" if word == "minilm" else word for word in words]
    cli._read(name, words)
    if "cola" in words: return    # its data are not here
    if {"processes", "--processes-per-run"} & set(words): words.append("--dry-run")    # test_sweeps and test_teams do
    code, said = run(name, *words)
    assert code == 0, said


# Reports -------------------------------------------------------------------------------------------------------------

def test_an_earlier_report_is_kept_and_named(run):
    for seed in range(3):
        np.save("vectors.npy", np.random.default_rng(seed).normal(size=(60, 8)))
        code, said = run("measure", "vectors.npy")
        assert code == 0 and ("the earlier report is kept" in said) == (seed > 0), said
        if seed: assert f"isotropy-{seed}.html" in said and f"isotropy-{seed}.json" in said
    found = [json.loads(path.read_text(encoding="utf-8"))["measures"] for path in Path("isotropy").glob("*.json")]
    assert len(found) == 3 and len({json.dumps(f) for f in found}) == 3 and values() in found


@pytest.mark.system
def test_the_demo_speaks_of_the_model_it_used(run):
    small = ["--limit", "64", "--train", "films.csv", "--text", "text", "--label", "sentiment"]
    code, said = run("demo", "--model", "tiny-bert", *small)
    assert code == 0 and "random weights" in said and "MiniLM" not in said, said
    assert "MiniLM" not in Path("demo/report.html").read_text(encoding="utf-8")
    code, said = run("demo", "--model", "tiny-bert", *small, "--strength", "1")
    assert code == 0 and "report-1.html" in said and Path("demo/report-1.html").is_file(), said


# Points and columns --------------------------------------------------------------------------------------------------

ARRAYS = dict(ints=np.arange(60).reshape(20, 3), cube=np.zeros((4, 5, 6)), line=np.zeros(5), empty=np.zeros((0, 4)),
              records=np.zeros(3, dtype=[("a", "f4")]), objects=np.array([[None]*3]*2), one=np.ones((1, 4)),
              complex=np.zeros((4, 4), complex), text=np.array([["a", "b"]]), narrow=np.ones((5, 1)))


@pytest.mark.parametrize("name, parts", [
    ("ints", ["int64", "astype"]), ("cube", ["(4, 5, 6)", "reshape"]), ("line", ["(5,)", "one point a row"]),
    ("empty", ["no points"]), ("records", ["records"]), ("objects", ["no NumPy file of numbers"]),
    ("one", ["one point alone"]), ("complex", ["complex128"]), ("text", ["dtype"]), ("narrow", ["(5, 1)"]),
    ("several.npz", ["archive", "numpy.save"]), ("renamed.npy", ["archive", "numpy.save"]),
    ("table.csv", ["numpy.save"]), ("weights.pt", ["pickle"]),
    ("cubes.safetensors", ["0 matrices", "x (2, 3, 4)"]), ("words.parquet", ["'text'", "name a column"])])
def test_what_holds_no_points_is_explained_in_a_line(name, parts, run):
    from safetensors.torch import save_file
    for key, array in ARRAYS.items(): np.save(f"{key}.npy", array)
    np.savez("several.npz", a=np.eye(3), b=np.eye(4))
    Path("renamed.npy").write_bytes(Path("several.npz").read_bytes())
    Path("table.csv").write_text("a,b\n0.5,1.5\n", encoding="utf-8")
    torch.save(torch.eye(4), "weights.pt")
    save_file(dict(x=torch.zeros(2, 3, 4)), "cubes.safetensors")
    pd.DataFrame(dict(text=["a", "b"])).to_parquet("words.parquet")
    file = name if "." in name else f"{name}.npy"
    code, said = run("measure", "--embeddings", file)
    said = said.removeprefix("starting …\n")
    assert code == 2 and file in said and all(part in said for part in parts) and said.count("\n") == 1, said
    assert "`" not in said.replace(f"`{file}`", "") and not Path("isotropy").exists(), said


def test_the_order_of_axes_and_bytes_does_not_matter(run):
    x, found = np.random.default_rng(0).normal(size=(60, 8)), []
    for array in (x, np.asfortranarray(x), x.astype(">f8")):
        np.save("x.npy", array)
        assert run("measure", "x.npy")[0] == 0
        found.append(values()["x.npy"]["points"])
    for other in found[1:]:
        for name, value in found[0].items():
            assert other[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-5, abs=1e-7)), name


@pytest.mark.system
def test_a_column_holds_texts_or_lists_of_words(run):
    rows = [dict(tokens=text.split(), ids=[1, 2], n=i, text=" ".join(text.split()), label="ab"[i % 2])
            for i, text in enumerate(SENTENCES)]
    Path("tagged.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    small = ["--model", "tiny-bert", "--no-progress"]
    found = []
    for column in ("tokens", "text"):
        code, said = run("measure", "tagged.jsonl", "--column", column, *small)
        assert code == 0, said
        found.append(values())
        code, said = run("train", "tagged.jsonl", "--text", column, "--label", "label", "--epochs", 1, *small)
        assert code == 0, said
    assert found[0] == found[1]
    table = load_records("runs")
    assert len(table) == 2 and table.score.nunique() == table.isoscore.nunique() == 1
    for column in ("n", "ids"):
        code, said = run("measure", "tagged.jsonl", "--column", column, *small)
        assert code == 2 and f"column '{column}'" in said and "text is wanted" in said
        code, said = run("train", "tagged.jsonl", "--text", column, "--label", "label", *small)
        assert code == 2 and f"column '{column}'" in said and "text is wanted" in said


# Processes -----------------------------------------------------------------------------------------------------------

@pytest.mark.system
@pytest.mark.parametrize("words", ["train stdlib-docs --epochs 2 --validation-limit 64", "measure stdlib-docs"])
def test_a_log_says_at_once_that_work_has_begun(words, run):
    "One line, although there are several bars, because it is over within half a minute."
    code, said = run(*words.split(), "--model", "tiny-bert", "--limit", "64")
    lines = [line for line in said.splitlines() if line.endswith("…") or "it/s" in line or "texts/s" in line]
    assert code == 0 and lines == ["starting …"], said
    assert not set("\r\x1b") & set(said)


def interruptible(*words):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main([*words])


def test_an_interrupted_command_says_so_in_a_line(tmp_path):
    "While it waits for texts; what is interrupted while torch is being imported may be ended by torch itself."
    os.mkfifo(tmp_path/"pipe")
    process = Process(interruptible, "measure", "pipe", "--model", "tiny-bert", folder=tmp_path)
    def opened():
        with suppress(OSError): return os.open(tmp_path/"pipe", os.O_WRONLY | os.O_NONBLOCK)    # nobody reads yet
    texts = wait_for(opened, process)
    os.kill(process.pid, signal.SIGINT)
    said = process.wait()
    os.close(texts)
    assert process.code == 130 and said.strip().splitlines()[-1] == "istar: stopped."
    assert "Traceback" not in said


@pytest.mark.parametrize("words", ["--help", "tasks", "measure --help"])
def test_no_letters_and_no_colours_are_forced_on_a_terminal(words, tmp_path):
    settings = dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", NO_COLOR="1", COLUMNS="60")
    process = start(*words.split(), cwd=tmp_path, env={**os.environ, **settings})
    said, wrong = process.communicate(timeout=120)
    assert process.returncode == 0 and b"\x1b" not in said and not wrong


# The explorer --------------------------------------------------------------------------------------------------------

@pytest.mark.system
def test_a_store_of_ones_own_is_explored(run):
    small = ["--no-progress", "--hold-out", "0.25"]
    for words in (["--seed", "1"], ["--seed", "1", "--method", "cosreg", "--lam", "1"]):
        assert run("train", "run.yaml", *words, *small)[0] == 0
    code, said = run("runs", "--explore", "page")
    assert code == 0 and "page/index.html#runs" in said, said
    page = {path.name: path.read_text(encoding="utf-8") for path in Path("page").iterdir()}
    data = json.loads(page["data.js"].removeprefix("explore.data = "))
    assert data["runs"]["data"] == ["tiny-bert on stdlib-docs, 25% held out"]*2
    assert sorted(data["runs"]["plain"]) == [0, 0] or sorted(data["runs"]["plain"]) == [1, 1]
    scripts = re.findall(r'src="(\w+\.js)"', page["index.html"])
    assert set(scripts) <= set(page) and "runs.js" in scripts
    Path("nothing").mkdir()
    code, said = run("runs", "nothing", "--explore", "page")
    assert code == 2 and "nothing has no encoder" in said


def test_the_page_is_in_what_is_installed(tmp_path):
    where = ["egg_info", "--egg-base", tmp_path, "build_py", "--build-lib", tmp_path/"b"]
    done = subprocess.run([sys.executable, "setup.py", "-q", *where], cwd=root, capture_output=True,
                          encoding="utf-8", timeout=300)
    there = {path.name for path in (tmp_path/"b/istar_nb/page").iterdir()}
    assert done.returncode == 0 and there == {path.name for path in (root/"docs/explore").iterdir()}, done.stderr
