"Pre-training: killed and resumed, free of validation text, and good enough for a fine-tuning to start from."
import json
import re
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pytest
import torch

from istar_nb.study import corpus, pretraining
from istar_nb.study.corpus import gather_texts, generator_of, mask_tokens
from istar_nb.text.encoders import load_encoder
from istar_nb.penalties.isolayer import ClsModel
from istar_nb.study.pretrain_runs import PretrainConfig, PretrainRecord, load_pretrainings
from istar_nb.study.pretraining import pretrain
from istar_nb.training.records import find_record
from istar_nb.training.runs import RunConfig
from istar_nb.text.tasks import load_task
from processes import Process, wait_for_update

config = PretrainConfig(texts="stdlib-docs", hold_out=0.05, vocabulary=600, length=32, depth=1, width=32, heads=2,
                        steps=60, batch_size=16, lr=5e-3, evaluate_every=20, lam=0.5)


@pytest.fixture(scope="module", autouse=True)
def gathered_once():
    "The runs of this process have the same texts, gathered once, and the same pieces of words, learned once."
    learned = cache(corpus._learn_pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "gather_texts", cache(gather_texts))
        patch.setattr(corpus, "_learn_pieces", lambda texts, vocabulary: dict(learned(tuple(texts), vocabulary)))
        yield


def run(config, folder, **kwargs):
    return pretrain(config, folder, models=folder, checkpoints=folder/"checkpoints", progress=False, **kwargs)


shorter = replace(config, steps=24, evaluate_every=8)


def run_often_saved(folder): run(shorter, folder, checkpoint_every=2)


def test_killed_in_the_middle(tmp_path):
    (tmp_path/"held").write_text("checkpoint-000000014")
    process = Process(run_often_saved, tmp_path/"killed", folder=tmp_path, HELD=tmp_path/"held")
    wait_for_update(tmp_path/"killed"/"checkpoints", 12, process)
    process.kill()
    assert find_record(tmp_path/"killed", shorter.id, PretrainRecord) is None
    for name in ("killed", "whole"):
        out = Process(run_often_saved, tmp_path/name, folder=tmp_path).wait()
        assert find_record(tmp_path/name, shorter.id, PretrainRecord) is not None, out
    killed, whole = (find_record(tmp_path/name, shorter.id, PretrainRecord) for name in ("killed", "whole"))
    assert killed.same == whole.same and [e["update"] for e in killed.evaluations] == [0, 8, 16, 24]
    weights = [(tmp_path/name/shorter.id/"model.safetensors").read_bytes() for name in ("killed", "whole")]
    assert weights[0] == weights[1]
    assert not list((tmp_path/"killed"/"checkpoints").iterdir())


def test_states_of_held_out_texts_are_not_kept(tmp_path, monkeypatch):
    "What waits for the end of an evaluation is one token of a text, not a view of all of them."
    kept, joined = [], torch.cat
    def cat(parts, *args, **options):
        for part in parts:
            if part.ndim == 3: kept.append(part.untyped_storage().nbytes()/part.nbytes)    # layers, texts, d
        return joined(parts, *args, **options)
    monkeypatch.setattr(torch, "cat", cat)
    run(replace(config, steps=1, evaluate_every=1), tmp_path)
    assert kept and max(kept) == 1


def test_record_without_its_model_is_made_again(tmp_path):
    short = replace(config, steps=4, evaluate_every=4)
    first = run(short, tmp_path)
    (tmp_path/short.id).rename(tmp_path/"moved")
    assert (run(short, tmp_path).same == first.same
            and (tmp_path/short.id/"model.safetensors").read_bytes()
            == (tmp_path/"moved"/"model.safetensors").read_bytes())


def test_both_signs_and_a_target(tmp_path):
    plain = replace(config, lam=0., steps=40, evaluate_every=40)
    ends = [run(replace(plain, **change), tmp_path).evaluations[-1]["isoscore"]
            for change in (dict(lam=-1.), dict(lam=1., target=0.3), dict(lam=1.))]
    assert ends[0] < ends[1] < ends[2] and abs(ends[1] - 0.3) < 0.15
    table = load_pretrainings(tmp_path)
    assert len(table) == 3 and (table.mlm_loss < 6.39).all()    # ln 600 = 6.397


def test_trained_further(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("tiny-ones@home")    # no name of a model, though it could begin one and go on as one
    monkeypatch.setenv("ISTAR_MODELS", str(folder))
    first = run(replace(config, lam=0., steps=40), folder)
    assert first.data["model_sha256"] and first.data["settings_sha256"]
    more = PretrainConfig(texts="stdlib-docs", hold_out=0.05, model=f"scratch:{first.id}", length=32, steps=80,
                          batch_size=16, lr=5e-3, evaluate_every=80)
    further = run(more, folder)
    before, after = (e["mlm_loss"] for e in further.evaluations)
    assert before == pytest.approx(first.evaluations[-1]["mlm_loss"], rel=1e-4) and after < before - 0.02
    assert further.data["vocabulary"] == first.data["vocabulary"]
    (folder/first.id/"model.safetensors").write_bytes((folder/more.id/"model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="made from other weights to start from"): run(more, folder)


def test_pooler_of_an_encoder_that_is_trained_further(tmp_path, monkeypatch):
    monkeypatch.setenv("ISTAR_MODELS", str(tmp_path))
    encoder, tokenizer = load_encoder("tiny-bert")
    for part in (encoder, tokenizer): part.save_pretrained(tmp_path/"mine")
    more = PretrainConfig(texts="stdlib-docs", hold_out=0.05, model=str(tmp_path/"mine"), length=32, steps=3,
                          batch_size=16, evaluate_every=3)
    body = load_encoder(f"scratch:{run(more, tmp_path).id}", load_task("stdlib-docs").task).model.base_model
    assert torch.equal(body.pooler.dense.weight, encoder.pooler.dense.weight)    # masked words do not train it
    assert not torch.equal(body.embeddings.word_embeddings.weight, encoder.embeddings.word_embeddings.weight)


def test_an_encoder_that_is_trained_further_keeps_its_dropout(tmp_path, monkeypatch):
    monkeypatch.setenv("ISTAR_MODELS", str(tmp_path))
    encoder, tokenizer = load_encoder("tiny-bert")
    encoder.config.hidden_dropout_prob = 0.3
    for part in (encoder, tokenizer): part.save_pretrained(tmp_path/"mine")
    more = PretrainConfig(texts="stdlib-docs", hold_out=0.05, model=str(tmp_path/"mine"), length=32, steps=2,
                          batch_size=16, evaluate_every=2)
    made = load_encoder(f"scratch:{run(more, tmp_path).id}").model.config
    assert (made.hidden_dropout_prob, made.attention_probs_dropout_prob) == (0.3, 0.1)


def test_a_run_is_not_resumed_from_other_weights(tmp_path, monkeypatch):
    encoder, tokenizer = load_encoder("tiny-bert")
    for part in (encoder, tokenizer): part.save_pretrained(tmp_path/"mine")
    more = PretrainConfig(texts="stdlib-docs", hold_out=0.05, model=str(tmp_path/"mine"), length=32, steps=4,
                          batch_size=16, evaluate_every=4)
    with monkeypatch.context() as m:
        update = pretraining.pretrain_update
        def stopped(setup, progress, number):
            if number == 2: raise KeyboardInterrupt
            return update(setup, progress, number)
        m.setattr(pretraining, "pretrain_update", stopped)
        with pytest.raises(KeyboardInterrupt): run(more, tmp_path, checkpoint_every=1)
    torch.manual_seed(1)
    load_encoder("tiny-bert").model.save_pretrained(tmp_path/"mine")
    with pytest.raises(ValueError, match="made from other weights to start from"): run(more, tmp_path)


def test_a_saved_isolayer_model_is_refused(tmp_path):
    encoder, tokenizer = load_encoder("tiny-bert")
    ClsModel(encoder, 2).save_pretrained(tmp_path/"mine")
    tokenizer.save_pretrained(tmp_path/"mine")
    more = PretrainConfig(texts="stdlib-docs", hold_out=0.05, model=str(tmp_path/"mine"), length=32)
    with pytest.raises(ValueError, match="`model` .* is of the kind 'ClsModel'"): run(more, tmp_path)


def test_masks_change_with_every_update_and_spare_special_tokens():
    ordinary = torch.arange(50) >= 5
    ids = torch.randint(50, (64, 128), generator=generator_of(3, 0))
    draws = [mask_tokens(ids, ordinary, 4, 0.15, generator_of(3, n)) for n in range(100)]
    often = sum((wanted != -100).float() for _, wanted in draws)
    assert often[ids < 5].sum() == 0
    # no token is chosen again and again
    assert abs(often[ids >= 5].mean() - 15) < 0.1 and often[ids >= 5].max() < 40
    again = mask_tokens(ids, ordinary, 4, 0.15, generator_of(3, 7))
    assert all((a == b).all() for a, b in zip(again, draws[7]))
    hidden = sum(((shown == 4) & (wanted != -100)).sum() for shown, wanted in draws)/often.sum()
    assert abs(hidden - 0.8) < 0.005


def test_texts_are_free_of_validation_text(data_dir):
    texts, data = gather_texts("rte+stsb", data_dir), [load_task(name, data_dir) for name in ("rte", "stsb")]
    def words(text): return " ".join(re.findall(r"\w+", text.casefold()))
    train, validation = ({words(row[c]) for d in data for row in getattr(d, split) for c in d.task.texts}
                         for split in ("train", "validation"))
    assert len(train & validation) > 100, "else the test shows nothing"
    assert not {words(text) for text in texts.train + texts.held_out} & validation
    long = "\n".join(f" {text} " for text in validation if len(text.split()) >= 8)
    for text in texts.train[::20]:
        w = words(text).split()
        assert not any(f" {' '.join(w[i:i+8])} " in long for i in range(len(w)-7))


def test_fine_tuning_starts_from_it(istar, tmp_path):
    record = run(replace(config, steps=4, evaluate_every=4), tmp_path/"runs")
    name = f"scratch:{record.id}"
    out = istar("train", "--model", name, "--limit", "64", "--epochs", "1", "--no-progress",
                ISTAR_MODELS=tmp_path/"runs").wait()
    made = find_record(tmp_path/"runs", RunConfig(model=name, limit=64, epochs=1).id)
    assert made is not None and made.status == "done", out
    assert len(made.epochs[-1]["isoscore_layers"]) == config.depth + 1


def test_a_grid_of_them(istar, tmp_path):
    base = {k: v
            for k, v in asdict(replace(config, steps=4, evaluate_every=4, lam=0.)).items() if k not in ("seed", "lam")}
    (tmp_path/"grid.yaml").write_text(json.dumps(dict(base=base, seeds=[0, 1], runs=[dict(lam=[0, 0.1])])))
    words = ["pretrain", "grid.yaml", "--root", "store", "--models", "models", "--no-progress"]
    for dry in ([], ["--dry-run"]):
        out = istar(*words, *dry).wait()
        assert out.count("scratch:") == out.count(" yes ") == 4, out
    table = load_pretrainings(tmp_path/"store")
    assert (sorted(zip(table.lam, table.seed)) == [(0, 0), (0, 1), (0.1, 0), (0.1, 1)]
            and {p.name for p in (tmp_path/"models").iterdir()} == set(table.id))


def test_other_files_in_the_store_are_skipped(tmp_path):
    record = run(replace(config, steps=2), tmp_path)
    (tmp_path/"notes.json").write_text("[1]")
    (tmp_path/f"{'0'*16}.json").write_text(record.to_json().replace('"lam": 0.5', '"lam": 0.7'))
    with pytest.warns(UserWarning, match="is skipped"): table = load_pretrainings(tmp_path)
    assert table.id.tolist() == [record.id]


@pytest.mark.parametrize("change, said", [(dict(texts="colour"), "colour"), (dict(vocabulary=10), "vocabulary"),
                                          (dict(hold_out=1.), "hold_out"), (dict(precision="fp8"), "precision"),
                                          (dict(target=2., lam=1.), "target"), (dict(lam=float("nan")), "lam"),
                                          (dict(seed=-1), "seed"), (dict(model="tiny-bert"), "vocabulary"),
                                          (dict(batch_size=100_000), "texts")])
def test_bad_values_are_named(change, said, tmp_path):
    with pytest.raises((ValueError, TypeError), match=said): run(replace(config, **change), tmp_path)
