"""Intervals over seeds and sentences, kept in results/crossed.json: `python tools/crossed.py DATA`.

Runs keep their answers and not the labels, so that this needs the labelled data where the pages do not.
"""
import json
import sys
from pathlib import Path

import numpy as np
from sklearn.metrics import matthews_corrcoef

from istar_nb.control_claims import sentence_comparisons
from istar_nb.evidence import answers_of, opened
from istar_nb.statistics import crossed_interval
from istar_nb.tasks import load_task


def matthews(answers, labels):
    "Matthews' correlation of two vectors of zeros and ones, which is Pearson's, in a small part of sklearn's time."
    a, b = answers - answers.mean(), labels - labels.mean()
    scale = np.sqrt((a@a)*(b@b))
    return a@b/scale if scale > 0 else 0.


def compute(data):
    "Mean difference in Matthews' correlation, its interval, seeds and rows, by the comparison's name."
    evidence, found = opened(), {}
    answers = {r.id: answers_of(r) for r in evidence.records("padding", "early", "dose")}
    labels = np.array([row["label"] for row in load_task("cola", data_dir=data).validation])
    for name, frames in sentence_comparisons(evidence).items():
        run, baseline = (np.stack([answers[i] for i in frame.id]) for frame in frames)
        low, high = crossed_interval(run, baseline, labels, matthews)
        mean = np.mean([matthews_corrcoef(labels, a) - matthews_corrcoef(labels, b) for a, b in zip(run, baseline)])
        found[name] = dict(mean=round(float(mean), 6), low=round(low, 6), high=round(high, 6), seeds=len(run),
                           rows=len(labels))
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2: sys.exit("usage: python tools/crossed.py DATA")
    text = json.dumps(compute(sys.argv[1]), indent=1, ensure_ascii=False)
    (Path(__file__).resolve().parents[1]/"results"/"crossed.json").write_text(text + "\n", encoding="utf-8")
