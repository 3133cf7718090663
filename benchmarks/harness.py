"""What all benchmarks share: timing in turn, ratios, another package in an environment of its own, and records."""
import json
import os
import random
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from statistics import median, quantiles

root = Path(__file__).resolve().parents[1]


def waited(device="cpu"):
    "The time when everything asked of a device so far is done."
    if str(device).startswith("cuda"):
        import torch
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(jobs, repeats, device="cpu"):
    "Seconds of every job in every round; their order is drawn anew, since each leaves the caches to the next."
    seconds, order = {name: [] for name in jobs}, random.Random(0)
    for i in range(repeats + 1):
        for name in order.sample(list(jobs), len(jobs)):
            start = waited(device)
            jobs[name]()
            if i: seconds[name].append(waited(device) - start)    # the first round warms up
    return seconds


def ratio(above, below):
    "Ratio of the medians, and the quartiles of the ratios of single rounds."
    low, _, high = quantiles([a/b for a, b in zip(above, below)], n=4)
    return round(median(above)/median(below), 3), [round(low, 3), round(high, 3)]


def peer_python(name, *requirements, folder=None):
    "The interpreter of an environment that holds another package; it is made once, in .venv or in a folder."
    folder = (folder or root/".venv")/f"peer-{name}"
    if not (made := folder/"made").exists():
        print(f"making an environment for {requirements[0]} (once) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder/"bin"/"pip", "install", "--quiet", *requirements], check=True)
        made.touch()
    return folder/"bin"/"python"


class Peer:
    "Another package in a process of its environment: a line of JSON in, a line of JSON out."
    def __init__(self, python, code, *args):
        threads = os.environ.get("OMP_NUM_THREADS", str(os.cpu_count()))
        env = os.environ | {name: threads for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")}
        self.process = subprocess.Popen([python, "-c", code, *map(str, args)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=env)
        self.versions = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line: raise RuntimeError("the other package stopped; its message is above")
        return json.loads(line)

    def __call__(self, *request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def store(name, load_before, **figures):
    "Write a record, with the machine it was measured on and how busy that was."
    from istar_nb.training.records import environment
    path = root/"results"/"benchmarks"/f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = environment() | dict(cores=os.cpu_count(), load_before=load_before)
    path.write_text(json.dumps(figures | dict(date=str(date.today()), environment=machine), indent=1) + "\n")
    print(f"wrote {path.relative_to(root)}")
