"""TwoNN side by side with scikit-dimension and DADApy: `python benchmarks/two_nn.py [--help]`.

Needs the development environment. DADApy 0.3.4 wants numpy<2, which does not go together with the rest; give it an
environment of its own and name its interpreter:

    python3.11 -m venv dadapy-env && dadapy-env/bin/pip install dadapy==0.3.4 'numpy<2'
    python benchmarks/two_nn.py --dadapy-python dadapy-env/bin/python

Prints medians of repeats taken in turn, and ratios; writes nothing unless `--record` is given.
"""
import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DADAPY = """
import json, sys, time, warnings
import numpy as np
from dadapy import Data
warnings.simplefilter("ignore")
x, threads = np.load(sys.argv[1]), int(sys.argv[2])
for line in sys.stdin:
    start = time.perf_counter()
    data = Data(x, verbose=False, n_jobs=threads)
    data.compute_distances(maxk=3)
    value = data.compute_id_2NN()[0]
    print(json.dumps([time.perf_counter() - start, float(value)]), flush=True)
"""


class Dadapy:
    "DADApy in another environment: one process, one answer for each call."
    def __init__(self, python, path, threads):
        env = (os.environ
               | {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")})
        self.process = subprocess.Popen([python, "-c", DADAPY, path, str(threads)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=env)

    def __call__(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line: raise RuntimeError("DADApy stopped; its message is above")
        return tuple(json.loads(line))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def timed(f):
    "A call that returns (seconds, value)."
    def call():
        start = time.perf_counter()
        value = float(f())
        return time.perf_counter() - start, value
    return call


def compare(methods, repeats):
    "Medians of `repeats` rounds, every method once a round after a first unmeasured; {name: (seconds, all, value)}."
    rounds = [{name: f() for name, f in methods.items()} for _ in range(repeats + 1)][1:]
    return {name: (statistics.median(times := [r[name][0] for r in rounds]), times, rounds[0][name][1])
            for name in methods}


def hardware(torch):
    "What the timings depend on."
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
                  if line.startswith("model name")), "") if Path("/proc/cpuinfo").exists() else ""
    return dict(machine=platform.machine(), cpu=model or platform.processor(), cores=os.cpu_count(),
                threads=torch.get_num_threads(),
                load_before=os.getloadavg()[0], gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu", help="where istar_nb runs; the others run on the CPU")
    parser.add_argument("--dadapy-python", metavar="PATH", help="interpreter of an environment with DADApy")
    parser.add_argument("--without-skdim", action="store_true", help="leave scikit-dimension out")
    parser.add_argument("--record", action="store_true", help="write results/benchmarks/two_nn.json")
    args = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"): os.environ[name] = str(args.threads)

    import numpy as np
    import torch

    from istar_nb.dimension import two_nn
    torch.set_num_threads(args.threads)
    x = torch.randn(args.points, args.dims, generator=torch.Generator().manual_seed(0))
    before, methods = hardware(torch), {}
    on_device = x.to(args.device)
    methods["istar_nb"] = timed(lambda: two_nn(on_device))
    if not args.without_skdim:
        import skdim
        methods["scikit-dimension"] = timed(lambda: skdim.id.TwoNN().fit(x.numpy()).dimension_)
    with tempfile.TemporaryDirectory() as folder:
        path, dadapy = str(Path(folder)/"x.npy"), None
        np.save(path, x.numpy())
        if args.dadapy_python: dadapy = methods["DADApy"] = Dadapy(args.dadapy_python, path, args.threads)
        results = compare(methods, args.repeats)
        if dadapy: dadapy.close()

    ours, _, value = results["istar_nb"]
    rows = {name: dict(seconds=seconds, all_seconds=every, dimension=found, ratio=seconds/ours,
                       gap=abs(found/value - 1))
            for name, (seconds, every, found) in results.items()}
    print(f"{args.points} x {args.dims}, {args.threads} threads, istar_nb on {args.device}, medians of {args.repeats}")
    for name, row in rows.items():
        print(f"{name:17} {row['seconds']:8.2f} s  {row['ratio']:6.2f}x  dimension {row['dimension']:.5f}  relative "
              f"gap {row['gap']:.1e}")
    if max(row["gap"] for row in rows.values()) > 1e-4: sys.exit("the values differ by more than 1e-4")
    if args.record:
        versions = {name: importlib.metadata.version(name)
                    for name in ("torch", "numpy", "scikit-dimension", "scikit-learn")}
        record = dict(benchmark="two_nn", points=args.points, dims=args.dims, repeats=args.repeats, device=args.device,
                      rows=rows, versions=versions, hardware=before)
        target = Path(__file__).resolve().parents[1]/"results"/"benchmarks"/"two_nn.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote {target.relative_to(target.parents[2])}")


if __name__ == "__main__": main()
