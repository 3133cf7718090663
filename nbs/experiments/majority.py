"""The share of the most frequent label in the validation rows of every task with accuracy.

`python nbs/experiments/majority.py DATA` writes results/majority.json.
"""
import json
import sys
from collections import Counter
from pathlib import Path

from istar_nb.text.tasks import TASKS, load_task


def shares(data_dir):
    "Task -> share, to six digits; stdlib-docs is left out, since its rows depend on Python's version."
    found = {}
    for name, task in TASKS.items():
        if task.metric != "accuracy" or name == "stdlib-docs": continue
        labels = Counter(row["label"] for row in load_task(name, data_dir).validation)
        found[name] = round(max(labels.values())/labels.total(), 6)
    return found


if __name__ == "__main__":
    path = Path(__file__).resolve().parents[2]/"results"/"majority.json"
    path.write_text(json.dumps(shares(sys.argv[1]), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path.name}")
