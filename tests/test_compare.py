"Two models side by side where a notebook cannot show it: processes, a hub's revisions, pipes, texts without tokens."
import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from istar_nb import measure
from istar_nb.app.cli import main
from istar_nb.report.comparing import checkpoints_in, compare
from istar_nb.report.reports import gaps
from istar_nb.text.encoders import load_encoder
from istar_nb.text.tasks import load_task

SENTENCES = [row["sentence"] for row in load_task("stdlib-docs").train[:40]]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    "Run `istar` in this process and in a temporary folder; returns its exit code and what it printed."
    monkeypatch.chdir(tmp_path)
    def run(*words):
        torch.manual_seed(0)
        try: main([*map(str, words)])
        except SystemExit as stop: return stop.code, "".join(capsys.readouterr())
        return 0, "".join(capsys.readouterr())
    return run


def read(): return json.loads(Path("comparison/comparison.json").read_text(encoding="utf-8"))


def test_torchs_default_dtype_changes_nothing():
    models = load_encoder("tiny-bert"), load_encoder("tiny-gpt2")
    expected = compare(*models, SENTENCES[:20])
    torch.set_default_dtype(torch.float64)
    try: assert compare(*models, SENTENCES[:20]).alike == expected.alike
    finally: torch.set_default_dtype(torch.float32)


def test_a_pipe_is_read_once_for_both_models(run):
    os.mkfifo("pipe")
    Path("file.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    with subprocess.Popen(["sh", "-c", "cat file.txt > pipe"]):
        code, said = run("compare", "tiny-bert", "tiny-gpt2", "pipe", "--no-progress")
    piped = read()
    assert code == 0 and piped["source"] == "40 texts of pipe, tokens: real", said
    assert run("compare", "tiny-bert", "tiny-gpt2", "file.txt", "--no-progress")[0] == 0
    assert {k: v for k, v in read().items() if k != "source"} == {k: v for k, v in piped.items() if k != "source"}


@pytest.mark.parametrize("words", ["tiny-bert tiny-bert file.txt --layers 1", "tiny-bert tiny-bert --layers 1 file.txt",
                                   "--layers 1 --limit 40 tiny-bert tiny-bert file.txt",
                                   "tiny-bert tiny-bert --limit 40 file.txt --layers 1"])
def test_the_texts_may_stand_before_or_after_options(words, run):
    Path("file.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    code, said = run("compare", *words.split(), "--no-progress")
    assert code == 0 and read()["source"] == "40 texts of file.txt, tokens: real", said
    assert list(read()["alike"]["tiny-bert (2)"]) == ["1"]


def test_a_text_without_tokens_in_one_model_is_left_out_of_both():
    "GPT-2's tokenizer makes no token of an empty text, BERT's adds two."
    first, second, full = load_encoder("tiny-bert"), load_encoder("tiny-gpt2"), [*SENTENCES[:20]]
    with_gaps = compare(first, second, ["", *full[:10], "", *full[10:]], tokens="mean")
    without = compare(first, second, full, tokens="mean")
    (_, rows), (_, wanted) = (next(iter(c.alike.items())) for c in (with_gaps, without))
    for layer, row in wanted.items(): assert rows[layer]["cka"] == pytest.approx(row["cka"], abs=1e-6)


def test_the_order_of_texts_does_not_matter_to_how_alike_layers_are():
    first, second = load_encoder("tiny-bert"), load_encoder("tiny-gpt2")
    orders = SENTENCES, SENTENCES[::-1]
    (_, rows), (_, others) = (next(iter(compare(first, second, texts).alike.items())) for texts in orders)
    for layer, row in rows.items():
        assert row["cka"] == pytest.approx(others[layer]["cka"], abs=1e-5)
        assert row["overlap"] == pytest.approx(others[layer]["overlap"], abs=0.02)


def test_checkpoints_come_in_the_order_of_their_numbers(tmp_path):
    for name in ("checkpoint-1000", "checkpoint-200", "checkpoint-30"):
        (tmp_path/name).mkdir()
        (tmp_path/name/"config.json").write_text("{}", encoding="utf-8")
    (tmp_path/"logs").mkdir()
    assert [Path(p).name for p in checkpoints_in(tmp_path)] == ["checkpoint-30", "checkpoint-200", "checkpoint-1000"]


def test_revisions_of_a_model_of_the_hub_are_a_series(tmp_path):
    "A cache as the hub's client keeps it, with two revisions; nothing is downloaded."
    place = tmp_path/"home"/"hub"/"models--me--tiny"
    (place/"refs").mkdir(parents=True)
    torch.manual_seed(0)
    for name, revision in (("main", "a"*40), ("step1", "b"*40)):
        (place/"refs"/name).write_text(revision, encoding="utf-8")
        for part in load_encoder("tiny-bert"): part.save_pretrained(place/"snapshots"/revision)
    (tmp_path/"texts.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    words = "compare me/tiny texts.txt --revision main,step1 --no-progress"
    code = (f"from istar_nb.app.cli import main; main({words.split()})\n"    # as in a shell
            "from istar_nb.training.records import model_hashes\n"
            "print(*(model_hashes(f'me/tiny{at}')['model_sha256'] for at in ('', '@main', '@step1')))")
    environment = os.environ | dict(HF_HOME=str(tmp_path/"home"), HF_HUB_OFFLINE="1")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True,
                          timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path/"comparison/comparison.json").read_text(encoding="utf-8"))
    same, other = found["alike"].values()
    assert list(found["alike"]) == ["tiny@main", "tiny@step1"]
    assert same["2"]["cka"] > 1 - 1e-9 and other["2"]["cka"] < 0.999
    plain, main, step = done.stdout.splitlines()[-1].split()
    assert plain == main != step and len(step) == 64, "a record names the weights of its revision"


def test_points_far_from_the_origin_and_at_any_scale_and_as_many_neighbours_as_there_are():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    turned = x @ torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.float64))[0]
    far = compare(x + 3e6, turned + 1e6, neighbors=500)
    assert far.frame().cka.item() == pytest.approx(1, abs=1e-6) and far.neighbors == 59 and "59 nearest" in far.how()
    near = compare(x, turned)
    far, near = (found.measures["points 1"]["points"]["two_nn"] for found in (far, near))
    assert far == pytest.approx(near, rel=1e-3)
    other = torch.randn(60, 4, generator=generator)
    for scale in (1e-15, 1e20):
        pair = compare(x, other, neighbors=5), compare(x, other*scale, neighbors=5)
        assert pair[0].frame().overlap.item() == pair[1].frame().overlap.item()
    with pytest.raises(ValueError, match="`points 2` has values"): compare(x, other*torch.nan)
    with pytest.raises(ValueError, match="`reference` has values"): measure(x, zeta=0.5, reference=other*torch.nan)


def test_vectors_that_are_all_equal_have_no_neighbours():
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    found = compare(x, [x, torch.ones(60, 5)])
    assert [row["points"]["overlap"] for row in found.alike.values()] == [1, None]
    found.show()
    texts = [f"The text {i} is about {word}." for i in range(3) for word in ("cats", "dogs", "fish")]
    first, *others = compare("tiny-bert", "tiny-roberta", texts, tokens="cls").alike["tiny-roberta"].values()
    assert first["overlap"] is None and first["cka"] is None and all(row["overlap"] > 0 for row in others)


@pytest.mark.parametrize("words, message", [
    ("compare a.npy short.npy", "a.npy has 60, short.npy has 50 rows"), ("compare a.npy", "B is missing"),
    ("compare a.npy nothing.npy", "nothing.npy is no file of points"),
    ("compare a.npy tiny-bert", "tiny-bert is no file of points"),
    ("compare a.npy a.npy --neighbors 0", "--neighbors"),
    ("compare tiny-bert a.npy --checkpoints x", "is a file of points"),
    ("compare tiny-bert tiny-nothing stdlib-docs --limit 20", "tiny-nothing"),
    ("compare tiny-bert tiny-gpt2", "compared on texts"),
    ("compare tiny-bert tiny-gpt2 stdlib-docs --limit 3", "5 texts")])
def test_what_cannot_be_compared_is_refused(words, message, run):
    for name, count in (("a", 60), ("short", 50)):
        np.save(f"{name}.npy", np.random.default_rng(0).normal(size=(count, 8)))
    code, said = run(*words.split(), "--no-progress")
    assert code == 2 and message in said and not Path("comparison").exists(), said


def test_rows_of_files_with_ids_in_another_order_are_not_paired(tmp_path):
    table = pd.DataFrame(dict(id=[f"text {i}" for i in range(30)], part=["a", "b"]*15))
    table["vector"] = list(np.random.default_rng(0).normal(size=(30, 4)))
    table.to_parquet(tmp_path/"one.parquet")
    table[::-1].reset_index(drop=True).to_parquet(tmp_path/"other.parquet")
    table.drop(columns="id").to_parquet(tmp_path/"without.parquet")
    with pytest.raises(ValueError, match="'id' of row 0 .* is 'text 0' in .*one.parquet and 'text 29' in .*other"):
        compare(tmp_path/"one.parquet", tmp_path/"other.parquet")
    for name in ("one", "without"): assert compare(tmp_path/"one.parquet", tmp_path/f"{name}.parquet").texts == 30


@pytest.mark.parametrize("tokens", ["real", "mean", "cls", "last", "all"])
def test_a_text_whose_states_are_not_finite_costs_that_text_alone(tokens):
    texts, encoder = SENTENCES[:30], load_encoder("tiny-bert")
    wrong = encoder.tokenizer(texts)["input_ids"][7]

    model, bad = copy.deepcopy(encoder.model), []

    def reads(module, args, batch): bad[:] = [row[:len(wrong)].tolist() == wrong for row in batch["input_ids"]]

    def overflows(module, args, out):
        x = out[0] if isinstance(out, tuple) else out
        x[torch.tensor(bad)] = torch.nan
    model.register_forward_pre_hook(reads, with_kwargs=True)
    model.encoder.layer[0].register_forward_hook(overflows)
    found, others = measure((model, encoder.tokenizer), texts, tokens), texts[:7] + texts[8:]
    expected = measure((encoder.model, encoder.tokenizer), others, tokens)
    (layers,), (without,) = found.measures.values(), expected.measures.values()
    assert layers["2"]["left_out"] == [7] and "left_out" not in layers["0"] and "1 (7; counted from 0)" in gaps(layers)
    assert layers["2"]["count"] == without["2"]["count"]
    if "isoscore" in without["2"]: assert layers["2"]["isoscore"] == pytest.approx(without["2"]["isoscore"], rel=1e-4)
    pair = compare((encoder.model, encoder.tokenizer), (model, encoder.tokenizer), texts, tokens)
    *_, second = pair.measures
    assert pair.measures[second]["2"]["left_out"] == [7]
    assert all(row["cka"] > 0.999 for layer, row in pair.alike[second].items() if row["cka"] is not None)


def test_another_encoding_is_told_by_a_word_and_by_the_status(run):
    x = np.random.default_rng(0).normal(size=(300, 24)).astype("float32") + 0.3
    np.save("a.npy", x)
    np.save("half.npy", x.astype("float16").astype("float32"))
    np.save("moved.npy", x - x.mean(0))    # the same distances, and other cosines
    np.save("other.npy", x[:, ::-1]*np.linspace(0.1, 3, 24, dtype="float32"))
    for name, word, status in (("half", "the same", 0), ("moved", "changed", 1), ("other", "changed neighbours", 1)):
        code, said = run("compare", "a.npy", f"{name}.npy", "--fail-on", "changed", "--out", name)
        assert code == status and f"{name}.npy beside a.npy: {word}" in said and "mean cosine" in said
        assert json.loads(Path(f"{name}/comparison.json").read_text("utf-8"))["words"][f"{name}.npy"].startswith(word)
    assert run("compare", "a.npy", "other.npy")[0] == 0
