"""IsoScore* forward and backward against IsoScore 2.0.1, its own two bare matrix products and itself with fewer digits.

IsoScore 2.0.1 is the authors' package.

`python benchmarks/isoscore.py` prints ratios of medians, all measured in turn in one run, and the quartiles of the
ratios of single rounds; `--record` also stores them.
"""
import argparse
import json
import random
import time
from datetime import date
from pathlib import Path
from statistics import median, quantiles

import IsoScore.IsoScore as published
import torch
from istar_nb.covariance import covariance
from istar_nb.precision import format_of, products_in
from istar_nb.scores import isoscore_star
from istar_nb.records import environment


def timed(jobs, repeats):
    "Seconds of every job in every round; their order is drawn anew, since each leaves the caches to the next."
    seconds, order = {name: [] for name in jobs}, random.Random(0)
    for i in range(repeats+1):
        for name in order.sample(list(jobs), len(jobs)):
            start = time.perf_counter()
            jobs[name]()
            if i: seconds[name].append(time.perf_counter()-start)    # the first round warms up
    return seconds


def ratio(above, below):
    "Ratio of the medians, and the quartiles of the ratios of single rounds."
    low, _, high = quantiles([a/b for a, b in zip(above, below)], n=4)
    return round(median(above)/median(below), 2), [round(low, 2), round(high, 2)]


def compare(n, d, zeta, repeats):
    "Ratios for one shape."
    generator = torch.Generator().manual_seed(0)
    x, G = torch.randn(n, d, generator=generator, requires_grad=True), torch.randn(d, d, generator=generator)
    cov_ref, peer = covariance(torch.randn(4*d, d, generator=generator)), published.istar()
    points = x.detach()
    def backward(score): torch.autograd.grad(score, x)
    def medium():
        with products_in(format_of("medium", x.device), x.device): backward(isoscore_star(x, cov_ref, zeta))
    seconds = timed(dict(ours=lambda: backward(isoscore_star(x, cov_ref, zeta)), medium=medium,
                         peer=lambda: backward(peer.IsoScore_star(x, cov_ref, zeta, is_eval=False)),
                         products=lambda: (points.T @ points, points @ G)), repeats)
    row = dict(n=n, d=d, zeta=zeta)
    for above, below in [("peer", "ours"), ("ours", "products"), ("medium", "ours")]:
        name = f"{above}_over_{below}"
        row[name], row[f"{name}_quartiles"] = ratio(seconds[above], seconds[below])
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    rows = [compare(n, 768, zeta, args.repeats) for zeta in (0., 0.2) for n in (32, 700, 4096, 16384)]
    for r in rows:
        print(f"n = {r['n']:>6}, d = {r['d']}, ζ = {r['zeta']}: "
              f"{r['peer_over_ours']:>6.1f} times as fast as IsoScore 2.0.1; "
              f"{r['ours_over_products']:.2f} of two bare products; "
              f"{r['medium_over_ours']:.2f} of its time with fewer digits")
    if args.record:
        path = Path(__file__).resolve().parents[1]/"results"/"benchmarks"/"isoscore.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict(benchmark="isoscore", rows=rows, date=str(date.today()),
                                        environment=environment()), indent=1) + "\n")
