"""Is an alarm that compares with the start of a training before the score? `python benchmarks/early_alarm.py --help`.

Declared before the first run. `seen_first.py` found that an edge which no healthy encoder crosses is crossed long after
the score of held-out pairs shows a collapse. Here the edge is relative: how much of its distance from full collapse
(its *room*) a kind has lost since the first look of the same training.

*The rule.* Looks are taken every 2 updates at the vectors of those 2 updates, and the first one is the reference. The
loss of a kind is 1 - room/room of the reference, less 2.88 of its standard errors (those of both looks, by the delta
method). The alarm is raised at the second of two looks in a row at which the loss of one same kind is above its
threshold. Kinds: cone and dimensional (total says what cone says where vectors have one length).

*The thresholds* come from healthy trainings, and from these alone: for each kind 1.5 times the largest loss that was
exceeded by two looks in a row in any of the `calibration` runs below, and at least 0.05. They are computed before any
run of the other two groups is looked at.

*Healthy trainings* are MiniLM with a usual loss and no penalty, batches of 32 pairs, AdamW, constant after 10 updates:
STS-B (CosineSimilarityLoss), and QQP, MRPC, RTE, QNLI and SQuAD (MultipleNegativesRankingLoss on pairs that belong
together, at most 48 tokens). `calibration` has three of these tasks; `test` has other seeds, all six tasks and another
learning rate.

*Collapsing trainings* are the six declared runs of `seen_first.py`, with its settings, looks and scores. "no penalty"
is the control, and counts among the healthy ones. When the rule was made, the looks of the two recorded ones had been
seen, and of no healthy training of embeddings. Looks are more frequent than scores, which cost more.

*What each outcome means.*
- False alarms: runs of `test`, or the control, with an alarm. None is needed for the rule to be adopted; with n runs
  and no alarm the 95 % upper bound of the rate per run is 1 - 0.05^(1/n), which is stated, and 1 % is claimed only if
  that is below it.
- Before the score: in each run in which the score shows a collapse, the lead is its update minus the alarm's. The alarm
  is before the score if every lead is above 0. A run that the score shows and the alarm does not is a miss.
- If there is a false alarm or any lead is below 0, the rule is not a default of `CollapseAlarm`, and the page says why.
Amended when two of the calibration runs were done and before any threshold was known, because a run took ten minutes
on a busy machine: three calibration runs instead of seven; twelve of `test`, of mostly 24 updates, instead of thirteen
of 40; and the trainings of `seen_first.py` end after 40 updates, the two recorded ones after 24 and without scores,
which are those of the record: their looks at every fifth update have to be those of the record, too.
Every run is kept. Writes results/benchmarks/early_alarm.json after each run when `--record` is given, and completes
results/benchmarks/seen_first.json with the declared runs that it lacks.
"""
import argparse
import json
import os
import tempfile
import warnings

from harness import root, store
from seen_first import runs as declared, trained

LEAST, FACTOR, PERSIST, EVERY = 0.05, 1.5, 2, 2
AGAIN = "mean cosine, strong", "alike pairs alone"    # recorded before: again, for what is new
LOSSES = dict(stsb="CosineSimilarityLoss")    # others: MultipleNegativesRankingLoss
COLUMNS = dict(stsb=("sentence1", "sentence2"), qqp=("question1", "question2"), mrpc=("sentence1", "sentence2"),
               rte=("sentence1", "sentence2"), qnli=("question", "sentence"), squad=("question", "context"))
TOGETHER = dict(qqp=1, mrpc=1, rte=0, qnli=0)    # the label of pairs that belong together
# task, seed, learning rate, updates
CALIBRATION = [("stsb", 11, 5e-5, 40), ("qqp", 11, 5e-5, 40), ("mrpc", 11, 5e-5, 40)]
TEST = [("stsb", 1, 5e-5, 24), ("qqp", 1, 5e-5, 24), ("mrpc", 1, 5e-5, 24), ("qnli", 1, 5e-5, 24),
        ("stsb", 2, 5e-5, 24), ("qqp", 2, 2e-5, 24), ("rte", 1, 5e-5, 24), ("squad", 1, 5e-5, 24),
        ("stsb", 3, 5e-5, 24), ("qqp", 3, 5e-5, 24), ("mrpc", 3, 2e-5, 24), ("stsb", 4, 2e-5, 60)]
PLANS = [("calibration", CALIBRATION), ("collapsing", list(declared)[:2]), ("test", TEST[:6]),
         ("collapsing", list(declared)[:4]), ("test", TEST), ("collapsing", list(declared))]


def looking(every=EVERY):
    "An alarm that keeps the values and errors of its looks, and where they go."
    import istar_nb as inb
    looks = []

    class Looks(inb.CollapseAlarm):
        def values(self, found):
            looks.append({name: [float(f"{float(part):.5g}") for part in found[name]]
                          for name in ("cone", "dimensional") if name in found} | dict(update=self.steps))
            return {}
    return Looks(every, track=lambda values: None), looks


def healthy(task, seed, lr, updates):
    "The looks of a usual fine-tuning."
    import istar_nb as inb
    import sentence_transformers as st
    from datasets import Dataset
    from sentence_transformers import losses
    data, (a, b) = inb.load_task(task), COLUMNS[task]
    part = data.train if task != "squad" else data.validation
    rows = [row for row in part if task not in TOGETHER or row["label"] == TOGETHER[task]]
    columns = dict(a=[row[a] for row in rows], b=[row[b] for row in rows])
    if task in LOSSES: columns["label"] = [row["label"]/5 for row in rows]
    model = st.SentenceTransformer(str(inb.minilm_folder()), device="cpu")
    model.max_seq_length = 48
    loss = getattr(losses, LOSSES.get(task, "MultipleNegativesRankingLoss"))(model)
    alarm, looks = looking()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = st.SentenceTransformerTrainingArguments(
            folder, per_device_train_batch_size=32, learning_rate=lr, lr_scheduler_type="constant_with_warmup",
            warmup_steps=10, max_steps=updates, report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="no",
            seed=seed, logging_strategy="no")
        st.SentenceTransformerTrainer(model, args, train_dataset=Dataset.from_dict(columns), loss=loss,
                                      callbacks=[alarm]).train()
    return dict(task=task, seed=seed, lr=lr, updates=updates, looks=looks)


def losses_of(looks):
    "The loss of room of each kind at each look, less 2.88 of its errors."
    from istar_nb.embeddings.collapse import room_lost
    from istar_nb.geometry.second_moments import Jackknifed
    kinds = [{name: Jackknifed(*look[name]) for name in ("cone", "dimensional")} for look in looks]
    return [dict(update=look["update"]) | room_lost(found, kinds[0]) for look, found in zip(looks[1:], kinds[1:])]


def lasting(losses, name):
    "Of every look but the first, the least loss of the last two."
    return [min(look[name] for look in losses[i + 1 - PERSIST:i + 1]) for i in range(PERSIST - 1, len(losses))]


def thresholds_of(found):
    "From the calibration runs alone."
    return {name: round(max(LEAST, FACTOR*max(max(lasting(losses_of(run["looks"]), name)) for run in found)), 4)
            for name in ("cone", "dimensional")}


def first_alarm(looks, thresholds):
    "The update at which the rule raises the alarm, and the kind."
    losses = losses_of(looks)
    alarms = [(losses[i + PERSIST - 1]["update"], name) for name, threshold in thresholds.items()
              for i, least in enumerate(lasting(losses, name)) if least > threshold]
    return min(alarms, default=(None, None))


def complete(run, load_before):
    "Add a run to the record of `seen_first.py` if it lacks it."
    kept = json.loads((root/"results"/"benchmarks"/"seen_first.json").read_text(encoding="utf-8"))
    if run["run"] in [other["run"] for other in kept["runs"]]: return
    absolute, score = run["absolute"], run["score"]
    new = {name: run[name] for name in ("run", "penalty", "lam", "seed")} | dict(
        alarm=absolute, score=score, lead=None if None in (absolute, score) else score - absolute, updates=40,
        seen=run["seen"])
    store("seen_first", load_before, **{name: kept[name] for name in ("model", "updates", "every")},
          runs=[*kept["runs"], new])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write results/benchmarks/early_alarm.json")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    path = root/"results"/"benchmarks"/"early_alarm.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    record = {name: record.get(name, []) for name in ("calibration", "collapsing", "test")}

    def keep():
        if args.record:
            store("early_alarm", load_before, every=EVERY, persist=PERSIST, factor=FACTOR, least=LEAST, **record)

    def told(run):
        if "thresholds" not in record: return run
        run["alarm"], run["kind"] = first_alarm(run["looks"], record["thresholds"])
        return run
    for group, plans in PLANS:
        for plan in plans[len(record[group]):]:
            if group == "collapsing":
                alarm, looks = looking()
                run = trained(plan, 0, 24 if plan in AGAIN else 40, 5, [alarm], plan not in AGAIN) | dict(looks=looks)
                run["absolute"] = run.pop("alarm")
            else: run = healthy(*plan)
            record[group].append(told(run))
            if group == "collapsing" and args.record: complete(run, load_before)
            print(group, {k: v for k, v in run.items() if k not in ("seen", "looks")}, run["looks"][-1], flush=True)
            keep()
        if group == "calibration": record["thresholds"] = thresholds_of(record["calibration"])
        keep()


if __name__ == "__main__": main()
