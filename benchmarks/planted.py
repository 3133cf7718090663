"""Planted collapses, told by `health`'s verdict and by others: `python benchmarks/planted.py --help`.

The healthy splits and the planted collapses are those of `benchmarks/collapse.py` (same folder of vectors), of 256
texts. Asked are the verdict of `istar_nb`, vecscope and spectralyte by their own words (fail or bad of what is about
collapse: cosines, ranks, near-duplicates), and six numbers that have no edge of their own: RankMe (Garrido et al.
2023), LiDAR (Thilak et al. 2024; views are passes with dropout), α-ReQ (Agrawal et al. 2022), matrix entropy (Skean et
al. 2023, of the normalised vectors), the effective rank of the covariance and MONAI's `EmbeddingCollapseMetric`. Each
of these gets an edge of its own encoder, which is more than a user has: the most extreme healthy split of MiniLM.
Writes results/benchmarks/planted.json when `--record` is given.
"""
import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import torch

from collapse import COLUMNS, NULLS, PLANTED, encoded, passes, planted
from harness import Peer, peer_python, store
from istar_nb.embeddings.collapse import kinds_of, verdict_on
from istar_nb.text.encoders import load_encoder
from istar_nb.text.tasks import load_task

N, SPLITS, VIEWS, OBJECTS = 256, 2, 4, 512
VECSCOPE = """
import json, sys, importlib.metadata as m
import numpy as np, vecscope
print(json.dumps(m.version("vecscope")), flush=True)
for line in sys.stdin:
    path, = json.loads(line)
    found = {f.name: f.verdict for f in vecscope.audit(np.load(path)).findings}
    about = "anisotropy", "effective_rank", "collapse"
    print(json.dumps([name for name in about if found[name] == "fail"]), flush=True)
"""
SPECTRALYTE = """
import json, sys, importlib.metadata as m
import numpy as np
from spectralyte import Spectralyte
from spectralyte.core import severity
print(json.dumps(m.version("spectralyte")), flush=True)
for line in sys.stdin:
    path, = json.loads(line)
    report = Spectralyte(np.load(path)).run(verbose=False)
    found = {name: severity.severity(getattr(report, name)) for name in ("anisotropy", "dimensionality")}
    print(json.dumps([name for name, word in found.items() if word in ("fail", "bad")]), flush=True)
"""
MONAI = """
import json, sys, importlib.metadata as m
import numpy as np, torch
from monai.metrics.embedding_collapse import EmbeddingCollapseMetric
metric = EmbeddingCollapseMetric()
print(json.dumps(m.version("monai")), flush=True)
for line in sys.stdin:
    path, = json.loads(line)
    print(json.dumps(-float(metric(torch.from_numpy(np.load(path)))["aggregate"])), flush=True)
"""


def peers_of():
    "Others in environments of their own: what they say is the names of what failed, or a number, less is worse."
    same_torch = f"torch=={torch.__version__.partition('+')[0]}"
    return dict(vecscope=Peer(peer_python("vecscope", "vecscope==0.2.0"), VECSCOPE),
                spectralyte=Peer(peer_python("spectralyte", "spectralyte==0.4.0"), SPECTRALYTE),
                monai=Peer(peer_python("monai", "monai==1.6.1", same_torch), MONAI))


def entropy_rank(shares):
    "The exponential of the entropy of shares."
    shares = shares.clamp(min=0)/shares.clamp(min=0).sum() + 1e-7
    return float((-shares*shares.log()).sum().exp())


def numbers(x):
    "Statistics without an edge, less is worse."
    x = x.double()
    centred, unit = x - x.mean(0), torch.nn.functional.normalize(x, dim=1)
    variances = torch.linalg.svdvals(centred).square()[:len(x) - 1].clamp(min=1e-12)
    ranks = torch.arange(1, len(variances) + 1).double().log()
    kept = slice(10, len(variances)//2)    # the fit avoids both ends, as the authors' does
    slope = torch.stack([ranks[kept], torch.ones_like(ranks[kept])], 1)
    alpha = -torch.linalg.lstsq(slope, variances[kept].log()[:, None]).solution[0, 0]
    return dict(rankme=entropy_rank(torch.linalg.svdvals(x)), alpha_req=-float(alpha),
                matrix_entropy=entropy_rank(torch.linalg.svdvals(unit).square()),
                effective_rank=entropy_rank(variances))


def lidar(views):
    "LiDAR of (q, n, d) views of n texts."
    views = views.double()
    means = views.mean(0)
    within, between = views - means, means - means.mean(0)
    S_w = (within.flatten(0, 1).T @ within.flatten(0, 1))/(len(means)*(len(views) - 1))
    values, vectors = torch.linalg.eigh(S_w + 1e-4*torch.eye(S_w.shape[0], dtype=S_w.dtype))
    rows = between @ vectors*values.rsqrt()
    return entropy_rank(torch.linalg.svdvals(rows).square())


def views_of(cache):
    "Passes of MiniLM with dropout, means over tokens: (views, texts, d)."
    if not (file := cache/"views_minilm_cola.npy").is_file():
        model, tokenizer = load_encoder("minilm")
        model.train()
        texts = list(dict.fromkeys(row[COLUMNS["cola"]] for row in load_task("cola").train))
        np.random.default_rng(0).shuffle(texts)
        torch.manual_seed(0)
        found = np.empty((VIEWS, OBJECTS, 384), np.float32)
        for view in found:
            for ids, layers, mask in passes(model, tokenizer, texts[:OBJECTS]):
                view[ids] = ((layers[-1]*mask).sum(1)/mask.sum(1)).numpy()
        np.save(file, found)
    return torch.from_numpy(np.load(file))


def planted_views(views, kind, strength, rng):
    "The same collapse of all views: what is done to a text is done to its views."
    if kind == "partial":
        copies, views = round(strength*views.shape[1]/2), views.clone()
        views[:, :copies] = views[:, copies:2*copies]
        return views
    return planted(views.flatten(0, 1), kind, strength, rng).unflatten(0, views.shape[:2])


def asked(x, peers, folder):
    "What everything says of vectors."
    np.save(path := f"{folder}/vectors.npy", x.numpy())
    said = {name: peer(path) for name, peer in peers.items()}
    words = dict(istar_nb=verdict_on(kinds_of(x)[0]).word == "collapsed")
    words |= {name: bool(failed) for name, failed in said.items() if isinstance(failed, list)}
    return words, numbers(x) | {name: value for name, value in said.items() if isinstance(value, float)}


def healthy(cache, peers, folder):
    "All splits of healthy encoders."
    rows = []
    for name, corpus, most in NULLS:
        kinds = encoded(name, corpus, most, cache)
        if name.startswith(("random", "tiny")): kinds.pop("last-cls")
        for kind, x in kinds.items():
            for part in x[:len(x)//N*N].split(N)[:SPLITS]:
                words, values = asked(part, peers, folder)
                rows.append(dict(encoder=name, vector=kind, corpus=corpus, alarms=words, values=values))
        print(name, corpus, len(rows), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder for vectors of encoders")
    parser.add_argument("--draws", type=int, default=4, help="of each planted collapse")
    parser.add_argument("--record", action="store_true", help="write results/benchmarks/planted.json")
    args = parser.parse_args()
    load_before, rng, found = os.getloadavg()[0], np.random.default_rng(0), []
    views, cloud = views_of(args.cache), encoded("minilm", "cola", 10_000, args.cache)["last-mean"]
    with tempfile.TemporaryDirectory() as folder:
        peers = peers_of()
        nulls = healthy(args.cache, peers, folder)
        own = [row["values"] for row in nulls if row["encoder"] == "minilm"]
        edges = {name: min(values[name] for values in own) for name in own[0]}
        edges["lidar"] = min(lidar(views[:, rng.choice(OBJECTS, N, replace=False)]) for _ in range(30))
        for kind, strengths in PLANTED.items():
            for strength in strengths:
                told, drawn = [], []
                for _ in range(args.draws):
                    x = planted(cloud[rng.choice(len(cloud), N, replace=False)], kind, strength, rng)
                    alarms, values = asked(x, peers, folder)
                    some = views[:, rng.choice(OBJECTS, N, replace=False)]
                    values["lidar"] = lidar(planted_views(some, kind, strength, rng))
                    drawn.append(values)
                    told.append(alarms | {name: value < edges[name] for name, value in values.items()})
                counts = {name: sum(t[name] for t in told) for name in told[0]}
                found.append(dict(kind=kind, strength=strength, told=counts, values=drawn))
                print(kind, strength, counts, flush=True)
        false = {name: sum(row["alarms"][name] for row in nulls) for name in nulls[0]["alarms"]}
        figures = dict(n=N, draws=args.draws, healthy=len(nulls), false_alarms=false, edges=edges,
                       versions={name: peer.versions for name, peer in peers.items()}, planted=found, nulls=nulls)
        for peer in peers.values(): peer.close()
    if args.record: store("planted", load_before, **figures)


if __name__ == "__main__": main()
