"""Does neural collapse's NC1 add anything to `health(labels=)`? `python benchmarks/nc1.py [--record]`.

Declared before the first run. NC1 (Papyan et al. 2020) is tr(S_W S_B⁺)/C: variance within C classes, in units of that
between their means, and in the directions of the means alone. `health` gives the share of variance that is between
classes, `class_variances`, in all directions and without the bias of few points, and the kind *cluster*.

MiniLM's vectors (means over tokens) of 1,500 texts each of SST-2 (2 classes) and SST-5 (5); draws of 256 texts.
Planted are collapses of texts onto the means of their classes, by shrinking what is within classes to a part: in all
directions, of one class alone, and in the directions between the means alone. Each number's edge is its most extreme
value in 200 healthy draws, and each strength is drawn 40 times.

NC1 is added if there is a set and a way of planting in which it tells, in every draw, a weaker collapse than the share
does, and none in which it tells a stronger one only. Also kept is the mean of each in healthy draws of 64, 256 and
1,024 texts, because a number that depends on how many texts there are cannot have one edge.
Amended when SST-2 was done and had decided against it by this rule: `stdlib-docs`, the third set that was declared, was
left out.
Writes results/benchmarks/nc1.json when `--record` is given.
"""
import argparse
import os

import numpy as np
import torch

from collapse import passes
from harness import store

N, HEALTHY, DRAWS, STRENGTHS = 256, 200, 40, (0.95, 0.9, 0.8, 0.7, 0.5, 0.3)
SETS = "sst2", "sst5"


def vectors_of(task):
    "Vectors and classes of texts, as often of each class as there are."
    from istar_nb.text.encoders import load_encoder
    from istar_nb.text.tasks import load_task
    rows = list(load_task(task).train)
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:1500]]
    model, tokenizer = load_encoder("minilm")
    model.eval()
    x = torch.empty(len(rows), 384)
    for ids, layers, mask in passes(model, tokenizer, [row["sentence"] for row in rows]):
        x[ids] = (layers[-1]*mask).sum(1)/mask.sum(1)
    return x.double(), torch.from_numpy(np.unique([row["label"] for row in rows], return_inverse=True)[1])


def means_of(x, y): return torch.stack([x[y == c].mean(0) for c in range(int(y.max()) + 1)])


def nc1(x, y):
    "tr(S_W S_B⁺)/C, by the singular values of the centred means."
    means = means_of(x, y)
    _, s, V = torch.linalg.svd((means - means.mean(0))/len(means)**0.5, full_matrices=False)
    s, V = s[:-1], V[:-1]    # of C centred means one direction is left over
    return float((((x - means[y]) @ V.T).square().mean(0)/s.square()).sum()/len(means))


def numbers(x, y):
    "Less is nearer to collapse."
    from istar_nb.embeddings.collapse import neighbour_kinds, neighbours
    from istar_nb.geometry.second_moments import class_variances
    return dict(nc1=nc1(x, y), within_share=1 - float(class_variances(x, y.numpy())["share"].value),
                cluster=float(neighbour_kinds(neighbours(x))["cluster"].value))


def planted(x, y, way, strength):
    "What is within classes, shrunk to a part of it."
    means = means_of(x, y)
    within = x - means[y]
    if way == "one class": return torch.where(y[:, None] == 0, means[y] + strength*within, x)
    if way == "all": return means[y] + strength*within
    V = torch.linalg.svd(means - means.mean(0), full_matrices=False)[2][:-1]
    return x - (1 - strength)*within @ V.T @ V


def drawn(x, y, n, rng):
    "Texts of which each class has some."
    while True:
        rows = torch.from_numpy(rng.choice(len(x), n, replace=False))
        if len(y[rows].unique()) == len(y.unique()): return x[rows], y[rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write results/benchmarks/nc1.json")
    args = parser.parse_args()
    load_before, rng, found, sizes = os.getloadavg()[0], np.random.default_rng(0), [], []
    for task in SETS:
        x, y = vectors_of(task)
        healthy = [numbers(*drawn(x, y, N, rng)) for _ in range(HEALTHY)]
        edges = {name: min(values[name] for values in healthy) for name in healthy[0]}
        for n in (64, 256, 1024):
            some = [numbers(*drawn(x, y, n, rng)) for _ in range(20)]
            sizes.append(dict(task=task, classes=int(y.max()) + 1, n=n)
                         | {name: round(float(np.mean([v[name] for v in some])), 4) for name in edges})
            print(sizes[-1], flush=True)
        for way in ("all", "one class", "between"):
            for strength in STRENGTHS:
                there = planted(x, y, way, strength)
                some = [numbers(*drawn(there, y, N, rng)) for _ in range(DRAWS)]
                told = {name: sum(values[name] < edge for values in some) for name, edge in edges.items()}
                found.append(dict(task=task, way=way, strength=strength, told=told))
                print(found[-1], flush=True)
    if args.record: store("nc1", load_before, n=N, healthy=HEALTHY, draws=DRAWS, planted=found, sizes=sizes)


if __name__ == "__main__": main()
