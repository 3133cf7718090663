"Training on the labelled data: the spine on CoLA's layout, a regression, a span task."
import os
import sys
import warnings
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pandas as pd
import pytest
import torch

import istar_nb
import istar_nb.training.updates as updates
from istar_nb.text.encoders import forward_with_states, load_encoder
from istar_nb.sweeps.grids import load_records
from istar_nb.training.runs import RunConfig
from istar_nb.text.tasks import one_answer
from istar_nb.training.evaluation import evaluate
from istar_nb.training.training import train
from istar_nb.training.updates import Progress, add_gradients, fine_tuning
from toy_task import write_still_model
from processes import on_two

config = RunConfig(model="tiny-bert", method="istar", lam=-0.2, limit=96, epochs=1, batch_size=16, lr=1e-3,
                   reference_points=500, max_length=96, validation_limit=100)


def run(config, data_dir, folder):
    return train(config, folder, data_dir, checkpoints=folder/"checkpoints", progress=False)


@pytest.mark.parametrize("task, metrics", [("cola", ["matthews", "accuracy"]), ("stsb", ["pearson", "spearman"])])
def test_real_tasks(task, metrics, data_dir, tmp_path):
    record = run(replace(config, task=task), data_dir, tmp_path)
    assert record.metric == metrics[0] and all(name in record.epochs[-1] for name in metrics)
    assert record.data["source"] == "data_dir" and record.data["train"] == 96


def few_validation_rows(monkeypatch):
    "Only the first 64 validation rows of a task: SQuAD has 10,570."
    def small(*args, **kwargs):
        data = load(*args, **kwargs)
        return replace(data, validation=data.validation[:64])
    load = updates.load_task
    monkeypatch.setattr(updates, "load_task", small)


@pytest.mark.parametrize("precision, emulated, said", [("bf16", True, 1), ("bf16", False, 0), ("fp32", True, 0)])
def test_bf16_says_where_it_is_slow(precision, emulated, said, tmp_path, monkeypatch):
    monkeypatch.setattr("istar_nb.training.updates.emulates_bf16", lambda device: emulated)
    tiny = RunConfig(model="tiny-bert", limit=40, validation_limit=40, batch_size=20, epochs=1, max_length=16,
                     precision=precision)
    with warnings.catch_warnings(record=True, action="always") as heard: train(tiny, tmp_path, progress=False)
    assert [str(w.message) for w in heard].count("this processor has no instructions for bfloat16: `precision` 'bf16' "
                                                 "is much slower than 'fp32'") == said


def test_squad(data_dir, tmp_path, monkeypatch):
    few_validation_rows(monkeypatch)
    record = run(replace(config, task="squad", limit=32, max_length=128), data_dir, tmp_path)
    assert record.metric == "f1" and 0 <= record.score <= 1 and "exact_match" in record.epochs[-1]


def test_a_run_with_a_reference_records_isoscore_star(tmp_path):
    "After every epoch, with its ζ and Σ_S; not before training, nor where there is no Σ_S or no single ζ."
    base = replace(config, task="stdlib-docs", epochs=2, limit=64)
    kinds = dict(istar=dict(zeta=0.4), reference=dict(zeta=1.), layer=dict(layers=(2,)),
                 auto=dict(zeta="auto"), unshrunk=dict(zeta=0.), none=dict(method="none", lam=0.))
    runs = {name: run(replace(base, **options), None, tmp_path) for name, options in kinds.items()}
    names = {"isoscore_star", "isoscore_star_layers"}
    for name, record in runs.items():
        first, *later = [names & epoch.keys() for epoch in record.epochs]
        assert not first and later == [names if name in ("istar", "reference", "layer") else set()]*2
        assert all(len(epoch["cls_explained_variance_raw"]) == 20 for epoch in record.epochs)
    for epoch in runs["istar"].epochs[1:]:
        assert len(epoch["isoscore_star_layers"]) == 3 and epoch["isoscore_star"] != epoch["isoscore"]
    for epoch in runs["reference"].epochs[1:]: assert {*epoch["isoscore_star_layers"]} == {epoch["isoscore_star"]}
    end = runs["layer"].epochs[-1]
    assert end["isoscore_star"] == end["isoscore_star_layers"][2] != end["isoscore_star_layers"][1]
    table = load_records(tmp_path).set_index("id")
    assert table.isoscore_star[runs["istar"].id] == runs["istar"].epochs[-1]["isoscore_star"]
    assert pd.isna(table.isoscore_star[runs["none"].id]) and pd.isna(table.isoscore_star_layers[runs["auto"].id])


@pytest.mark.parametrize("family", ["bert", "albert", "distilbert", "roberta", "gpt2"])
def test_both_signs_on_every_family(family, tmp_path):
    ends = {}
    for lam in (-2., 2.):
        record = run(replace(config, task="stdlib-docs", model=f"tiny-{family}", lam=lam, limit=320, lr=2e-3),
                     None, tmp_path)
        ends[lam] = record.epochs[-1]["isoscore"]
    assert ends[-2.] < ends[2.]


def gradients_of(rank, model, task="stdlib-docs", data_dir=None):
    "The gradient of 39 rows as one batch and as micro-batches of 16, 16 and 7, shared unequally by the processes."
    session = fine_tuning(RunConfig(task=task, model=model, limit=60, max_length=64), data_dir, progress=False)
    def gradient(group):
        session.optimizer.zero_grad()
        add_gradients(session, group)
        return torch.cat([p.grad.flatten() for p in session.model.parameters() if p.grad is not None])
    rows = list(range(39))
    return gradient([rows]), gradient([rows[:16], rows[16:32], rows[32:]])


def test_accumulated_gradient_is_that_of_the_joined_batch(tmp_path):
    model = write_still_model(tmp_path/"model")
    joined, parts = gradients_of(0, model)
    (two, two_parts), other = on_two(gradients_of, model, folder=tmp_path, connected=False)
    for gradient in (parts, two, two_parts): assert (gradient - joined).norm() < 1e-5*joined.norm()
    assert torch.equal(two, other[0]) and torch.equal(two_parts, other[1])


@pytest.mark.parametrize("task", ["stsb", "squad"])
def test_accumulated_gradient_of_other_losses(task, data_dir, tmp_path, monkeypatch):
    few_validation_rows(monkeypatch)
    joined, parts = gradients_of(0, write_still_model(tmp_path/"model"), task, data_dir)
    assert (parts - joined).norm() < 1e-5*joined.norm()


@pytest.mark.parametrize("target, shape", [(0.05, "spectrum"), (0.8, "spectrum"), (0.05, "outlier")])
def test_a_reparametrised_model_begins_with_another_isoscore_and_the_same_answers(finished, tmp_path, target, shape):
    "Before training nothing but the geometry of the last states differs; what is kept of a run says where it began."
    base = RunConfig(task="stdlib-docs", model="tiny-bert", method="reparametrised", limit=200, validation_limit=300,
                     epochs=1)
    plain, mapped = finished(base), finished(replace(base, target=target, shape=shape))
    before, after = plain.epochs[0], mapped.epochs[0]
    assert after["accuracy"] == before["accuracy"]
    assert abs(after["isoscore_layers"][-1] - target) < 0.02 < abs(before["isoscore_layers"][-1] - target)
    assert after["isoscore_layers"][:-1] == before["isoscore_layers"][:-1]
    with pytest.raises(ValueError, match="`save_model`"):
        train(replace(base, target=0.3), root=tmp_path, save_model=tmp_path/"model", progress=False)


@pytest.mark.parametrize("shape", ["spectrum", "outlier"])
def test_a_penalty_begins_where_the_reparametrised_run_begins(tmp_path, shape):
    "Before training both runs are the same in every number; afterwards the penalty has done its work."
    base = RunConfig(task="stdlib-docs", model="tiny-bert", limit=200, validation_limit=300, epochs=1, shape=shape,
                     lr=1e-3)
    penalised = replace(base, method="cosreg", lam=10, head="linear", start_isoscore=0.05)
    plain, pulled = (train(c, root=tmp_path, progress=False)
                     for c in (replace(base, method="reparametrised", target=0.05), penalised))
    timing = ("seconds", "loss", "penalty", "grad_norm")
    first, second = ({k: v for k, v in run.epochs[0].items() if k not in timing} for run in (plain, pulled))
    assert first == second and plain.id != pulled.id
    assert abs(pulled.epochs[-1]["mean_cosine"]) < 0.8*abs(plain.epochs[-1]["mean_cosine"])
    with pytest.raises(ValueError, match="`save_model`"):
        train(replace(penalised, start_isoscore=0.1), root=tmp_path, save_model=tmp_path/"model", progress=False)


def test_an_evaluation_of_few_sentences_has_an_error_that_covers_what_many_give():
    "The plug-in score of 12 sentences is far from that of 1,195, the unbiased one is not; it says how many there were."
    base = RunConfig(task="stdlib-docs", model="minilm", limit=40)
    many, few = (evaluate(fine_tuning(replace(base, validation_limit=n), progress=False)) for n in (300, 12))
    assert few["sentences"] == 12 and many["sentences"] == 300
    assert few["estimator"] == "quadruples of sentences" and many["estimator"] == "two halves"
    error = few["isoscore_unbiased_se"]
    assert abs(few["isoscore_unbiased"] - many["isoscore_unbiased"]) < 3*error < many["isoscore"] - few["isoscore"]
    assert many["isoscore_unbiased_se"] < error


@pytest.mark.parametrize("classes", [True, False])
def test_a_run_that_gives_every_row_one_answer_says_so(classes, tmp_path):
    "A head whose weights are zero answers with its bias; the score of such a run looks like any other."
    rows = [dict(text=f"Row {i} of the table.", label=f"kind {i % 2}" if classes else i/7) for i in range(60)]
    pd.DataFrame(rows).to_csv(tmp_path/"rows.csv", index=False)
    own = RunConfig(train=str(tmp_path/"rows.csv"), text="text", label="label", model="tiny-bert", epochs=1, lr=1e-12)
    learned = fine_tuning(own, progress=False)
    before = evaluate(learned, epoch=1)    # the last
    with torch.no_grad():
        learned.bare.classifier.weight.zero_()
        learned.bare.classifier.bias.copy_(torch.arange(len(learned.bare.classifier.bias)))
    dead = evaluate(learned, epoch=1)
    assert dead["collapsed"] and (dead["majority_share"] == 1 if classes else dead["answer_spread"] == 0)
    assert ("answer_spread" in before) != classes and one_answer(dead | dict(collapsed=None))


@pytest.fixture
def llama(tmp_path):
    "A folder with a tiny causal model other than GPT-2, and its tokenizer."
    from transformers import LlamaConfig, LlamaModel
    torch.manual_seed(0)
    tokenizer = load_encoder("tiny-gpt2")[1]
    shape = LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                        num_attention_heads=4, pad_token_id=tokenizer.pad_token_id)
    LlamaModel(shape).save_pretrained(tmp_path/"llama")
    tokenizer.save_pretrained(tmp_path/"llama")
    return str(tmp_path/"llama")


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_causal_model_is_read_at_the_last_token(side, llama):
    "Its first token has seen nothing but itself; the last real one has seen the text, on whichever side padding is."
    texts = ["A dog.", "A long sentence about a dog that sleeps.", "A dog in the sun."]
    model, tokenizer = load_encoder(llama)
    tokenizer.padding_side = side
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = forward_with_states(model.eval(), batch)[1]
        alone = [forward_with_states(model, tokenizer([text], return_tensors="pt"))[1].layers[-1][0, -1]
                 for text in texts]
    points = states.points(tokens="cls")
    torch.testing.assert_close(points, torch.stack(alone), atol=1e-5, rtol=1e-5)
    assert torch.pdist(points).min() > 1e-3


@pytest.mark.parametrize("method", ["uniformity", "isobn"])
def test_a_causal_model_is_fine_tuned(method, llama, tmp_path):
    "Two methods that act on one state a text: its head tells texts apart, and the penalty is no constant."
    causal = RunConfig(task="stdlib-docs", model=llama, method=method, limit=640, validation_limit=300, epochs=2,
                       batch_size=16, lr=3e-3)
    record = run(causal, None, tmp_path)
    assert record.status == "done" and record.epochs[-1]["majority_share"] < 1
    penalties = {step["penalty"] for step in record.steps if "penalty" in step}
    assert method == "isobn" or len(penalties) == len(record.steps) and 0 not in penalties


def test_a_set_up_is_complete_and_stays_what_it_is():
    setup = fine_tuning(RunConfig(model="tiny-bert", limit=64, batch_size=16, epochs=2), progress=False)
    before = dict(vars(setup))
    with pytest.raises(FrozenInstanceError): setup.penalty = None
    updates.update(setup, Progress(), setup.data.groups(0)[0])
    assert vars(setup) == before and len(before) <= 16


def test_a_run_goes_through_few_modules(tmp_path):
    "A reader who follows `train` must not have to open the whole package."
    source, visited = str(Path(istar_nb.__file__).parent) + os.sep, set()
    def note(frame, event, arg):
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(source):
            visited.add(code.co_filename.removeprefix(source))
    tiny = RunConfig(model="tiny-bert", method="istar", lam=0.5, limit=64, epochs=1, validation_limit=64)
    sys.setprofile(note)
    try: train(tiny, tmp_path, progress=False)
    finally: sys.setprofile(None)
    assert len(visited) <= 29, sorted(visited)
    own = {name.split(os.sep)[1] for name in visited if name.startswith("training")}
    assert own == {"training.py", "updates.py", "evaluation.py", "records.py", "runs.py"}
