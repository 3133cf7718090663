"""CKA of real encoders on the same texts, plain and debiased, from 100 to 10,000 texts: `python benchmarks/cka.py`.

The texts are SST-2's (`--data-dir` or the variable ISTAR_DATA) and the vectors those that the models themselves make
of them. MiniLM is compared with MPNet, with itself after fine-tuning, and with its own vectors given to other texts,
which have nothing in common with the first. Two fine-tuned ones with different seeds are compared too. Every number of
texts is drawn `--draws` times; all texts there are give the last row. With `--record` the figures are stored.
"""
import argparse
import os
import tempfile
from pathlib import Path

import istar_nb as inb
import numpy as np
import torch
from harness import store
from istar_nb.embeddings.reading import sentence_vectors
from istar_nb.geometry.second_moments import cka_with_error


def fine_tuned(folder, seed, data_dir):
    "MiniLM after fine-tuning on SST-2 without a penalty, as a folder."
    config = inb.RunConfig(task="sst2", model="minilm", limit=2000, epochs=1, lr=1e-4, seed=seed, validation_limit=200)
    inb.train(config, folder/"runs", data_dir=data_dir, save_model=(out := folder/f"tuned-{seed}"))
    return out


def vectors(texts, data_dir):
    "(n, d) vectors by the name of what made them."
    with tempfile.TemporaryDirectory() as folder:
        models = dict(MiniLM="minilm", MPNet="mpnet") | {f"MiniLM fine-tuned, seed {seed}": str(
            fine_tuned(Path(folder), seed, data_dir)) for seed in (0, 1)}
        found = {name: sentence_vectors(model, texts, progress=True).points for name, model in models.items()}
    mixed = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))
    return found | {"MiniLM on other texts": found["MiniLM"][mixed]}


def seen(x, y, n, draws):
    "Means over draws of n texts: plain, debiased, its error, and their standard deviations."
    generator, rows = torch.Generator().manual_seed(n), []
    for _ in range(draws):
        chosen = torch.randperm(len(x), generator=generator)[:n]
        a, b = x[chosen], y[chosen]
        debiased, error = cka_with_error(a, b)
        rows.append([inb.cka(a, b, debiased=False).item(), debiased.item(), error.item()])
    plain, debiased, errors = np.array(rows).T
    row = dict(draws=draws, plain=plain.mean(), debiased=debiased.mean(), standard_error=errors.mean())
    return row if draws == 1 else row | dict(plain_sd=plain.std(ddof=1), debiased_sd=debiased.std(ddof=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=20, help="of every number of texts below all")
    parser.add_argument("--data-dir", type=Path, help="folder with the tasks' files; default: the variable ISTAR_DATA")
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    rows = inb.load_task("sst2", data_dir=args.data_dir).train
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:args.texts].tolist()
    made = vectors([rows[i]["sentence"] for i in chosen], args.data_dir)
    first, *others = made
    pairs = [(first, other) for other in others if not other.endswith("1")] + [tuple(
        name for name in made if "tuned" in name)]
    sizes, found = {n: args.draws for n in (100, 300, 1000, 3000) if n < args.texts} | {args.texts: 1}, {}
    for a, b in pairs:
        found[f"{a} and {b}"] = {n: seen(made[a], made[b], n, draws) for n, draws in sizes.items()}
        for n, r in found[f"{a} and {b}"].items():
            print(f"{a} and {b}, {n:>6,} texts: plain {r['plain']:.4f}, debiased {r['debiased']:.4f} ± "
                  f"{r['standard_error']:.4f}", flush=True)
    if args.record: store("cka", load_before, texts=args.texts, rows=found, dims={name: x.shape[1]
                                                                                for name, x in made.items()})
