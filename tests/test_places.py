"What a run leaves, where, and from what: stores of any name, other data, other weights, locks, refused inputs."
import json
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.multiprocessing as mp

import istar_nb.training.training as training
from istar_nb.base.files import run_lock
from istar_nb.text.encoders import load_encoder
from istar_nb.training.records import find_record, iterate_records
from istar_nb.training.runs import RunConfig
from istar_nb.training.training import launch, train
from processes import serve
from toy_task import write_model, write_task


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    "A small task, a small model and the configuration of a run with them."
    folder = tmp_path_factory.mktemp("made")
    config = RunConfig(task="sst2", model=str(write_model(folder/"model")), limit=32, batch_size=16, epochs=1, lr=1e-3,
                       max_length=16)
    return config, write_task(folder/"data", rows=200)


class Unplugged(Exception): "The power went out."


def interrupted(config, root, data, monkeypatch):
    "Leave a run with a checkpoint and no record."
    def unplugged(*args): raise Unplugged
    with monkeypatch.context() as m:
        m.setattr(training, "make_record", unplugged)
        m.setattr(training, "save_failed", lambda *args: None)
        with pytest.raises(Unplugged): train(config, root, data, progress=False)


@pytest.mark.parametrize("name", ["with a space", pytest.param("Maß-\u30e2\u30c7\u30eb", marks=pytest.mark.any_names),
                                  "a#b%20c", "~/runs", "file://{}/url"])
def test_checkpoints_are_below_the_root(made, tmp_path, monkeypatch, name):
    config, data = made
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path/"home"))
    root = name.format(tmp_path)
    interrupted(config, root, data, monkeypatch)
    assert len(list(tmp_path.rglob(f"checkpoints/{config.id}/checkpoint-*"))) == 1
    assert train(config, root, data, progress=False) == find_record(root, config.id)
    [record] = tmp_path.rglob("*.json")
    assert (record.parent
            == (tmp_path/"home"/"runs" if name.startswith("~") else tmp_path/"url" if ":" in name else tmp_path/name))
    assert not list((record.parent/"checkpoints").iterdir())


def test_stores_without_a_folder_have_checkpoints_of_their_own(made, tmp_path, monkeypatch):
    config, data = made
    monkeypatch.chdir(tmp_path)
    for root in ("memory://one", "memory://two"): interrupted(config, root, data, monkeypatch)
    assert len(list((tmp_path/"runs"/"checkpoints").glob(f"*/{config.id}"))) == 2
    with pytest.raises(ValueError, match="`checkpoints` must be a local folder"):
        train(config, "memory://one", data, checkpoints="memory://checkpoints", progress=False)
    with pytest.raises(ValueError, match="seen by all processes"): launch(config, 2, root="memory://one", data_dir=data)


def other_weights(folder):
    torch.manual_seed(1)
    load_encoder("tiny-bert").model.save_pretrained(folder)


def another_dropout(folder):
    text = (folder/"config.json").read_text(encoding="utf-8")
    (folder/"config.json").write_text(re.sub(r'("hidden_dropout_prob": )[\d.]+', r"\g<1>0.3", text), encoding="utf-8")


def another_order_of_pieces(folder):
    tokenizer = json.loads((folder/"tokenizer.json").read_text(encoding="utf-8"))
    pieces = tokenizer["model"]["vocab"]
    (one, i), (other, j) = [*pieces.items()][-2:]
    pieces |= {one: j, other: i}
    (folder/"tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")


@pytest.mark.parametrize("change, told", [(other_weights, "weights of the model"),
                                          (another_dropout, "configuration or tokenizer"),
                                          (another_order_of_pieces, "configuration or tokenizer")])
@pytest.mark.parametrize("finished", [True, False])
def test_another_model_under_one_name(made, tmp_path, monkeypatch, finished, change, told):
    _, data = made
    config = replace(made[0], model=str(write_model(tmp_path/"model")))
    if finished: train(config, tmp_path/"runs", data, progress=False)
    else: interrupted(config, tmp_path/"runs", data, monkeypatch)
    was = {file.name: file.read_bytes() for file in (tmp_path/"model").iterdir()}
    change(tmp_path/"model")
    assert sum(file.read_bytes() != was[file.name] for file in (tmp_path/"model").iterdir()) == 1
    with pytest.raises(ValueError, match=f"made from other {told}.*{'remake' if finished else 'remove it'}"):
        train(config, tmp_path/"runs", data, progress=False)
    record = train(config, tmp_path/"runs", data, progress=False, remake=True)
    assert record.same == train(config, tmp_path/"new", data,
                                progress=False).same == find_record(tmp_path/"runs", config.id).same


def test_a_record_is_there_where_the_data_is_not(made, tmp_path, monkeypatch):
    config, data = made
    record = train(config, tmp_path, data, progress=False)
    monkeypatch.delenv("ISTAR_DATA", raising=False)
    assert train(config, tmp_path, progress=False) == record


def test_a_finished_record_outlives_failures(made, tmp_path, monkeypatch):
    config, data = made
    record = train(config, tmp_path, data, progress=False)
    (tmp_path/"file").touch()
    with pytest.raises(ValueError, match="save_model"):
        train(config, tmp_path, data, save_model=tmp_path/"file", progress=False)
    def fails(*args): raise Unplugged
    with monkeypatch.context() as m:
        m.setattr(training, "update", fails)
        with pytest.raises(Unplugged): train(config, tmp_path, data, save_model=tmp_path/"kept", progress=False)
    assert find_record(tmp_path, config.id) == record
    assert (train(config, tmp_path, data, save_model=tmp_path/"kept", progress=False) == record
            and (tmp_path/"kept"/"model.safetensors").is_file())


def test_one_process_at_a_time(made, tmp_path):
    config, data = made
    with run_lock(tmp_path/"checkpoints"/config.id) as held:
        assert held
        with pytest.raises(BlockingIOError, match="another process"): train(config, tmp_path, data, progress=False)
    assert (train(config, tmp_path, data, progress=False).status == "done"
            and not list((tmp_path/"checkpoints").iterdir()))


refused = dict(task=dict(task="colour"), data=dict(task="cola"), model=dict(model="nowhere"),
               layers=dict(method="istar", lam=1, layers=(0, 3)), batch=dict(batch_size=1),
               entropy=dict(method="entropy", layers=(1, 2)), length=dict(max_length=4))


@pytest.mark.parametrize("what", refused)
def test_a_refused_input_leaves_no_record(made, tmp_path, what):
    config, data = made
    with pytest.raises((ValueError, OSError)): train(replace(config, **refused[what]), tmp_path, data, progress=False)
    assert not list(iterate_records(tmp_path)) and not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("options", [dict(save_model="file/model"), dict(tracker="magic"), dict(root="file/store")])
def test_a_refused_place_leaves_no_record(made, tmp_path, options):
    config, data = made
    (tmp_path/"file").touch()
    options = {name: value if name == "tracker" else tmp_path/value for name, value in options.items()}
    with pytest.raises((ValueError, OSError, ImportError)):
        train(config, **dict(dict(root=tmp_path), **options), data_dir=data, checkpoints=tmp_path/"checkpoints",
              progress=False)
    assert not list(tmp_path.rglob("*.json"))


def test_too_few_rows_for_the_processes(made, tmp_path, monkeypatch):
    config, data = made
    serve()
    # `test_launchers` starts new interpreters
    monkeypatch.setattr(mp, "spawn", partial(mp.start_processes, start_method="forkserver"))
    with pytest.raises(ChildProcessError, match="a batch of 1 rows, and 2 processes"):
        launch(replace(config, limit=1), 2, root=tmp_path, data_dir=data, progress=False)
    assert not list(tmp_path.rglob("*.json"))
