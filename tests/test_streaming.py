"Streams of points over processes, through models, and in bounded memory."
import json
import os
import resource
import signal
import tracemalloc
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
import torch.distributed as dist
from datasets import Dataset, Features, Sequence, Value, load_dataset
from safetensors.torch import load_file, save_file
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close
from torchmetrics import MetricCollection
from torchmetrics.wrappers import Running

from istar_nb.base.covariance import covariance, participation_ratio
from istar_nb.text.encoders import hidden_states, load_encoder
from istar_nb.geometry.measures import (effective_rank, explained_variance, mean_activation, mean_cosine,
                                        outlier_dimensions, sv_anisotropy)
from istar_nb.report.audit import _summaries
from istar_nb.report.comparing import _difference, _measures
from istar_nb.report.isotropy import measure
from istar_nb.report.model_measures import Measurement, measure_embeddings, with_union
from istar_nb.text.features import text_batches
from istar_nb.app.measuring import TextOptions
from istar_nb.geometry.scores import isoscore, isoscore_with_error
from istar_nb.geometry.streaming import IsoScoreMetric, IsotropyMetrics
from istar_nb.geometry.unbiased import jackknife_error
from istar_nb.text.tasks import load_task
from istar_nb.geometry.watching import repeated_blocks, watch
from simulated import Accelerator
from processes import Process, on_two


def close(values, wanted, tolerance=1e-6, without=()):
    "Check dictionaries of measures against each other."
    assert set(values) >= set(wanted) - set(without)
    for name in set(wanted) - set(without):
        assert_close(values[name].double(), wanted[name].double(), rtol=tolerance, atol=tolerance,
                     msg=lambda m: f"{name}: {m}")


def in_memory(x, names=None):
    "The measures of points in memory, in float64; those of these names, or all."
    outliers, x = outlier_dimensions(x), x.double()
    measures = dict(isoscore=lambda: isoscore(x), participation_ratio=lambda: participation_ratio(covariance(x)),
                    effective_rank_raw=lambda: effective_rank(x),
                    effective_rank_centred=lambda: effective_rank(x, center=True),
                    ev_1=lambda: explained_variance(x, 1), ev_5=lambda: explained_variance(x, 5),
                    ev_20=lambda: explained_variance(x, 20),
                    sv_anisotropy_raw=lambda: sv_anisotropy(x, 1, center=False),
                    sv_anisotropy_centred=lambda: sv_anisotropy(x, 1), mean_cosine=lambda: mean_cosine(x),
                    outlier_share=lambda: outliers.share, mean_activation=lambda: mean_activation(x),
                    outlier_count=lambda: torch.tensor(outliers.count), count=lambda: torch.tensor(len(x)))
    return {name: measures[name]() for name in names or measures}


def sentences(count): return [row["sentence"] for row in load_task("stdlib-docs").train[:count]]


@pytest.fixture(scope="module")
def corpus():
    "States and masks of MiniLM on 160 real sentences, in batches of 16 whose lengths differ."
    model, tokenizer = load_encoder("minilm")
    lines, batches = sentences(160), []
    for i in range(0, 160, 16):
        batch = tokenizer(lines[i:i+16], padding=True, truncation=True, max_length=24, return_tensors="pt")
        with torch.no_grad(): batches.append((model(**batch).last_hidden_state, batch["attention_mask"]))
    return batches


def real_points(corpus): return torch.cat([states[mask.bool()] for states, mask in corpus])


def filled(metric, batches):
    for states, mask in batches: metric.update(states, mask)
    return metric


# Two processes

shares = (7, 10, 0)    # batches of the first process, of 10; the other has the rest, or nothing


def measure_shares(rank, corpus):
    "Values, errors and local counts for every share, before and after a second half."
    out = []
    for first in shares:
        mine = corpus[:first] if rank == 0 else corpus[first:]
        score, every = filled(IsoScoreMetric(), mine), filled(IsotropyMetrics(), mine)
        values, errors = every.compute(), every.errors()
        out.append(dict(values=values, errors=errors, score=score.compute(), local=every.count))
    return out


def test_two_processes_give_the_numbers_of_one(corpus, tmp_path):
    points = real_points(corpus)
    one, wanted = filled(IsotropyMetrics(), corpus).compute(), in_memory(points)
    close(one, wanted)
    for first, a, b in zip(shares, *on_two(measure_shares, corpus, folder=tmp_path)):
        mine = len(real_points(corpus[:first])) if first else 0
        # computing does not leave the others' points behind
        assert (a["local"], b["local"]) == (mine, len(points) - mine)
        for result in (a, b):
            close(result["values"], one, without=set(one) - set(wanted))
            for name in ("isoscore_unbiased", "isoscore_unbiased_se"):
                assert_close(result["values"][name], one[name], rtol=1e-4, atol=0)
            assert_close(result["score"], one["isoscore"], rtol=1e-6, atol=0)
            assert all(e.isfinite() for name, e in result["errors"].items() if "corrected" not in name)
        close({k: v for k, v in a["values"].items() if "corrected" not in k}, b["values"], 0,
              without={k for k in b["values"] if "corrected" in k})


def disagree(rank):
    "Errors and the state after them, when dimensions differ, or nobody has a point."
    messages = []
    for metric, d in [(IsotropyMetrics(), 5 + rank), (IsotropyMetrics(), 0)]:
        if d: metric.update(torch.randn(6, d, generator=torch.Generator().manual_seed(rank)))
        try: metric.compute()
        except ValueError as e: messages.append((str(e), metric.count))
        metric.update(torch.randn(3, d or 4))    # still usable
        assert metric.count == (9 if d else 3)
    return messages


def test_processes_that_disagree_get_the_same_error(tmp_path):
    a, b = on_two(disagree, folder=tmp_path)
    assert a == b and [count for _, count in a] == [6, 0]
    for (message, _), text in zip(a, ("between 5 and 6 dimensions", "0 were seen")):
        assert text in message


def tokenized():
    tokenizer = load_encoder("tiny-bert").tokenizer
    return tokenizer(sentences(24), padding="max_length", truncation=True, max_length=20, return_tensors="pt")


def watched_training(rank, weights, ours):
    "Blocks watched over two checkpointed steps on two processes, the second of which has 8 or 16 of 24 sentences."
    model = load_encoder("tiny-bert").model
    model.load_state_dict(weights)
    for p in model.pooler.parameters(): p.requires_grad_(False)
    model.train().gradient_checkpointing_enable()
    model.config.use_cache = False
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout): module.p = 0.
        if hasattr(module, "dropout_prob"): module.dropout_prob = 0.    # the attention of transformers before 5
    batch = {k: v[ours[rank]] for k, v in tokenized().items()}
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    with watch(wrapped) as seen:
        for _ in range(2): wrapped(**batch).last_hidden_state.square().mean().backward()
    return seen.compute()


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable.*:FutureWarning")
def test_watch_in_data_parallel_training(tmp_path):
    torch.manual_seed(0)
    weights = load_encoder("tiny-bert").model.state_dict()
    one = watched_training(0, weights, [slice(None)])
    a, b = on_two(watched_training, weights, [slice(0, 16), slice(16, None)], folder=tmp_path)
    tokens = tokenized()["attention_mask"].sum().item()
    for name in one:
        assert one[name]["count"] == 2*tokens
        for values in (a, b):
            # Float32 states of other batches; a layer norm leaves one direction only rounding, which ranks see.
            close(values[name], one[name], 1e-4,
                  without={k for k in one[name] if k.startswith("isoscore_unbiased") or k.endswith("_corrected")})


# One process

def test_few_sentences_give_the_unbiased_score_of_the_earlier_page(corpus):
    states, mask = (torch.cat([s[:, :10] for s, _ in corpus[:4]])[:60],
                    torch.cat([m[:, :10] for _, m in corpus[:4]])[:60])
    metric = IsotropyMetrics()
    metric.update(states, mask)
    values, ids = metric.compute(), torch.arange(60)[:, None].expand(-1, 10)[mask.bool()]
    wanted = isoscore_with_error(states[mask.bool()], ids)
    assert_close(values["isoscore_unbiased"], wanted.score, rtol=1e-5, atol=0)
    assert_close(values["isoscore_unbiased_se"], wanted.standard_error, rtol=1e-4, atol=0)


@pytest.mark.parametrize("batch", (7, 64, 1000))
def test_texts_sorted_by_class_have_the_errors_of_mixed_ones(batch):
    "Sentences of eight classes, each about a centre of its own, sorted or mixed, in small or large batches."
    rng = torch.Generator().manual_seed(0)
    centres = 3*torch.randn(8, 1, 1, 16, generator=rng)
    sentences = (centres + torch.randn(8, 100, 5, 16, generator=rng)).flatten(0, 1)
    errors = [filled(IsotropyMetrics(), [(part, None) for part in order.split(batch)]).errors()
              for order in (sentences, sentences[torch.randperm(800, generator=rng)])]
    for name in ("isoscore", "isoscore_unbiased", "ev_1", "effective_rank_centred"):
        assert 0.4 < errors[0][name]/errors[1][name] < 2.5, name


@pytest.mark.parametrize("n, cut", ((5000, 1), (9000, 333), (9000, 5000)))
def test_halves_and_sample_do_not_depend_on_how_points_are_cut(n, cut):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    parts = filled(IsotropyMetrics(), [(part, None) for part in (*x[:500].split(cut), *x[500:].split(max(cut, 333)))])
    whole = filled(IsotropyMetrics(), [(x, None)])
    parts, whole = parts.halves, whole.halves
    assert torch.equal(parts.by_half()[:, 0, 0], whole.by_half()[:, 0, 0])
    assert_close(parts.by_half(), whole.by_half(), rtol=1e-5, atol=1e-2)
    assert torch.equal(parts.points[parts.keys.argsort()], whole.points[whole.keys.argsort()])


def test_numbered_sentences_give_the_same_in_any_order_and_over_any_parts():
    "Of states and of single rows; the sums differ by rounding alone."
    states = torch.randn(900, 7, 5, generator=torch.Generator().manual_seed(0))
    numbers = torch.arange(900)
    whole = IsotropyMetrics()
    whole.update(states, None, numbers)
    order = torch.randperm(900, generator=torch.Generator().manual_seed(1))
    shuffled, parts = IsotropyMetrics(), [IsotropyMetrics() for _ in range(7)]
    for rows in order.split(100): shuffled.update(states[rows].flatten(0, 1), None, numbers[rows].repeat_interleave(7))
    for metric, rows in zip(parts, order.tensor_split(7)): metric.update(states[rows], None, rows)
    for metric in parts[1:]: parts[0].merge_state(metric)
    for metric in (shuffled, parts[0]):
        close(metric.compute(), whole.compute())
        close(metric.errors(), whole.errors(), 1e-6)


@pytest.mark.parametrize("n, d", ((24, 40), (38, 40), (39, 40), (300, 40), (6000, 40)))
def test_values_are_those_of_points_in_memory_and_errors_nearly_those_of_the_jackknife(n, d):
    "In either basis, and of sums; errors against every twentieth of the points deleted, in float64."
    rng = torch.Generator().manual_seed(n)
    x = torch.randn(n, d, generator=rng)*torch.linspace(2, 0.3, d) + 1
    metric = filled(IsotropyMetrics(), [(part, None) for part in x.split(1100)])
    close(metric.compute(), in_memory(x), 2e-6)
    if n < 2*d: return
    of, found = torch.arange(n) % 100, metric.errors()
    names = "isoscore", "effective_rank_centred", "effective_rank_raw", "ev_5", "mean_cosine"
    kept = [in_memory(x[of != g], names) for g in range(100)]
    for name in names:
        wanted = jackknife_error(torch.stack([k[name].double() for k in kept]))
        assert 0.75 < found[name]/wanted < 1.3, (name, found[name], wanted)


def test_rows_of_a_few_long_sentences_are_not_all_kept():
    "Ten of 20,000 rows: three are in the sample, which are too few for an error; the values are there."
    metric, rows = IsotropyMetrics(), torch.randn(200_000, 3, generator=torch.Generator().manual_seed(0))
    for part in torch.arange(200_000).split(30_000): metric.update(rows[part], None, part//20_000)
    assert len(metric.points) == 60_000 and metric.count == 200_000
    assert metric.compute()["isoscore"] > 0.99 and metric.errors()["isoscore"].isnan()


def measure_wide(n, d):
    "Measure n points of d dimensions and print by how many MB that raises the peak of this process's memory."
    measure_embeddings(torch.randn(20, 10))
    before, points = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, torch.randn(n, d)
    found = measure_embeddings(points)["points"]
    assert abs(found["isoscore_unbiased"] - 1) < 5*found["isoscore_unbiased_se"]
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)/1024)


def test_few_points_of_many_dimensions_take_the_memory_of_the_points():
    "The sums of two halves would be 6.4 GB; the points are 4.8 MB."
    assert float(Process(measure_wide, 60, 20_000).wait()) < 400


def test_metrics_of_causal_models_take_the_last_token_and_do_not_merge_with_others():
    x, mask = torch.randn(9, 4, 3, generator=torch.Generator().manual_seed(0)), torch.ones(9, 4)
    mask[:5, 2:] = 0
    first, last = IsotropyMetrics(tokens="cls"), IsotropyMetrics(tokens="cls", causal=True)
    for metric in (first, last): metric.update(x, mask)
    assert_close(first.compute()["mean_activation"], x[:, 0].mean(0))
    assert_close(last.compute()["mean_activation"], torch.cat([x[:5, 1], x[5:, 3]]).mean(0))
    with pytest.raises(ValueError, match=r"\('cls', True\), and this metric \('cls', False\)"): first.merge_state(last)


def test_stopped_and_loaded_it_ends_where_it_would_have(corpus, tmp_path):
    unbroken, first = IsotropyMetrics(), IsotropyMetrics()
    filled(first, corpus[:6])
    torch.save(first.state_dict(), tmp_path/"state.pt")
    saved = torch.load(tmp_path/"state.pt", weights_only=True)
    loaded = [IsotropyMetrics(), IsotropyMetrics()]
    for metric in loaded: metric.load_state_dict(dict(saved))
    for metric in (first, *loaded): filled(metric, corpus[6:])
    filled(unbroken, corpus)
    for metric in (first, *loaded):
        assert torch.equal(metric.points, unbroken.points)    # also: two loaded from one dict share nothing


@pytest.mark.parametrize("offset", (0., 1e3, 1e6))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64))
def test_a_huge_mean_loses_nothing_of_what_came(offset, dtype):
    if dtype == torch.bfloat16 and offset: offset = 16.    # beyond that nothing of the spread is left in the input
    rng = torch.Generator().manual_seed(0)
    given = (torch.randn(3000, 20, generator=rng, dtype=torch.float64)*torch.linspace(2, 0.5, 20) + offset).to(dtype)
    metric = IsotropyMetrics()
    for part in given.split(170): metric.update(part)
    close(metric.compute(), in_memory(given), 3e-7 if offset < 1e6 else 1e-6)


def seeing(x):
    "Metrics that have seen points."
    metric = IsotropyMetrics()
    metric.update(x)
    return metric


@pytest.mark.parametrize("exponent", (-30, -23, -16, 16, 19, 24))
def test_units_change_no_score_whatever_their_size(exponent):
    "Of float32 points; squares of such numbers need a wider range."
    x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))*torch.linspace(1, 0.3, 8) + 0.2
    unit = torch.tensor(10., dtype=torch.float64)**exponent
    seen, wanted = (seeing(cloud).compute() for cloud in ((x.double()*unit).float(), x))
    for name in ("isoscore", "isoscore_unbiased", "isoscore_unbiased_se", "participation_ratio", "mean_cosine", "ev_1"):
        assert_close(seen[name], wanted[name], rtol=1e-4, atol=1e-6)


def test_points_out_of_every_range_are_an_error_and_hide_no_other_layer():
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(ValueError, match="so large"): seeing(x*1e200).compute()


@pytest.mark.parametrize("n, d", [(50, 8), (8, 50), (9000, 8)])
def test_points_that_differ_by_rounding_alone_have_no_score(n, d):
    x = (100*torch.linspace(0.5, 2, d)).repeat(n, 1)
    generator = torch.Generator().manual_seed(0)
    x.view(torch.int32).add_(torch.randint(-1, 2, (n, d), dtype=torch.int32, generator=generator))
    metric = IsoScoreMetric()
    metric.update(x)
    with pytest.raises(ValueError, match="zero variance"): metric.compute()


@pytest.mark.parametrize("n", [10, 18, 19, 70])
def test_explained_variance_is_given_for_as_many_directions_however_few_points_there_are(n):
    x, metric = torch.randn(n, 64, generator=torch.Generator().manual_seed(0)), IsotropyMetrics(ks=(1, 20, 65))
    metric.update(x)
    found = metric.compute()
    assert "ev_65" not in found
    assert_close(found["ev_20"], explained_variance(x, 20) if n > 20 else torch.tensor(1.))


def test_a_metric_may_stand_in_a_compiled_step():
    torch._dynamo.reset()
    x, plain, compiled = torch.randn(40, 16), IsoScoreMetric(), IsoScoreMetric()
    def step(metric, x): metric.update(2*x)
    step(plain, x)
    torch.compile(step, backend="eager")(compiled, x)
    assert compiled.count == 40 and compiled.compute() == plain.compute()
    torch._dynamo.reset()


def test_one_point_that_differs_is_measured():
    x = torch.ones(40, 8)
    x[-1] = torch.arange(8.)
    metric = seeing(x)
    assert metric.compute()["mean_cosine"] < 1 and metric.errors()["mean_cosine"] > 0


def measure_many(n):
    "Measure n points and print the peak of this process's memory in MB."
    metric, points = IsotropyMetrics(), torch.randn(1000, 256)
    for i in range(n//1000): metric.update(points + i)
    metric.compute()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024)


def peak(n): return float(Process(measure_many, n).wait())


def test_memory_does_not_grow_with_points():
    "80,000 points are 78 MB; the difference to 5,000 is a small part of that."
    assert peak(80_000) - peak(5000) < 20


def peak_of_file(path, n):
    "Peak of Python's memory while a file of n lines of 3 kB goes through the tokenizer as in `istar measure`, in MB."
    with path.open("w") as file: file.writelines(f"{i} {'and so on '*300}\n" for i in range(n))
    tokenizer, (lines, _) = load_encoder("tiny-bert").tokenizer, TextOptions(str(path)).read()
    tracemalloc.start()
    assert sum(len(batch["input_ids"]) for batch in text_batches(lines, tokenizer, max_length=4, pool=250)) == n
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak/2**20


def test_memory_does_not_grow_with_a_file(tmp_path):
    "Four times the lines, 4.5 MB more of them; what is kept at a time is a pool of 250, cut to what four tokens need."
    assert peak_of_file(tmp_path/"lines.txt", 2000) < 1.5*peak_of_file(tmp_path/"lines.txt", 500) < 3


@pytest.mark.parametrize("family", ("bert", "distilbert", "roberta", "gpt2"))
@pytest.mark.parametrize("reentrant", (True, False))
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable.*:FutureWarning")
def test_checkpointed_activations_count_once(family, reentrant):
    "Blocks, and modules inside them, which certainly run a second time in backward."
    model, tokenizer = load_encoder(f"tiny-{family}")
    batch = tokenizer(sentences(10), padding=True, return_tensors="pt")
    model.train().gradient_checkpointing_enable(dict(use_reentrant=reentrant))
    model.config.use_cache, blocks, forwards = False, repeated_blocks(model), []
    inner = [next(f"{block}.{name}" for name, m in model.get_submodule(block).named_modules()
                  if isinstance(m, (torch.nn.Linear, torch.nn.LayerNorm))) for block in blocks]
    for name in inner: model.get_submodule(name).register_forward_hook(lambda *_: forwards.append(1))
    with watch(model, [*blocks, *inner]) as seen: model(**batch).last_hidden_state.square().sum().backward()
    assert ({name: int(v["count"]) for name, v in seen.compute().items()}
            == dict.fromkeys([*blocks, *inner], batch["attention_mask"].sum().item()))
    assert len(forwards) == 2*len(inner)


def hooks(model): return [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]


@pytest.mark.parametrize("where", ("user", "model", "mask", "layers"))
def test_hooks_are_removed_after_an_exception(where):
    model, tokenizer = load_encoder("tiny-bert")
    batch = tokenizer(sentences(4), padding=True, return_tensors="pt")
    model(**batch)
    before = hooks(model)
    def broken(*_): raise RuntimeError("broken")
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        with watch(model, "nothing like this" if where == "layers" else None,
                   broken if where == "mask" else None) as seen:
            assert hooks(model) != before
            if where == "model": model(**batch, position_ids=torch.full((1, 1), 10**6))
            model(**batch)
            if where == "user": broken()
    assert hooks(model) == before
    if where != "layers": assert not any(seen.calls.running.values())    # nothing of the failed call is kept alive


def test_watching_changes_nothing():
    "Losses and gradients are bit-equal with and without."
    model, tokenizer = load_encoder("tiny-gpt2")
    batch = tokenizer(sentences(8), padding=True, return_tensors="pt")
    def step():
        model.zero_grad()
        loss = model(**batch).last_hidden_state.square().mean()
        loss.backward()
        return loss, [p.grad.clone() for p in model.parameters()]
    plain = step()
    with watch(model, ["h.*"]): watched = step()
    assert torch.equal(plain[0], watched[0]) and all(map(torch.equal, plain[1], watched[1]))


# Collections

different = dict(real=IsoScoreMetric, cls=partial(IsoScoreMetric, tokens="cls"),
                 all=partial(IsoScoreMetric, tokens="all"),
                 star=partial(IsoScoreMetric, cov_ref=torch.eye(12)/12, zeta=0.4), sized=partial(IsoScoreMetric, 12),
                 many=IsotropyMetrics, few=partial(IsotropyMetrics, ks=(2,)),
                 first=partial(IsotropyMetrics, tokens="cls"),
                 variance=partial(IsotropyMetrics, by="variance", n_sigma=1.))


@pytest.mark.parametrize("first", ("padded", "unpadded", "one token", "empty"))
def test_a_collection_gives_what_its_metrics_give_alone(first):
    "Whatever its first batch could not tell apart; also through `forward`, after `reset`, and in the middle."
    rng = torch.Generator().manual_seed(0)
    batches = [(torch.randn(6, T, 12, generator=rng) + 1,
                torch.arange(T) < torch.randint(1, T+1, (6, 1), generator=rng)) for T in (5, 7, 9)]
    x, mask = batches[0]
    batches[0] = dict(padded=(x, mask), unpadded=(x, mask | True),
                      empty=(x[:0], mask[:0])).get(first, (x[:, :1], mask[:, :1]))
    together, alone = (MetricCollection({name: make() for name, make in different.items()}),
                       {name: make() for name, make in different.items()})
    for passes in range(2):
        for batch in batches: together.update(*batch)
        for metric in alone.values(): filled(metric, batches)
        values = together.compute()
        for name, metric in alone.items():
            value = metric.compute()
            for key, wanted in (value.items() if isinstance(value, dict) else [(name, value)]):
                found = values.get(key, values.get(f"{name}_{key}"))
                assert_close(found, wanted, equal_nan=True, msg=lambda m: f"{name}, {key}: {m}")
        groups = {frozenset(group) for group in together.compute_groups.values()}
        assert not any({"real", "cls"} <= group or {"real", "all"} <= group or {"many", "first"} <= group
                       for group in groups)
        together.reset()
        for metric in alone.values(): metric.reset()


@pytest.mark.parametrize("kind", [IsoScoreMetric, IsotropyMetrics])
@pytest.mark.parametrize("through", ["update", "forward"])
def test_a_running_window_has_the_points_of_its_last_batches(kind, through):
    "Also before the window is full, where torchmetrics merges states that have seen nothing."
    batches = torch.randn(5, 40, 6, generator=torch.Generator().manual_seed(0)).unbind()
    running = Running(kind(), window=3)
    for i, batch in enumerate(batches):
        getattr(running, through)(batch)
        found, wanted = running.compute(), filled(kind(), [(x, None) for x in batches[max(0, i-2):i+1]]).compute()
        if kind is IsotropyMetrics: found, wanted = found["isoscore"], wanted["isoscore"]
        assert_close(found, wanted)


def test_a_reference_of_other_dimensions_is_refused_before_any_point():
    with pytest.raises(ValueError, match=r"`cov_ref` must be \(4, 4\)"):
        IsoScoreMetric(d=4, cov_ref=torch.eye(6), zeta=0.5)


def test_metrics_of_other_tokens_do_not_merge():
    real, cls = IsoScoreMetric(), IsoScoreMetric(tokens="cls")
    with pytest.raises(ValueError, match=r"\('cls', False\), and this metric \('real', False\)"): real.merge_state(cls)
    held = {"origin", "sums", "lines", "points", "keys", "places", "numbered"}
    assert set(real.state_dict()) == held == set(cls.state_dict())


# Host waits

def test_an_update_waits_for_the_accelerator_twice():
    "Of any kind of points, and of zero vectors; in `watch` for every layer. One wait more for a mask of floats."
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(16, 9, 24, generator=rng)
    x[3, 4] = 0
    mask = torch.arange(9) < torch.randint(1, 10, (16, 1), generator=rng)
    for make in (IsoScoreMetric, IsotropyMetrics, partial(IsotropyMetrics, tokens="cls")):
        plain = filled(make(), [(x, mask)]*3)
        with Accelerator() as sim:
            metric = make().to(sim.device)
            for most in (2, 2, 2):
                sim.waits.clear()
                metric.update(x.to(sim.device), mask.to(sim.device))
                assert sim.waits.total() <= most, sim.waits
            cov = metric.covariance().cpu()
        assert_close(cov, plain.covariance())


def test_watching_waits_twice_a_layer():
    model, tokenizer = load_encoder("tiny-bert")
    batch = tokenizer(sentences(8), padding=True, return_tensors="pt")
    with watch(model) as plain, torch.no_grad(): model(**batch)
    with Accelerator() as sim, torch.no_grad():
        model, batch = model.to(sim.device), {k: v.to(sim.device) for k, v in batch.items()}
        sim.waits.clear()
        model(**batch)
        own = sim.waits.total()
        with watch(model) as seen:
            sim.waits.clear()
            model(**batch)
            assert sim.waits.total() - own <= 2*len(seen.metrics), sim.waits
        for name, metric in seen.metrics.items():
            assert_close(metric.covariance().cpu(), plain.metrics[name].covariance(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [IsoScoreMetric, IsotropyMetrics])
def test_a_state_that_is_loaded_replaces_a_score_that_was_computed(kind):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 8, generator=generator)*torch.linspace(0.2, 2, 8)
    few, all_of_them = kind(), kind()
    few.update(x[:20])
    all_of_them.update(x)
    before = all_of_them.compute()
    all_of_them.load_state_dict(few.state_dict())
    after, wanted = all_of_them.compute(), few.compute()
    if kind is IsotropyMetrics: before, after, wanted = (found["isoscore"] for found in (before, after, wanted))
    assert after == wanted != before


# The same digits from several processes -------------------------------------------------------------------------------

def rows_of_file(folder, n=30_000, d=12):
    "A matrix in a file, far from the origin."
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(1))*torch.linspace(2, 0.3, d) + 3
    np.save(folder/"x.npy", x.numpy())
    return x, folder/"x.npy"


def test_vectors_of_any_number_of_processes_have_the_same_digits(tmp_path, single_thread):
    "Of a matrix, of its file, and with ids of texts that end within a part; some processes have nothing to do."
    x, file = rows_of_file(tmp_path)
    ids = np.arange(len(x))//70
    for points, options in ((x, {}), (x, dict(sentences=ids)), (x[:5000], {}), (x.double() + 1e6, {})):
        alone = measure(points, **options).measures
        for processes in (1, 2, 7): assert measure(points, processes=processes, **options).measures == alone, processes
    assert measure(file, processes=3).measures["x.npy"] == measure(x).measures["points"]


@pytest.mark.parametrize("tokens", ["real", "mean"])
def test_texts_of_any_number_of_processes_have_the_same_digits(tokens, single_thread):
    "Of every layer and their union, whichever process had which batch; IsoScore* as well."
    encoder, texts = tuple(load_encoder("tiny-bert")), sentences(250)
    options = dict(tokens=tokens, batch_tokens=450, zeta=0.2, reference=texts[:100])
    alone = measure(encoder, texts, **options).measures
    for processes in (1, 2, 7):
        assert measure(encoder, iter(texts), processes=processes, **options).measures == alone


class Deadly(Measurement):
    "A measurement that kills its process at row 16,384."
    def update(self, x, mask=None, sentences=None, unit=None):
        if unit == 16_384: os.kill(os.getpid(), signal.SIGKILL)
        super().update(x, mask, sentences, unit)


def test_a_process_that_is_killed_is_named_with_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("istar_nb.report.model_measures.Measurement", Deadly)
    with pytest.raises(ChildProcessError, match="of 2 has ended with status -9 while at rows 16,384 to 24,575"):
        measure(rows_of_file(tmp_path)[1], processes=2)


def test_an_error_of_one_process_is_that_of_one_alone(tmp_path):
    "With the row that is not finite, and with ids that end too early."
    x, file = rows_of_file(tmp_path)
    x[20_000, 3] = torch.nan
    for points, options in ((x, {}), (file, dict(sentences=[0]*29_000))):
        messages = []
        for processes in (None, 3):
            with pytest.raises(ValueError) as error: measure(points, processes=processes, **options)
            messages.append(str(error.value))
        assert messages[0] == messages[1] and ("row 20000" in messages[0] or "29,000" in messages[0])


def test_measures_do_not_wait_for_processes_of_a_launcher_that_have_another_number(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="`processes` is for one process"): measure(torch.randn(50, 4), processes=2)


def test_shards_in_another_order_a_stream_and_a_store_have_the_same_digits(tmp_path, single_thread):
    "Parquet files whose rows are numbered, an iterator, a streaming dataset, and a URL."
    (x, _), bounds = rows_of_file(tmp_path), [0, 5000, 11_000, 11_001, 20_000, 30_000]
    for name, order in (("ordered", range(5)), ("mixed", [3, 0, 4, 2, 1])):
        (tmp_path/name).mkdir()
        for i, shard in enumerate(order):
            rows = range(bounds[shard], bounds[shard + 1])
            table = pa.table(dict(number=rows, vector=list(x[rows.start:rows.stop].numpy())))
            parquet.write_table(table, tmp_path/name/f"{i}.parquet")
    fsspec.filesystem("memory").put(str(tmp_path/"ordered"), "/shards", recursive=True)
    files = dict(data_files=f"{tmp_path}/mixed/*.parquet", split="train", cache_dir=str(tmp_path/"cache"))
    stream, table = (load_dataset("parquet", streaming=streaming, **files) for streaming in (True, False))
    alone, numbered = measure(x).measures["points"], dict(column="vector", ids="number")
    for points, options in ((tmp_path/"ordered", {}), (tmp_path/"mixed", numbered), (stream, numbered),
                            (table, numbered), (tmp_path/"mixed", dict(numbered, processes=2)),
                            (iter(x.split(777)), {}), ("memory://shards/*.parquet", {})):
        assert [*measure(points, **options).measures.values()] == [alone], points
    far = (x[:500].double() + 1e7)    # which float32 cannot tell apart
    lists = Dataset.from_dict(dict(vector=far.tolist()), features=Features(dict(vector=Sequence(Value("float64")))))
    assert measure(lists, column="vector").measures["points"] == measure(far).measures["points"]
    with pytest.raises(ValueError, match="memory://nothing.npy is not there"): measure("memory://nothing.npy")


def test_a_shard_may_have_one_row_or_none(tmp_path):
    x = torch.randn(60, 7, generator=torch.Generator().manual_seed(0))
    for name, rows in dict(a=x[:59], b=x[59:], c=x[:0]).items(): np.save(tmp_path/f"{name}.npy", rows.numpy())
    found = measure(tmp_path).measures[tmp_path.name]["points"]
    assert found["count"] == 60 and found["isoscore"] == pytest.approx(isoscore(x).item(), rel=1e-6)
    with pytest.raises(ValueError, match="b.npy` has one point alone"): measure(tmp_path/"b.npy")
    with pytest.raises(ValueError, match="c.npy` has no points"): measure(tmp_path/"c.npy")


def test_weights_of_another_dtype_give_nearly_the_same_and_are_for_models_by_name():
    "States of bfloat16 are summed in float32."
    found = {}
    for dtype in ("float32", "bfloat16"):
        torch.manual_seed(0)
        found[dtype] = measure("tiny-bert", sentences(60), dtype=dtype).measures["tiny-bert"]["2"]
    assert found["bfloat16"]["isoscore"] == pytest.approx(found["float32"]["isoscore"], rel=0.02)
    assert found["bfloat16"]["isoscore"] != found["float32"]["isoscore"]
    with pytest.raises(ValueError, match="`dtype` must be"): measure("tiny-bert", sentences(9), dtype="float8")
    with pytest.raises(ValueError, match="`dtype` is for a model by name"):
        measure(tuple(load_encoder("tiny-bert")), sentences(9), dtype="bfloat16")
    with pytest.raises(ValueError, match="`dtype` is for a model, and"): measure(torch.randn(9, 4), dtype="bfloat16")


@pytest.fixture
def single_thread():
    "This process computes with one thread, as those that share its work do."
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_layer_keeps_two_matrices_and_a_union_of_few_points_leaves_layers_without():
    "High and low digits of both halves, in float64; layers whose points are all in the sample have none."
    d = 64
    one = measured(12_000, d)
    assert one.halves.sums.nbytes <= 2*(d + 4)*(d + 1)*8
    layers = [measured(3000, d) for _ in range(3)]
    assert all(m.halves.whole for m in layers) and not with_union(dict(enumerate(layers, 1)))["pooled"].halves.whole
    assert all(m.halves.whole for m in layers)


def measured(rows, d):
    "A measurement of random points."
    m = Measurement()
    m.update(torch.randn(rows, d, generator=torch.Generator().manual_seed(0)))
    return m


def test_points_wider_than_memory_are_folded_and_the_report_says_so(single_thread, capsys):
    "Equal digits for any number of processes; scores within their errors, linear measures exact, no spectrum."
    x, memory = torch.randn(4300, 1100, generator=torch.Generator().manual_seed(0)), 0.017
    x = x*torch.linspace(2, 0.3, 1100) + 0.2
    x[:, 7] = x[:, 7]*20 + 50
    narrow = measure(x, memory=memory)
    assert narrow.measures == measure(x, memory=memory, processes=3).measures
    plain, found, far = (m.measures["points"]["points"]
                         for m in (measure(x), narrow, measure(x.double() + 1e6, memory=memory)))
    for name in ("isoscore", "isoscore_unbiased"):
        assert abs(found[name] - plain[name]) < 3*found[f"{name}_se"] < 0.2*plain[name]
        assert far[name] == pytest.approx(found[name], rel=1e-4)
    for name in ("mean_cosine", "outlier_share", "outliers", "count", "two_nn"):
        assert found[name] == pytest.approx(plain[name], rel=1e-5)
    assert found["effective_rank_centred"] is None and found["folded"] == 1024 and "folded" not in plain
    narrow.show()
    assert "folded onto 1,024" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ValueError, match="covariance of 1,100 dimensions needs sums of 0.019 GB"):
        measure(x, zeta=0.2, reference=x, memory=memory)


def test_few_wide_points_are_measured_as_they_are():
    x = torch.randn(300, 1500, generator=torch.Generator().manual_seed(0))
    assert measure(x, memory=0.017).measures == measure(x).measures


@pytest.mark.filterwarnings("ignore::DeprecationWarning")    # of Dask itself, about pandas
def test_the_recipe_for_dask_is_run_where_dask_is_installed(tmp_path):
    "As it is printed, on partitions in another order than their rows; one of them is in two units."
    frame = pytest.importorskip("dask.dataframe")
    page = json.loads((Path(__file__).parents[1]/"nbs/howto/9_any_size.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in page["cells"] if cell["cell_type"] == "markdown"]
    recipe, = [code.split("```")[0] for cell in cells for code in cell.split("```python")[1:] if "import dask" in code]
    x = torch.randn(20_000, 6, generator=torch.Generator().manual_seed(0))
    for name, rows in zip("cab", torch.arange(20_000).split([5000, 6000, 9000])):
        table = pa.table(dict(number=rows.numpy(), vector=list(x[rows].numpy())))
        parquet.write_table(table, tmp_path/f"{name}.parquet")
    names = dict(frames=frame.read_parquet(str(tmp_path)))
    exec(recipe.replace("reduce(Rows.join", "found = reduce(Rows.join"), names)
    assert names["found"] == measure(x).measures["points"]["points"]


def folded_points(memory=0.018, count=4200):
    "Points of 1,100 dimensions, whose sums need 0.019 GB, and 0.017 GB where they are folded onto 1,024."
    measured = Measurement(memory=memory)
    rows = torch.randn(count, 1100, generator=torch.Generator().manual_seed(0))
    measured.update(rows)
    return measured


def test_parts_that_are_folded_differently_are_not_joined():
    with pytest.raises(ValueError, match="folded onto 1,100 coordinates here and 1,024 there"):
        folded_points(1.).halves.join(folded_points().halves)
    with pytest.raises(ValueError, match="1,100 dimensions, folded onto 1,024, need sums of 0.017 GB"):
        folded_points(0.001)


def test_an_audit_of_folded_layers_keeps_what_is_known():
    found = _summaries({part: {1: folded_points()} for part in ("text", "padding", "text and padding")})
    assert found["text"]["1"]["folded"] == 1024 and found["text and padding"]["1"]["isoscore"] > 0
    assert not [name for name in found["text and padding"]["1"] if name.startswith("between")]


def test_a_difference_of_folded_scores_has_the_errors_of_folding():
    first, second = (_measures(folded_points(count=n)) for n in (4200, 5000))
    found = _difference(first, second)
    for name in ("isoscore", "isoscore_unbiased"):
        assert found[f"{name}_se"] == pytest.approx(np.hypot(first.summary[f"{name}_se"], second.summary[f"{name}_se"]))


def test_states_that_another_engine_has_saved_are_measured_like_those_of_a_model(tmp_path):
    "As the page on any size says: a file a text, with all layers."
    torch.manual_seed(0)
    encoder = load_encoder("tiny-bert")
    texts = [f"a {word} word, number {i}" + " and more"*(i % 4) for i, word in enumerate(["good", "fine", "weak"]*10)]
    for i, text in enumerate(texts):
        with torch.no_grad():
            states = hidden_states(encoder.model, dict(encoder.tokenizer([text], return_tensors="pt")))
        save_file(dict(hidden_states=torch.stack([x[0] for x in states.layers], 1)), tmp_path/f"{i:02}.safetensors")
    files = sorted(tmp_path.iterdir())
    lengths = [len(load_file(file)["hidden_states"]) for file in files]
    sentences = torch.arange(len(files)).repeat_interleave(torch.tensor(lengths)).tolist()
    wanted, = measure(tuple(encoder), texts).measures.values()
    for layer in range(3):
        read = (load_file(file)["hidden_states"][:, layer] for file in files)
        found = measure(read, sentences=sentences).measures["points"]["points"]
        for name in ("count", "isoscore", "isoscore_unbiased", "isoscore_unbiased_se", "mean_cosine"):
            assert found[name] == pytest.approx(wanted[str(layer)][name], rel=1e-5), name


def fold_shares(rank, x):
    "Values and an error of points wider than allowed: one process has few of them, the other folds, about other means."
    metric = IsotropyMetrics(memory=0.017)
    for part in x.split([1000, 4500])[rank].split(700): metric.update(part)
    assert metric.halves.folded == (rank == 1)
    values, errors = metric.compute(), metric.errors()
    return {name: value for name, value in values.items() if value.isfinite().all()}, errors["isoscore_unbiased"]


def test_two_processes_fold_to_the_numbers_of_one(tmp_path):
    x = torch.randn(5500, 1100, generator=torch.Generator().manual_seed(0))*torch.linspace(2, 0.3, 1100) + 0.2
    x[1000:] += 0.5
    one = filled(IsotropyMetrics(memory=0.017), [(part, None) for part in x.split(1000)])
    wanted, error = one.compute(), one.errors()["isoscore_unbiased"]
    exact = in_memory(x, ("isoscore", "mean_activation", "outlier_count", "count"))
    assert one.halves.folded
    for values, found in on_two(fold_shares, x, folder=tmp_path):
        assert {"isoscore", "isoscore_unbiased", "mean_activation", "outlier_count"} <= set(values)
        # which half and which sample a point is in depends on the process that has seen it
        close(values, {name: wanted[name] for name in values if "unbiased" not in name}, 1e-5)
        assert abs(values["isoscore_unbiased"] - wanted["isoscore_unbiased"]) < 4*error and 0.5 < found/error < 2
        close(values, {name: exact[name] for name in ("mean_activation", "outlier_count", "count")}, 1e-5)
        assert abs(values["isoscore"]/exact["isoscore"] - 1) < 0.05
