"""H0 persistent entropy, forward and backward, beside torch-topological: `python benchmarks/topology.py [--help]`.

torch-topological 0.1.9 computes the barcode with giotto-ph. It brings packages that the rest does not need; give it an
environment of its own, with the same torch, and name its interpreter:

    python3.11 -m venv peer-env && peer-env/bin/pip install torch_topological==0.1.9
    python benchmarks/topology.py --peer-python peer-env/bin/python

Prints medians of rounds in which the two take turns, and ratios; writes nothing unless `--record` is given.
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

PEER = """
import importlib.metadata, json, sys, time
import numpy as np, torch
from torch_topological.nn import VietorisRipsComplex
torch.set_num_threads(int(sys.argv[1]))
complex = VietorisRipsComplex(dim=0)
packages = "torch", "torch_topological", "giotto-ph"
print(json.dumps({name: importlib.metadata.version(name) for name in packages}), flush=True)
for line in sys.stdin:
    path, calls = json.loads(line)
    x, seconds = torch.from_numpy(np.load(path)).requires_grad_(), []
    for _ in range(calls):
        x.grad, start = None, time.perf_counter()
        bars = complex(x)[0].diagram[:, 1]
        p = bars/bars.sum()
        entropy = -(p*p.log()).sum()
        entropy.backward()
        seconds.append(time.perf_counter() - start)
    print(json.dumps([seconds, entropy.item(), x.grad.norm().item()]), flush=True)
"""


class Peer:
    "torch-topological in another environment: one process that answers requests."
    def __init__(self, python, threads):
        env = (os.environ
               | {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")})
        self.process = subprocess.Popen([python, "-c", PEER, str(threads)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=env)
        self.versions = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line: raise RuntimeError("torch-topological stopped; its message is above")
        return json.loads(line)

    def __call__(self, path, calls):
        self.process.stdin.write(json.dumps([path, calls]) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def ours(x, calls, wait):
    "As the peer's loop, with `h0_bars` and `persistent_entropy`."
    from istar_nb.topology import h0_bars, persistent_entropy
    x, seconds = x.clone().requires_grad_(), []
    for _ in range(calls):
        x.grad = None
        wait()
        start = time.perf_counter()
        entropy = persistent_entropy(h0_bars(x))
        entropy.backward()
        wait()
        seconds.append(time.perf_counter() - start)
    return seconds, entropy.item(), x.grad.norm().item()


def hardware(torch):
    "What the timings depend on."
    info = Path("/proc/cpuinfo")
    model = next((line.split(":")[1].strip() for line in info.read_text(encoding="utf-8").splitlines()
                  if line.startswith("model name")), "") if info.exists() else ""
    return dict(machine=platform.machine(), cpu=model or platform.processor(), cores=os.cpu_count(),
                threads=torch.get_num_threads(),
                load_before=os.getloadavg()[0], gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None)


def compare(n, args, peer, folder, torch, np):
    "Medians, values and gradients of both on one cloud of `n` points."
    x = torch.randn(n, args.dims, generator=torch.Generator().manual_seed(n))
    path, calls = str(Path(folder)/"x.npy"), max(2, args.milliseconds//(n//8))
    np.save(path, x.numpy())
    there, wait = x.to(args.device), torch.cuda.synchronize if args.device.startswith("cuda") else lambda: None
    methods = {"istar_nb": lambda: ours(there, calls, wait)}
    if peer: methods["torch-topological"] = lambda: peer(path, calls)
    rounds = [{name: f() for name, f in methods.items()} for _ in range(args.rounds + 1)][1:]
    seconds = {name: [statistics.median(r[name][0]) for r in rounds] for name in methods}
    _, entropy, gradient = rounds[0]["istar_nb"]
    return {name: dict(seconds=statistics.median(seconds[name]), all_seconds=seconds[name],
                       ratio=statistics.median([a/b for a, b in zip(seconds[name], seconds["istar_nb"])]),
                       fastest_ratio=min(seconds[name])/min(seconds["istar_nb"]),
                       entropy_gap=abs(rounds[0][name][1]/entropy - 1),
                       gradient_gap=abs(rounds[0][name][2]/gradient - 1)) for name in methods}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=int, nargs="+", default=[32, 64, 128, 256, 1024])
    parser.add_argument("--dims", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--milliseconds", type=int, default=200, help="about how long the peer's part of a round takes")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu", help="where istar_nb runs; the peer runs on the CPU")
    parser.add_argument("--peer-python", metavar="PATH",
                        help="interpreter of an environment with torch_topological; without it only istar_nb is timed")
    parser.add_argument("--record", action="store_true", help="write results/benchmarks/topology.json")
    args = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"): os.environ[name] = str(args.threads)

    import numpy as np
    import torch
    torch.set_num_threads(args.threads)
    before, rows, peer = hardware(torch), {}, Peer(args.peer_python, args.threads) if args.peer_python else None
    print(f"d={args.dims}, {args.threads} threads, istar_nb on {args.device}, medians of {args.rounds} rounds, "
          f"load {before['load_before']:.1f} on {before['cores']} cores")
    with tempfile.TemporaryDirectory() as folder:
        for n in args.points:
            rows[n] = compare(n, args, peer, folder, torch, np)
            for name, row in rows[n].items():
                print(f"n={n:5} {name:18} {row['seconds']*1e3:9.3f} ms  {row['ratio']:6.2f}x  (fastest "
                      f"{row['fastest_ratio']:5.2f}x)  entropy gap {row['entropy_gap']:.1e}", flush=True)
    if peer: peer.close()
    if max(row["entropy_gap"] for n in rows for row in rows[n].values()) > 1e-4:
        sys.exit("the entropies differ by more than 1e-4")
    if max(row["gradient_gap"] for n in rows for row in rows[n].values()) > 1e-3:
        sys.exit("the gradients differ by more than 1e-3")
    if args.record:
        versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "scipy")}
        record = dict(benchmark="topology", dims=args.dims, rounds=args.rounds, device=args.device, rows=rows,
                      versions=versions, peer=peer and peer.versions, hardware=before)
        target = Path(__file__).resolve().parents[1]/"results"/"benchmarks"/"topology.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote {target.relative_to(target.parents[2])}")


if __name__ == "__main__": main()
