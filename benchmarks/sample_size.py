"""One Gaussian cloud, spectrum 1/i, seen through samples of 64 to 40,000 points: scores, errors, coverage and verdicts.

`python benchmarks/sample_size.py` prints, for every number of points, the plain IsoScore of the sample, the unbiased
score with its standard error and how often its 95 % interval holds the truth, and the verdicts of vecscope 0.2.0 and
spectralyte 0.4.0 on its effective rank and on the share of dimensions that hold 95 % of the variance, each from an
environment of its own, which is made once; `--record` stores them, size by size. Every draw has its own seed.
"""
import argparse
import os
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from harness import Peer, peer_python, store
from istar_nb import isoscore
from istar_nb.geometry.scores import isoscore_with_error

d = 1024
spectrum = 1/torch.arange(1, d + 1, dtype=torch.float64)
truth = ((spectrum.sum()**2/spectrum.square().sum() - 1)/(d - 1)).item()
sizes = {64: 200, 256: 200, 512: 200, 1000: 200, 4000: 200, 40_000: 10}    # points: draws

VECSCOPE = """
import importlib.metadata, json, sys
import numpy as np
from vecscope.diagnostics import anisotropy
from vecscope.evidence import _verdict, resolve_thresholds
print(json.dumps({name: importlib.metadata.version(name) for name in ("vecscope", "numpy")}), flush=True)
for line in sys.stdin:
    value = anisotropy(np.load(json.loads(line)[0]))["effective_rank_ratio"]
    verdict = _verdict("anisotropy.effective_rank_ratio", value, resolve_thresholds(None))
    print(json.dumps(dict(value=value, verdict=verdict)), flush=True)
"""

SPECTRALYTE = """
import contextlib, importlib.metadata, json, os, sys
import numpy as np
from spectralyte.metrics import dimensionality
print(json.dumps({name: importlib.metadata.version(name) for name in ("spectralyte", "numpy")}), flush=True)
for line in sys.stdin:
    found = dimensionality.compute(np.load(json.loads(line)[0]))
    print(json.dumps(dict(value=found.utilization, verdict=found.interpretation)), flush=True)
"""


def drawn(n, seed):
    "Points of the cloud, (n, d) float32; no two draws share numbers, whatever their sizes."
    points = np.random.default_rng([n, seed]).standard_normal((n, d), dtype=np.float32)
    return torch.from_numpy(points)*spectrum.sqrt().float()


def ours(n, draws):
    "Means over draws, and how often the interval holds the truth."
    rows = []
    for seed in range(draws):
        x = drawn(n, seed)
        score, error, _ = isoscore_with_error(x)
        rows.append([isoscore(x).item(), score.item(), error.item()])
    plain, scores, errors = np.array(rows).T
    holds = abs(scores - truth) <= 1.96*errors
    return dict(draws=draws, plain=plain.mean(), plain_sd=plain.std(ddof=1), unbiased=scores.mean(),
                unbiased_sd=scores.std(ddof=1), standard_error=errors.mean(), coverage=holds.mean())


def theirs(peers, n, draws):
    "Values and verdicts of the other packages, over draws."
    found = {name: [] for name in peers}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(draws):
            np.save(path := Path(folder)/"x.npy", drawn(n, seed).numpy())
            for name, peer in peers.items(): found[name].append(peer(str(path)))
    return {name: dict(draws=draws, value=np.mean([row["value"] for row in rows]),
                       verdicts=Counter(row["verdict"] for row in rows)) for name, rows in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the draws, and at most 1,000 points")
    parser.add_argument("--environments", type=Path, help="folder for those of the other packages; default: .venv")
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    args = parser.parse_args()
    load_before, rows = os.getloadavg()[0], {}
    needs = dict(vecscope=["vecscope==0.2.0"], spectralyte=["spectralyte==0.4.0"])
    peers = {name: Peer(peer_python(name, *needs[name], folder=args.environments), code)
             for name, code in (("vecscope", VECSCOPE), ("spectralyte", SPECTRALYTE))}
    versions = {name: peer.versions for name, peer in peers.items()}
    for n, draws in sizes.items():
        if args.quick:
            if n > 1000: break
            draws //= 10
        rows[n] = r = ours(n, draws) | dict(peers=theirs(peers, n, min(draws, 10 if n <= 1000 else 3)))
        said = "; ".join(f"{name} {p['value']:.3f} ({', '.join(p['verdicts'])})" for name, p in r["peers"].items())
        print(f"n = {n:>6,}: plain {r['plain']:.4f}, unbiased {r['unbiased']:.4f} ± {r['standard_error']:.4f} "
              f"(truth {truth:.4f}, held in {r['coverage']:.0%} of {r['draws']} draws); {said}", flush=True)
        if args.record: store("sample_size", load_before, d=d, truth=truth, rows=rows, peers=versions)
    for peer in peers.values(): peer.close()
