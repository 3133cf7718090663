"""TwoNN side by side with scikit-dimension and DADApy: `python benchmarks/two_nn.py [--help]`.

DADApy 0.3.4 wants numpy<2, which does not go together with the rest, so it has an environment of its own, which is
made on the way. Prints medians of repeats taken in turn, and ratios; writes nothing unless `--record` is given.
"""
import argparse
import importlib.metadata
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import skdim
import torch
from harness import Peer, peer_python, ratio, store, timed
from istar_nb.geometry.dimension import tile, two_nn

def half_products(x):
    "What every search that looks at all pairs must do: their inner products, each pair once."
    for start in range(0, len(x), tile): x[start:start+tile] @ x[start:].T


DADAPY = """
import importlib.metadata, json, os, sys, time, warnings
import numpy as np
from dadapy import Data
warnings.simplefilter("ignore")
x, threads = np.load(sys.argv[1]), int(os.environ["OMP_NUM_THREADS"])
print(json.dumps({name: importlib.metadata.version(name) for name in ("dadapy", "numpy")}), flush=True)
for line in sys.stdin:
    data = Data(x, verbose=False, n_jobs=threads)
    data.compute_distances(maxk=3)
    print(json.dumps(float(data.compute_id_2NN()[0])), flush=True)
"""

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="where istar_nb runs; the others run on the CPU")
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    x = torch.randn(args.points, args.dims, generator=torch.Generator().manual_seed(0))
    there, values = x.to(args.device), {}
    with tempfile.TemporaryDirectory() as folder:
        np.save(path := Path(folder)/"x.npy", x.numpy())
        dadapy = Peer(peer_python("two-nn", "dadapy==0.3.4", "numpy<2"), DADAPY, path)
        found = {"istar_nb": lambda: two_nn(there).item(), "DADApy": dadapy,
                 "scikit-dimension": lambda: float(skdim.id.TwoNN().fit(x.numpy()).dimension_)}
        def call(name): values[name] = found[name]()
        jobs = {name: lambda name=name: call(name) for name in found} | {"products": lambda: half_products(there)}
        seconds = timed(jobs, args.repeats, args.device)
        dadapy.close()
    rows, products = {}, seconds.pop("products")
    slower, quartiles = ratio(seconds["istar_nb"], products)
    floor = dict(seconds=statistics.median(products), ratio=slower, ratio_quartiles=quartiles)
    for name, times in seconds.items():
        faster, quartiles = ratio(times, seconds["istar_nb"])
        rows[name] = dict(seconds=statistics.median(times), ratio=faster, ratio_quartiles=quartiles,
                          dimension=values[name], gap=abs(values[name]/values["istar_nb"] - 1))
    print(f"{args.points} x {args.dims}, {torch.get_num_threads()} threads, istar_nb on {args.device}, "
          f"medians of {args.repeats}")
    for name, row in rows.items():
        print(f"{name:17} {row['seconds']:8.2f} s  {row['ratio']:6.2f}x  dimension {row['dimension']:.5f}  relative "
              f"gap {row['gap']:.1e}")
    print(f"istar_nb takes {slower:.2f} times as long as the products of all pairs, {floor['seconds']:.2f} s")
    if max(row["gap"] for row in rows.values()) > 1e-4: sys.exit("the values differ by more than 1e-4")
    versions = {name: importlib.metadata.version(name) for name in ("scikit-dimension", "scikit-learn")}
    if args.record: store("two_nn", load_before, points=args.points, dims=args.dims, repeats=args.repeats,
                          device=args.device, rows=rows, products=floor, peers=versions | dadapy.versions)
