"""Where healthy encoders lie, and which planted collapses are found: `python benchmarks/collapse.py [--help]`.

Reads sentences of CoLA, MRPC, QNLI and SQuAD from `ISTAR_DATA`, encodes them with MiniLM, MPNet (where it is
installed) and random models, measures the five kinds of `istar_nb.embeddings.collapse` in disjoint splits of 64 to
10,000 texts, and plants collapses in MiniLM's vectors. Last, the rate of false alarms: collapses that lie exactly on an
edge, on average over draws, and how many of the draws are told. Writes results/benchmarks/collapse.json when `--record`
is given.
"""
import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch

from harness import store
from istar_nb.embeddings.collapse import (COLLAPSES, halves_of, kinds_of, neighbour_kinds, neighbours, room_of,
                                            stream_kinds, verdict_on)
from istar_nb.text.encoders import load_encoder
from istar_nb.text.tasks import load_task

SIZES, SPLITS = (64, 256, 1024, 4096, 10_000), 6
COLUMNS = dict(cola="sentence", mrpc="sentence1", qnli="question", squad="question")
NULLS = [("minilm", "cola", 10_000), ("minilm", "mrpc", 3000), ("minilm", "qnli", 2500), ("minilm", "squad", 10_000),
         ("mpnet", "cola", 1500), ("mpnet", "mrpc", 600),
         ("random-minilm", "cola", 3000), ("random-minilm", "mrpc", 1000),
         ("tiny-distilbert", "cola", 4096), ("tiny-roberta", "cola", 4096)]
PLANTED = dict(cone=(0.6, 0.8, 0.9, 0.95, 0.98, 0.997), isotropic_cone=(0.9, 0.95, 0.996),
               dimensional=(32, 16, 8, 4, 2),
               cluster=(0.5, 0.3, 0.2, 0.1, 0.05), partial=(0.1, 0.2, 0.3, 0.5, 0.7))


def passes(model, tokenizer, texts):
    "Batches of texts of similar length: their places, the states of every layer and the mask, (texts, tokens, 1)."
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), 64):
        ids = order[start:start + 64]
        batch = tokenizer([texts[i] for i in ids], padding=True, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad(): layers = model(**batch, output_hidden_states=True).hidden_states
        yield ids, layers, batch["attention_mask"][..., None].float()


def encoded(name, corpus, most, cache):
    "Vectors of three kinds: means over tokens in the middle and the last layer, and the last layer's [CLS]."
    kinds = "mid-mean", "last-mean", "last-cls"
    files = [cache/f"v_{name}_{kind}_{corpus}.npy" for kind in kinds]
    if not all(file.is_file() for file in files):
        model, tokenizer = load_encoder("minilm" if name == "random-minilm" else name)
        if name == "random-minilm":
            from transformers import AutoModel
            torch.manual_seed(0)
            model = AutoModel.from_config(model.config)
        model.eval()
        split = "validation" if corpus == "squad" else "train"
        texts = list(dict.fromkeys(row[COLUMNS[corpus]] for row in getattr(load_task(corpus), split)))
        np.random.default_rng(0).shuffle(texts)
        found = {}
        for ids, layers, mask in passes(model, tokenizer, texts[:most]):
            mid, last = ((x*mask).sum(1)/mask.sum(1) for x in (layers[len(layers)//2], layers[-1]))
            found |= {i: row for i, *row in zip(ids, mid, last, layers[-1][:, 0])}
        for file, part in zip(files, zip(*(found[i] for i in range(len(found))))):
            np.save(file, torch.stack(part).numpy())
    return {kind: torch.from_numpy(np.load(file)) for kind, file in zip(kinds, files)}


def rounded(value): return float(f"{value:.5g}")


def measured(x): return {name: [rounded(v.value), rounded(v.standard_error)] for name, v in kinds_of(x)[0].items()}


def nulls(cache):
    "The five kinds in disjoint splits of every encoder and corpus."
    rows = []
    for name, corpus, most in NULLS:
        try: vectors = encoded(name, corpus, most, cache)
        except ValueError as e: print(e); continue
        if name.startswith(("random", "tiny")): vectors.pop("last-cls")    # untrained, all nearly one vector
        for kind, x in vectors.items():
            sizes = sorted({min(size, len(x)) for size in SIZES})
            for size in sizes:
                for part in x[:len(x)//size*size].split(size)[:SPLITS]:
                    rows.append(dict(encoder=name, vector=kind, corpus=corpus, n=size, kinds=measured(part)))
        print(name, corpus, len(rows), flush=True)
    return rows


def least_rooms(rows):
    "The least room of each kind among means over splits."
    cells = {}
    for row in rows:
        key = row["encoder"], row["vector"], row["corpus"], row["n"]
        for name, (value, _) in row["kinds"].items(): cells.setdefault((name, *key), []).append(room_of(name, value))
    return {name: rounded(min(np.mean(v) for key, v in cells.items() if key[0] == name)) for name in COLLAPSES}


def planted(x, kind, strength, rng):
    "Vectors with a collapse of a kind and a strength."
    x = x.double()
    spread = (x - x.mean(0)).square().sum(1).mean().sqrt()
    if kind == "isotropic_cone": x = torch.from_numpy(rng.normal(size=x.shape))*spread/x.shape[1]**0.5
    if kind in ("cone", "isotropic_cone"):    # moved until that is the mean cosine
        away = torch.from_numpy(rng.normal(size=x.shape[1]))
        x = x - x.mean(0) + away/away.norm()*spread*(strength/(1 - strength))**0.5
    if kind == "dimensional":    # all but that many directions shrunk to a hundredth
        vectors = torch.linalg.eigh((x - x.mean(0)).T @ (x - x.mean(0)))[1].flip(1)
        scales = (strength - torch.arange(x.shape[1])).clamp(0.01, 1).double()
        x = x.mean(0) + (x - x.mean(0)) @ vectors @ torch.diag(scales) @ vectors.T
    if kind == "cluster":    # distances to the nearest of twenty texts shrunk to that part
        centres = x[rng.choice(len(x), 20, replace=False)]
        own = centres[torch.cdist(x, centres).argmin(1)]
        x = own + strength*(x - own)
    if kind == "partial":    # that share of rows is a copy of other rows, or copied, nearly
        copies = round(strength*len(x)/2)
        noise = torch.from_numpy(rng.normal(size=x[:copies].shape))/x.shape[1]**0.5
        x[:copies] = x[copies:2*copies] + 0.01*spread*noise
    return x.float()


def detections(x, draws):
    "How often each planted collapse is found."
    rows, rng = [], np.random.default_rng(0)
    for kind, strengths in PLANTED.items():
        for strength in strengths:
            for n in (256, 1024):
                found = [verdict_on(kinds_of(planted(x[rng.choice(len(x), n, replace=False)], kind, strength, rng))[0])
                         for _ in range(draws)]
                words = [v.word for v in found]
                rows.append(dict(kind=kind, strength=strength, n=n, draws=draws, collapsed=words.count("collapsed"),
                                 not_known=words.count("not known"), 
                                 said=sorted({k for v in found for k, w in v.kinds.items()
                                                                                 if w == "collapsed"})))
                print(rows[-1], flush=True)
    return rows


# kind -> what is planted for it, and the strengths between which its edge is
EDGES = dict(total=("cone", 0.9, 0.999), cone=("cone", 0.9, 0.999), dimensional=("dimensional", 4, 40),
             cluster=("cluster", 0.05, 1), partial=("partial", 0, 1))


def on_edge(x, name, n, draws):
    "Vectors that are exactly on the edge of a kind, on average: how many draws of them it calls collapsed."
    kind, low, high = EDGES[name]
    streamed = kind in ("cone", "dimensional")    # without bias: of all texts what it is of draws, on average

    def all_of(strength): return x if kind == "partial" else planted(x, kind, strength, np.random.default_rng(1))
    def drawn(every, strength, draws, rng):
        for _ in range(draws):
            rows = every[rng.choice(len(x), n, replace=False)]
            if kind == "partial": rows = planted(rows, kind, 2*rng.binomial(n//2, strength)/n, rng)
            kinds = stream_kinds(halves_of(rows)) if streamed else neighbour_kinds(neighbours(rows))
            yield {name: kinds[name]}
    def room(strength):
        every = all_of(strength)
        if streamed: return float(room_of(name, stream_kinds(halves_of(every))[name].value))
        return room_of(name, np.mean([v[name].value for v in drawn(every, strength, 100, np.random.default_rng(2))]))
    rises = room(high) > room(low)
    for _ in range(10):
        strength = (low + high)/2
        low, high = (low, strength) if (room(strength) > COLLAPSES[name].edge) == rises else (strength, high)
    found = list(drawn(all_of(strength), strength, draws, np.random.default_rng(n)))
    return dict(kind=name, n=n, strength=strength, mean=rounded(np.mean([v[name].value for v in found])), draws=draws,
                collapsed=sum(verdict_on(v).word == "collapsed" for v in found))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder for vectors of encoders")
    parser.add_argument("--draws", type=int, default=20, help="of each planted collapse")
    parser.add_argument("--only-nulls", action="store_true", help="print the least rooms, from which edges are taken")
    parser.add_argument("--record", action="store_true", help="write results/benchmarks/collapse.json")
    args = parser.parse_args()
    args.cache.mkdir(exist_ok=True)
    load_before = os.getloadavg()[0]
    rows = nulls(args.cache)
    print(json.dumps(least_rooms(rows), indent=1))
    if args.only_nulls: return
    cloud = encoded("minilm", "cola", 10_000, args.cache)["last-mean"]
    table = detections(cloud, args.draws)
    edges = [on_edge(cloud, name, 256, 300) for name in COLLAPSES]
    record = dict(edges={name: kind.edge for name, kind in COLLAPSES.items()}, least_rooms=least_rooms(rows),
                  nulls=rows, planted=table, on_edge=edges)
    if args.record: store("collapse", load_before, **record)


if __name__ == "__main__": main()
