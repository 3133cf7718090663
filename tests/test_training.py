"Training on the labelled data: the spine on CoLA's layout, a regression, a span task."
from dataclasses import replace

import pytest
import torch

import istar_nb.session as session
from istar_nb.runs import RunConfig
from istar_nb.session import Session
from istar_nb.training import add_gradients, train
from toy_task import write_still_model
from processes import on_two

config = RunConfig(model="tiny-bert", method="istar", lam=-0.2, limit=96, epochs=1, batch_size=16, lr=1e-3,
                   reference_points=4000, max_length=96)


def run(config, data_dir, folder):
    return train(config, folder, data_dir, checkpoints=folder/"checkpoints", progress=False)


@pytest.mark.parametrize("task, metrics", [("cola", ["matthews", "accuracy"]), ("stsb", ["pearson", "spearman"])])
def test_real_tasks(task, metrics, data_dir, tmp_path):
    record = run(replace(config, task=task), data_dir, tmp_path)
    assert record.metric == metrics[0] and all(name in record.epochs[-1] for name in metrics)
    assert record.data["source"] == "data_dir" and record.data["train"] == 96


def test_a_penalty_of_medium_precision_is_another_run_with_nearly_the_same_result(tmp_path):
    coarse, before = (replace(config, task="stdlib-docs", penalty_precision="medium"),
                      torch.backends.mkldnn.matmul.fp32_precision)
    records = [run(c, None, tmp_path) for c in (coarse, replace(coarse, penalty_precision="highest"))]
    assert records[0].id != records[1].id == replace(config, task="stdlib-docs").id
    assert records[0].epochs[-1]["isoscore"] == pytest.approx(records[1].epochs[-1]["isoscore"], rel=0.02)
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def few_validation_rows(monkeypatch):
    "Only the first 64 validation rows of a task: SQuAD has 10,570."
    def small(*args, **kwargs):
        data = load(*args, **kwargs)
        return replace(data, validation=data.validation[:64])
    load = session.load_task
    monkeypatch.setattr(session, "load_task", small)


def test_squad(data_dir, tmp_path, monkeypatch):
    few_validation_rows(monkeypatch)
    record = run(replace(config, task="squad", limit=32, max_length=128), data_dir, tmp_path)
    assert record.metric == "f1" and 0 <= record.score <= 1 and "exact_match" in record.epochs[-1]


@pytest.mark.parametrize("family", ["bert", "albert", "distilbert", "roberta", "gpt2"])
def test_both_signs_on_every_family(family, tmp_path):
    ends = {}
    for lam in (-2., 2.):
        record = run(replace(config, task="stdlib-docs", model=f"tiny-{family}", lam=lam, limit=320, epochs=2, lr=2e-3),
                     None, tmp_path)
        ends[lam] = record.epochs[-1]["isoscore"]
    assert ends[-2.] < ends[2.]


def gradients_of(rank, model, task="stdlib-docs", data_dir=None):
    "The gradient of 39 rows as one batch and as micro-batches of 16, 16 and 7, shared unequally by the processes."
    session = Session(RunConfig(task=task, model=model, limit=60, max_length=64), data_dir, progress=False)
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
def test_a_reparametrised_model_begins_with_another_isoscore_and_the_same_answers(tmp_path, target, shape):
    "Before training nothing but the geometry of the last states differs; what is kept of a run says where it began."
    base = RunConfig(task="stdlib-docs", model="tiny-bert", method="reparametrised", limit=200, epochs=1)
    plain, mapped = (train(c, root=tmp_path, progress=False)
                     for c in (base, replace(base, target=target, shape=shape)))
    before, after = plain.epochs[0], mapped.epochs[0]
    assert after["accuracy"] == before["accuracy"]
    assert abs(after["isoscore_layers"][-1] - target) < 0.02 < abs(before["isoscore_layers"][-1] - target)
    assert after["isoscore_layers"][:-1] == before["isoscore_layers"][:-1]
    with pytest.raises(ValueError, match="`save_model`"):
        train(replace(base, target=0.3), root=tmp_path, save_model=tmp_path/"model", progress=False)
