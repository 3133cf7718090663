"""Retrieval and linear probes on sentence vectors that are centred or whitened, as `whitening.ipynb` declares them.

`python whitening.py` embeds texts of QNLI, STS-B, SST-2 and CoLA (`--data-dir` or the variable ISTAR_DATA)
with MiniLM and, on half of the draws and of the rows, with MPNet. Every variant is fitted on the 600 texts of a draw.
About half an hour on one core; `--record` stores the figures. `run.py` leaves it out, because it takes so long.

What the declaration leaves open was fixed before the first run: a draw has 600 different texts, so 300 rows of a task
of pairs; evaluated rows are drawn with seed 0 where not all are used; C is chosen by the task's metric, and is the
smallest of equally good ones.
"""
import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from istar_nb import load_task
from istar_nb.base.programs import progress_bar
from istar_nb.embeddings.quality import recalls
from istar_nb.embeddings.reading import sentence_vectors
from istar_nb.embeddings.variants import variants
from istar_nb.report.statistics import crossed_interval, holm, sign_flip_test, spearman
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

sys.path.insert(0, str(Path(__file__).resolve().parents[2]/"benchmarks"))
from crossed import accuracy, correlation
from harness import store

strengths, size, raw = [10.**k for k in range(-4, 5)], 600, "as they are"
warnings.simplefilter("error", ConvergenceWarning)    # a probe that is not solved is no answer


def mean(answers, gold): return float(answers.mean())


class Rows(NamedTuple):
    "What is evaluated of a task, and what is fitted to."
    judged:list   # rows
    draws:list    # of rows each
    columns:tuple # of their texts


def texts_of(rows, columns): return [row[column] for row in rows for column in columns]


def chosen(task, most, draws, data_dir):
    "Evaluated rows, and draws of training rows with different texts, none of which is evaluated."
    data, generator = load_task(task, data_dir=data_dir), torch.Generator().manual_seed(0)
    columns = data.task.texts
    judged = [data.validation[i] for i in torch.randperm(len(data.validation), generator=generator).tolist()]
    judged, found = judged[:most], [[] for _ in range(draws)]
    seen, each = set(texts_of(judged, columns)), size//len(columns)
    rows = (data.train[i] for i in torch.randperm(len(data.train), generator=generator).tolist())
    for draw in found:
        while len(draw) < each:
            texts = set(texts_of([row := next(rows)], columns))
            if len(texts) == len(columns) and not texts & seen:
                draw.append(row)
                seen |= texts
    return Rows(judged, found, columns)


def fitted(rows, of):
    "(arm, number of the draw, what the arm does to vectors) of all arms and draws."
    for i, draw in enumerate(rows.draws):
        x = of(texts_of(draw, rows.columns))
        for variant in list(variants(x.shape[1], len(x), []))[:4]: yield variant.name, i, variant.make(x).transform


def stacked(found):
    "Answers of each arm, (draws, rows)."
    return {arm: np.stack([found[key] for key in found if key[0] == arm]) for arm in dict.fromkeys(a for a, _ in found)}


def retrieval(rows, of):
    "Recall at 1 and 10 of every question that a sentence answers."
    wanted, places = {}, {}
    for row in rows.judged:
        place = places.setdefault(row["sentence"], len(places))
        if row["label"] == 0: wanted.setdefault(row["question"], set()).add(place)
    queries, documents, found = of([*wanted]), of([*places]), {1: {}, 10: {}}
    for arm, i, apply in fitted(rows, of):
        q, d = (torch.from_numpy(apply(x)) for x in (queries, documents))
        for k, each in found.items(): each[arm, i] = recalls(q, d, [*wanted.values()], k)
    return {f"QNLI recall@{k}": (stacked(each), np.zeros(len(wanted)), mean) for k, each in found.items()}


def similarity(rows, of):
    "Cosines of the pairs."
    found, pairs = {}, [of([row[column] for row in rows.judged]) for column in rows.columns]
    for arm, i, apply in fitted(rows, of):
        a, b = (torch.from_numpy(apply(x)) for x in pairs)
        found[arm, i] = torch.cosine_similarity(a, b).numpy()
    return {"STS-B Spearman": (stacked(found), np.array([row["label"] for row in rows.judged]), spearman)}


def probed(x, y, evaluated, metric, seed):
    "Answers of the probe whose C is best on a fifth of the rows, trained on all, and this C."
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).numpy()
    held, kept = np.split(order, [len(x)//5])
    def solved(C, rows):
        return LogisticRegression(C=C, solver="newton-cholesky", tol=1e-8, max_iter=1000).fit(x[rows], y[rows])
    C = max(strengths, key=lambda C: metric(solved(C, kept).predict(x[held]), y[held]))
    return solved(C, order).predict(evaluated), C


def scale_of(x):
    "Standard deviations of the coordinates; 1 where there is no more than rounding, which must not be made larger."
    deviations = x.std(0)
    return np.where(deviations > 1e-6*deviations.max(), deviations, 1)


def classification(name, rows, of, metric):
    "Answers of probes on the coordinates as they are and scaled to unit variance."
    judged, found, Cs = of(texts_of(rows.judged, rows.columns)), {}, {}
    for arm, i, apply in progress_bar(list(fitted(rows, of)), f"probes, {name}"):
        x, evaluated = (apply(vectors) for vectors in (of(texts_of(rows.draws[i], rows.columns)), judged))
        y, scale = np.array([row["label"] for row in rows.draws[i]]), scale_of(x)
        for how, unit in (("", 1.), (", scaled", scale)):
            found.setdefault(how, {})[arm, i], C = probed(x/unit, y, evaluated/unit, metric, i)
            Cs.setdefault(f"{name}{how}", {}).setdefault(arm, []).append(C)
    gold = np.array([row["label"] for row in rows.judged])
    return {f"{name}{how}": (stacked(each), gold, metric) for how, each in found.items()}, Cs


def against(quantity, arm, base=raw):
    "Mean difference of an arm from a base, and its interval over draws and rows."
    answers, gold, metric = quantity
    a, b = answers[arm], answers[base]
    difference = np.mean([metric(x, gold) - metric(y, gold) for x, y in zip(a, b)])
    return dict(difference=difference, interval=crossed_interval(a, b, gold, metric))


def judged_all(quantities):
    "Values of all arms, draw by draw, and differences from the vectors as they are."
    return {name: {arm: dict(values=[quantity[2](x, quantity[1]) for x in answers])
                   | (against(quantity, arm) if arm != raw else {}) for arm, answers in quantity[0].items()}
            for name, quantity in quantities.items()}


def primary(quantities):
    "The two tests, and which rows are right in each draw."
    def hits(name, arm):
        answers, gold, metric = quantities[name]
        return answers[arm]*1. if metric is mean else (answers[arm] == gold)*1.
    names, found = dict(R="QNLI recall@1", C="SST-2 accuracy"), {}
    for letter, name in names.items():
        both = {arm: hits(name, arm) for arm in (raw, "whitened")}
        differences = (both["whitened"] - both[raw]).mean(0)
        found[letter] = dict(quantity=name, rows=len(differences), **against(quantities[name], "whitened"),
                             p=sign_flip_test(differences, draws=9_999),
                             hits={arm: ["".join(f"{h:.0f}" for h in draw) for draw in each]
                                   for arm, each in both.items()})
    for row, p in zip(found.values(), holm([row["p"] for row in found.values()])): row["p_holm"] = p
    return found


def vectors_of(model, tasks):
    "A function from texts to their vectors, each of which is made once."
    every = dict.fromkeys(text for rows in tasks.values() for part in (rows.judged, *rows.draws)
                          for text in texts_of(part, rows.columns))
    place = {text: i for i, text in enumerate(every)}
    x = sentence_vectors(model, [*every], progress=True).points.double().numpy()
    return lambda texts: x[[place[text] for text in texts]]


def found_of(model, part, data_dir):
    "All answers of a model, the probes' C, and how much was evaluated; `part` of the draws and rows."
    wanted = dict(qnli=1200, stsb=1000, sst2=872, cola=1043)
    tasks = {task: chosen(task, int(most*part), int(4*part), data_dir) for task, most in wanted.items()}
    of = vectors_of(model, tasks)
    sst2, C = classification("SST-2 accuracy", tasks["sst2"], of, accuracy)
    cola, more = classification("CoLA Matthews", tasks["cola"], of, correlation)    # Matthews', of zeros and ones
    found = retrieval(tasks["qnli"], of) | similarity(tasks["stsb"], of) | sst2 | cola
    return found, C | more, {task: len(rows.judged) for task, rows in tasks.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder with the tasks' files; default: the variable ISTAR_DATA")
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    args = parser.parse_args()
    load_before, models = os.getloadavg()[0], {}
    for model, name, part in (("minilm", "MiniLM", 1), ("mpnet", "MPNet", 0.5)):
        quantities, C, counts = found_of(model, part, args.data_dir)
        if name == "MiniLM": tests = primary(quantities)
        moved = {q: int((quantities[q][0]["centred"] != quantities[q][0][raw]).sum()) for q in C}
        models[name] = dict(draws=int(4*part), fitted=size, rows=counts, quantities=judged_all(quantities), C=C,
                            changed_by_centring=moved)
        for q, found in models[name]["quantities"].items():
            print(f"{name}, {q}: " + "; ".join(f"{arm} {np.mean(row['values']):.4f}" for arm, row in found.items()),
                  flush=True)
    for letter, row in tests.items():
        low, high = row["interval"]
        print(f"{letter}: {row['difference']:+.4f}, {low:+.4f} to {high:+.4f}; p = {row['p']:.4f}, "
              f"Holm {row['p_holm']:.4f}")
    if args.record: store("whitening", load_before, primary=tests, models=models)
