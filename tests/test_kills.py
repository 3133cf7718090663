"""Training and sweeps, killed at random moments and restarted until they are done: nothing is lost or different.

ISTAR_KILLS sets how many kills there are at least; ISTAR_SEED draws other moments.
"""
import os
import random
import time
import warnings

import pytest

from istar_nb.training.records import find_record, iterate_records
from istar_nb.training.runs import RunConfig
from istar_nb.sweeps.sweeps import sweep
from istar_nb.training.training import train
from processes import Process
from toy_task import write_model, write_task

WANTED = int(os.environ.get("ISTAR_KILLS", 4))
KINDS = [dict(), dict(method="istar", lam=-0.5, reference_points=500),
         dict(method="istar", relative=0.5, refresh="start", reference_points=500),
         dict(method="entropy", accumulate=2), dict(method="isolayer", stage_epochs=5)]


@pytest.fixture
def configs(tmp_path):
    "A run of every kind, with a small model."
    model = str(write_model(tmp_path/"model"))
    return [RunConfig(task="sst2", model=model, limit=64, epochs=2, batch_size=16, lr=1e-3, max_length=32, **kind)
            for kind in KINDS]


def places(folder):
    return dict(root=folder, checkpoints=folder/"checkpoints", checkpoint_every=1, data_dir=folder.parent/"data",
                progress=False)


def train_one(folder, config):
    "Carry out a run; on a busy machine the process that was just killed may hold its lock a moment longer."
    for _ in range(50):
        try: return train(config, **places(folder))
        except BlockingIOError: time.sleep(0.1)
    raise TimeoutError("the lock of a killed process is still held")


def sweep_all(folder, configs, executor): sweep(configs, executor=executor, workers=2, threads=1, **places(folder))


def attempt(seconds, f, *args):
    "Run `f` in a process of its own; True if it ends within so many seconds, else it and its own processes are killed."
    process = Process(f, *args)
    process.process.join(seconds)
    if process.code is None: process.kill()
    assert process.code in (0, -9), f"{f.__name__} failed by itself:\n{process.said}"
    return process.code == 0


def until_done(longest, draw, f, *args):
    "Start `f` until it ends, killing it after random times that grow; how often it was killed."
    kills = 0
    while not attempt(draw.uniform(0.05, longest*(0.5 + 0.1*kills)), f, *args): kills += 1
    return kills


def check(folder, whole, configs):
    "Every record there, valid, once, and equal to the unbroken one."
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = {r.id: r for r in iterate_records(folder)}
    assert set(records) == {c.id for c in configs} and len(list(folder.glob("*.json"))) == len(configs)
    for c in configs:
        assert records[c.id].status == "done" and records[c.id].same == find_record(whole, c.id).same, c.canonical
    assert not [p for p in (folder/"checkpoints").iterdir() if p.is_dir()], "checkpoints of finished runs are removed"


def test_random_kills(configs, tmp_path):
    write_task(tmp_path/"data")
    draw, whole, lasts, kills, rounds = random.Random(int(os.environ.get("ISTAR_SEED", 1))), tmp_path/"whole", {}, 0, 0
    for c in configs:
        start = time.monotonic()
        assert attempt(600, train_one, whole, c)
        lasts[c] = time.monotonic() - start
    while kills < WANTED:
        one, local, workers = (tmp_path/f"{kind}-{rounds}" for kind in ("one", "local", "workers"))
        kills += sum(until_done(lasts[c], draw, train_one, one, c) for c in configs)
        kills += until_done(sum(lasts.values()), draw, sweep_all, local, configs, "local")
        with_workers = WANTED >= 20 and rounds % 4 == 0    # they take long to start
        if with_workers: kills += until_done(30, draw, sweep_all, workers, configs, "processes")
        for c in configs: train_one(one, c)    # a record that is there leaves nothing to do but to tidy up
        sweep_all(local, configs, "local")
        for folder in (one, local, *([workers] if with_workers else [])): check(folder, whole, configs)
        rounds += 1
