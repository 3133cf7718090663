"A run that is killed and started again ends bit-equal to one that was not."
import resource
import signal
from dataclasses import replace

import pytest

import istar_nb.training.training as training
from istar_nb.training.records import find_record, iterate_records
from istar_nb.training.runs import RunConfig
from istar_nb.training.training import train
from processes import on_two, places_of_two, wait_for_update
from toy_task import write_model, write_task

toy = dict(task="sst2", limit=96, batch_size=16, epochs=2, lr=1e-3, max_length=16)
updates_an_epoch = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    "The configuration of a run with a small model, a small task, and the command that makes it."
    folder = tmp_path_factory.mktemp("made")
    config = RunConfig(model=str(write_model(folder/"model")), **toy | dict(limit=16*updates_an_epoch), method="istar",
                       lam=-0.5, reference_points=500)
    data = write_task(folder/"data")
    words = ["train", "--model", config.model, "--task", "sst2", "--limit", config.limit, "--batch-size", "16",
             "--epochs", "2", "--lr", "1e-3", "--max-length", "16",
             "--method", "istar", "--lam", "-0.5", "--reference-points", "500", "--data-dir", data,
             "--checkpoint-every", "2", "--no-progress"]
    return config, data, words


def hold_after(update, folder, monkeypatch):
    "Processes wait before the checkpoint that comes after the one of this update."
    (folder/"held").write_text(f"checkpoint-{update + 2:09d}")
    monkeypatch.setenv("HELD", str(folder/"held"))


@pytest.mark.parametrize("processes", [1, 2])
def test_killed_twice_in_the_middle_of_an_epoch(istar, made, tmp_path, monkeypatch, processes):
    config, _, words = made
    def start(*more): return [istar(*words, *more, **place) for place in (places_of_two() if processes == 2 else [{}])]
    for update in (4, updates_an_epoch + 4):    # in the middle of an epoch
        hold_after(update, tmp_path, monkeypatch)
        ranks = start()
        assert wait_for_update(tmp_path/"runs"/"checkpoints", update, ranks[0]) == update
        for rank in ranks: rank.kill()
        assert find_record(tmp_path/"runs", config.id) is None
    monkeypatch.delenv("HELD")
    out, whole = ([rank.wait() for rank in start(*more)] for more in ([], ["--root", "whole"]))
    resumed = find_record(tmp_path/"runs", config.id)
    assert resumed is not None, out
    assert resumed.same == find_record(tmp_path/"whole", config.id).same, whole
    assert resumed.environment["processes"] == processes
    assert not list((tmp_path/"runs"/"checkpoints").iterdir()), "checkpoints of a finished run are removed"
    assert len(list(iterate_records(tmp_path/"runs"))) == 1


def test_checkpoint_of_another_number_of_processes_is_refused(istar, made, tmp_path, monkeypatch):
    words = made[-1]
    hold_after(2, tmp_path, monkeypatch)
    process = istar(*words)
    wait_for_update(tmp_path/"runs"/"checkpoints", 2, process)
    process.kill()
    monkeypatch.delenv("HELD")
    assert "another world" in "".join([rank.wait() for rank in [istar(*words, **place) for place in places_of_two()]])


def test_control_c_in_the_first_epoch_leaves_a_checkpoint(made, tmp_path, monkeypatch):
    "The update is ended, the run goes on from there, and ends as one that was never stopped."
    config, data, _ = made
    before, whole = signal.signal(signal.SIGINT, signal.default_int_handler), training.update
    def pressed(setup, progress, group):
        if progress.updates == 3: signal.raise_signal(signal.SIGINT)
        return whole(setup, progress, group)
    try:
        monkeypatch.setattr(training, "update", pressed)
        with pytest.raises(KeyboardInterrupt): train(config, tmp_path, data, progress=False)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally: signal.signal(signal.SIGINT, before)
    assert [path.name for path in (tmp_path/"checkpoints"/config.id).iterdir()] == ["checkpoint-000000004-0000"]
    assert find_record(tmp_path, config.id) is None
    monkeypatch.setattr(training, "update", whole)
    resumed, unbroken = (train(config, store, data, progress=False) for store in (tmp_path, tmp_path/"whole"))
    assert resumed.same == unbroken.same


def test_half_written_checkpoint_does_not_count(made, tmp_path):
    config, data, _ = made
    small = replace(config, limit=64, epochs=1)
    folder = tmp_path/"checkpoints"/small.id/"writing.tmp"
    folder.mkdir(parents=True)
    (folder/"session.pt").write_text("{")
    assert (train(small, tmp_path, data, progress=False).status == "done"
            and not list((tmp_path/"checkpoints").iterdir()))


class Unplugged(Exception): "The power went out."


def unplugged_after(updates, config, root, data):
    "Train until so many updates are made, with a checkpoint after every second one."
    whole, calls = training.update, iter(range(updates))
    def failing(*args):
        if next(calls, None) is None: raise Unplugged
        return whole(*args)
    training.update = failing
    try:
        with pytest.raises(Unplugged): go_on(config, root, data)
    finally: training.update = whole


def go_on(config, root, data, **more): return train(config, root, data, checkpoint_every=2, progress=False, **more)


local = dict(method="istar", scope="local", reference_points=500)
# of two processes, each of which has a reference or a part of its own; test_kills has one process with most of them
kinds = [dict(**local, lam=1, refresh="start"),
         dict(**local, relative=0.5, accumulate=2, placebo="twin"),
         dict(**local, lam=1, accumulate=2, placebo="turned"),
         dict(**local, lam=1, refresh="start", accumulate=2, whole_update=True),
         dict(method="sigreg", accumulate=2, whole_update=True),
         dict(method="isolayer", patience=2, epochs=4, stage_epochs=4, alpha=0.3, depth=2, activation="tanh")]
# of these a process has nothing of its own, and the others share nothing but what those above share, too
alone = [dict(method="entropy", accumulate=2), dict(method="isobn"), dict(method="cosreg", lam_start=0.5, lam_ramp=1.),
         dict(method="entropy", selection="released", noise=0.05, maxdim=1, schedule="cosine"),
         dict(optimizer="adam", schedule="cosine", warmup=0.3)]


def broken_and_whole(rank, model, data, folder, kinds):
    "For every kind of run: is a resumed one equal to an unbroken one?"
    equal = []
    for i, kind in enumerate(kinds):
        config = RunConfig(model=model, **toy | kind)
        unplugged_after(12//config.accumulate - 1, config, f"{folder}/broken {i}", data)
        equal.append(go_on(config, f"{folder}/broken {i}", data).same
                     == go_on(config, f"{folder}/whole {i}", data).same)
    return equal


@pytest.mark.parametrize("processes", [1, 2])
def test_every_kind_of_run_is_resumed(tmp_path, processes):
    "Also those of which every process has a reference of its own."
    tried = alone if processes == 1 else kinds
    args = (str(write_model(tmp_path/"model")), write_task(tmp_path/"data"), str(tmp_path), tried)
    results = ([broken_and_whole(0, *args)] if processes == 1
               else on_two(broken_and_whole, *args, folder=tmp_path, connected=False))
    for equal in results: assert equal == [True]*len(tried)


def test_killed_in_the_second_stage_of_a_run_that_ended_early(tmp_path, monkeypatch):
    "Nothing is trained again, and the layer is put on the weights of the best epoch."
    config = RunConfig(model=str(write_model(tmp_path/"model")), method="isolayer", patience=1, stage_epochs=4,
                       **toy | dict(epochs=8, lr=1e-2))
    data = write_task(tmp_path/"data")
    whole = go_on(config, tmp_path/"whole", data)
    assert whole.epochs[-1]["kept_epoch"] < whole.epochs[-1]["epoch"] < config.epochs
    def unplugged(*args): raise Unplugged
    with monkeypatch.context() as m:
        m.setattr(training, "make_record", unplugged)
        with pytest.raises(Unplugged): go_on(config, tmp_path/"broken", data)
    monkeypatch.setattr(training, "update", None)
    assert go_on(config, tmp_path/"broken", data).same == whole.same


@pytest.mark.parametrize("name", ["session.pt", "rank-0.pt"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, name):
    config, data = (RunConfig(model=str(write_model(tmp_path/"model")), method="istar", lam=1, refresh="start", **toy),
                    write_task(tmp_path/"data"))
    unplugged_after(5, config, tmp_path/"broken", data)
    [older, newest] = sorted((tmp_path/"broken"/"checkpoints"/config.id).iterdir())
    (newest/name).write_bytes((newest/name).read_bytes()[:100])
    with pytest.warns(UserWarning, match=f"{newest.name} .* is passed over"):
        record = go_on(config, tmp_path/"broken", data)
    assert record.same == go_on(config, tmp_path/"whole", data).same


def test_a_run_that_begins_anew_keeps_its_own_checkpoints(tmp_path):
    "Where no checkpoint can be used, those of more updates do not push out the new ones."
    config, data = RunConfig(model=str(write_model(tmp_path/"model")), **toy), write_task(tmp_path/"data")
    unplugged_after(5, config, tmp_path/"broken", data)
    for damaged in (tmp_path/"broken"/"checkpoints"/config.id).glob("*/session.pt"): damaged.write_bytes(b"")
    with pytest.warns(UserWarning, match="is passed over"): unplugged_after(3, config, tmp_path/"broken", data)
    [left] = (tmp_path/"broken"/"checkpoints"/config.id).iterdir()
    assert left.name == "checkpoint-000000002-0000" and (left/"session.pt").stat().st_size
    assert go_on(config, tmp_path/"broken", data).same == go_on(config, tmp_path/"whole", data).same


def test_full_disk(tmp_path, monkeypatch):
    """A file that cannot be written ends the run with a message.

    No half checkpoint and no record of a failure remain, and the run goes on from the checkpoint before.
    """
    config, data = RunConfig(model=str(write_model(tmp_path/"model")), **toy), write_task(tmp_path/"data")
    whole, before = training.update, resource.getrlimit(resource.RLIMIT_FSIZE)
    def filling(setup, progress, group):
        if progress.updates == 3: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        return whole(setup, progress, group)
    with monkeypatch.context() as m:
        m.setattr(training, "update", filling)
        try:
            with pytest.raises(OSError, match="after 4 updates could not be written"):
                go_on(config, tmp_path/"full", data)
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in (tmp_path/"full"/"checkpoints"/config.id).iterdir()] == ["checkpoint-000000002-0000"]
    assert find_record(tmp_path/"full", config.id) is None
    assert go_on(config, tmp_path/"full", data).same == go_on(config, tmp_path/"whole", data).same


def test_no_room_for_the_record(tmp_path, monkeypatch):
    "No half record remains, and the finished run is not trained again."
    config, data, before = (RunConfig(model=str(write_model(tmp_path/"model")), **toy), write_task(tmp_path/"data"),
                            resource.getrlimit(resource.RLIMIT_FSIZE))
    kept = training.keep_record
    def filling(*args):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try: return kept(*args)
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with monkeypatch.context() as m:
        m.setattr(training, "keep_record", filling)
        with pytest.raises(OSError): go_on(config, tmp_path/"full", data)
    assert [p.name for p in (tmp_path/"full").iterdir()] == ["checkpoints"]
    monkeypatch.setattr(training, "update", None)
    assert go_on(config, tmp_path/"full", data).status == "done"


def test_no_room_for_the_model(tmp_path, monkeypatch):
    "The error says what could not be written; the same command saves it later and trains nothing again."
    config, data, before = (RunConfig(model=str(write_model(tmp_path/"model")), **toy), write_task(tmp_path/"data"),
                            resource.getrlimit(resource.RLIMIT_FSIZE))
    made = training.make_record
    def filling(*args):
        record = made(*args)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        return record
    def go(): return go_on(config, tmp_path/"full", data, save_model=tmp_path/"saved")
    with monkeypatch.context() as m:
        m.setattr(training, "make_record", filling)
        try:
            with pytest.raises(OSError, match="the model could not be written to .*saved"): go()
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert find_record(tmp_path/"full", config.id) is None
    monkeypatch.setattr(training, "update", None)
    assert go().status == "done" and (tmp_path/"saved"/"model.safetensors").exists()
