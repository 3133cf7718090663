# %%
#| default_exp training

# %% [markdown]
# # Training
#
# > One loop for every task, method and number of processes, that can be killed at any moment
#
# Does changing isotropy change the score? To ask that, a run with a penalty and one without must differ in nothing else, and each must be
# repeatable to the last bit. The set-up follows Rudman & Eickhoff (2024), Section 4.1; the loop is plain, under Hugging Face accelerate.

# %%
#| export
import json
import math
import os
import shutil
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import gather_object, set_seed
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm.auto import tqdm

from istar_nb.covariance import Moments
from istar_nb.dimension import two_nn
from istar_nb.encoders import forward_with_states, load_encoder
from istar_nb.isolayer import ClsModel, cls_features, make_transform, split_indices, train_isolayer
from istar_nb.isoscore import isoscore, isoscore_from_cov
from istar_nb.measures import mean_cosine, spectrum, sv_anisotropy
from istar_nb.regularizers import (CosReg, HiddenStates, IStar, Regularizer, RelativeStrength, UnbiasedIStar, Uniformity, VICRegCovariance, all_processes,
                                   pooled_isoscore)
from istar_nb.runs import RunConfig, RunRecord, environment, find_record, save_record
from istar_nb.tasks import Collator, Task, encode, load_task, span_answers, task_metrics
from istar_nb.topology import EntropyRegularizer

# %%
import tempfile

import matplotlib.pyplot as plt
import pandas as pd


# %%
def error_of(f, *args, **kwargs):
    "The error that calling `f` raises."
    try: f(*args, **kwargs)
    except Exception as e: return e
    raise AssertionError("no error was raised")


# %% [markdown]
# ## Batches of similar length
#
# A batch is padded to its longest sentence, so a random batch of short sentences is mostly padding. Sorting everything would
# undo the shuffling. In between: shuffle, sort within pools of fifty batches, cut, shuffle the batches. The order depends on
# seed and epoch and on nothing else, so an interrupted epoch can be entered in the middle. A tail of less than half a
# batch joins the last batch: a handful of sentences has no covariance to speak of.

# %%
#| export
def length_buckets(
    lengths:list[int], # tokens of every example
    batch_size:int,    # examples in a batch
    seed:int=0,        # with `epoch`, decides the order
    epoch:int=0,       # pass over the data
    pool:int=50,       # batches that are sorted together
)->list[list[int]]:    # example numbers of every batch
    "Shuffled batches of examples of similar length."
    generator = torch.Generator().manual_seed(seed*1_000_003 + epoch)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    size = pool*batch_size
    pools = [sorted(order[i:i+size], key=lengths.__getitem__) for i in range(0, len(order), size)]
    rows = [row for p in pools for row in p]
    batches = [rows[i:i+batch_size] for i in range(0, len(rows), batch_size)]
    if len(batches) > 1 and len(batches[-1]) < batch_size/2: batches[-2:] = [batches[-2] + batches[-1]]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


# %%
lengths = (torch.rand(3210, generator=torch.Generator().manual_seed(0))**3*60 + 4).int().tolist()
batches = length_buckets(lengths, 32, seed=1)
assert sorted(i for b in batches for i in b) == list(range(3210))
assert batches == length_buckets(lengths, 32, seed=1) and batches != length_buckets(lengths, 32, seed=1, epoch=1)
def padding(batches): return 1 - sum(lengths)/sum(len(b)*max(lengths[i] for i in b) for b in batches)
shuffled = torch.randperm(3210, generator=torch.Generator().manual_seed(0)).split(32)
f"padding: {padding(batches):.0%} bucketed, {padding(shuffled):.0%} shuffled"


# %% [markdown]
# ## The method
#
# A method is a penalty on the hidden states, or a module between [CLS] and the head, or nothing. Everything below is the same for all of them.

# %%
#| export
def make_penalty(
    config:RunConfig,  # of the run, complete
    kind:str="classification", # of the task; only classes can be taken one by one
)->Regularizer|None:   # None for methods without one
    "The regularizer that a configuration names."
    c, common = config, dict(layers=config.layers, scope=config.scope)
    if c.method == "istar":
        return IStar(c.zeta, tokens=c.tokens, per_layer=c.per_layer, max_points=c.reference_points, target=c.target,
                     average=c.average if c.refresh == "average" else None, **common)
    if c.method == "istar-unbiased": return UnbiasedIStar(tokens=c.tokens, per_layer=c.per_layer, target=c.target, **common)
    if c.method == "cosreg": return CosReg(tokens=c.tokens, **common)
    if c.method == "vicreg": return VICRegCovariance(tokens=c.tokens, **common)
    if c.method == "uniformity": return Uniformity(c.temperature, tokens=c.tokens, **common)
    if c.method == "entropy":
        if c.layers is not None and len(c.layers) > 1: raise ValueError(f"`layers` must be one layer with method 'entropy', not {c.layers}")
        return EntropyRegularizer(c.selection, kind == "classification", c.normalize, -1 if c.layers is None else c.layers[0], c.scope)


def make_model(
    config:RunConfig,  # of the run, complete
    task:Task,         # of the run
    hub:bool=False,    # allow downloads from the Hugging Face hub
)->tuple:              # (model, tokenizer)
    "The pretrained encoder under the configuration's head."
    if config.head == "own": return load_encoder(config.model, task, hub=hub)
    if task.kind == "span": raise ValueError(f"`head` 'linear' (method {config.method!r}) reads [CLS], and {task.name!r} asks for spans")
    encoder, tokenizer = load_encoder(config.model, hub=hub)
    width = encoder.config.hidden_size
    transform = make_transform("isobn", dim=width, bias_correction=config.bias_correction) if config.method == "isobn" else None
    token = "last" if encoder.config.model_type == "gpt2" else "first"    # a causal model has seen the whole text only at its end
    return ClsModel(encoder, task.num_labels, transform, token=token), tokenizer


# %% [markdown]
# ## A session
#
# `Session` holds what a run works with. Its parts are small and in the order in which they happen: prepare, update,
# evaluate, save. Three decisions are worth a word.
#
# *The batch is global.* Every process computes the same order of batches and takes every $W$-th sentence of each. The task
# loss of a rank with $n_r$ of $N$ sentences is its own mean times $W n_r/N$, which data-parallel averaging turns into the
# mean over the batch; penalties are global already. So the same configuration gives the same run on any number of processes, up to rounding and
# dropout.
#
# *Gradient accumulation* averages the micro-batches of a group. The penalty is that of each micro-batch, not of the
# group: a covariance cannot be averaged in afterwards.
#
# *The schedule* belongs to updates, not to processes; it is stepped once per update and never wrapped.

# %%
#| export
def make_accelerator(config:RunConfig, tracker:str|None=None, folder:str|Path="runs/logs")->Accelerator:
    "An accelerator with the run's precision; one process can make several, one after another."
    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(mixed_precision={"fp32": "no"}.get(config.precision, config.precision), log_with=tracker, project_dir=None if tracker is None else str(folder))
    if tracker is not None and not accelerator.log_with: raise ImportError(f"`tracker` {tracker!r} is not installed: pip install {tracker}")
    return accelerator


def recompute_states(model:nn.Module)->None:
    "Make a Hugging Face model compute its states again in the backward pass instead of keeping them."
    model.config.use_cache = False
    enable = model.activation_checkpointing_enable if hasattr(model, "activation_checkpointing_enable") else model.gradient_checkpointing_enable
    enable(dict(use_reentrant=False))


def parameter_groups(model:nn.Module, weight_decay:float)->list[dict]:
    "Weights with decay, biases and norms without."
    decayed = [p for p in model.parameters() if p.ndim > 1]
    return [dict(params=decayed, weight_decay=weight_decay), dict(params=[p for p in model.parameters() if p.ndim <= 1], weight_decay=0.)]


class Session:
    "Everything one run works with."
    def __init__(self,
        config:RunConfig,          # of the run
        data_dir:str|Path|None=None, # folder with the tasks' files; None for `ISTAR_DATA`
        hub:bool=False,            # allow downloads from the Hugging Face hub
        progress:bool=True,        # show progress bars
        log_every:int=10,          # updates between two entries of the log
        tracker:str|None=None,     # a tracker of accelerate, such as "tensorboard", that the log also goes to
        log_folder:str|Path="runs/logs", # for trackers that write files
    ):
        self.config, self.log_every = config.complete, log_every
        self.accelerator = make_accelerator(config, tracker, log_folder)
        if tracker: self.accelerator.init_trackers(config.id, {k: str(v) for k, v in asdict(self.config).items()})
        self.rank, self.world = self.accelerator.process_index, self.accelerator.num_processes
        self.bars = progress and self.accelerator.is_main_process
        self.data = load_task(config.task, data_dir=data_dir, hub=hub)
        self.task, (self.train_rows, self.stop_rows, self.validation_rows) = self.data.task, self.split(self.draw(self.data.train))
        set_seed(config.seed)                        # the same head on every process
        self.model, self.tokenizer = make_model(self.config, self.task, hub)
        self.collate = Collator(self.tokenizer)
        self.features, self.held_out = (encode(rows, self.task, self.tokenizer, config.max_length) for rows in (self.train_rows, self.validation_rows))
        self.lengths = [len(f["input_ids"]) for f in self.features]
        if config.batch_size < 2*self.world: raise ValueError(f"`batch_size` is {config.batch_size}, and {self.world} processes need at least {2*self.world}")
        self.prepare()
        set_seed(config.seed, device_specific=True)  # different dropout on every process
        self.epoch = self.update_in_epoch = self.updates = 0
        self.epochs, self.steps, self.seconds, self.started = [], [], 0., datetime.now(timezone.utc).isoformat(timespec="seconds")

    def draw(self, rows:list[dict])->list[dict]:
        "The training rows, or as many as `limit` says, in their order."
        if self.config.limit is None or self.config.limit >= len(rows): return rows
        generator = torch.Generator().manual_seed(self.config.seed)
        return [rows[i] for i in sorted(torch.randperm(len(rows), generator=generator)[:self.config.limit].tolist())]

    def split(self, rows:list[dict])->tuple[list[dict],list[dict],list[dict]]:
        "Rows to train on, to stop IsoLayer's second stage by, and to measure."
        c, validation, stop = self.config, self.data.validation, []
        if c.hold_out:
            kept, out = split_indices(len(rows), c.hold_out, c.seed)
            rows, validation = [rows[i] for i in kept], [rows[i] for i in out]
        if c.method == "isolayer":
            kept, out = split_indices(len(rows), 0.3, c.seed)
            rows, stop = [rows[i] for i in kept], [rows[i] for i in out]
        return rows, stop, validation

    def prepare(self):
        "Optimizer, schedule and penalty, on the right device and processes."
        from transformers import get_scheduler
        c, per_epoch = self.config, len(self.groups(0))
        total = c.epochs*per_epoch
        self.penalty, self.strength = make_penalty(c, self.task.kind), None if c.relative is None else RelativeStrength(c.relative)
        if self.penalty is not None: self.penalty.to(self.accelerator.device)
        if c.gradient_checkpointing: recompute_states(getattr(self.model, "encoder", self.model))
        optimizer = torch.optim.AdamW(parameter_groups(self.model, c.weight_decay), lr=c.lr, fused=True)
        self.schedule = get_scheduler(dict(linear="linear", constant="constant_with_warmup")[c.schedule], optimizer,
                                      num_warmup_steps=math.ceil(c.warmup*total), num_training_steps=total)
        self.model, self.optimizer = self.accelerator.prepare(self.model, optimizer)

    def groups(self, epoch:int)->list[list[list[int]]]:
        "The batches of an epoch, in groups that share an update."
        batches, size = length_buckets(self.lengths, self.config.batch_size, self.config.seed, epoch), self.config.accumulate
        return [batches[i:i+size] for i in range(0, len(batches), size)]

    def batch(self, features:list[dict], rows:list[int], share:bool=True)->dict:
        "This process's share of a batch, or all of it, on its device."
        if share: rows = rows[self.rank::self.world]
        return {k: v.to(self.accelerator.device) for k, v in self.collate([features[i] for i in rows]).items()}

    def bar(self, items, text:str): return tqdm(items, desc=text, leave=False, disable=not self.bars, dynamic_ncols=True, mininterval=1)


# %% [markdown]
# ## The reference
#
# $\Sigma_S$ is made by a partial pass over the training data in eval mode, in an order of its own, so that it neither
# disturbs nor depends on what training draws.

# %%
#| export
def reference_states(session:Session)->Iterator[HiddenStates]:
    "States of training sentences in eval mode, without gradients, in an order that depends on seed and epoch."
    model = session.accelerator.unwrap_model(session.model).eval()
    for rows in length_buckets(session.lengths, session.config.batch_size, session.config.seed+1, session.epoch):
        with torch.no_grad(): states = forward_with_states(model, session.batch(session.features, rows))[1]
        yield states    # outside `no_grad`: a generator that is left here would leave gradients off for everyone


def refresh_reference(session:Session)->None:
    "Give the penalty its reference: before training, and as often as configured."
    penalty, c = session.penalty, session.config
    if penalty is None or not penalty.needs_reference: return
    start, every = session.update_in_epoch == 0, c.refresh_every
    if start and (session.epoch == 0 or c.refresh == "epoch") or not start and every and session.updates % every == 0:
        penalty.collect(session.bar(reference_states(session), f"epoch {session.epoch+1}: reference Σ_S"))


# %% [markdown]
# ## One update

# %%
#| export
def thinned(states:HiddenStates, points:int, seed:int)->HiddenStates:
    "The same states with no more than so many real tokens, drawn at random."
    rows = states.index()
    if len(rows) <= points: return states
    kept = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:points].to(rows.device)]
    return HiddenStates(states.layers, torch.zeros_like(states.mask).flatten().index_fill(0, kept, 1).view_as(states.mask))


def losses(session:Session, rows:list[int])->tuple[Tensor,Tensor|None,HiddenStates]:
    "Task loss scaled for data-parallel averaging, penalty, and states of one micro-batch."
    c, batch = session.config, session.batch(session.features, rows)
    out, states = forward_with_states(session.model, batch)
    share = len(batch["input_ids"])*session.world/len(rows)
    if session.penalty is None: return out.loss*share, None, states
    seen = states if c.max_points is None else thinned(states, max(2, c.max_points//session.world), c.seed*1_000_003 + session.updates)
    return out.loss*share, session.penalty(seen, batch.get("labels")), states


def prepare_penalty(session:Session, group:list[list[int]])->None:
    "Show the micro-batches of an update to a penalty that takes them as one batch, and leave the random state as it was."
    if len(group) == 1 or not hasattr(session.penalty, "prepare"): return
    model, state = session.accelerator.unwrap_model(session.model), random_state()
    def seen(batch):
        with torch.no_grad(), session.accelerator.autocast(): return forward_with_states(model, batch)[1], batch.get("labels")
    session.penalty.prepare([seen(session.batch(session.features, rows)) for rows in group])
    set_random_state(state)


def strength(session:Session, task_loss:Tensor, penalty:Tensor)->float:
    "λ: as configured, or such that the penalty's gradient is the wanted fraction of the task's."
    if session.strength is None: return session.config.lam
    if session.strength.due(session.updates):
        scaler = session.accelerator.scaler
        session.strength.update(task_loss, penalty, list(session.model.parameters()), all_processes(), 1. if scaler is None else scaler.get_scale())
    return float(session.strength.lam)


def update(session:Session, group:list[list[int]])->dict:
    "One optimizer step on a group of micro-batches; what it logged."
    accelerator, c = session.accelerator, session.config
    session.model.train()
    prepare_penalty(session, group)
    for i, rows in enumerate(group):
        with nullcontext() if i == len(group)-1 else accelerator.no_sync(session.model):
            task_loss, penalty, states = losses(session, rows)
            if penalty is not None and i == 0: lam = strength(session, task_loss, penalty)
            loss = task_loss if penalty is None else task_loss + lam*penalty
            if not loss.isfinite(): raise FloatingPointError(f"the loss is {loss.item()} after {session.updates} updates; a smaller |lam| or lr may help")
            accelerator.backward(loss/len(group))
    norm = accelerator.clip_grad_norm_(session.model.parameters(), c.max_grad_norm or math.inf)
    log = {}
    if (session.updates+1) % session.log_every == 0:
        log = dict(update=session.updates+1, lr=session.schedule.get_last_lr()[0], task_loss=accelerator.reduce(task_loss.detach(), "mean").item(),
                   **({} if penalty is None else dict(penalty=penalty.item(), lam=lam)), grad_norm=float(norm), **batch_geometry(states, c.tokens))
    session.optimizer.step()
    if not accelerator.optimizer_step_was_skipped: session.schedule.step()
    session.optimizer.zero_grad()
    return rounded(log)


@torch.no_grad()
def batch_geometry(
    states:HiddenStates, # of a micro-batch
    tokens:str,          # under the penalty
)->dict[str,float|None]:
    "Isotropy along training: of the tokens of all processes' micro-batches, and of this one's [CLS] states the first three directions' shares."
    cls, shares = states.points(-1, "cls").float(), {}
    for name, center in (("raw", False), ("centred", True)):
        for k, share in enumerate(defined(lambda: spectrum(cls, center)[:3]) or [], start=1): shares[f"cls_anisotropy_{name}" + f"_{k}"*(k > 1)] = share
    return dict(batch_isoscore=pooled_isoscore(states, tokens=tokens, group=all_processes()).item(), **shares)


# %% [markdown]
# ## Evaluation
#
# Before training and after every epoch, on all validation rows: the task's metrics, and the geometry of the states. IsoScore
# is that of all real tokens of the validation rows, for each layer (0 is the embeddings) and for the union of layers 1 to L. There are
# tens of thousands of them and a few hundred dimensions, so no shrinkage is needed, and runs with and without a penalty are
# measured the same way. The other measures are of the [CLS] states, which the heads read: TwoNN of every layer,
# and of the last one the share of the first singular value, raw and centred, and the explained variance.

# %%
#| export
def merged(moments:list[Moments])->Moments:
    "The moments of several clouds together."
    total = Moments()
    for m in moments: total.merge(m)
    return total


def defined(
    measure:Callable[[],Tensor], # computes one score or several
)->float|list[float]|None:       # None where it has no value: the [CLS] embedding is one point, and states can collapse
    "A measure as plain numbers."
    try: return measure().tolist()
    except ValueError: return None


def geometry(moments:list[Moments], directions:Tensor, cls:list[Tensor], embedding:Tensor)->dict:
    "Isotropy of every layer, and of the [CLS] states and what the head reads of them, as plain numbers."
    n = moments[-1].count
    return dict(isoscore=defined(lambda: isoscore_from_cov(merged(moments[1:]).covariance())),
                isoscore_layers=[defined(lambda: isoscore_from_cov(m.covariance())) for m in moments], tokens=n,
                mean_cosine=defined(lambda: (directions.square().sum() - n)/(n*(n-1))),
                two_nn_layers=[defined(lambda: two_nn(x)) for x in cls], cls_isoscore=defined(lambda: isoscore(embedding)),
                cls_anisotropy_raw=defined(lambda: sv_anisotropy(embedding, 1, center=False)), cls_anisotropy_centred=defined(lambda: sv_anisotropy(embedding, 1, center=True)),
                cls_explained_variance=defined(lambda: spectrum(embedding, center=True)[:20].cumsum(0)))


def rounded(value, digits:int=6):
    "Plain numbers at the precision that a record keeps."
    if isinstance(value, float): return float(f"{value:.{digits}g}")
    if isinstance(value, dict): return {k: rounded(v, 4 if k == "mean_activation" else digits) for k, v in value.items()}
    return [rounded(v, digits) for v in value] if isinstance(value, list) else value


@torch.no_grad()
def evaluate(session:Session)->dict:
    "The task's metrics and the geometry of the states on all validation rows."
    accelerator, features = session.accelerator, session.held_out
    model, outputs, cls, moments, directions = accelerator.unwrap_model(session.model).eval(), [], [], None, 0.
    order = sorted(range(len(features)), key=lambda i: len(features[i]["input_ids"]))
    mine = order[session.rank::session.world]
    for rows in session.bar([mine[i:i+64] for i in range(0, len(mine), 64)], f"epoch {session.epoch}: evaluation"):
        out, states = forward_with_states(model, session.batch(features, rows, share=False))
        moments = moments or [Moments(layer.shape[-1]) for layer in states.layers]
        for l, m in enumerate(moments): m.update(states.points(l).float())
        directions += nn.functional.normalize(states.points(-1).float(), dim=1).sum(0, dtype=torch.float64)
        points = [states.points(l, "cls").float() for l in range(len(moments))]
        cls += zip(rows, torch.stack([*points, out["embedding"].float() if "embedding" in out else points[-1]], dim=1).cpu())
        logits = [out.start_logits, out.end_logits] if session.task.kind == "span" else [out.logits]
        outputs += zip(rows, zip(*(x.float().cpu() for x in logits)))
    if session.world > 1:
        outputs, cls = gather_object(outputs), gather_object(cls)
        moments, directions = [m.all_reduce() for m in moments], accelerator.reduce(directions, "sum")
    outputs, cls = ([value for _, value in sorted(pairs, key=lambda pair: pair[0])] for pairs in (outputs, cls))
    *layers, embedding = torch.stack(cls).unbind(1)
    ends = session.epoch in (0, session.config.epochs)
    return rounded({**scores(session, outputs), **geometry(moments, directions, layers, embedding), **(dict(mean_activation=moments[-1].mean.tolist()) if ends else {})})


def scores(session:Session, outputs:list[tuple[Tensor,...]])->dict[str,float]:
    "The task's metrics from the model's outputs, in the order of the features."
    rows, columns = session.validation_rows, list(zip(*outputs))
    if session.task.kind == "span": return task_metrics(session.task, span_answers(session.held_out, rows, *columns), rows)
    return task_metrics(session.task, torch.stack(columns[0]), [f["labels"] for f in session.held_out])


# %% [markdown]
# ## Saved and resumed
#
# A checkpoint is made right after an update, where no half-accumulated gradient exists. It holds weights, optimizer,
# $\Sigma_S$ and every process's random state as safetensors, and the rest as JSON: nothing is pickled. It is written to a temporary folder
# and renamed, and the one before is kept until then, so whatever moment the process dies at, the newest complete one counts.

# %%
#| export
def tensors_of(session:Session)->dict[str,Tensor]:
    "Everything of a session that is a tensor and equal on all processes, by name."
    model = session.accelerator.unwrap_model(session.model)
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    tensors |= {f"optimizer.{i}.{k}": v for i, state in session.optimizer.state_dict()["state"].items() for k, v in state.items()}
    for name in ("penalty", "strength"):
        if (part := getattr(session, name)) is not None: tensors |= {f"{name}.{k}": v for k, v in part.state_dict().items()}
    return {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}


def random_state()->dict[str,Tensor]:
    "The states of the generators that dropout draws from."
    cuda = {f"cuda.{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())} if torch.cuda.is_available() else {}
    return dict(cpu=torch.get_rng_state(), **cuda)


def set_random_state(state:dict[str,Tensor])->None:
    "Take the generators back to what `random_state` gave."
    torch.set_rng_state(state["cpu"])
    for name, value in state.items():
        if name != "cpu": torch.cuda.set_rng_state(value, int(name.removeprefix("cuda.")))


def plain_state(session:Session)->dict:
    "Everything of a session that is no tensor."
    scaler = session.accelerator.scaler
    return dict(id=session.config.id, data=session.data.sha256, world=session.world, epoch=session.epoch, update_in_epoch=session.update_in_epoch,
                updates=session.updates, epochs=session.epochs, steps=session.steps, seconds=session.seconds, started=session.started,
                schedule=session.schedule.state_dict(), scaler=None if scaler is None else scaler.state_dict(),
                groups=[{k: v for k, v in g.items() if k != "params"} for g in session.optimizer.state_dict()["param_groups"]])


def checkpoints(folder:Path)->list[Path]: # oldest first
    "The complete checkpoints in a folder."
    return sorted(folder.glob("checkpoint-*"))


def save_checkpoint(session:Session, folder:Path)->None:
    "Write a checkpoint next to the last one, then remove what is older than that."
    temporary, final = folder/"writing.tmp", folder/f"checkpoint-{session.updates:09d}-{session.epoch:04d}"
    if session.accelerator.is_main_process:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_file(tensors_of(session), temporary/"session.safetensors")
        (temporary/"session.json").write_text(json.dumps(plain_state(session)))
    session.accelerator.wait_for_everyone()
    save_file(random_state(), temporary/f"random-{session.rank}.safetensors")
    session.accelerator.wait_for_everyone()
    if session.accelerator.is_main_process:
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        for old in checkpoints(folder)[:-2]: shutil.rmtree(old)
    session.accelerator.wait_for_everyone()


# %%
#| export
def load_checkpoint(session:Session, folder:Path)->bool: # whether there was one
    "Take a session back to its newest checkpoint."
    found = checkpoints(folder)
    if not found: return False
    state, tensors = json.loads((found[-1]/"session.json").read_text()), load_file(found[-1]/"session.safetensors")
    for name, here in dict(id=session.config.id, data=session.data.sha256, world=session.world).items():
        if state.pop(name) != here: raise ValueError(f"the checkpoint in {folder.name} has another {name} than this run ({here}); remove it to start anew")
    def part(prefix): return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    session.accelerator.unwrap_model(session.model).load_state_dict(part("model."))
    for name in ("penalty", "strength"):
        for key, value in part(f"{name}.").items(): setattr(getattr(session, name), key, value.to(session.accelerator.device if name == "penalty" else "cpu"))
    optimizer, moments = session.optimizer.state_dict(), {}
    for key, value in part("optimizer.").items():
        i, name = key.split(".", 1)
        moments.setdefault(int(i), {})[name] = value
    groups = [{**g, **{k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()}} for g, saved in zip(optimizer["param_groups"], state.pop("groups"))]
    session.optimizer.load_state_dict(dict(state=moments, param_groups=groups))
    session.schedule.load_state_dict(state.pop("schedule"))
    if scaler := state.pop("scaler"): session.accelerator.scaler.load_state_dict(scaler)
    for name, value in state.items(): setattr(session, name, value)
    set_random_state(load_file(found[-1]/f"random-{session.rank}.safetensors"))
    return True


# %% [markdown]
# ## The run
#
# The loop itself, and `train` around it: a run whose record exists is not made again; one that was interrupted goes on; one that fails leaves a
# record of how.

# %%
#| export
def note(session:Session, log:dict)->None:
    "Hand the plain numbers of a log entry to the tracker, if there is one."
    session.accelerator.log({k: v for k, v in log.items() if isinstance(v, (int, float))}, step=session.updates)


def run_epochs(session:Session, folder:Path, checkpoint_every:int|None)->None:
    "Train from where the session stands to the end, saving on the way."
    if not session.epochs: session.epochs.append(dict(epoch=0, **evaluate(session)))
    while session.epoch < session.config.epochs:
        start, groups = time.monotonic(), session.groups(session.epoch)
        bar = session.bar(groups[session.update_in_epoch:], f"epoch {session.epoch+1} of {session.config.epochs}")
        for group in bar:
            refresh_reference(session)
            log = update(session, group)
            session.updates, session.update_in_epoch = session.updates+1, session.update_in_epoch+1
            if log:
                session.steps.append(log)
                note(session, log)
                bar.set_postfix({k: f"{log[k]:.3f}" for k in ("task_loss", "batch_isoscore")}, refresh=False)
            if checkpoint_every and session.updates % checkpoint_every == 0 and session.update_in_epoch < len(groups):
                start = clock(session, start)
                save_checkpoint(session, folder)
        session.epoch, session.update_in_epoch = session.epoch+1, 0
        session.epochs.append(dict(epoch=session.epoch, **evaluate(session)))
        note(session, session.epochs[-1])
        clock(session, start)
        save_checkpoint(session, folder)


def insert_isolayer(session:Session)->None:
    "IsoLayer's second stage: freeze the fine-tuned model, train the inserted layer on its [CLS] states, and measure again."
    c, model, task = session.config, session.accelerator.unwrap_model(session.model), session.task
    stop = encode(session.stop_rows, task, session.tokenizer, c.max_length)
    def features(rows): return cls_features(model, (session.batch(rows, list(range(i, min(i+64, len(rows)))), share=False) for i in range(0, len(rows), 64)))
    def metric(logits, labels): return task_metrics(task, logits.cpu(), labels.cpu())[task.metric]
    start = time.monotonic()
    history, best = train_isolayer(model, features(session.features), features(stop), c.depth, metric=metric, keep=c.keep, loss=c.stage_loss, epochs=c.stage_epochs, seed=c.seed)
    if session.world > 1:
        for value in model.transform.state_dict().values(): dist.broadcast(value, 0)
    session.epochs.append(dict(epoch=session.epoch, **evaluate(session), isolayer_epochs=len(history)-1, isolayer_best=best))
    clock(session, start)


def clock(session:Session, start:float)->float: # now
    "Add the time since `start` to the session's."
    now = time.monotonic()
    session.seconds += now - start
    return now


def make_record(session:Session)->RunRecord:
    "The record of a finished session."
    data = dict(source=session.data.source, sha256=session.data.sha256, note=session.data.note, train=len(session.train_rows), validation=len(session.validation_rows))
    parameters = sum(p.numel() for p in session.model.parameters())
    metric = session.task.metric
    return RunRecord(asdict(session.config), session.config.id, "done", metric, session.epochs[-1][metric], session.epochs, session.steps, data,
                     dict(environment(), device=session.accelerator.device.type, parameters=parameters), round(session.seconds, 2), session.started)


def train(
    config:RunConfig,                 # what to run
    root:str|Path="runs",             # folder or fsspec URL for records
    data_dir:str|Path|None=None,      # folder with the tasks' files; None for `ISTAR_DATA`
    hub:bool=False,                   # allow downloads from the Hugging Face hub
    checkpoints:str|Path="runs/checkpoints", # local folder for unfinished runs; each gets one of its own
    checkpoint_every:int|None=None,   # updates between checkpoints; None for one at the end of every epoch
    save_model:str|Path|None=None,    # folder for the fine-tuned model and tokenizer; None not to keep them
    progress:bool=True,               # show progress bars
    tracker:str|None=None,            # a tracker of accelerate, such as "tensorboard", that the log also goes to
    log_folder:str|Path="runs/logs",  # for trackers that write files
)->RunRecord:                         # of this run, just made or made before
    "Fine-tune `config.model` on `config.task`, with its penalty, and record how score and isotropy moved."
    main, folder, record = int(os.environ.get("RANK", 0)) == 0, Path(checkpoints)/config.id, find_record(root, config.id)
    if record is not None and record.status == "done" and not save_model:
        if main: shutil.rmtree(folder, ignore_errors=True)    # killed between writing the record and this line
        return record
    try:
        session = Session(config, data_dir, hub, progress, tracker=tracker, log_folder=log_folder)
        load_checkpoint(session, folder)
        run_epochs(session, folder, checkpoint_every)
        if config.method == "isolayer": insert_isolayer(session)
        record = make_record(session)
        for one in session.accelerator.trackers: one.finish()    # `end_training` would also end the process group
    except Exception:
        if main: save_record(RunRecord(asdict(config.complete), config.id, "failed", environment=environment(), error=traceback.format_exc()), root)
        raise
    if main:
        if save_model:
            session.accelerator.unwrap_model(session.model).save_pretrained(save_model)
            session.tokenizer.save_pretrained(save_model)
        save_record(record, root)
        shutil.rmtree(folder, ignore_errors=True)
    session.accelerator.wait_for_everyone()
    return record


# %% [markdown]
# ## Several processes
#
# `accelerate launch --no_python istar train …` and `torchrun --no-python istar train …` run the same loop on many GPUs and machines. On one machine, and from a
# notebook, `launch` (`istar train --processes N`) starts the processes itself: new interpreters, which neither inherit a used CUDA context nor hang on the
# threads of this one.

# %%
#| export
def launched(rank:int, processes:int, port:int, threads:int, config:RunConfig, options:dict)->None:
    "What one of the processes of `launch` does."
    os.environ |= dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes), LOCAL_WORLD_SIZE=str(processes), MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(port), OMP_NUM_THREADS=str(threads), ACCELERATE_USE_CPU=str(not torch.cuda.is_available()).lower())
    torch.set_num_threads(threads)
    try: train(config, **options)
    finally:
        if dist.is_initialized(): dist.destroy_process_group()


def launch(
    config:RunConfig,   # what to run; `batch_size` is that of all processes
    processes:int=2,    # on this machine; one a GPU where there are GPUs
    threads:int=1,      # CPU threads of each
    root:str|Path="runs", # folder or fsspec URL for the record, not `memory://`
    **options,          # of `train`
)->RunRecord:           # of this run, just made or made before
    "`train` on several processes that act as one."
    if processes < 1: raise ValueError(f"`processes` must be at least 1, not {processes}")
    if torch.cuda.is_available() and processes > torch.cuda.device_count(): raise ValueError(f"`processes` is {processes}, and there are {torch.cuda.device_count()} GPUs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(launched, (processes, port, threads, config, dict(options, root=root)), nprocs=processes)
    return find_record(root, config.id)


# %% [markdown]
# ## A small run
#
# A random two-layer model, 160 docstrings, two epochs, with I-STAR. It learns nothing worth reporting; it shows what a record holds.

# %%
config = RunConfig(model="tiny-bert", method="istar", lam=-1., zeta=0.2, limit=160, epochs=2, lr=1e-3, reference_points=1000)
work = Path(tempfile.mkdtemp())
def tiny(name, config=config, **kwargs): return train(config, work/name, checkpoints=work/name/"checkpoints", progress=False, **kwargs)
record = tiny("first")
assert record.status == "done" and [e["epoch"] for e in record.epochs] == [0, 1, 2]
assert len(record.epochs[0]["isoscore_layers"]) == 3
pd.DataFrame(record.epochs)[["epoch", "accuracy", "isoscore", "isoscore_layers"]].round(3)

# %% [markdown]
# With $\lambda<0$ the score has fallen. Here it is along training, against the same run with the sign turned and one without a penalty.

# %%
from dataclasses import replace

# %%
others = {lam: tiny("first", replace(config, lam=lam, method="istar" if lam else "none")) for lam in (0., 1.)}
fig, ax = plt.subplots(figsize=(5, 3), layout="constrained")
for lam, r in {-1.: record, **others}.items():
    ax.plot([e["epoch"] for e in r.epochs], [e["isoscore"] for e in r.epochs], "o-", label=f"λ = {lam:+g}" if lam else "no penalty",
            color={-1: "C3", 0: "0.4", 1: "C0"}[lam])
ax.set(xlabel="epoch", ylabel="IsoScore of validation tokens", xticks=[0, 1, 2])
ax.legend(frameon=False);

# %%
assert record.epochs[-1]["isoscore"] < others[0.].epochs[-1]["isoscore"] < others[1.].epochs[-1]["isoscore"]

# %% [markdown]
# ### The same run twice
#
# Made again elsewhere, everything but times is equal. Made again in the same place, nothing is done at all.

# %%
assert tiny("second").same == record.same
assert tiny("first").started == record.started

# %% [markdown]
# ### Interrupted and resumed
#
# Whoever pulls the plug, here an exception in the middle of the second epoch: started again, the run goes on from its last
# checkpoint and ends with the same numbers to the last bit. (`tests/test_resume.py` does it with SIGKILL and with two processes.)

# %%
import istar_nb.training as training


# %%
class Unplugged(Exception): "The power went out."

def unplugged_after(n, f=training.update):
    "`update` that fails after `n` calls."
    calls = iter(range(n))
    def failing(session, group):
        if next(calls, None) is None: raise Unplugged
        return f(session, group)
    return failing

whole = training.update
training.update = unplugged_after(8)
error = error_of(training.train, config, work/"third", checkpoints=work/"third"/"checkpoints", checkpoint_every=3, progress=False)
training.update = whole
failed = find_record(work/"third", config.id)
assert isinstance(error, Unplugged) and failed.status == "failed" and "Unplugged" in failed.error
resumed = training.train(config, work/"third", checkpoints=work/"third"/"checkpoints", checkpoint_every=3, progress=False)
assert resumed.same == record.same
resumed.score == record.score

# %% [markdown]
# ### Two processes
#
# Each of them gets every other sentence of a batch. Task loss and penalty are those of the whole batch, so without dropout two processes give the losses of
# one, up to rounding. (A new interpreter can import `launch` from the library, not from this page.)

# %%
still = replace(config, model=str(work/"still"), lr=1e-4)
model, tokenizer = load_encoder("tiny-bert")
model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.
model.save_pretrained(work/"still")
tokenizer.save_pretrained(work/"still")
one, two = tiny("one", still), training.launch(still, 2, root=work/"two", checkpoints=work/"two"/"checkpoints", progress=False)
assert two.environment["processes"] == 2 and one.environment["processes"] == 1
for a, b in zip(one.epochs, two.epochs): assert abs(a["isoscore"] - b["isoscore"]) < 1e-5*a["isoscore"]
[(round(a["isoscore"], 4), round(b["isoscore"], 4)) for a, b in zip(one.epochs, two.epochs)]

# %% [markdown]
# ### Every method
#
# The same loop with each of the methods: how the final [CLS] states, the tokens and the mean cosine differ. Two epochs on a random model say nothing about
# any of them; that each moves its own target on a real one is shown in the experiments.

# %%
base = dict(model="tiny-bert", limit=320, epochs=2, lr=1e-3, batch_size=32)
kinds = [dict(), dict(method="istar", lam=1., zeta="auto"), dict(method="istar", lam=1., refresh="average"), dict(method="istar", lam=1., refresh_every=4),
         dict(method="istar", target=0.9), dict(method="istar", relative=0.5), dict(method="istar", lam=1., max_points=100), dict(method="istar-unbiased", lam=1.),
         dict(method="cosreg"), dict(method="cosreg", lam=-1.), dict(method="vicreg"), dict(method="uniformity"), dict(method="entropy", accumulate=2),
         dict(head="linear"), dict(method="isobn"), dict(method="isolayer", stage_epochs=20), dict(method="isolayer", stage_epochs=20, stage_loss="task"), dict(gradient_checkpointing=True), dict(hold_out=0.25)]
kinds = {", ".join(f"{k}={v}" for k, v in kind.items()) or "plain": tiny("kinds", RunConfig(**base | kind)) for kind in kinds}
table = pd.DataFrame({name: {m: r.epochs[-1][m] for m in ("isoscore", "mean_cosine", "cls_isoscore", "cls_anisotropy_centred")} for name, r in kinds.items()}).T
assert all(r.status == "done" for r in kinds.values())
assert table.isoscore[["method=istar, lam=1.0, zeta=auto", "method=istar, lam=1.0, refresh=average", "method=istar-unbiased, lam=1.0"]].min() > table.isoscore["plain"]
assert table.mean_cosine["method=cosreg"] < table.mean_cosine["plain"] < table.mean_cosine["method=cosreg, lam=-1.0"]
staged = table.cls_isoscore["method=isolayer, stage_epochs=20"]
assert staged > kinds["method=isolayer, stage_epochs=20"].epochs[-2]["cls_isoscore"] and staged > table.cls_isoscore["method=isolayer, stage_epochs=20, stage_loss=task"]
assert kinds["gradient_checkpointing=True"].epochs == kinds["plain"].epochs
table.round(3)

# %% [markdown]
# The entropy of a whole update is the same whether its 64 sentences come in one batch or, where memory is short, in two: `prepare` looks at all of them
# first. Dropout alone tells the two apart, because the random numbers come in another order.

# %%
session = Session(RunConfig(model=str(work/"still"), method="entropy", accumulate=2, limit=64), progress=False)
rows = list(range(64))
def penalty_gradient(group):
    "Gradient of an update's penalty alone."
    session.model.train()
    session.optimizer.zero_grad()
    prepare_penalty(session, group)
    for part in group: (losses(session, part)[1]/len(group)).backward()
    return torch.cat([p.grad.flatten() for p in session.model.parameters() if p.grad is not None])
torch.testing.assert_close(penalty_gradient([rows[:32], rows[32:]]), penalty_gradient([rows]), rtol=1e-3, atol=1e-5)

# %% [markdown]
# A tracker of accelerate gets the same log. TensorBoard's is used where it is installed.

# %%
import importlib.util

# %%
if importlib.util.find_spec("tensorboard"):
    tiny("tracked", replace(config, limit=320, epochs=1), tracker="tensorboard", log_folder=work/"logs")
    assert list((work/"logs").rglob("events*"))
error_of(make_accelerator, config, "magic")

# %% [markdown]
# ### Accumulation, precision, schedule
#
# Two micro-batches of 16 give the update of one batch of 32 when neither dropout nor the penalty tells them apart. Mixed
# precision runs the model in bfloat16 and the penalty in float32.

# %%
session = Session(replace(config, method="none", lam=0.), progress=False)
session.model.config.hidden_dropout_prob = 0
for module in session.model.modules():
    if isinstance(module, nn.Dropout): module.p = 0
rows = list(range(32))
def gradient(group):
    "The gradient of an update on a group of micro-batches."
    session.model.train()
    session.optimizer.zero_grad()
    for part in group: (losses(session, part)[0]/len(group)).backward()
    return torch.cat([p.grad.flatten() for p in session.model.parameters()])
torch.testing.assert_close(gradient([rows[:16], rows[16:]]), gradient([rows]), rtol=1e-4, atol=1e-6)

# %%
half = tiny("half", replace(config, precision="bf16", accumulate=2, schedule="constant", epochs=1))
assert half.status == "done" and abs(half.epochs[0]["isoscore"] - record.epochs[0]["isoscore"]) < 0.01
lrs = [s["lr"] for s in tiny("rates", replace(config, epochs=16, limit=64, method="none", lam=0.)).steps]
lrs

# %% [markdown]
# ### Every kind of task, every family
#
# Regression and spans go through the same loop. With the labelled data at hand (`ISTAR_DATA`) `tests/test_training.py` trains on STS-B and SQuAD; here, where nothing lies beside the
# notebook, invented rows do.

# %%
import gzip


# %%
def write(task, rows):
    "Rows in the layout of the data folder."
    for split in ("train", "validation"):
        path = work/"data"/task/f"{split}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as f: f.writelines(json.dumps(row) + "\n" for row in rows)

words = "one two three four five six seven eight nine ten red green blue old new small large".split()
def phrase(i, n=6): return " ".join(words[(i*7 + j*j) % len(words)] for j in range(n))
write("glue/stsb", [dict(sentence1=phrase(i), sentence2=phrase(i+3), label=i % 6*1., idx=i) for i in range(48)])
write("squad", [dict(id=str(i), title="", context=phrase(i, 30), question=phrase(i, 3) + "?",
                     answers=dict(text=[phrase(i, 30).split()[4]], answer_start=[len(" ".join(phrase(i, 30).split()[:4]))+1])) for i in range(48)])
rows = []
for task in ("stsb", "squad"):
    for family in ("bert", "albert", "distilbert", "roberta", "gpt2"):
        r = tiny("kinds", replace(config, task=task, model=f"tiny-{family}", epochs=1, limit=None, max_length=64), data_dir=work/"data")
        rows.append(dict(task=task, model=f"tiny-{family}", status=r.status, metric=r.metric, updates=2, isoscore=r.epochs[-1]["isoscore"]))
assert all(row["status"] == "done" for row in rows)
pd.DataFrame(rows).pivot(index="model", columns="task", values="isoscore").round(2)

# %% [markdown]
# ### What goes wrong, by name

# %%
for bad in [dict(task="colour"), dict(model="bert-nowhere"), dict(layers=(1, 7)), dict(batch_size=1)]:
    print(repr(error_of(tiny, "bad", replace(config, **bad)))[:200])

# %%
shutil.rmtree(work)
