"Sweeps whose runs are carried out by several processes each: killed and resumed, their devices, clusters."
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from glob import glob
from pathlib import Path

import psutil
import pytest
import torch

from istar_nb.base import devices
from istar_nb.sweeps import executors
from istar_nb.sweeps.executors import Job, Resources, in_processes
from istar_nb.sweeps.grids import grid
from istar_nb.sweeps.sweeps import sweep
from istar_nb.training.records import find_record, iterate_records
from processes import Process, wait_for
from toy_task import write_model, write_task

folder = tempfile.TemporaryDirectory()
base = dict(task="sst2", model=f"{folder.name}/tiny", epochs=1, limit=128, max_length=16, batch_size=8, lr=1e-3,
            reference_points=2000)
spec = dict(base=base, runs=[dict(method="istar", lam=-1), dict(accumulate=2)])
made = {}


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory):
    "A small task and model for all sweeps of this file, and for the processes that they start."
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISTAR_DATA", str(write_task(tmp_path_factory.mktemp("data"), rows=150)))
        write_model(base["model"])
        yield


def places(folder, **more): return dict(root=folder/"runs", checkpoints=folder/"checkpoints", **more)


def in_pairs(folder, spec, **more):
    "A sweep with two runs at once, each of two processes."
    return sweep(spec, processes_per_run=2, workers=2, threads=1, checkpoint_every=4, **places(Path(folder), **more))


def unbroken(tmp_path_factory):
    "The records of an undisturbed sweep; by id."
    if not made: made.update({r.id: r for r in in_pairs(tmp_path_factory.mktemp("whole"), spec, progress=False)})
    return made


def check(folder, expected):
    "The store holds these records and nothing else."
    found = {r.id: r for r in iterate_records(folder/"runs")}
    assert set(found) == set(expected)
    for run, record in found.items():
        assert record.status == "done" and record.environment["processes"] == 2
        assert record.same == expected[run].same
    assert not list((folder/"checkpoints").iterdir()), "neither checkpoints nor locks of finished runs remain"


def driven(spec, python):
    "A sweep in a process of its own, whose workers hold where HELD says."
    sys.executable = python
    in_pairs(".", spec)


def both_at(folder, process):
    "Wait until both runs are held, each with a checkpoint."
    wait_for(lambda: len({Path(path).parent for path in glob(f"{folder}/checkpoints/*/checkpoint-*4-*")}) == 2, process)


def ranks(process):
    "The processes that train, by the device variable RANK."
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "RANK" in (environment := child.environ()): found.setdefault(int(environment["RANK"]), []).append(child)
    return found


def test_a_sweep_whose_runs_have_two_processes_is_killed_and_resumed(tmp_path, tmp_path_factory, forked_workers):
    "First a worker that is the second of its run, then the sweep itself; the records are those of an unbroken sweep."
    expected = unbroken(tmp_path_factory)
    held, late = tmp_path/"held", [f"{config.id}/checkpoint-000000008" for config in grid(spec)]
    held.write_text("\n".join(late))
    process = Process(driven, spec, sys.executable, folder=tmp_path, HELD=held)
    both_at(tmp_path, process)
    before = ranks(process)
    assert [len(before[rank]) for rank in (0, 1)] == [2, 2], "two runs at once, of two processes each"
    victim = before[1][0]
    run = next(one for one in before[0] if one.environ()["MASTER_PORT"] == victim.environ()["MASTER_PORT"])
    victim.kill()
    psutil.wait_procs([run], timeout=300)
    assert not run.is_running(), "the other process of the run ends, too"
    wait_for(lambda: "put back, the worker process ended with SIGKILL" in process.said, process)
    wait_for(lambda: [len(ranks(process).get(rank, [])) for rank in (0, 1)] == [2, 2], process)
    workers = [one for some in ranks(process).values() for one in some]
    os.kill(process.pid, signal.SIGKILL)
    assert not psutil.wait_procs(workers, timeout=300)[1], "workers end with the sweep"
    assert not list((tmp_path/"runs").glob("*.json")), "no run is recorded as failed because others were killed"
    assert glob(f"{tmp_path}/checkpoints/*/checkpoint-*4-*")
    held.write_text("")
    again = Process(driven, spec, sys.executable, folder=tmp_path, HELD=held)
    assert "[2 of 2]" in again.wait() and again.code == 0, again.said
    check(tmp_path, expected)


def test_one_that_fails_ends_its_run_and_its_error_is_the_record(tmp_path, capsys, forked_workers):
    "The sweep goes on, and what was refused is not recorded."
    istar = dict(base, method="istar", lam=1)
    bad = dict(runs=[dict(istar, lr=1e30), dict(istar, layers=[[9]]), base])
    records = sweep(bad, processes_per_run=2, workers=1, threads=1, **places(tmp_path))
    assert [r.status for r in records] == ["failed", "failed", "done"]
    assert "finite" in records[0].error.splitlines()[-1] and "there are layers 0 to 2" in records[1].error
    assert {r.id for r in iterate_records(tmp_path/"runs")} == {records[0].id, records[2].id}
    assert capsys.readouterr().out.count("] failed: ") == 2


def test_the_second_process_fails_alone(tmp_path, monkeypatch):
    "The first one waits for it and would say that a connection was closed."
    (tmp_path/"hold").mkdir()
    (tmp_path/"hold"/"sitecustomize.py").write_text("""
import os
if os.environ.get("RANK") == "1":
    import istar_nb.training.training as training
    def fails(*args): raise ArithmeticError("only the second one fails")
    training.update = fails
""", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path/"hold"), prepend=os.pathsep)
    [config] = grid(dict(base=base, runs=[dict(limit=64)]))
    [record] = sweep([config], processes_per_run=2, workers=1, threads=1, progress=False, **places(tmp_path))
    assert record.error.splitlines()[-1] == "ArithmeticError: only the second one fails" and record.started
    assert find_record(tmp_path/"runs", config.id).error == record.error


def test_accelerators_are_handed_out(tmp_path, monkeypatch):
    "Four simulated ones for two runs at once of two processes each: no two share one, and those of a dead run go on."
    from simulated import NAME
    monkeypatch.setattr(devices, "available_accelerators", lambda: [torch.device(NAME, i) for i in range(4)])
    monkeypatch.setitem(executors._visible, NAME, "SIM_VISIBLE_DEVICES")
    seen = tmp_path/"seen"
    seen.mkdir()
    def idle(worker, code, order, variables, count, ended):
        "Processes that say what they see, and end when their run is named, one of them by dying."
        code = """
import json, os, pathlib, signal, sys, time
order = json.loads(sys.stdin.readline())
seed, rank = order["config"]["seed"], os.environ["RANK"]
pathlib.Path(os.environ["SEEN"], f"{seed}-{rank}-{os.getpid()}").write_text(os.environ["SIM_VISIBLE_DEVICES"])
print("ready", flush=True)
while not pathlib.Path(os.environ["SEEN"], f"end-{seed}").exists(): time.sleep(0.01)
if seed == 0 and rank == "1": os.kill(os.getpid(), signal.SIGKILL)
if seed or rank == "1": sys.exit(75)
time.sleep(600)"""
        team(worker, code, order, {**variables, "SEEN": str(seen)}, count, ended)
    team = executors.Team.__init__
    monkeypatch.setattr(executors.Team, "__init__", idle)
    def now(seeds):
        "What the processes of these runs see."
        end = time.monotonic() + 300
        def written(): return [path for seed in seeds for path in seen.glob(f"{seed}-*") if path.read_text()]
        while len(found := written()) < 2*len(seeds):
            assert time.monotonic() < end
            time.sleep(0.01)
        return [{path.read_text() for path in found if path.name.startswith(f"{seed}-")} for seed in seeds]
    configs = grid(dict(base=base, seeds=range(3), runs=[{}]))
    events = queue.Queue()
    def follow():
        job, resources = Job(str(tmp_path/"runs")), Resources(processes_per_run=2, restarts=0)
        for event in in_processes(configs, job, resources): events.put(event)
    threading.Thread(target=follow, daemon=True).start()
    assert now([0, 1]) == [{"0,1"}, {"2,3"}]
    (seen/"end-0").touch()
    dead = events.get(timeout=300)
    assert dead.config.seed == 0 and dead.record.status == "failed" and "SIGKILL" in dead.record.error
    assert now([1, 2]) == [{"2,3"}, {"0,1"}], "the devices of the dead run are free"
    for seed in (1, 2): (seen/f"end-{seed}").touch()
    assert sorted(events.get(timeout=300).config.seed for _ in range(2)) == [1, 2]
    with pytest.raises(ValueError, match=f"`processes_per_run` is 5, and the accelerators are {NAME}:0, "):
        next(in_processes(configs, Job(str(tmp_path/"runs")), Resources(processes_per_run=5)))


def test_the_command(istar, tmp_path, tmp_path_factory):
    "Two processes a run, named on the command line."
    import json
    (tmp_path/"grid.yaml").write_text(json.dumps(spec), encoding="utf-8")
    process = istar("sweep", "grid.yaml", "--processes-per-run", 2, "--workers", 1, "--threads", 1, "--dry-run")
    assert "2 runs: 0 done, 2 to do" in process.wait() and process.code == 0
    process = istar("sweep", "grid.yaml", "--processes-per-run", 2, "--executor", "local")
    assert "--executor 'local' is this process alone" in process.wait() and process.code
