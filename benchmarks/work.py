"""What a training step does, counted, and the time of a GPU by a model: `python benchmarks/work.py [--help]`.

No GPU is needed: a simulated one counts operators, multiplications, bytes that operators read and write, bytes kept for
the backward pass, bytes held at most, and how often the host waits. The times are a MODEL, not measurements. Every
operator takes as long as its products at the machine's rate or its bytes at the machine's bandwidth, whichever is
longer, and its launch; every wait takes its latency. Either one comes after the other, or launches overlap with all
computing: a GPU is between the two. No operators are fused, attention is its plain products, and rates are those of the
data sheet. On this machine's CPU the model is compared with what is measured.
"""
import argparse
import os
import sys
from pathlib import Path
from typing import NamedTuple

import istar_nb as inb
import torch
from harness import ratio, store, timed
from istar_nb.penalties.baselines import Uniformity, VICRegCovariance
from istar_nb.base.testing import Work, kept_for_backward
from step import Step, model_and_batches, penalties
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForSequenceClassification

sys.path.append(str(Path(__file__).resolve().parents[1]/"tests"))
from simulated import Accelerator

# Dense rates in multiplications a second are half of the FLOP/s, and these half of what is printed "with sparsity".
H100 = dict(name="H100 SXM", source="NVIDIA H100 Tensor Core GPU data sheet: rates without sparsity, memory bandwidth; "
            "launch and wait are assumptions of ours",
            products=dict(bfloat16=989.4e12/2, tf32=494.7e12/2, float32=67e12/2, float64=67e12/2),
            bandwidth=3.35e12, launch=5e-6, wait=20e-6)
# Operators that touch some rows of a table only, and those that do not read what they change.
ROWWISE = {"embedding", "index", "index_select", "gather", "index_put_", "_index_put_impl_"}
WRITE_ONLY = {"copy_", "fill_", "zero_"}


class Operation(NamedTuple):
    "What one operator does."
    products:int   # multiplications in matrix products
    traffic:int    # bytes that it reads and writes
    format:str     # of its products


def tensors(values): return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]


def size(t):
    "Bytes of the entries that differ: an expanded tensor is read once."
    entries = t.itemsize
    for length, step in zip(t.shape, t.stride()): entries *= length if step else 1
    return entries


def traffic(func, args, kwargs, out):
    "Bytes that an operator reads and writes."
    name, given, made = func.overloadpacket.__name__, tensors([args, kwargs]), tensors(out)
    if name in ROWWISE:
        moved = args[2] if func._schema.is_mutable else out
        return 2*size(moved) + sum(size(t) for t in tensors(args[1:]) if t is not moved)
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args)} | kwargs
    written = {argument.name for argument in func._schema.arguments if argument.is_write}
    changed = tensors([value for key, value in named.items() if key in written])
    reads = given[1:] if name in WRITE_ONLY else given
    return sum(map(size, reads)) + sum(map(size, changed or made))


class Tally(Work):
    "Every operator of a block that does more than look at memory in another way."
    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before, kwargs = self.products, kwargs or {}
        out = super().__torch_dispatch__(func, types, args, kwargs)
        known = {t.untyped_storage().data_ptr() for t in tensors([args, kwargs])}
        made = [t for t in tensors(out) if t.untyped_storage().data_ptr() not in known]
        new = made or not isinstance(out, torch.Tensor)
        empty = "empty" in func.overloadpacket.__name__
        if func.namespace == "aten" and (func._schema.is_mutable or new and not empty):
            dtype = str((tensors(out) or tensors(args))[0].dtype).removeprefix("torch.")
            self.operators.append(Operation(self.products - before, traffic(func, args, kwargs, out), dtype))
        return out


class FusedStep(Step):
    "A step whose optimizer updates all weights in one operator, as in training."
    def __init__(self, model, batch, penalty):
        super().__init__(model, batch, penalty)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)


class HalfStep(FusedStep):
    "A step whose model computes in bfloat16, and its penalty in float32."
    def forward(self):
        with torch.autocast(self.model.device.type, dtype=torch.bfloat16): super().forward()


def kinds():
    "The penalties that are counted."
    return penalties() | {"VICReg": VICRegCovariance(tokens="real"), "uniformity": Uniformity(),
                          "entropy": inb.EntropyRegularizer(selection="none", by_class=False)}


def counted(step):
    "All operators of a step, and what it keeps and holds; the optimizer's memory is there beforehand."
    for p in step.model.parameters(): p.grad = torch.zeros_like(p)
    step.update()
    with Tally() as tally:
        with kept_for_backward(*step.model.parameters()) as kept:
            step.forward()
            step.penalise()
        between = kept()
        step.backward()
        step.update()
    counts = dict(operators=len(tally.operators), multiplications=tally.products,
                  traffic=sum(o.traffic for o in tally.operators), kept=between, peak=tally.peak)
    return tally.operators, counts


def modelled(operators, waits, machine, precision="float32"):
    "Seconds by the model."
    rates = machine["products"] | dict(float32=machine["products"][precision])
    computing = sum(max(o.products/rates[o.format] if o.products else 0., o.traffic/machine["bandwidth"])
                    for o in operators)
    launching, waiting = len(operators)*machine["launch"], waits*machine["wait"]
    return dict(computing=computing, launching=launching, waiting=waiting, one_by_one=computing + launching + waiting,
                overlapped=max(computing, launching) + waiting)


def ready(penalty, references, device):
    "A penalty with what it looks up once: its reference, and the numbers of that."
    if not penalty.needs_reference: return penalty.to(device)
    penalty.collect(references)
    assert penalty.to(device).reference is not None    # looks its numbers up
    return penalty


def count_steps(model, batch, references, make, sim):
    "Counts of the step with each penalty and of the plain one, on the simulated device, and the model's times there."
    rows, model = {}, model.train().to(sim.device)
    batch = {name: value.to(sim.device) for name, value in batch.items()}
    for name, penalty in (dict(plain=None) | kinds()).items():
        step = make(model, batch, penalty and ready(penalty, references, sim.device))
        sim.waits.clear()
        operators, counts = counted(step)
        waits = sim.waits.total()
        times = {precision: modelled(operators, waits, H100, precision) for precision in ("float32", "tf32")}
        rows[name] = counts | dict(waits=waits, modelled=times)
        for precision, time in times.items():
            plain = rows["plain"]["modelled"][precision]
            time["ratios"] = {way: time[way]/plain[way] for way in ("one_by_one", "overlapped")}
    return rows


def this_machine(repeats):
    "Rate of products, bandwidth and the cost of an operator on this CPU, measured."
    a, b, one = torch.randn(1024, 1024), torch.randn(1024, 1024), torch.zeros(1)
    x, y = torch.randn(2**25), torch.randn(2**25)
    out = torch.empty_like(x)
    def many():
        for _ in range(1000): one.add_(1)
    jobs = dict(product=lambda: a @ b, add=lambda: torch.add(x, y, out=out), many=many)
    best = {name: min(seconds) for name, seconds in timed(jobs, repeats).items()}
    rate = 1024**3/best["product"]
    return dict(name="this CPU", source="measured here", products=dict(float32=rate, float64=rate/2),
                bandwidth=3*4*len(x)/best["add"], launch=best["many"]/1000, wait=0.)


def compare(model, batch, references, machine, repeats):
    "The ratio of each step to the plain one on this CPU: by the model and measured, both from the best of some rounds."
    steps = dict(plain=FusedStep(model, batch, None))
    for name, penalty in kinds().items():
        steps[name] = FusedStep(model, batch, ready(penalty, references, "cpu"))
    predicted = {name: modelled(counted(step)[0], 0, machine)["one_by_one"] for name, step in steps.items()}
    found = timed(steps, repeats)
    return {name: dict(modelled=predicted[name], ratio_modelled=predicted[name]/predicted["plain"],
                       seconds=min(found[name]), ratio=min(found[name])/min(found["plain"]),
                       ratio_quartiles=ratio(found[name], found["plain"])[1]) for name in steps}


def show(title, rows):
    "Print the counts, and the model's times."
    print(title)
    for name, row in rows.items():
        time, rounded = (row["modelled"][precision] for precision in ("float32", "tf32"))
        print(f"  {name:18} {row['operators']:5} operators  {row['multiplications']/1e9:8.2f} G multiplications  "
              f"{row['traffic']/1e9:7.2f} GB moved  {row['kept']/1e6:7.1f} MB kept  {row['peak']/1e6:7.1f} MB held  "
              f"{row['waits']} waits  MODEL of {H100['name']}: {time['overlapped']*1e3:6.2f} to "
              f"{time['one_by_one']*1e3:6.2f} ms, {time['ratios']['overlapped']:.3f} to "
              f"{time['ratios']['one_by_one']:.3f}x; with products in TF32 {rounded['ratios']['overlapped']:.3f} to "
              f"{rounded['ratios']['one_by_one']:.3f}x", flush=True)


def bert_batch(sentences, length):
    "A BERT-base with random weights for two classes, and a batch of tokens without padding."
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("bert"))
    ids = torch.randint(1000, 30000, (sentences, length))
    return model, dict(input_ids=ids, attention_mask=torch.ones_like(ids), labels=torch.arange(sentences) % 2)


def states_of(model, batches):
    "States that a reference is made of."
    with torch.no_grad():
        return [inb.HiddenStates(model.eval()(**b, output_hidden_states=True).hidden_states, b["attention_mask"])
                for b in batches]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32, help="sentences in a batch")
    parser.add_argument("--length", type=int, default=64, help="tokens of a sentence, of MiniLM's at most")
    parser.add_argument("--repeats", type=int, default=9, help="of every step that is measured on this CPU")
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    args = parser.parse_args()
    load_before, (model, batches) = os.getloadavg()[0], model_and_batches("minilm", args.batch, args.length)
    references, machine = states_of(model, batches), this_machine(args.repeats)
    check = compare(model.train(), batches[0], references, machine, args.repeats)
    print(f"this CPU: {machine['products']['float32']/1e9:.0f} G multiplications a second, "
          f"{machine['bandwidth']/1e9:.1f} GB/s, {machine['launch']*1e6:.2f} µs an operator")
    for name, row in check.items():
        print(f"  {name:18} measured {row['seconds']*1e3:6.1f} ms, {row['ratio']:.3f}x {row['ratio_quartiles']}; "
              f"MODEL {row['modelled']*1e3:6.1f} ms, {row['ratio_modelled']:.3f}x", flush=True)
    with Accelerator() as sim: minilm = count_steps(model, batches[0], references, FusedStep, sim)
    show("MiniLM in float32", minilm)
    bert, batch = bert_batch(args.batch, args.length)
    references = states_of(bert, [{name: value[:4] for name, value in batch.items()}])
    with Accelerator() as sim: base = count_steps(bert, batch, references, HalfStep, sim)
    show("a model of BERT-base's shape in bfloat16", base)
    shapes = {"minilm": (model, batches[0], "float32", minilm), "bert-base": (bert, batch, "bfloat16", base)}
    steps = {name: dict(sentences=len(b["input_ids"]), tokens=int(b["attention_mask"].sum()), format=form, rows=rows,
                        layers=m.config.num_hidden_layers, d=m.config.hidden_size)
             for name, (m, b, form, rows) in shapes.items()}
    if args.record: store("work", load_before, machine=H100, steps=steps, check=dict(machine=machine, rows=check),
                          repeats=args.repeats)
