"""IsoScore* forward and backward against IsoScore 2.0.1, and its own two bare matrix products.

IsoScore 2.0.1 is the authors' package. `python benchmarks/isoscore.py` prints ratios of medians, all measured in turn
in one run, and the quartiles of the ratios of single rounds; `--record` also stores them. Values and gradients are
compared in the same run.
"""
import argparse
import os
import sys

import IsoScore.IsoScore as published
import torch
from harness import ratio, store, timed
from istar_nb.base.covariance import covariance
from istar_nb.geometry.scores import isoscore_star


def compare(n, d, zeta, repeats):
    "Ratios for one shape, and how far the values and gradients are apart."
    generator = torch.Generator().manual_seed(0)
    x, G = torch.randn(n, d, generator=generator, requires_grad=True), torch.randn(d, d, generator=generator)
    cov_ref, peer = covariance(torch.randn(4*d, d, generator=generator)), published.istar()
    points = x.detach()
    def gradient(score): return torch.autograd.grad(score, x)[0]
    def ours(): return gradient(isoscore_star(x, cov_ref, zeta))
    def theirs(): return gradient(peer.IsoScore_star(x, cov_ref, zeta, is_eval=False))
    def products(): return points.T @ points, points @ G
    seconds = timed(dict(ours=ours, peer=theirs, products=products), repeats)
    wanted = isoscore_star(points.double(), cov_ref.double(), zeta)
    row = dict(n=n, d=d, zeta=zeta, seconds={name: sorted(values)[len(values)//2] for name, values in seconds.items()},
               value_error=abs((isoscore_star(x, cov_ref, zeta)/wanted).item() - 1),
               gradient_gap=(torch.linalg.norm(ours() - theirs())/torch.linalg.norm(theirs())).item())
    for above, below in [("peer", "ours"), ("ours", "products")]:
        name = f"{above}_over_{below}"
        row[name], row[f"{name}_quartiles"] = ratio(seconds[above], seconds[below])
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--points", type=int, nargs="+", default=[32, 700, 4096, 16384, 53248])
    args = parser.parse_args()
    load_before, rows = os.getloadavg()[0], []
    for zeta in (0., 0.2):
        for n in args.points:
            rows.append(r := compare(n, 768, zeta, args.repeats))
            print(f"n = {r['n']:>6}, d = {r['d']}, ζ = {r['zeta']}: "
                  f"{r['peer_over_ours']:>6.1f} times as fast as IsoScore 2.0.1; "
                  f"{r['ours_over_products']:.2f} of two bare products; "
                  f"error {r['value_error']:.0e}, gradients apart {r['gradient_gap']:.0e}", flush=True)
    if max(r["value_error"] for r in rows) > 1e-5: sys.exit("a value is off by more than 1e-5")
    if max(r["gradient_gap"] for r in rows) > 1e-3: sys.exit("the gradients differ by more than 1e-3")
    if args.record:    # one record for each set of instructions, which decide the times
        store(f"isoscore-{torch.backends.cpu.get_cpu_capability().lower()}", load_before, rows=rows,
              repeats=args.repeats)
