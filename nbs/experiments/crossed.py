"""Intervals over seeds and sentences, kept in results/crossed.json: `python nbs/experiments/crossed.py DATA`.

Runs keep their answers and not the labels, so that this needs the labelled data where the pages do not.
"""
import json
import sys
from pathlib import Path

import numpy as np

from istar_nb.study.control_claims import (comparison_name, dose_run_grids, early_run_grids, padding_run_grids,
                                             sentence_comparisons)
from istar_nb.study.evidence import opened
from istar_nb.report.statistics import crossed_interval
from istar_nb.text.tasks import TASKS, load_task
from istar_nb.training.records import answers_of


def correlation(given, right):
    "Pearson's correlation, 0 where all answers are the same; of two vectors of zeros and ones this is Matthews'."
    a, b = given - given.mean(), right - right.mean()
    scale = np.sqrt((a@a)*(b@b))
    return a@b/scale if scale > 0 else 0.


def accuracy(given, right): return (given == right).mean()


row_metrics = dict(accuracy=accuracy, matthews=correlation, pearson=correlation)


def compute(data):
    "Mean difference in score, its interval, seeds and rows, by the comparison's name."
    evidence, found, labels = opened(), {}, {}
    grids = *padding_run_grids, *early_run_grids, *dose_run_grids, "start", "masked"
    answers = {record.id: answers_of(record) for record in evidence.records(*grids)}
    for key, frames in sentence_comparisons(evidence).items():
        name = comparison_name(*key)
        task = frames[0].task.iloc[0]
        metric = row_metrics[TASKS[task].metric]
        if task not in labels: labels[task] = np.array([r["label"] for r in load_task(task, data_dir=data).validation])
        run, baseline = (np.stack([answers[i] for i in frame.id]) for frame in frames)
        low, high = crossed_interval(run, baseline, labels[task], metric)
        mean = np.mean([metric(a, labels[task]) - metric(b, labels[task]) for a, b in zip(run, baseline)])
        kept = float(np.mean(frames[0].score.to_numpy() - frames[1].score.to_numpy()))
        assert abs(mean - kept) < 1e-3, (name, mean, kept)
        found[name] = dict(mean=round(float(mean), 6), low=round(low, 6), high=round(high, 6), seeds=len(run),
                           rows=len(labels[task]))
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2: sys.exit("usage: python nbs/experiments/crossed.py DATA")
    text = json.dumps(compute(sys.argv[1]), indent=1, ensure_ascii=False)
    (Path(__file__).resolve().parents[2]/"results"/"crossed.json").write_text(text + "\n", encoding="utf-8")
