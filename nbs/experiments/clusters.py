"""A penalty on isotropy, and the variance between the classes of the last layer's [CLS] states.

`python clusters.py EXPERIMENT` trains small runs of MiniLM on SST-2, seed by seed: `tokens` has 20, with
I-STAR on the tokens of all layers and three targets, as `nbs/experiments/clusters.ipynb` declares them; `cls` has 40,
with the penalty on the [CLS] states themselves, two strengths and a placebo for each, as
`nbs/experiments/clusters_cls.ipynb` does. Data is read from `--data-dir` or the variable ISTAR_DATA. Records, states
and checkpoints are kept in `--root`, from which a stopped benchmark goes on. Half an hour and an hour on one core;
`--record` stores the figures. (Those stored were made when variances within classes were pooled over pairs; of two
classes with 428 and 444 texts, that weighs one 0.48 and the other 0.52.) It is not among the benchmarks that `run.py`
carries out, because it trains.
"""
import argparse
import os
import shutil
import sys
from itertools import combinations
from pathlib import Path

import istar_nb as inb
import numpy as np
import torch
from istar_nb.base.states import read_states
from istar_nb.geometry.scores import isoscore, isoscore_with_error
from istar_nb.geometry.second_moments import class_variances
from istar_nb.report.statistics import sign_flip_test, student_interval
from istar_nb.text.encoders import load_encoder
from istar_nb.text.features import Collator, encode
from istar_nb.training.evaluation import host_masked
from istar_nb.training.records import find_record

sys.path.insert(0, str(Path(__file__).resolve().parents[2]/"benchmarks"))
from harness import store

shared = dict(task="sst2", model="minilm", limit=1000, epochs=2, lr=1e-4)
on_tokens = dict(method="istar", lam=1., zeta=0.2)
on_cls = dict(method="istar-unbiased", target=0.1, tokens="cls", layers=(6,))
weak, strong = (on_cls | dict(relative=share) for share in (0.3, 1.))
twin = dict(placebo="twin")
experiments = dict(
    tokens=dict(record="clusters", seeds=5, shared=shared | dict(batch_size=16), primary=("double", "same"),
                arms={"no penalty": {}, "half": on_tokens | dict(target="0.5x"), "same": on_tokens | dict(target="1x"),
                      "double": on_tokens | dict(target="2x")}),
    cls=dict(record="clusters_cls", seeds=8, shared=shared | dict(batch_size=32), primary=("weak", "weak placebo"),
             arms={"no penalty": {}, "weak placebo": weak | twin, "weak": weak, "strong placebo": strong | twin,
                   "strong": strong}))


def states_of(folder, data):
    "[CLS] states of the last layer of a saved model, (rows, d), of all validation rows in their order."
    encoder = load_encoder(folder, data.task)
    features, collate = encode(data.validation, data.task, encoder.tokenizer), Collator(encoder.tokenizer)
    batches = (collate(features[i:i+32]) for i in range(0, len(features), 32))
    return torch.cat([states.points(-1, "cls") for _, states in read_states(encoder.model, batches, host_masked)])


def trained(config, root, data, data_dir):
    "States and record of a run, which is carried out unless both are there."
    file = root/"states"/f"{config.id}.npy"
    if not file.exists():
        inb.train(config, root, data_dir, save_model=(folder := root/"model"))
        states = states_of(folder, data).numpy()
        file.parent.mkdir(exist_ok=True)
        with open(part := file.with_suffix(".part"), "wb") as f: np.save(f, states)
        part.rename(file)
        shutil.rmtree(folder)
    return torch.from_numpy(np.load(file)).double(), find_record(root, config.id)


def bounded_share(x, labels):
    "tr B/tr T of these points, the share in the bound; it weighs classes by their size."
    centred = x - x.mean(0)
    between = sum((labels == k).sum()*centred[labels == k].mean(0).square().sum() for k in labels.unique())
    return (between/centred.square().sum()).item()


def measured(x, labels, record):
    "The figures of a run."
    found, score, last = class_variances(x, labels), isoscore_with_error(x), record.epochs[-1]
    def number(x): return round(float(x), 6)
    parts = {name: number(part.value) for name, part in found.items()}
    errors = {f"{name}_error": number(part.standard_error) for name, part in found.items()}
    return parts | errors | dict(
        bounded_share=number(bounded_share(x, labels)), isoscore=number(isoscore(x)),
        isoscore_unbiased=number(score.score), isoscore_error=number(score.standard_error), accuracy=record.score,
        isoscore_layers=last["isoscore"], target=record.data.get("target"), run=record.id)


def contrast(rows, first, second, quantity):
    "One arm minus another, seed by seed."
    differences = np.array([b[quantity] - a[quantity] for a, b in zip(rows[second], rows[first])])
    return dict(difference=differences.mean(), interval=student_interval(differences), p=sign_flip_test(differences),
                differences=differences.round(6).tolist())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=experiments)
    parser.add_argument("--seeds", type=int, help="of each arm; default: as declared")
    parser.add_argument("--root", type=Path, default=Path("runs/clusters"), help="folder of records and states")
    parser.add_argument("--data-dir", type=Path, help="folder with the task's files; default: the variable ISTAR_DATA")
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    args = parser.parse_args()
    chosen = experiments[args.experiment]
    arms, seeds = chosen["arms"], chosen["seeds"] if args.seeds is None else args.seeds
    load_before, data = os.getloadavg()[0], inb.load_task("sst2", args.data_dir)
    labels, rows = torch.tensor([row["label"] for row in data.validation]), {arm: [] for arm in arms}
    for seed in range(seeds):
        for arm, penalty in arms.items():
            x, record = trained(inb.RunConfig(**chosen["shared"], **penalty, seed=seed), args.root, data, args.data_dir)
            rows[arm].append(row := dict(seed=seed) | measured(x, labels, record))
            print(f"seed {seed}, {arm}: share between classes {row['share']:.4f} ± {row['share_error']:.4f}, IsoScore "
                  f"{row['isoscore_unbiased']:.4f} ± {row['isoscore_error']:.4f}, accuracy {row['accuracy']:.4f}",
                  flush=True)
    quantities = ("share", "bounded_share", "isoscore_unbiased", "isoscore", "accuracy", "isoscore_layers")
    contrasts = {f"{b} against {a}": {q: contrast(rows, b, a, q) for q in quantities} for a, b in combinations(arms, 2)}
    first, second = chosen["primary"]
    for quantity, found in contrasts[f"{first} against {second}"].items():
        low, high = found["interval"]
        print(f"{quantity}, {first} against {second}: {found['difference']:+.4f}, {low:+.4f} to {high:+.4f}; "
              f"p = {found['p']:.4f}")
    if args.record: store(chosen["record"], load_before, d=x.shape[1], texts=len(x), seeds=seeds,
                          shared=chosen["shared"], arms=rows, contrasts=contrasts)
