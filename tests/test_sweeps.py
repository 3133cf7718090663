"Sweeps: worker processes against one process, killed workers, Ctrl-C, two sweeps at once, selection."
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from glob import glob    # unlike that of a Path, it minds no folder that vanishes meanwhile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from istar_nb.sweeps import executors
from istar_nb.training import training
from istar_nb.study.pretrain_runs import PretrainConfig
from istar_nb.sweeps.grids import grid, plan
from istar_nb.training.records import find_record, iterate_records
from istar_nb.sweeps.sweeps import load_selections, select, selection_table
from istar_nb.sweeps.sweeps import sweep
from processes import Process, wait_for
from toy_task import write_model, write_task

folder = tempfile.TemporaryDirectory()
base = dict(task="sst2", model=f"{folder.name}/tiny", epochs=1, limit=64, max_length=16, batch_size=16, lr=1e-3, reference_points=2000)
spec = dict(base=base, seeds=[0], runs=[dict(method="none"), dict(method="istar", lam=1, lr=1e30), dict(method="istar", lam=[-1, 1])])
long = dict(base={**base, "limit": 160}, seeds=[0, 1], runs=[dict(method="none"), dict(method="istar", lam=-1)])
local = {}


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory):
    "A small task and model for all sweeps of this file, and for the processes that they start."
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISTAR_DATA", str(write_task(tmp_path_factory.mktemp("data"))))
        write_model(base["model"])
        yield


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    "The records of a grid made in this process, one after another, without a disturbance; by id."
    def make(spec):
        key = json.dumps(spec)
        if key not in local:
            folder = tmp_path_factory.mktemp("reference")
            local[key] = {r.id: r for r in sweep(spec, root=folder, checkpoints=folder/"checkpoints", threads=1, progress=False)}
        return local[key]
    return make


def places(folder, **more): return dict(root=folder/"runs", checkpoints=folder/"checkpoints", **more)


def check(folder, spec, expected):
    "Every run of the grid has a record equal to the expected one, and there is nothing else."
    found = {r.id: r for r in iterate_records(folder/"runs")}
    assert set(found) == set(expected) == {c.id for c in grid(spec)}
    for run, record in found.items(): assert record.same == expected[run].same
    assert not list((folder/"checkpoints").iterdir()), "neither checkpoints nor locks of finished runs remain"


def test_processes_make_the_same_records_with_a_failure_among_them(tmp_path, capsys, reference, forked_workers):
    records = sweep(spec, executor="processes", workers=2, threads=1, **places(tmp_path))
    assert [r.id for r in records] == [c.id for c in grid(spec)]
    assert [r.status for r in records] == ["done", "failed", "done", "done"]
    check(tmp_path, spec, reference(spec))
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert len(lines) == 4, said
    assert sum("] failed: " in line and "finite" in line for line in lines) == 1
    assert records[0].environment["threads"] == 1
    times = {r.id: r.started for r in records}
    again = sweep(spec, executor="processes", workers=2, **places(tmp_path))
    assert {r.id: r.started for r in again} == times and not capsys.readouterr().out, "nothing is made again, failed runs neither"


def test_the_last_line_of_a_worker_that_died_says_how(tmp_path):
    "The end of a sweep shows it alone."
    died = SimpleNamespace(returncode=-signal.SIGSEGV)
    worker = SimpleNamespace(config=grid(spec)[0], process=died, said=lambda: "ready")
    event = executors._outcome(worker, Counter(), executors.Job(str(tmp_path)), restarts=0)
    assert event.record.error.splitlines()[-1] == "the worker process ended with SIGSEGV; attempts: 1"


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_what_is_refused_is_reported_and_not_recorded(tmp_path, executor, capsys, forked_workers):
    refused = [dict(layers=[[9]], method="istar", lam=1), dict(task="cola"), dict(model="nowhere"), dict(batch_size=1)]
    said = ["there are layers 0 to 2", "cola/train", "'nowhere'", "batch_size"]
    records = sweep(dict(base=base, runs=[*refused, {}]), executor=executor, workers=1, threads=1, **places(tmp_path))
    assert [r.status for r in records] == ["failed"]*len(said) + ["done"]
    assert capsys.readouterr().out.count("] failed: ") == len(said)
    assert [r.id for r in iterate_records(tmp_path/"runs")] == [records[-1].id]
    for record, words in zip(records, said): assert words in record.error


@pytest.mark.parametrize("progress", [True, False])
def test_the_command_says_why_runs_failed(tmp_path, capsys, monkeypatch, progress):
    "Refused runs leave no record, so nothing else could say it."
    from istar_nb.app.cli import main
    monkeypatch.chdir(tmp_path)
    spec = dict(base=base, runs=[dict(model=["nowhere", "nowhere else"]), dict(lr=1e30, method="istar", lam=1)])
    (tmp_path/"grid.yaml").write_text(json.dumps(spec), encoding="utf-8")
    with pytest.raises(SystemExit): main(["sweep", "grid.yaml", *([] if progress else ["--no-progress"])])
    said = capsys.readouterr().out
    assert "'nowhere'" in said and "'nowhere else'" in said and "failed: ValueError: `x` has values that are not finite" in said, said
    main(["runs", "--where", "status=failed"])
    assert "1 failed: ValueError: `x` has" in capsys.readouterr().out


def test_home_folder_and_other_data(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_task(tmp_path/"data", rows=200)
    monkeypatch.chdir(tmp_path)
    [record] = sweep(dict(**base, seed=[0]), root="~/my runs", data_dir="~/data", progress=False)
    assert record.status == "done" and [p.name for p in (tmp_path/"my runs").glob("*.json")] == [f"{record.id}.json"] and not (tmp_path/"~").exists()
    shutil.rmtree(tmp_path/"data")
    write_task(tmp_path/"data", rows=201)
    with pytest.raises(ValueError, match="1 of 1 finished runs .* other data .*remake"): sweep(dict(**base, seed=[0, 1]), root="~/my runs", data_dir="~/data", progress=False)
    again = sweep(dict(**base, seed=[0, 1]), root="~/my runs", data_dir="~/data", progress=False, remake=True)
    assert [r.status for r in again] == ["done"]*2 and again[0].data["sha256"] == again[1].data["sha256"] != record.data["sha256"]


def test_dry_run_shows_and_makes_nothing(tmp_path, capsys):
    assert sweep(spec, dry_run=True, **places(tmp_path)) == [] and not list(tmp_path.iterdir())
    out = capsys.readouterr().out
    assert "4 runs: 0 done, 4 to do" in out and "sst2" in out


class Killer:
    "Kills the worker of each run so often, while it is at it; none can end before."
    def __init__(self, monkeypatch, folder, times):
        self.folder, self.left, self.killed, self.over = folder, {config.id: n for config, n in times.items()}, [], False
        begin, at = executors.Worker.__init__, {}
        def noted(worker, config, *args):
            begin(worker, config, *args)
            at[config.id] = worker
        monkeypatch.setattr(executors.Worker, "__init__", noted)
        monkeypatch.setenv("HELD", str(folder/"held"))
        self.hold()
        self.at, self.thread = at, threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def hold(self):
        text = "\n".join(f"{run}/checkpoint-000000008" for run, n in self.left.items() if n)
        (self.folder/"next").write_text(text)
        (self.folder/"next").replace(self.folder/"held")    # whoever reads it sees all of it

    def has_checkpoint(self, run):
        try: return any(name.startswith("checkpoint-") for name in os.listdir(self.folder/"checkpoints"/run))
        except FileNotFoundError: return False    # not begun, or just ended

    def run(self):
        while not self.over:
            for run, worker in list(self.at.items()):
                if self.left[run] and worker not in self.killed and self.has_checkpoint(run):
                    os.kill(worker.process.pid, signal.SIGKILL)
                    self.killed.append(worker)
                    self.left[run] -= 1
                    self.hold()
            time.sleep(0.002)

    def stop(self):
        self.over = True
        self.thread.join()
        return len(self.killed)


def test_runs_of_killed_workers_go_on_elsewhere_but_not_for_ever(tmp_path, capsys, monkeypatch, reference,
                                                                 forked_workers):
    spec = dict(long, runs=long["runs"][:1])
    deadly, unlucky = grid(spec)
    killer = Killer(monkeypatch, tmp_path, {deadly: 9, unlucky: 1})
    records = sweep(spec, executor="processes", workers=2, threads=1, checkpoint_every=4, restarts=1, **places(tmp_path))
    assert killer.stop() == 3 and [r.status for r in records] == ["failed", "done"]
    assert "SIGKILL" in records[0].error and "attempts: 2" in records[0].error and "batch_size" in records[0].error
    assert capsys.readouterr().out.count("put back, the worker process ended with SIGKILL") == 2
    sweep(spec, retry_failed=True, threads=1, **places(tmp_path))
    check(tmp_path, spec, {c.id: reference(long)[c.id] for c in (deadly, unlucky)})


def test_a_worker_that_cannot_start_ends_the_sweep(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "none of these")
    with pytest.raises(ChildProcessError, match="a worker cannot start"): sweep(spec, executor="processes", workers=1, **places(tmp_path))
    assert not (tmp_path/"runs").exists(), "no run is to blame"


def drive(spec, executor, python):
    "A sweep that notes which runs it makes, and whose workers are processes of this Python."
    sys.executable = python
    signal.signal(signal.SIGINT, signal.default_int_handler)    # what a shell starts in the background has it ignored
    plain = training.run_epochs
    def noted(work, setup, *args):
        with open("made.txt", "a", encoding="utf-8") as f: f.write(setup.config.id + "\n")
        return plain(work, setup, *args)
    training.run_epochs = noted
    sweep(spec, executor=executor, root="runs", checkpoints="checkpoints", checkpoint_every=4, workers=2, threads=1)


def start(folder, spec, executor, **variables): return Process(drive, spec, executor, sys.executable, folder=folder, **variables)


def stop(folder, executor, how, made):
    "Start a sweep, stop it when `made` runs have ended and the next is under way, and return the records there are."
    late = [f"{config.id}/checkpoint-000000008" for config in grid(long)[made:]]
    (folder/"held").write_text("\n".join(late))
    process = start(folder, long, executor, HELD=folder/"held")
    wait_for(lambda: len(list((folder/"runs").glob("*.json"))) == made and glob(f"{folder}/checkpoints/*/checkpoint-*4-*"), process)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert bool(workers) == (executor == "processes")
    os.kill(process.pid, how)
    out = process.wait()
    assert process.code and ("KeyboardInterrupt" in out) == (how == signal.SIGINT)
    assert not psutil.wait_procs(workers, timeout=300)[1], "workers end with the sweep"
    return {r.id: r for r in iterate_records(folder/"runs")}


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_sweep_stopped_by_ctrl_c_and_by_a_kill_goes_on(tmp_path, reference, executor, forked_workers):
    first = stop(tmp_path, executor, signal.SIGINT, 1)
    before = stop(tmp_path, executor, signal.SIGKILL, 3) if executor == "processes" else first
    assert first.items() <= before.items() and all(r.status == "done" for r in before.values())
    assert (len(first), len(before)) == (1, 3 if executor == "processes" else 1)
    out = start(tmp_path, long, executor).wait()
    check(tmp_path, long, reference(long))
    assert all(find_record(tmp_path/"runs", run) == record for run, record in before.items()), "what was done is not made again"
    assert f"[{4 - len(before)} of {4 - len(before)}]" in out


def test_two_sweeps_at_once_make_every_run_once(tmp_path, reference):
    both = [start(tmp_path, long, "local") for _ in range(2)]
    outs = [process.wait() for process in both]
    assert [process.code for process in both] == [0, 0], outs
    check(tmp_path, long, reference(long))
    made = (tmp_path/"made.txt").read_text().split()
    assert sorted(made) == sorted(c.id for c in grid(long))
    for out in outs:    # one that starts later finds fewer left to do
        finished, todo = re.findall(r"\[(\d+) of (\d+)", out)[-1]
        assert finished == todo, f"each knows of all runs in the end:\n{out}"


def test_sweeps_that_share_a_folder_take_over_the_run_of_one_that_is_killed(tmp_path, reference):
    "As jobs of an array do: the first is held in its first run, two others make the rest, wait for it, and go on with it."
    (tmp_path/"held").write_text("\n".join(f"{config.id}/checkpoint-000000008" for config in grid(long)))
    first = start(tmp_path, long, "local", HELD=tmp_path/"held")
    wait_for(lambda: glob(f"{tmp_path}/checkpoints/*/checkpoint-*4-*"), first)
    others = [start(tmp_path, long, "local") for _ in range(2)]
    for process in others: wait_for(lambda process=process: re.search(r"other processes carry out \d runs?: this one waits", process.said), process)
    wait_for(lambda: len(glob(f"{tmp_path}/runs/*.json")) == 3, others[0])
    assert first.code is None
    first.kill()
    outs = [process.wait() for process in others]
    assert [process.code for process in others] == [0, 0], outs
    check(tmp_path, long, reference(long))
    made = (tmp_path/"made.txt").read_text().split()
    assert len(made) == 5 and set(made) == {c.id for c in grid(long)}, "the run of the killed one is begun twice, no other"


def test_a_file_that_is_no_record_is_reported_and_kept(tmp_path):
    config = grid(spec)[0]
    (tmp_path/"runs").mkdir()
    (tmp_path/"runs"/f"{config.id}.json").write_text("{")
    with pytest.warns(UserWarning, match="skipped"): [record] = sweep([config], progress=False, **places(tmp_path))
    assert record.status == "failed" and f"{config.id}.json is no record" in record.error and (tmp_path/"runs"/f"{config.id}.json").read_text() == "{"


def test_out_of_memory_is_a_failed_run_with_advice(tmp_path, monkeypatch):
    import torch
    errors = iter([torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
    def spent(*args): raise next(errors)
    with monkeypatch.context() as m:
        m.setattr(training, "run_epochs", spent)
        records = sweep(dict(**base, seed=[0, 1, 2]), progress=False, **places(tmp_path))
    for r in records: assert r.status == "failed" and "gradient_checkpointing" in find_record(tmp_path/"runs", r.id).error
    assert sweep(dict(**base, seed=[0, 1, 2]), progress=False, retry_failed=True, **places(tmp_path))[2].status == "done"


def test_selection_is_by_held_out_rows(tmp_path):
    spec = dict(base={**base, "limit": 400}, seeds=[7], runs=[dict(lr=[1e-6, 3e-3])])
    chosen = select(spec, hold_out=0.25, selection_seeds=[0, 1], progress=False, **places(tmp_path))
    [group] = chosen.record["groups"]
    trials = [[find_record(tmp_path/"runs", run) for run in c["runs"]] for c in group["candidates"]]
    assert all(r.config["hold_out"] == 0.25 and r.data["train"] < 400 for rs in trials for r in rs)
    means = [sum(r.score for r in rs)/2 for rs in trials]
    assert group["chosen"] == means.index(max(means)) and [c["mean"] for c in group["candidates"]] == pytest.approx(means)
    [record] = chosen.records
    assert record.config["seed"] == 7 and record.config["hold_out"] == 0 and record.config["lr"] == (1e-6, 3e-3)[group["chosen"]] and record.id in group["runs"]
    assert load_selections(tmp_path/"runs") == [chosen.record] and list(selection_table(chosen.record).chosen).count(True) == 1
    assert len(list(iterate_records(tmp_path/"runs"))) == 5, "the selection's file is not taken for a record"


def test_store_in_memory(tmp_path):
    records = sweep(dict(**base, seed=[0]), root="memory://sweeps", progress=False, checkpoints=tmp_path)
    assert records[0].status == "done" and not plan(grid(dict(**base, seed=[0])), "memory://sweeps").todo


@pytest.mark.parametrize("command, said", [("sweep", ["2 runs: 0 done, 2 to do"]),
                                           ("pretrain", [PretrainConfig(seed=seed).id for seed in (0, 1)])])
def test_a_grid_comes_through_a_pipe(command, said, istar, tmp_path):
    os.mkfifo(tmp_path/"grid")
    text = "runs: [{seed: [0, 1]}]"
    threading.Thread(target=(tmp_path/"grid").write_text, args=(text,), daemon=True).start()
    process = istar(command, "grid", "--dry-run", "--no-progress")
    out = process.wait()
    assert process.code == 0 and all(words in out for words in said), out


def test_relative_names_are_looked_for_where_the_sweep_was_started(tmp_path, monkeypatch):
    "A worker of a cluster has a working folder of its own."
    home, away = tmp_path/"home", tmp_path/"away"
    for folder in (home, away): folder.mkdir()
    write_model(home/"tiny")
    rows = [f"{word} text {i},{word}" for i in range(20) for word in ("good", "bad")]
    for name in ("train", "validation"): (home/f"{name}.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    monkeypatch.chdir(home)
    own = dict(train="train.csv", validation="validation.csv", text="text", label="label", model="tiny", epochs=1, max_length=8)
    def elsewhere(configs, job, places):
        monkeypatch.chdir(away)
        for config in configs:
            record = executors._on_machine(config, job, places)
            assert Path.cwd() == away
            yield executors.Event(config, record)
        monkeypatch.chdir(home)
    monkeypatch.setitem(executors.executors, "ray", elsewhere)
    [record] = sweep(own, executor="ray", progress=False)
    assert record.status == "done" and record.config["train"] == "train.csv", record.error
    assert [file.name for file in (home/"runs").glob("*.json")] == [f"{record.id}.json"] and not list(away.iterdir())


@pytest.mark.parametrize("options, said", [
    (dict(threads=0), "`threads` must be"), (dict(gpus_per_run=float("nan")), "`gpus_per_run` must be"), (dict(restarts=-1), "`restarts` must be"),
    (dict(executor="slurm"), "`executor` must be one of 'local', 'processes', 'ray', not 'slurm'"),
    (dict(executor="local", gpus_per_run=1), "`gpus_per_run` is an option of executor 'ray', not of 'local'")])
def test_resources_that_cannot_be_are_named(options, said, tmp_path):
    with pytest.raises(ValueError, match=re.escape(said)): sweep(dict(base=base), progress=False, **places(tmp_path), **options)
    assert not list(tmp_path.iterdir())


def test_whole_numbers_of_a_grid_are_decimal(tmp_path):
    (tmp_path/"grid.yaml").write_text("base: {label: on, text: no, train: a.csv, whole_update: yes, method: istar, lam: 1e-1}\nseeds: [010, 08]")
    assert [(c.seed, c.label, c.text, c.whole_update, c.lam) for c in grid(tmp_path/"grid.yaml")] == [(s, "on", "no", True, 0.1) for s in (10, 8)]


@pytest.mark.parametrize("text, said", [("{", "is no selection: "), ('{"schema": 2}', "is no selection of schema 1")])
def test_a_file_that_is_no_selection_is_named(tmp_path, text, said):
    (tmp_path/"selection").mkdir()
    (tmp_path/"selection"/"x.json").write_text(text)
    with pytest.raises(ValueError, match=rf"x\.json {said}"): load_selections(tmp_path)
