"""The penalty of a large batch in micro-batches against that of one batch: `python benchmarks/whole_update.py`.

`states`: the gradient of every penalty in all states of MiniLM that it reads, from micro-batches under `WholeUpdate`,
against that of all sentences as one batch in float64. The states come from one forward pass and are kept for this.
`weights`: the gradient in all weights, with the model run twice, against one forward and one backward pass of a batch
that fits. `times`: an update of task loss and penalty takes turns with the plain update, both accumulated over the same
micro-batches. `memory`: the peak of the process for a small and for a large batch. With `--record` only the parts that
ran replace those in the record.
"""
import argparse
import json
import os
import statistics
from pathlib import Path

import istar_nb as inb
import torch
from harness import ratio, root, store, timed
from istar_nb.base.devices import random_state, set_random_state
from istar_nb.base.states import joined
from istar_nb.text.features import Collator, encode
from torch import nn


def penalties():
    "The penalties by label, on the points that are their default."
    return {"I-STAR, ζ = 0.2": inb.IStar(zeta=0.2), "unbiased I-STAR": inb.UnbiasedIStar(), "CosReg": inb.CosReg(),
            "VICReg": inb.VICRegCovariance(), "GOR": inb.GOR(), "FroSSL": inb.FroSSL(),
            "uniformity": inb.Uniformity(), "KoLeo": inb.KoLeo(), "SIGReg": inb.SIGReg()}


def micro_batches(sentences, size, length):
    "MiniLM with the head of the task, and its sentences in micro-batches."
    torch.manual_seed(0)
    data = inb.load_task("stdlib-docs")
    model, tokenizer = inb.load_encoder("minilm", data.task)
    features, collate = encode(data.train[:sentences], data.task, tokenizer, length), Collator(tokenizer)
    if len(features) < sentences: raise SystemExit(f"the task has {len(features)} sentences")
    return model.train(), [dict(collate(features[i:i+size])) for i in range(0, sentences, size)]


def states_of(model, batch):
    out = model(**batch, output_hidden_states=True)
    return out.loss, inb.HiddenStates(out.hidden_states, batch["attention_mask"])


def gradient(model):
    "Of all weights, as one vector in float64; it is forgotten by the model."
    found = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).double().flatten()
                       for p in model.parameters()])
    model.zero_grad()
    return found


def whole_update(model, batches, penalty, task=0.):
    "Accumulate the gradient of `task` times the task loss and of the penalty of all micro-batches, which is returned."
    update, state = inb.WholeUpdate(penalty), random_state()
    with torch.no_grad(): update.prepare((states_of(model, batch)[1], None) for batch in batches)
    set_random_state(state)
    for batch in batches:
        loss, states = states_of(model, batch)
        value = update(states)
        ((task*loss + value)/len(batches)).backward()
    return value.item()


def plain_update(model, batches):
    "Accumulate the gradient of the task loss alone."
    for batch in batches: (model(**batch).loss/len(batches)).backward()


def in_states(parts, penalty):
    "The penalty of micro-batches under `WholeUpdate`, and its gradient in every state that it reads."
    leaves = [states_with_leaves(part, penalty) for part in parts]
    update = inb.WholeUpdate(penalty)
    with torch.no_grad(): update.prepare((part, None) for part, _ in leaves)
    for part, _ in leaves: (value := update(part)/len(parts)).backward()
    return value.item()*len(parts), [x.grad for _, found in leaves for x in found]


def states_with_leaves(part, penalty, dtype=torch.float32):
    "A micro-batch's states, those that a penalty reads as leaves, and these."
    chosen = part.choose(penalty.layers)
    found = {i: part.layers[i].to(dtype).detach().clone().requires_grad_() for i in chosen}
    layers = [found.get(i, x[..., :2]) for i, x in enumerate(part.layers)]    # of the others no more than must be
    return inb.HiddenStates(layers, part.mask), list(found.values())


def in_states_of_one_batch(parts, penalty):
    "The same of all sentences as one batch, in float64."
    leaves = [states_with_leaves(part, penalty, torch.float64) for part in parts]
    value = penalty(joined([part for part, _ in leaves]))
    value.backward()
    return value.item(), [x.grad for _, found in leaves for x in found]


def compare_states(parts, penalty):
    "Relative errors of value and gradient, in the states of every sentence."
    made = []
    for way in (in_states, in_states_of_one_batch):
        if hasattr(penalty, "calls"): penalty.calls.zero_()    # the same random directions
        made.append(way(parts, penalty))
    (value, found), (right, wanted) = made
    error = sum((a.double() - b).square().sum() for a, b in zip(found, wanted)).sqrt()
    size = sum(b.square().sum() for b in wanted).sqrt()
    return dict(value=value, value_error=abs(value/right - 1), gradient_error=(error/size).item())


def compare(model, batches, penalty, other):
    "Relative errors of value and gradient of `WholeUpdate` against another way."
    state, made = random_state(), []
    for way in (whole_update, other):
        set_random_state(state)
        if hasattr(penalty, "calls"): penalty.calls.zero_()    # the same random directions
        made.append((way(model, batches, penalty), gradient(model)))
    (value, found), (right, wanted) = made
    return dict(value=value, value_error=abs(value/right - 1),
                gradient_error=((found - wanted).norm()/wanted.norm()).item())


def in_one_batch(model, batches, penalty):
    "The gradient of the penalty of all micro-batches as one batch, by one forward and one backward pass."
    length = max(batch["input_ids"].shape[1] for batch in batches)
    whole = {name: torch.cat([nn.functional.pad(b[name], (0, length - b[name].shape[1])) if b[name].ndim > 1
                              else b[name] for b in batches]) for name in batches[0]}
    value = penalty(states_of(model, whole)[1])
    value.backward()
    return value.item()


def peak_mb(job):
    "The most memory that this process holds while a job runs, in MB."
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")    # the peak is noted anew from here
    job()
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    line, = (line for line in lines if line.startswith("VmHWM"))
    return int(line.split()[1])/1024


def one_batch_errors(model, kinds, batches):
    "Errors in the weights against one forward and one backward pass of all sentences, without dropout."
    drops, found = [(m, m.p) for m in model.modules() if isinstance(m, nn.Dropout)], {}
    for m, _ in drops: m.p = 0.
    for name, penalty in kinds.items():
        found[name] = compare(model, batches, penalty, in_one_batch)
        print(f"{name}, weights: {found[name]}", flush=True)
    for m, p in drops: m.p = p
    return found


def state_errors(model, kinds, batches):
    "Errors in the states of the large batch, with dropout."
    with torch.no_grad(): parts, found = [states_of(model, batch)[1] for batch in batches], {}
    for name, penalty in kinds.items():
        found[name] = compare_states(parts, penalty)
        print(f"{name}, states of {sum(len(p.mask) for p in parts)} sentences: {found[name]}", flush=True)
    return found


def times(model, kinds, batches, repeats):
    "How many times as long an update takes as the plain one."
    jobs = {"plain": lambda: (plain_update(model, batches), model.zero_grad())}
    jobs |= {name: lambda p=p: (whole_update(model, batches, p, 1.), model.zero_grad()) for name, p in kinds.items()}
    seconds, found = timed(jobs, repeats), {}
    for name in kinds:
        slower, quartiles = ratio(seconds[name], seconds["plain"])
        found[name] = dict(seconds=statistics.median(seconds[name]), ratio=slower, ratio_quartiles=quartiles)
        print(f"{name}: {slower} times the plain update {quartiles}", flush=True)
    return found


def memory(model, kinds, small, large):
    "The most memory for a small and for a large batch, plain and with a penalty."
    jobs = {"plain": lambda batches: plain_update(model, batches)}
    jobs |= {name: lambda batches, p=p: whole_update(model, batches, p) for name, p in kinds.items()}
    found = {}
    for name, job in jobs.items():
        found[name] = []
        for batches in (small, large):
            found[name].append(peak_mb(lambda: job(batches)))
            model.zero_grad()
        print(f"{name}: {found[name]} MB", flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=4096)
    parser.add_argument("--micro-batch", type=int, default=32)
    parser.add_argument("--one-batch", type=int, default=64, help="sentences that are also taken in one batch")
    parser.add_argument("--timed", type=int, default=128, help="sentences of the updates that are timed")
    parser.add_argument("--memory", type=int, nargs=2, default=[64, 4096], help="sentences of the two batches")
    parser.add_argument("--max-length", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--penalties", nargs="*", help="only those whose names begin so")
    parser.add_argument("--parts", nargs="*", default=["states", "weights", "times", "memory"])
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    torch.set_num_threads(1)
    model, batches = micro_batches(args.sentences, args.micro_batch, args.max_length)
    kinds = {name: penalty for name, penalty in penalties().items()
             if not args.penalties or name.startswith(tuple(args.penalties))}
    for penalty in kinds.values():
        if penalty.needs_reference: inb.collect_reference(penalty, model, batches[-32:])
    def first(sentences): return batches[:sentences//args.micro_batch]
    jobs = dict(states=lambda: dict(rows=state_errors(model, kinds, batches), sentences=args.sentences),
                weights=lambda: dict(rows=one_batch_errors(model, kinds, first(args.one_batch)),
                                     sentences=args.one_batch),
                times=lambda: dict(rows=times(model, kinds, first(args.timed), args.repeats), sentences=args.timed,
                                   repeats=args.repeats),
                memory=lambda: dict(rows=memory(model, kinds, *map(first, args.memory)), sentences=args.memory))
    figures = {part: jobs[part]() for part in args.parts}
    errors = {(part, name): row["gradient_error"] for part in {"states", "weights"} & set(figures)
              for name, row in figures[part]["rows"].items()}
    if bad := {key: error for key, error in errors.items() if error > 1e-5}:
        raise SystemExit(f"gradients differ: {bad}")
    if args.record:
        path = root/"results"/"benchmarks"/"whole_update.json"
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        figures = {part: before[part] for part in jobs if part in before} | figures
        store("whole_update", load_before, **figures, micro_batch=args.micro_batch, max_length=args.max_length,
              tokens=sum(int(batch["attention_mask"].sum()) for batch in batches),
              layers=model.config.num_hidden_layers, dims=model.config.hidden_size)
