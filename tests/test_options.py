"Options of IsoLayer's and Shrink's own settings: what a grid, the help, a run and its record make of them."
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from istar_nb.app.cli import main
from istar_nb.sweeps.grids import grid
from istar_nb.sweeps.sweeps import sweep
from istar_nb.training.runs import RunConfig
from istar_nb.training.training import train
from istar_nb.training.updates import fine_tuning, train_stage
from toy_task import write_model, write_task

grids = Path(__file__).resolve().parents[1]/"nbs"/"experiments"/"grids"
toy = dict(task="sst2", limit=96, batch_size=16, lr=1e-3, max_length=16)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    "A small model and the folder of a small task."
    folder = tmp_path_factory.mktemp("made")
    return str(write_model(folder/"model")), write_task(folder/"data", rows=1000, validation=100)


def run(config, data, folder): return train(config, folder, data, checkpoints=folder/"checkpoints", progress=False)


def test_the_released_grid_is_shrink_with_the_released_settings(tmp_path, capsys):
    configs, paper = grid(grids/"shrink-released.yaml"), grid(grids/"shrink.yaml")
    assert sweep(grids/"shrink-released.yaml", root=tmp_path, dry_run=True) == [] and not list(tmp_path.iterdir())
    assert "25 runs: 0 done, 25 to do" in capsys.readouterr().out
    both = "task model epochs batch_size lr weight_decay warmup optimizer seed".split()
    assert ({tuple(getattr(c, name) for name in both) for c in configs}
            == {tuple(getattr(c, name) for name in both) for c in paper})
    assert {(c.schedule, c.batches, c.max_grad_norm) for c in configs} == {("cosine", "random", 0.)}
    assert ({(c.method, c.complete.lam, c.selection, c.noise, c.maxdim) for c in configs if c.method != "none"}
            == {("entropy", 1., *rest) for rest in (("released", 0., 0), ("none", 0., 0), ("released", 0.05, 0),
                                                    ("released", 0.5, 1))})


@pytest.mark.parametrize("number", [-1, -6])
def test_a_run_of_the_released_grid(number, made, tmp_path):
    "Small, and on another task: the rates are those of half a cosine, and every update has a penalty."
    model, data = made
    chosen = grid(grids/"shrink-released.yaml")[number]
    record = run(replace(chosen, model=model, task="sst2", limit=640, batch_size=32, epochs=2, validation_limit=64,
                         max_length=16), data, tmp_path)
    assert record.status == "done" and chosen.noise == record.config["noise"] > 0
    assert [step["update"] for step in record.steps] == [10, 20, 30, 40]
    for step in record.steps:
        done = (step["update"] - 1 - 4)/36    # after a warm-up of a tenth of 40
        assert step["lr"] == pytest.approx(5e-5*(1 + math.cos(math.pi*done))/2, rel=1e-5)
        assert step["penalty"] < 0 and step["lam"] == 1
    assert "padding_share" in record.epochs[-1]    # random batches


def test_help_shows_the_options_in_their_groups(capsys):
    with pytest.raises(SystemExit): main(["train", "--help"])
    parts = re.split(r"^(\w[^\n]*):$", capsys.readouterr().out, flags=re.M)
    groups = dict(zip(parts[1::2], parts[2::2]))
    wanted = {"the penalty in detail": ["maxdim", "noise", "slices"], "training": ["optimizer", "schedule"],
              "methods with modules": ["activation", "stage-patience", "stage-batch-size",
                                       "stage-lr", "stage-weight-decay", "alpha", "smoothing"]}
    for group, options in wanted.items():
        for option in options: assert f"  --{option} " in groups[group], (group, option)
    assert "--schedule linear|cosine|constant" in groups["training"]


def layer_of(made, **options):
    "The weights of the second stage of an untrained model, and what its record says."
    model, data = made
    config = RunConfig(**toy, model=model, method="isolayer", stage_epochs=12, **dict(stage_batch_size=16) | options)
    session = fine_tuning(config, data, progress=False)
    second = train_stage(session)
    return torch.cat([p.flatten() for p in session.bare.transform.parameters()]), second


def test_each_option_of_the_second_stage_reaches_it(made):
    plain, second = layer_of(made, stage_patience=12)
    assert second["isolayer_epochs"] == 12
    for options in (dict(stage_lr=1e-2), dict(stage_batch_size=8), dict(stage_weight_decay=1.), dict(alpha=0.9),
                    dict(smoothing=0.9)):
        other, _ = layer_of(made, stage_patience=12, **options)
        assert not torch.equal(plain, other), options
    linear, curved = (layer_of(made, depth=2, **options)[0] for options in (dict(), dict(activation="tanh")))
    assert linear.shape == curved.shape and not torch.equal(linear, curved)
    _, second = layer_of(made, stage_patience=1)
    assert second["isolayer_epochs"] - second["isolayer_best"] == 1 and second["isolayer_epochs"] < 12


def test_fine_tuning_ends_early_and_its_best_epoch_gets_the_layer(made, tmp_path):
    "With enough patience the same training, of which another epoch is kept; with little, a shorter one."
    model, data = made
    config = RunConfig(**toy | dict(lr=3e-3), model=model, method="isolayer", epochs=6, stage_epochs=3)
    plain, kept, short = (run(replace(config, patience=patience), data, tmp_path/str(patience))
                          for patience in (None, 6, 1))
    assert plain.score is not None and "stop_score" not in plain.epochs[1] and "kept_epoch" not in plain.epochs[-1]
    for record in (kept, short):
        *tuned, end = record.epochs[1:]
        scores = [e["stop_score"] for e in tuned]
        assert end["kept_epoch"] == scores.index(max(scores)) + 1 and end["epoch"] == tuned[-1]["epoch"] == len(scores)
        assert end["predictions"] and "isolayer_best" in end
        for a, b in zip(tuned, plain.epochs[1:]):
            assert a["accuracy"] == b["accuracy"] and a["isoscore"] == b["isoscore"]
    assert kept.epochs[-2]["epoch"] == 6
    ends = [i for i in range(2, 7) if max(e["stop_score"] for e in kept.epochs[1:i]) >= kept.epochs[i]["stop_score"]]
    assert ends and short.epochs[-1]["epoch"] == ends[0] < 6
