"""What shows a collapse first, the alarm or the score: `ISTAR_DATA=... python benchmarks/seen_first.py [--record]`.

Declared before the first run. MiniLM is fine-tuned on STS-B (`CosineSimilarityLoss`, batches of 32 pairs, AdamW at
5e-5, constant after 10 updates) for 100 updates, with a penalty or none; every 5 updates `CollapseAlarm` looks at the
vectors of training with its own settings, and every third of 1,500 validation pairs is scored (Spearman).

- *The alarm shows it* at the first look whose verdict is "collapsed".
- *The score shows it* at the first evaluation that is worse than the best one so far: the 95 % interval of the paired
  difference (bootstrap over pairs) is wholly below -0.01, the difference that `health` calls one that matters.
- The lead is the second minus the first; a run in which neither or only one shows it is given as that.

The runs: no penalty, where neither should show anything; I-STAR on tokens at -1 and -5, as in `alarm.py`; the mean
cosine of sentences (CosReg) at -1 and -5, which makes a cone; and no penalty, but pairs of score 4 and more alone,
each with the gold cosine 1, where nothing keeps texts apart. Every run is kept. (Before any
result was seen, 500 pairs replaced 1,500, and one seed two: the scores took longer than the training.)
Writes results/benchmarks/seen_first.json when `--record` is given.
"""
import argparse
import os
import tempfile
import warnings

from harness import store

runs = {"mean cosine, strong": ("cosreg", -5), "alike pairs alone": (None, 0), "no penalty": (None, 0),
        "I-STAR, strong": ("istar", -5), "mean cosine": ("cosreg", -1), "I-STAR": ("istar", -1)}


def trained(name, seed, updates, every, callbacks=(), scores=True):
    "Every look and, if wanted, every score of one training."
    import istar_nb as inb
    from datasets import Dataset
    from istar_nb.embeddings.quality import difference_verdict, judged_pairs
    import numpy as np
    import sentence_transformers as st
    from sentence_transformers.losses import CosineSimilarityLoss
    from transformers import TrainerCallback
    kind, lam = runs[name]
    data = inb.load_task("stsb")
    rows = [row for row in data.train if name != "alike pairs alone" or row["label"] >= 4]
    columns = dict(a=[row["sentence1"] for row in rows], b=[row["sentence2"] for row in rows],
                   label=[1. if name == "alike pairs alone" else row["label"]/5 for row in rows])
    held_out = list(data.validation)[::3]
    gold = np.array([row["label"] for row in held_out])
    texts = list(dict.fromkeys(row[side] for row in held_out for side in ("sentence1", "sentence2")))
    places = {text: i for i, text in enumerate(texts)}
    pairs = np.array([[places[row["sentence1"]], places[row["sentence2"]]] for row in held_out])
    model = st.SentenceTransformer(str(inb.minilm_folder()), device="cpu")
    loss = CosineSimilarityLoss(model)
    if kind: loss = inb.IsotropyLoss(model, loss, inb.IStar(zeta=0.) if kind == "istar" else inb.CosReg(), lam,
                                     on="tokens" if kind == "istar" else "sentences")
    alarm, seen, best = inb.CollapseAlarm(every), [], []

    def scored(update):
        if not scores: return seen.append(dict(update=update, looks=rounded(looks), said=said()))
        x = model.encode(texts, batch_size=64, show_progress_bar=False)
        cosines = (x[pairs[:, 0]]*x[pairs[:, 1]]).sum(1).astype(float)
        best[:] = best or [cosines]
        before, found = judged_pairs(np.stack([best[0], cosines]), gold)
        verdict = difference_verdict(found.interval, 0.01)
        if found.value > before.value: best[0] = cosines
        seen.append(dict(update=update, spearman=round(found.value, 4), high=round(found.interval[1], 4),
                         verdict=verdict, looks=rounded(looks), said=said()))

    looks = {}
    def rounded(values): return {k: round(v, 4) for k, v in values.items()}
    def said(): return alarm.verdict.word if alarm.verdict else ""
    alarm.track = looks.update

    class Scores(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step % every: return
            scored(state.global_step)
            model.train()
    scored(0)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = st.SentenceTransformerTrainingArguments(
            folder, per_device_train_batch_size=32, learning_rate=5e-5, lr_scheduler_type="constant_with_warmup",
            warmup_steps=10, max_steps=updates, report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="no",
            seed=seed, logging_strategy="no")
        trainer = st.SentenceTransformerTrainer(model, args, train_dataset=Dataset.from_dict(columns), loss=loss,
                                                callbacks=[alarm, *callbacks, Scores()])
        trainer.train()
    def first(shows): return next((look["update"] for look in seen if shows(look)), None)
    by_alarm, by_score = first(lambda s: s["said"] == "collapsed"), first(lambda s: s.get("verdict") == "worse")
    return dict(run=name, penalty=kind, lam=lam, seed=seed, alarm=by_alarm, score=by_score,
                lead=None if None in (by_alarm, by_score) else by_score - by_alarm, seen=seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--every", type=int, default=5, help="updates between two looks, and two scores")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="write results/benchmarks/seen_first.json")
    args = parser.parse_args()
    load_before, found = os.getloadavg()[0], []
    for seed in range(args.seeds):
        for name in runs:
            found.append(trained(name, seed, args.updates, args.every))
            print({k: v for k, v in found[-1].items() if k != "seen"}, found[-1]["seen"][-1], flush=True)
            if args.record:
                store("seen_first", load_before, model="minilm", updates=args.updates, every=args.every, runs=found)


if __name__ == "__main__": main()
