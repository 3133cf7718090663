"""Kill training and sweeps at random moments, start them again until they are done, and compare with unbroken ones.

`python tests/killed.py KILLS [SEED]` kills at least so many times; `tests/test_kills.py` runs it with a few.
"""
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

import psutil
import torch

from istar_nb.encoders import load_encoder
from istar_nb.runs import RunConfig, find_record, iterate_records
from istar_nb.sweeps import sweep
from istar_nb.tasks import load_task
from istar_nb.training import train

base = dict(model="tiny-bert", limit=96, epochs=2, batch_size=16, lr=1e-3, max_length=32)
configs = [RunConfig(**base), RunConfig(**base, method="istar", lam=-0.5, reference_points=500), RunConfig(**base, method="istar", relative=0.5, refresh="average", reference_points=500),
           RunConfig(**base, method="entropy", accumulate=2), RunConfig(**base, method="isolayer", stage_epochs=5)]


def places(folder): return dict(root=folder, checkpoints=folder/"checkpoints", checkpoint_every=1, progress=False)


def train_one(folder, config): train(config, **places(folder))


def sweep_all(folder, executor): sweep(configs, executor=executor, workers=2, threads=1, **places(folder))


def attempt(seconds, f, *args):
    "Run `f` in a child process; True if it ended by itself within so many seconds, else it and its own children are killed."
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        code = 1
        try:
            with open(os.devnull, "w", encoding="utf-8") as sink: os.dup2(sink.fileno(), 1)
            f(*args)
            code = 0
        finally: os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (done := os.waitpid(child, os.WNOHANG))[0]:
            assert os.waitstatus_to_exitcode(done[1]) == 0, f"{f.__name__} failed by itself"
            return True
        time.sleep(0.005)
    for process in [psutil.Process(child), *psutil.Process(child).children(recursive=True)]: process.send_signal(signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def until_done(longest, draw, f, *args):
    "Start `f` until it ends, killing it after random times that grow slowly; how often it was killed."
    kills = 0
    while not attempt(draw.uniform(0.05, longest*(0.5 + 0.02*kills)), f, *args): kills += 1
    return kills


def check(folder, whole):
    "Every record there, valid, once, and equal to the unbroken one."
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = {r.id: r for r in iterate_records(folder)}
    assert set(records) == {c.id for c in configs} and len(list(folder.glob("*.json"))) == len(configs)
    for c in configs: assert records[c.id].status == "done" and records[c.id].same == find_record(whole, c.id).same, c.canonical
    assert not [p for p in (folder/"checkpoints").iterdir() if p.is_dir()], "checkpoints of finished runs are removed"


def main(wanted, seed):
    torch.set_num_threads(1)
    load_encoder("tiny-bert"), load_task("stdlib-docs")    # parsed once, here, and not in every child
    draw, root = random.Random(seed), Path(tempfile.mkdtemp())
    whole, lasts, kills, rounds = root/"whole", {}, dict(training=0, sweep=0, workers=0), 0
    stores = 0
    for c in configs:
        start = time.monotonic()
        assert attempt(600, train_one, whole, c)
        lasts[c] = time.monotonic() - start
    while sum(kills.values()) < wanted:
        a, b, c = (root/f"{kind}-{rounds}" for kind in kills)
        for config in configs: kills["training"] += until_done(lasts[config], draw, train_one, a, config)
        kills["sweep"] += until_done(sum(lasts.values()), draw, sweep_all, b, "local")
        with_workers = wanted >= 20 and rounds % 4 == 0    # they take long to start
        if with_workers: kills["workers"] += until_done(30, draw, sweep_all, c, "processes")
        for config in configs: train_one(a, config)    # a record that is there leaves nothing to do but to tidy up
        sweep_all(b, "local")
        for folder in (a, b, *([c] if with_workers else [])): check(folder, whole)
        rounds, stores = rounds+1, stores+2+with_workers
        print(f"{sum(kills.values())} of {wanted} kills", file=sys.stderr, flush=True)
    print(f"killed {sum(kills.values())} times ({', '.join(f'{k} {v}' for k, v in kills.items())}): {len(configs)} runs in each of {stores} stores, all equal to the unbroken ones")


if __name__ == "__main__": main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
