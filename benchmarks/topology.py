"""H0 persistent entropy, forward and backward, beside torch-topological 0.1.9.

That package computes the barcode with giotto-ph. It brings others that the rest does not need, so it has an environment
of its own, which is made on the way. Prints medians of rounds in which the two take turns, and ratios; on a CPU also a
floor: what takes time in any search of this kind. Writes nothing unless `--record` is given.
"""
import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from harness import Peer, peer_python, ratio, store, timed, waited
from istar_nb.penalties.topology import edge_lengths, h0_bars, persistent_entropy
from istar_nb.penalties.trees import exact_lengths, few, spanning_tree
from scipy.linalg.blas import ssyrk

PEER = """
import importlib.metadata, json, os, sys, time
import numpy as np, torch
from torch_topological.nn import VietorisRipsComplex
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
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


def ours(x, calls):
    "As the peer's loop, with `h0_bars` and `persistent_entropy`."
    x, seconds = x.clone().requires_grad_(), []
    for _ in range(calls):
        x.grad = None
        start = waited(x.device)
        entropy = persistent_entropy(h0_bars(x))
        entropy.backward()
        seconds.append(waited(x.device) - start)
    return seconds, entropy.item(), x.grad.norm().item()


def compare(x, args, peer, folder):
    "Medians, values and gradients of both on one cloud; the first calls of a turn find the caches of the other."
    path, calls = str(Path(folder)/"x.npy"), max(5, args.milliseconds//(len(x)//8))
    np.save(path, x.numpy())
    there = x.to(args.device)
    methods = {"istar_nb": lambda: ours(there, calls), "torch-topological": lambda: peer(path, calls)}
    rounds = [{name: f() for name, f in methods.items()} for _ in range(args.rounds + 1)][1:]
    seconds = {name: [statistics.median(r[name][0]) for r in rounds] for name in methods}
    _, entropy, gradient = rounds[0]["istar_nb"]
    rows = {}
    for name in methods:
        times, quartiles = ratio(seconds[name], seconds["istar_nb"])
        rows[name] = dict(seconds=statistics.median(seconds[name]), ratio=times, ratio_quartiles=quartiles,
                          entropy_gap=abs(rounds[0][name][1]/entropy - 1),
                          gradient_gap=abs(rounds[0][name][2]/gradient - 1))
    return rows


def floor(x, repeats):
    "Seconds for bare distances (few points) or their bare product, one look at each, and a step whose tree is known."
    leaf, edges, matrix, columns = x.clone().requires_grad_(), spanning_tree(x), exact_lengths(x), x.numpy().T
    def step():
        leaf.grad = None
        persistent_entropy(edge_lengths(leaf, edges)).backward()
    distances = (lambda: torch.nn.functional.pdist(x)) if len(x) <= few else lambda: ssyrk(1., columns, trans=1)
    seconds = timed({"distances": distances, "one look": lambda: matrix.min(1), "known tree": step}, repeats)
    return {name: statistics.median(values) for name, values in seconds.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, nargs="+", default=[32, 64, 128, 256, 1024])
    parser.add_argument("--dims", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--milliseconds", type=int, default=200, help="about how long the peer's part of a round takes")
    parser.add_argument("--device", default="cpu", help="where istar_nb runs; the peer runs on the CPU")
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    args = parser.parse_args()
    load_before, rows, floors = os.getloadavg()[0], {}, {}
    same_torch = f"torch=={torch.__version__.partition('+')[0]}"
    peer = Peer(peer_python("topology", "torch_topological==0.1.9", same_torch), PEER)
    print(f"d = {args.dims}, {torch.get_num_threads()} threads, istar_nb on {args.device}, "
          f"medians of {args.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        for n in args.points:
            x = torch.randn(n, args.dims, generator=torch.Generator().manual_seed(n))
            rows[n] = compare(x, args, peer, folder)
            for name, row in rows[n].items():
                print(f"n = {n:5} {name:18} {row['seconds']*1e3:9.3f} ms  {row['ratio']:6.2f}x  entropy gap "
                      f"{row['entropy_gap']:.1e}", flush=True)
            if args.device != "cpu": continue
            floors[n] = floor(x, 10*args.rounds)
            print(f"n = {n:5} {'floor':18} {sum(floors[n].values())*1e3:9.3f} ms: "
                  + ", ".join(f"{name} {value*1e3:.3f}" for name, value in floors[n].items()), flush=True)
    peer.close()
    for gap, most in (("entropy_gap", 1e-4), ("gradient_gap", 1e-3)):
        if max(row[gap] for n in rows for row in rows[n].values()) > most: sys.exit(f"a {gap} is more than {most}")
    if args.record: store("topology", load_before, dims=args.dims, rounds=args.rounds, device=args.device, rows=rows,
                          floor=floors, peer=peer.versions)
