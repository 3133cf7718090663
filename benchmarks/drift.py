"""Does `compare` tell a changed encoding, and how often is that false? `python benchmarks/drift.py --cache FOLDER`.

Vectors of MiniLM and MPNet (those of `benchmarks/collapse.py`, in the same folder) are encoded again: rounded, turned,
or changed on purpose to graded strengths. Each row of the table is a change, of so many texts drawn anew each time.
The last rows are changes that lie exactly on an edge, on average: of those at most 1 % should be told. Writes
results/benchmarks/drift.json when `--record` is given.
"""
import argparse
import os
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from collapse import encoded
from harness import store

SIZES = {64: (10, 200), 256: (10, 200)}    # texts: draws of a change, and on an edge
CORPORA = ("minilm", "cola", 10_000), ("mpnet", "cola", 1500)


def changed(x, kind, strength, rng):
    "Vectors that are encoded again."
    from istar_nb.embeddings.variants import Quantised
    from istar_nb.geometry.transforms import AllButTheTop, Whitening
    if kind == "float16": return x.half().float()
    if kind == "bfloat16": return x.bfloat16().float()
    if kind == "int8": return torch.from_numpy(Quantised().fit(x).transform(x))
    if kind == "turned": return x @ torch.from_numpy(np.linalg.qr(rng.normal(size=[x.shape[1]]*2))[0]).float()
    if kind == "top removed": return torch.from_numpy(AllButTheTop().fit(x).transform(x))
    if kind == "whitened": return torch.from_numpy(Whitening(shrinkage="auto").fit(x).transform(x))
    spread = (x - x.mean(0)).square().sum(1).mean().sqrt()/x.shape[1]**0.5
    if kind == "noise": return x + strength*spread*torch.from_numpy(rng.normal(size=x.shape)).float()
    return x + strength*x.mean(0)    # "moved"


CHANGES = [(kind, 0) for kind in ("float16", "bfloat16", "int8", "turned", "top removed", "whitened")] + [
    ("noise", s) for s in (0.01, 0.03, 0.1, 0.3, 1)] + [("moved", s) for s in (0.1, 0.3, 1, 3)]


def told(x, y, n, draws, rng, truth):
    "How often which word is said of drawn texts."
    import istar_nb as inb
    words, sizes = Counter(), []
    for _ in range(draws):
        rows = rng.choice(len(x), n, replace=False)
        found = inb.compare(x[rows], y[rows])
        (word,), ((row,),), ((other,),) = found.words.values(), *([d.values() for d in part.values()]
                                                                for part in (found.alike, found.differences))
        words[word] += 1
        sizes.append(dict(neighbours=(1 - row["overlap"])/(1 - row["floor"]), cka=1 - row["cka"],
                          mean_cosine=abs(other["mean_cosine"])))
    return dict(words=dict(words), **{name: float(f"{np.mean([s[name] for s in sizes]):.4g}") for name in truth})


def on_edge(x, kind, name, edge, n):
    "The strength at which a change is on its edge: of all texts, or for neighbours on average over draws."
    import istar_nb as inb
    low, high = 0., 3.
    for _ in range(10):
        middle = (low + high)/2
        y = changed(x, kind, middle, np.random.default_rng(1))
        if name == "mean_cosine": size = abs(float(inb.mean_cosine(y) - inb.mean_cosine(x)))
        else: size = told(x, y, n, 24, np.random.default_rng(2), [name])[name]
        if size > edge: high = middle
        else: low = middle
    return (low + high)/2


def on_edges(x):
    "Changes that lie exactly on an edge."
    from istar_nb.report.comparing import drift_edges
    found = []
    for kind, name in (("moved", "mean_cosine"), ("noise", "neighbours")):
        for n, (_, draws) in SIZES.items():
            strength = on_edge(x, kind, name, drift_edges[name], n)
            y = changed(x, kind, strength, np.random.default_rng(1))
            found.append(dict(kind=kind, edge=name, strength=strength, n=n)
                         | told(x, y, n, draws, np.random.default_rng(n), drift_edges))
            print(found[-1], flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder for vectors of encoders")
    parser.add_argument("--record", action="store_true", help="write results/benchmarks/drift.json")
    args = parser.parse_args()
    from istar_nb.report.comparing import drift_edges
    load_before, rows, rng = os.getloadavg()[0], [], np.random.default_rng(0)
    clouds = {(name, corpus): encoded(name, corpus, most, args.cache) for name, corpus, most in CORPORA}
    for (name, corpus), kinds in clouds.items():
        x = kinds["last-mean"]
        others = {("another pooling", 0): kinds["last-cls"], ("another layer", 0): kinds["mid-mean"]}
        for kind, strength in [*CHANGES, *others]:
            y = others.get((kind, strength))
            if y is None: y = changed(x, kind, strength, rng)
            for n, (draws, _) in SIZES.items():
                rows.append(dict(encoder=name, corpus=corpus, kind=kind, strength=strength, n=n)
                            | told(x, y, n, draws, rng, drift_edges))
            print(rows[-1], flush=True)
    edges = on_edges(clouds["minilm", "cola"]["last-mean"])
    if args.record: store("drift", load_before, edges=drift_edges, changes=rows, on_edge=edges)


if __name__ == "__main__": main()
