"""What `CollapseAlarm` costs, and what it sees of classifiers: `python benchmarks/alarm.py [--help]`.

Times in turn a training step (forward, backward, AdamW) of a model, the same with the alarm attached, what its hook
does with the vectors, and a look at those of all steps since the last one. The cost is that of the hook and of a
step's share of a look, against the step. Then MiniLM is fine-tuned as a classifier by the Trainer: SST-2 (of
`ISTAR_DATA`) and stdlib-docs without a penalty, and SST-2 with I-STAR at λ = -1 and -5 on text alone.
Writes results/benchmarks/alarm.json when `--record` is given.
"""
import argparse
import os
from statistics import median

from harness import store, timed


def trained(task, lam, updates=200, every=10, seed=0):
    "What all kinds say of a classifier while it is trained, and what it has learned."
    import tempfile
    import warnings

    import istar_nb as inb
    import torch
    from transformers import Trainer, TrainingArguments
    data, looks = inb.load_task(task), []
    torch.manual_seed(seed)
    model, tokenizer = inb.load_encoder("minilm", data.task)
    rows, held_out = (inb.encode(part, data.task, tokenizer, max_length=64)
                      for part in (data.train[:3200], data.validation[:800]))
    alarm = inb.CollapseAlarm(every, kinds=("total", "cone", "dimensional"))

    def track(values):
        said = {name: word for name, word in alarm.verdict.kinds.items() if word == "collapsed"}
        looks.append(dict(update=alarm.steps, **{name: round(value, 4) for name, value in values.items()}, said=said))
    alarm.track, options = track, dict(regularizer=inb.IStar(zeta=0.), lam=lam) if lam else {}
    kind = type("Penalised", (inb.IsotropyTrainerMixin, Trainer), {}) if lam else Trainer
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = TrainingArguments(folder, per_device_train_batch_size=32, learning_rate=5e-5, max_steps=updates,
                                 report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="no", seed=seed,
                                 remove_unused_columns=False, logging_steps=every)
        trainer = kind(model, args, train_dataset=rows, data_collator=inb.Collator(tokenizer), callbacks=[alarm],
                       **options)
        trainer.train()
        found = trainer.predict(held_out)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return dict(task=task, lam=lam, seed=seed, rows=len(rows), lr=5e-5, looks=looks, losses=losses,
                accuracy=float((found.predictions.argmax(1) == found.label_ids).mean()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--batch", type=int, default=32, help="sentences in a batch")
    parser.add_argument("--length", type=int, default=64, help="tokens in a sentence, none of them padding")
    parser.add_argument("--every", type=int, default=100, help="steps between two looks")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--record", action="store_true", help="write results/benchmarks/alarm.json")
    args = parser.parse_args()

    import torch

    from istar_nb.embeddings.alarm import CollapseAlarm
    from istar_nb.embeddings.collapse import stream_kinds
    from istar_nb.text.encoders import load_encoder
    load_before = os.getloadavg()[0]
    torch.manual_seed(0)
    model, tokenizer = load_encoder(args.model)
    ids = torch.randint(1000, len(tokenizer), (args.batch, args.length))
    batch = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step():
        model.train()(**batch).last_hidden_state.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def watched():
        with CollapseAlarm().attach(model) as alarm:
            step()
            alarm.step()

    alarm, rows = CollapseAlarm(), torch.randn(args.batch, model.config.hidden_size) + 1
    with alarm.attach(model):
        step()    # the hooks find what they look for
        for _ in range(args.every): alarm.metric.update(rows)
    metric = alarm.metric
    found = timed(dict(step=step, watched=watched, hook=lambda: metric.update(rows),
                       look=lambda: stream_kinds(metric.halves)), args.repeats)
    whole, with_alarm, hook, look = (median(found[name]) for name in ("step", "watched", "hook", "look"))
    figures = dict(model=args.model, batch=args.batch, length=args.length, every=args.every,
                   threads=torch.get_num_threads(),
                   step_ms=round(1000*whole, 1), watched_ms=round(1000*with_alarm, 1), hook_ms=round(1000*hook, 2),
                   look_ms=round(1000*look, 1), cost=round((hook + look/args.every)/whole, 5))
    print(figures)
    runs = ("sst2", 0), ("stdlib-docs", 0), ("sst2", -1), ("sst2", -5)
    figures["trainings"] = [trained(task, lam) for task, lam in runs]
    for run in figures["trainings"]: print(run["task"], run["lam"], run["accuracy"], run["looks"][-1])
    if args.record: store("alarm", load_before, **figures)


if __name__ == "__main__": main()
