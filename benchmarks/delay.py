"""How soon is a collapse in training told, and by what? `python benchmarks/delay.py --help`.

Declared before the first run. The three trainings of `seen_first.py` in which the score shows a collapse, and its
control, "no penalty", are carried out again with the same seed, to 24, 24, 40 and 40 updates, as in `early_alarm.py`.
At the start and after every 2 updates, 256 texts of STS-B's validation, always the same, are encoded and shown to
everything that `planted.py` asks, but for LiDAR, which needs several views of a text.

- Who has words of its own (the verdict of `istar_nb` on five kinds, vecscope, spectralyte) tells a collapse at the
  second of two looks in a row that say so. To do so in the control is a false alarm, and so is the first look of any.
- A number without an edge (RankMe, α-ReQ, matrix entropy, effective rank, MONAI's) tells it at the second of two looks
  in a row below its least value in the control. That is more than a user has: a healthy run of the same settings.
- The delay is counted from update 0, where every one of the three trainings begins to collapse. The alarm, the early
  alarm and the score are those of `seen_first.json` and `early_alarm.json`; a training is the one of that record if
  the values that its alarm looks at are the same, and the largest difference is kept.
Every run is kept. Writes results/benchmarks/delay.json after each run when `--record` is given.
"""
import argparse
import json
import os
import tempfile

from transformers import TrainerCallback

from early_alarm import EVERY, looking
from harness import root, store
from planted import N, asked, peers_of
from seen_first import trained

UPDATES = {"no penalty": 40, "mean cosine, strong": 24, "alike pairs alone": 24, "I-STAR, strong": 40}


class Shown(TrainerCallback):
    "Shows the vectors of the same texts to everybody."
    def __init__(self, texts, peers, folder): self.texts, self.peers, self.folder, self.looks = texts, peers, folder, []

    def look(self, model, update):
        x = model.encode(self.texts, batch_size=64, show_progress_bar=False, convert_to_tensor=True).float()
        model.train()
        words, values = asked(x, self.peers, self.folder)
        self.looks.append(dict(update=update, words=words, values=values))

    def on_train_begin(self, args, state, control, model=None, **kwargs): self.look(model, 0)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % EVERY == 0: self.look(model, state.global_step)


def second(looks, says):
    "The update of the second of two looks in a row that say so."
    return next((b["update"] for a, b in zip(looks, looks[1:]) if says(a) and says(b)), None)


def told(runs):
    "The update at which each collapse is told, by name; the control is the first run."
    first = runs[0]["looks"]
    edges = {name: min(look["values"][name] for look in first) for name in first[0]["values"]}
    return {run["run"]: {name: second(run["looks"], lambda look: look["words"][name]) for name in first[0]["words"]}
            | {name: second(run["looks"], lambda look: look["values"][name] < edge) for name, edge in edges.items()}
            for run in runs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write results/benchmarks/delay.json")
    args = parser.parse_args()
    from istar_nb.text.tasks import load_task
    load_before, runs = os.getloadavg()[0], []
    texts = list(dict.fromkeys(row["sentence1"] for row in load_task("stsb").validation))[:N]
    early = json.loads((root/"results"/"benchmarks"/"early_alarm.json").read_text(encoding="utf-8"))
    before = {run["run"]: run["looks"] for run in early["collapsing"]}
    with tempfile.TemporaryDirectory() as folder:
        peers = peers_of()
        for name, updates in UPDATES.items():
            (alarm, looks), shown = looking(), Shown(texts, peers, folder)
            trained(name, 0, updates, 5, [alarm, shown], scores=False)
            apart = max(abs(a[kind][0] - b[kind][0])/b[kind][0] for a, b in zip(looks, before[name])
                        for kind in ("cone", "dimensional"))
            runs.append(dict(run=name, updates=updates, apart=apart, looks=shown.looks))
            print(name, apart, told(runs)[name], shown.looks[-1], flush=True)
            if args.record:
                store("delay", load_before, n=N, every=EVERY, runs=runs, told=told(runs),
                      versions={name: peer.versions for name, peer in peers.items()})
        for peer in peers.values(): peer.close()


if __name__ == "__main__": main()
