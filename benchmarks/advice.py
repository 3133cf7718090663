"""Is the advice of `health` right on queries it has not seen? `ISTAR_DATA=... python benchmarks/advice.py [--record]`.

Declared before the first run. For each of six encoders and three sets, half of the queries are for advice and half for
judging, and other texts are what changes are fitted to. STS-B: pairs with scores, judged by Spearman's correlation.
QQP and QNLI: find the duplicate of a question, or the sentence that answers it, among all documents of the set, judged
by recall@1. The encoders: MiniLM, MPNet (where it is installed), the means of MiniLM's and MPNet's middle layer,
MiniLM's [CLS], and MiniLM with random weights.

- *Changes*: centring, removing the top directions, whitening.
- *Right* is what a change does on the queries for judging: it helps if it raises the score by more than 0.01, the
  margin of `health`. The share of all changes that raise it at all is stored too.
- *A probability from an advice*: yes 0.9, not known 0.5, no 0.1. `health` says these words. vecscope advises to centre
  by its finding "anisotropy", and spectralyte to whiten, or to remove top directions, by its own: fail or bad is yes,
  warn is not known, ok is no. spectralyte is judged by its own whitening. What a peer gives no advice on is left out,
  and `health` is compared with it on the rest alone.
- *Brier score*: the mean of (probability - outcome)²; 0.25 is that of always saying "not known".

`health` sees labels, and the peers cannot take any: it is also scored without, where it says "not known" of all three.
Writes results/benchmarks/advice.json when `--record` is given.
"""
import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import torch

import istar_nb as inb
from harness import Peer, peer_python, store
from istar_nb.embeddings.health import health
from istar_nb.embeddings.quality import recalls

HALF, MARGIN = 250, 0.01
CHANGES = {"centred": "Centre?", "all but the top": "Remove the top directions?", "whitened": "Whiten?"}
ODDS = dict(zip(("yes", "fail", "bad", "not known", "warn", "no", "ok"), (0.9, 0.9, 0.9, 0.5, 0.5, 0.1, 0.1)))
VECSCOPE = """
import json, sys, importlib.metadata as m
import numpy as np, vecscope
print(json.dumps(m.version("vecscope")), flush=True)
for line in sys.stdin:
    path, = json.loads(line)
    found = vecscope.audit(np.load(path)["x"])
    print(json.dumps({f.name: f.verdict for f in found.findings}), flush=True)
"""
SPECTRALYTE = """
import json, sys, importlib.metadata as m
import numpy as np
from spectralyte import Spectralyte
from spectralyte.core import severity
print(json.dumps(m.version("spectralyte")), flush=True)
for line in sys.stdin:
    path, = json.loads(line)
    x = np.load(path)["x"]
    audit = Spectralyte(x)
    report = audit.run(verbose=False)
    np.savez(path, x=x, **{name: audit.transform(x, strategy=name) for name in ("whiten", "abtt")})
    print(json.dumps(dict(anisotropy=severity.severity(report.anisotropy))), flush=True)
"""


def sets():
    "Texts to fit to, pairs with their scores or None, and which kind of score: two halves of 250 pairs."
    def some(rows, n): return list(rows)[:n]
    stsb, qqp, qnli = (inb.load_task(name) for name in ("stsb", "qqp", "qnli"))
    pairs = [(r["sentence1"], r["sentence2"], r["label"]) for r in some(stsb.validation, 2*HALF)]
    yield "stsb", [r["sentence1"] for r in some(stsb.train, 500)], pairs, "spearman"
    pairs = [(r["question1"], r["question2"], 1.) for r in qqp.train if r["label"] == 1]
    yield "qqp", [r["question1"] for r in some(qqp.validation, 500)], some(pairs, 2*HALF), "recall"
    pairs = [(r["question"], r["sentence"], 1.) for r in qnli.validation if r["label"] == 0]
    yield "qnli", [r["sentence"] for r in some(qnli.train, 500)], some(pairs, 2*HALF), "recall"


def vectors(name, texts):
    "Means over tokens in the middle and the last layer, and the last layer's [CLS]."
    model, tokenizer = inb.load_encoder("minilm" if name == "random-minilm" else name)
    if name == "random-minilm":
        from transformers import AutoModel
        torch.manual_seed(0)
        model = AutoModel.from_config(model.config)
    model.eval()
    order, found = sorted(range(len(texts)), key=lambda i: len(texts[i])), {}
    for start in range(0, len(order), 32):
        ids = order[start:start + 32]
        batch = tokenizer([texts[i] for i in ids], padding=True, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad(): layers = model(**batch, output_hidden_states=True).hidden_states
        mask = batch["attention_mask"][..., None].float()
        mid, last = ((x*mask).sum(1)/mask.sum(1) for x in (layers[len(layers)//2], layers[-1]))
        found |= {i: row for i, *row in zip(ids, mid, last, layers[-1][:, 0])}
    mid, last, cls = (torch.stack(part).numpy() for part in zip(*(found[i] for i in range(len(texts)))))
    if name == "random-minilm": return {name: last}
    return {name: last, f"{name}, middle layer": mid} | ({f"{name}, [CLS]": cls} if name == "minilm" else {})


def examined(x, pairs, kind, half):
    "What `health` says of rows with the labels of one half."
    rows = [pairs[i] for i in range(half*HALF, (half + 1)*HALF)]
    if kind == "spearman":    # the other half is held out by leaving its rows out
        kept = [i for i in range(len(x)) if i >= 4*HALF] + sorted({i for row in rows for i in row[:2]})
        place = {row: i for i, row in enumerate(kept)}
        return health(x[kept], pairs=[(place[a], place[b], score) for a, b, score in rows], dims=[16], k=1)
    documents = [b for _, b, _ in pairs]
    unused = set(range(4*HALF)) - {a for a, _, _ in rows} - set(documents)
    kept = [i for i in range(len(x)) if i not in unused]
    place = {row: i for i, row in enumerate(kept)}
    return health(x[kept], relevant=[(place[a], place[b]) for a, b, _ in rows],
                  documents=[place[b] for b in documents], dims=[16], k=1)


def score_of(x, pairs, kind):
    "The score of changed vectors on the half for judging."
    from scipy.stats import spearmanr
    rows = pairs[HALF:]
    a, b = (np.array([row[side] for row in rows]) for side in (0, 1))
    if kind == "spearman":
        unit = x/np.linalg.norm(x, axis=1, keepdims=True)
        return float(spearmanr((unit[a]*unit[b]).sum(1), [row[2] for row in rows]).statistic)
    documents, queries = torch.from_numpy(x[[row[1] for row in pairs]]), torch.from_numpy(x[a])
    return float(recalls(queries, documents, [{HALF + i} for i in range(len(rows))], 1).mean())


def judged(name, corpus, x, pairs, kind, peers, folder):
    "All advice on one encoder and set, and what the changes do."
    seen, unseen = (examined(x, pairs, kind, half) for half in (0, 1))
    path = Path(folder)/"vectors.npz"
    np.savez(path, x=x)
    said = {peer: talk(str(path)) for peer, talk in peers.items()}
    after, before = np.load(path), score_of(x, pairs, kind)
    own = {change: score_of(after[theirs], pairs, kind) - before
           for change, theirs in (("whitened", "whiten"), ("all but the top", "abtt"))}
    rows = []
    for change, question in CHANGES.items():
        variant = next(row for row in unseen.variants if row["name"] == change)
        gain, word = variant[f"{kind}_difference"], seen.answers[question].partition(":")[0]
        advice = dict(health=(word, gain), unlabelled=("not known", gain))
        if change == "centred": advice["vecscope"] = said["vecscope"]["anisotropy"], gain
        else: advice["spectralyte"] = said["spectralyte"]["anisotropy"], own[change]
        rows += [dict(encoder=name, set=corpus, change=change, tool=tool, said=word, gain=round(float(gain), 4))
                 for tool, (word, gain) in advice.items()]
    return rows, unseen.variants[0][kind]


def brier(rows, least):
    "The mean squared distance of advice from what happened."
    return round(float(np.mean([(ODDS[row["said"]] - (row["gain"] > least))**2 for row in rows])), 4) if rows else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--encoders", nargs="+", default=["minilm", "random-minilm", "mpnet"])
    parser.add_argument("--record", action="store_true", help="write results/benchmarks/advice.json")
    args = parser.parse_args()
    load_before, rows, scores = os.getloadavg()[0], [], []
    peers = dict(vecscope=Peer(peer_python("vecscope", "vecscope==0.2.0"), VECSCOPE),
                 spectralyte=Peer(peer_python("spectralyte", "spectralyte==0.4.0"), SPECTRALYTE))
    with tempfile.TemporaryDirectory() as folder:
        for name in args.encoders:
            for corpus, fit, pairs, kind in sets():
                texts = [text for a, b, _ in pairs for text in (a, b)] + fit
                places = [(2*i, 2*i + 1, score) for i, (_, _, score) in enumerate(pairs)]
                for kind_of_vector, x in vectors(name, texts).items():
                    found, before = judged(kind_of_vector, corpus, x, places, kind, peers, folder)
                    scores.append(dict(encoder=kind_of_vector, set=corpus, score=round(before, 4)))
                    rows += found
                    print(scores[-1], flush=True)
    summary = []
    for tool in ("health", "unlabelled", "vecscope", "spectralyte"):
        for change in CHANGES:
            mine = [row for row in rows if (row["tool"], row["change"]) == (tool, change)]
            summary.append(dict(tool=tool, change=change, n=len(mine), helped=sum(r["gain"] > MARGIN for r in mine),
                                brier=brier(mine, MARGIN), brier_any=brier(mine, 0)))
            print(summary[-1])
    versions = {name: peer.versions for name, peer in peers.items()}
    for peer in peers.values(): peer.close()
    if args.record:
        store("advice", load_before, half=HALF, margin=MARGIN, peers=versions, scores=scores, advice=rows,
              summary=summary)


if __name__ == "__main__": main()
