"""IsoScore* forward and backward against the authors' package IsoScore 2.0.1 and against its own two bare matrix products.

`python benchmarks/isoscore.py` prints ratios of medians, all measured in turn in one run; `--record` also stores them.
"""
import argparse
import json
import time
from datetime import date
from pathlib import Path
from statistics import median

import IsoScore.IsoScore as published
import torch
from istar_nb.covariance import covariance
from istar_nb.scores import isoscore_star
from istar_nb.records import environment


def timed(jobs, repeats):
    "Median seconds of every job, the jobs taking turns."
    seconds = {name: [] for name in jobs}
    for i in range(repeats+1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if i: seconds[name].append(time.perf_counter()-start)    # the first round warms up
    return {name: median(values) for name, values in seconds.items()}


def compare(n, d, zeta, repeats):
    "Ratios for one shape."
    generator = torch.Generator().manual_seed(0)
    x, G = torch.randn(n, d, generator=generator, requires_grad=True), torch.randn(d, d, generator=generator)
    cov_ref, peer = covariance(torch.randn(4*d, d, generator=generator)), published.istar()
    points = x.detach()
    def backward(score): torch.autograd.grad(score, x)
    seconds = timed(dict(ours=lambda: backward(isoscore_star(x, cov_ref, zeta)),
                         peer=lambda: backward(peer.IsoScore_star(x, cov_ref, zeta, is_eval=False)),
                         products=lambda: (points.T @ points, points @ G)), repeats)
    return dict(n=n, d=d, zeta=zeta, peer_over_ours=round(seconds["peer"]/seconds["ours"], 2), ours_over_products=round(seconds["ours"]/seconds["products"], 2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    rows = [compare(n, 768, zeta, args.repeats) for zeta in (0., 0.2) for n in (32, 700, 4096, 16384)]
    for r in rows: print(f"n = {r['n']:>6}, d = {r['d']}, ζ = {r['zeta']}: {r['peer_over_ours']:>6.1f} times as fast as IsoScore 2.0.1; {r['ours_over_products']:.2f} of two bare products")
    if args.record:
        path = Path(__file__).resolve().parents[1]/"results"/"benchmarks"/"isoscore.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict(benchmark="isoscore", rows=rows, date=str(date.today()), environment=environment()), indent=1) + "\n")
