"""A training step of a real encoder with each penalty against the plain step: `python benchmarks/step.py [--help]`.

A step is a forward pass on a batch of sentences, the task's loss, the penalty on the layers that are its default, a
backward pass and AdamW's update. All kinds take turns on the same batch. Then the parts of a step are timed one by one.
"""
import argparse
import os
import statistics

import istar_nb as inb
import torch
from harness import ratio, store, timed, waited
from istar_nb.text.features import Collator, encode
from transformers import BertConfig, BertForSequenceClassification


def penalties():
    "The penalties by label."
    return {"I-STAR, ζ = 0.2": inb.IStar(zeta=0.2), "I-STAR, ζ = 0": inb.IStar(zeta=0.),
            "unbiased I-STAR": inb.UnbiasedIStar(), "CosReg": inb.CosReg()}


class Step:
    "The parts of a training step; a penalty of None is the plain step."
    def __init__(self, model, batch, penalty):
        self.model, self.batch, self.penalty = model, batch, penalty
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def forward(self): self.out = self.model(**self.batch, output_hidden_states=self.penalty is not None)

    def penalise(self):
        self.loss = self.out.loss
        if self.penalty is not None:
            states = inb.HiddenStates(self.out.hidden_states, self.batch["attention_mask"])
            self.loss = self.loss + 0.01*self.penalty(states)

    def backward(self): self.loss.backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def __call__(self):
        for part in parts: getattr(self, part)()


parts = ("forward", "penalise", "backward", "update")


def profile(step, repeats, device):
    "Median seconds of every part of a step."
    seconds = {part: [] for part in parts}
    for _ in range(repeats):
        for part in parts:
            start = waited(device)
            getattr(step, part)()
            seconds[part].append(waited(device) - start)
    return {part: statistics.median(times) for part, times in seconds.items()}


def model_and_batches(name, sentences, length):
    "MiniLM with the head of the task, or a model of BERT-base's shape, and batches of the task's sentences."
    torch.manual_seed(0)
    data = inb.load_task("stdlib-docs")
    model, tokenizer = inb.load_encoder("minilm", data.task)    # its vocabulary is that of BERT
    if name == "bert-base":
        model = BertForSequenceClassification(BertConfig(num_labels=data.task.num_labels))
    features = encode(data.train[:16*sentences], data.task, tokenizer, length)
    groups = [features[i:i+sentences] for i in range(0, len(features), sentences)]
    return model, [dict(Collator(tokenizer)(group)) for group in groups]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("minilm", "bert-base"), default="minilm",
                        help="bert-base has drawn weights: the time does not depend on them")
    parser.add_argument("--batch", type=int, default=32, help="sentences in a batch")
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    args = parser.parse_args()
    load_before, (model, batches) = os.getloadavg()[0], model_and_batches(args.model, args.batch, args.max_length)
    model.train().to(args.device)
    batches = [{name: value.to(args.device) for name, value in batch.items()} for batch in batches]
    kinds = penalties()
    for penalty in kinds.values(): inb.collect_reference(penalty.to(args.device), model, batches)
    steps = {"plain": Step(model, batches[0], None)} | {name: Step(model, batches[0], p) for name, p in kinds.items()}
    times, rows = timed(steps, args.repeats, args.device), {}
    for name, step in steps.items():
        slower, quartiles = ratio(times[name], times["plain"])
        rows[name] = dict(seconds=statistics.median(times[name]), ratio=slower, ratio_quartiles=quartiles,
                          parts=profile(step, args.repeats, args.device))
        print(f"{name:26} {rows[name]['seconds']*1e3:8.1f} ms  {slower:.3f}x  {quartiles}  "
              + "  ".join(f"{part} {value*1e3:.1f}" for part, value in rows[name]["parts"].items()), flush=True)
    tokens = int(batches[0]["attention_mask"].sum())
    if args.record: store(f"step-{args.model}-{args.device}", load_before, rows=rows, batch=args.batch, tokens=tokens,
                          layers=model.config.num_hidden_layers, repeats=args.repeats)
