"Training on the labelled data: the spine on CoLA's layout, a regression, a span task."
from dataclasses import replace

import pytest
from istar_nb.runs import RunConfig
from istar_nb.training import train

config = RunConfig(model="tiny-bert", method="istar", lam=-0.2, limit=96, epochs=1, batch_size=16, lr=1e-3, reference_points=4000, max_length=96)


def run(config, data_dir, folder): return train(config, folder, data_dir, checkpoints=folder/"checkpoints", progress=False)


@pytest.mark.parametrize("task, metrics", [("cola", ["matthews", "accuracy"]), ("stsb", ["pearson", "spearman"])])
def test_real_tasks(task, metrics, data_dir, tmp_path):
    record = run(replace(config, task=task), data_dir, tmp_path)
    assert record.metric == metrics[0] and all(name in record.epochs[-1] for name in metrics)
    assert record.data["source"] == "data_dir" and record.data["train"] == 96


def test_squad(data_dir, tmp_path, monkeypatch):
    "On its first 64 validation questions: the whole set is 10,570."
    import istar_nb.training as training
    def small(*args, **kwargs):
        data = load(*args, **kwargs)
        return replace(data, validation=data.validation[:64])
    load = training.load_task
    monkeypatch.setattr(training, "load_task", small)
    record = run(replace(config, task="squad", limit=32, max_length=128), data_dir, tmp_path)
    assert record.metric == "f1" and 0 <= record.score <= 1 and "exact_match" in record.epochs[-1]


@pytest.mark.parametrize("family", ["bert", "albert", "distilbert", "roberta", "gpt2"])
def test_both_signs_on_every_family(family, tmp_path):
    ends = {}
    for lam in (-2., 2.):
        record = run(replace(config, task="stdlib-docs", model=f"tiny-{family}", lam=lam, limit=320, epochs=2, lr=2e-3), None, tmp_path)
        ends[lam] = record.epochs[-1]["isoscore"]
    assert ends[-2.] < ends[2.]
