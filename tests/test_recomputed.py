"""A second implementation: numbers of the findings page, computed again from the packed records alone.

Nothing of the package is imported here, so that an error in it cannot hide itself. Each row is looked up on the stored
findings page by its claim, and effect, both ends of the interval and the number of seeds are compared.
"""
import ast
import json
import math
import re
from pathlib import Path
from statistics import mean, stdev

import pytest
from pyarrow.parquet import read_table
from scipy import stats

root = Path(__file__).resolve().parents[1]


def packed(path):
    "The rows of a packed file. A column is JSON where it says so, and plain numbers or texts elsewhere."
    table = read_table(path)
    nested = {column.name for column in table.schema if column.metadata}
    return [{name: json.loads(value) if name in nested else value for name, value in row.items()} for row in table.to_pylist()]


records = packed(root/"results"/"runs"/"packed.parquet")
usual = dict(status="done", head="own", epochs=3, batch_size=32, hold_out=0., zeta=0.2, precision="fp32", tokens="real", layers=None,
             target=None, relative=None, batches="length", normalize=False, per_layer=False, lam=0., keep="score",
             lam_start=0., lam_ramp=0., placebo=False)
minilm, scratch = dict(model="minilm", lr=5e-5, limit=None), dict(model="scratch:8e7d64cf92ea04b1", lr=3e-4, limit=4000, max_length=128)


def runs(**wanted):
    "Finished runs with these options, by seed; an option that a record does not have yet is the usual one."
    wanted = usual | wanted
    if wanted.get("method", "none") == "none": wanted.pop("zeta")
    found = {}
    for r in records:
        options = usual | r["config"] | dict(status=r["status"])
        if all(options.get(name) == value for name, value in wanted.items()): found.setdefault(options["seed"], []).append(r)
    assert all(len(same) == 1 for same in found.values()), {seed: [r["id"] for r in same] for seed, same in found.items()}
    return {seed: same[0] for seed, [*same] in found.items()}


def score(r): return r["score"]
def end(name): return lambda r: r["epochs"][-1][name]
def minus(a, b, value=score): return [value(a[s]) - value(b[s]) for s in sorted(a.keys() & b.keys())]


def student(d):
    "Mean, interval and number of differences."
    half = stats.t.ppf(0.975, len(d) - 1)*stdev(d)/len(d)**0.5
    return mean(d), mean(d) - half, mean(d) + half, len(d)


def ranks_of(values): return [1 + sum(v < x for v in values) + (sum(v == x for v in values) - 1)/2 for x in values]


def correlation(by_lam, x, y=score):
    "Mean rank correlation within a seed, over λ."
    z, least = [], []
    for seed in sorted(set.intersection(*(set(of) for of in by_lam))):
        rows = [of[seed] for of in by_lam]
        a, b = ranks_of([x(r) for r in rows]), ranks_of([y(r) for r in rows])
        rho, n = stats.pearsonr(a, b).statistic, len(rows)
        most = 1 - 6/(n*(n*n - 1))
        z.append(math.atanh(max(-most, min(most, rho))))
        least.append(1/max(n - 3, 1))
    half = max(stats.t.ppf(0.975, len(z) - 1)*stdev(z), stats.norm.ppf(0.975)*mean(least)**0.5)/len(z)**0.5
    return math.tanh(mean(z)), math.tanh(mean(z) - half), math.tanh(mean(z) + half), len(z)


def mean_over(tasks, place, lam, other):
    "Seed by seed, the mean over tasks of I-STAR minus `other`; λ by task."
    per_task = [minus(runs(task=t, method="istar", lam=lam, **place), runs(task=t, **other, **place)) for t in tasks]
    return [mean(d) for d in zip(*per_task)]


def cut(place): return place | dict(max_length=128)
def cola(**options): return runs(task="cola", max_length=None, **(minilm | options))
def sst2(**options): return runs(task="sst2", **(scratch | options))


def stage(method, stage_loss, index, value, task="cola"):
    "Of IsoLayer's runs, by seed: a number of the end of stage one (-2) or of the end (-1)."
    kind = dict(stage_loss=stage_loss, head="linear")
    found = {r["config"]["seed"]: r["epochs"][index][value] for r in records if r["status"] == "done" and r["config"]["method"] == method and r["config"]["model"] == "minilm"
             and r["config"]["task"] == task and r["config"].get("stage_loss", "joint") == kind["stage_loss"] and not r["config"].get("limit")}
    return found


def apart(a, b): return [a[s] - b[s] for s in sorted(a.keys() & b.keys())]


def minilm_tasks(lam, other):
    "As `mean_over` for MiniLM, whose CoLA is not cut, over the tasks on which λ moved IsoScore."
    def of(task, **o): return cola(**o) if task == "cola" else runs(task=task, **cut(minilm), **o)
    def log_isoscore(r): return math.log(end("isoscore")(r))
    def treated(task):
        _, low, high, _ = student(minus(of(task, method="istar", lam=lam), of(task, **plain), log_isoscore))
        return not low <= 0 <= high
    per_task = [minus(of(t, method="istar", lam=lam), of(t, **other)) for t in ("rte", "mrpc", "cola", "stsb") if treated(t)]
    return [mean(d) for d in zip(*per_task)]


five, ten = dict(task="cola", epochs=5, weight_decay=5e-6), dict(task="mrpc", epochs=10, weight_decay=8e-6, lr=8e-5)

def shrink(selection, value, where=five, other=None):
    "Differences of the entropy of the bars to no penalty, or to another choice of the bars."
    like = dict(batch_size=64, max_length=None) | minilm | where
    def of(chosen): return runs(method="entropy", selection=chosen, lam=1., tokens="cls", **like) if chosen else runs(method="none", **like)
    return minus(of(selection), of(other), value)


def late(r):
    "Mean score of the last 30 % of the epochs."
    return mean(e[r["metric"]] for e in r["epochs"] if e["epoch"] > 0.7*r["config"]["epochs"])


def late_share(r, kind="raw"):
    "Mean first share of the logged training batches, over the last 30 % of the updates."
    return mean(s[f"cls_anisotropy_{kind}"] for s in r["steps"] if s["update"] > 0.7*r["steps"][-1]["update"])


def late_centred(r): return late_share(r, "centred")


plain, every_lam = dict(method="none"), (-1., -.3, -.1, -.01, .01, .1, .3, 1.)
def dose(lam):
    "Without the seeds of figure8-cola.yaml, which were made for that figure alone."
    return {seed: r for seed, r in (cola(method="istar", lam=lam) if lam else cola(**plain)).items() if seed < 13}


def first_grid(found): return {seed: r for seed, r in found.items() if seed < 5}    # without cola-seeds.yaml

def small(model="minilm", **options):
    "Runs of the pages on controls: 4,000 rows of CoLA in bfloat16."
    return runs(task="cola", model=model, lr=5e-5, limit=4000, precision="bf16", max_length=None, **options)


def randomly(**options): return small(batches="random", **options)
def pulled(target, placebo=False): return small(method="istar", target=target, lam=1., placebo=placebo)
def pairs(**options):
    "Runs on 1,500 rows of STS-B in float32."
    return runs(task="stsb", model="minilm", lr=1e-4, limit=1500, epochs=2, batch_size=16, max_length=None, **options)


def pulled_pairs(target, placebo=False): return pairs(method="istar", target=target, lam=1., placebo=placebo)
def random_pairs(**options): return pairs(batches="random", **options)
weaker, counted = dict(method="istar", lam=-.3), dict(method="istar", lam=-.3, tokens="all")
down, masked = dict(method="istar", lam=-.1), "scratch:9a1403a25f0e872f"


numbers = {
    "I-STAR with λ = −0.01 scores above base, MiniLM, mean of RTE, MRPC, CoLA": lambda: student(minilm_tasks(-.01, plain)),
    "I-STAR with λ = −0.01 scores above CosReg, MiniLM, mean of RTE, MRPC, CoLA": lambda: student(minilm_tasks(-.01, dict(method="cosreg", lam=1.))),
    "I-STAR with λ = +0.01 scores below base, MiniLM, mean of RTE, CoLA": lambda: student(minilm_tasks(.01, plain)),
    "I-STAR with λ = −0.01 scores above base, scratch, mean of SST-2, STS-B, SST-5": lambda: student(mean_over(("sst2", "stsb", "sst5"), scratch, -.01, plain)),
    "I-STAR with λ = −0.01 lowers IsoScore, MiniLM, STS-B": lambda: student(minus(runs(task="stsb", method="istar", lam=-.01, **cut(minilm)), runs(task="stsb", **plain, **cut(minilm)), end("isoscore"))),
    "change in score, I-STAR, λ = +1, MiniLM, CoLA": lambda: student(minus(dose(1.), dose(0.))),
    "change in score, I-STAR, λ = −0.3, MiniLM, CoLA (5 of 5 runs collapsed)": lambda: student(minus(dose(-.3), dose(0.))),
    "change in score, I-STAR, λ = −0.01, MiniLM, CoLA": lambda: student(minus(dose(-.01), dose(0.))),
    "change in score, CosReg, λ = +1, scratch, SST-2": lambda: student(minus(sst2(method="cosreg", lam=1.), sst2(**plain))),
    "the score falls as IsoScore rises, MiniLM, CoLA": lambda: correlation([dose(lam) for lam in (0., *every_lam)], end("isoscore")),
    "the score falls as IsoScore rises, MiniLM, CoLA, λ ≥ 0 only": lambda: correlation([dose(lam) for lam in (0., .01, .1, .3, 1.)], end("isoscore")),
    "the score falls as TwoNN rises, MiniLM, CoLA": lambda: correlation([dose(lam) for lam in (0., *every_lam)], lambda r: end("two_nn_layers")(r)[-1]),
    "I-STAR with λ = +1 raises TwoNN of the last layer, MiniLM, CoLA": lambda: student(minus(first_grid(dose(1.)), dose(0.), lambda r: end("two_nn_layers")(r)[-1])),
    "CosReg with λ = +1 has no impact on the last layer's IsoScore, MiniLM, CoLA": lambda: student(minus(cola(method="cosreg", lam=1.), dose(0.), lambda r: end("isoscore_layers")(r)[-1])),
    "CosReg with λ = +1 shortens the mean activation, MiniLM, CoLA": lambda: student(minus(cola(method="cosreg", lam=1.), dose(0.), lambda r: math.hypot(*end("mean_activation")(r)))),
    "selected bars score higher than no penalty, MiniLM, CoLA": lambda: student(shrink("atienza", late)),
    "the first raw component is lower with selected bars than with no penalty, MiniLM, CoLA": lambda: student(shrink("atienza", late_share)),
    "change in the last layer's mean cosine with all bars, MiniLM, CoLA": lambda: student(shrink("none", end("mean_cosine"))),
    "the layer with the joint loss scores above stage one, MiniLM, CoLA": lambda: student(apart(stage("isolayer", "joint", -1, "matthews"), stage("isolayer", "joint", -2, "matthews"))),
    "the layer with the task loss alone scores above stage one, MiniLM, CoLA": lambda: student(apart(stage("isolayer", "task", -1, "matthews"), stage("isolayer", "task", -2, "matthews"))),
    "the layer with the joint loss scores above the layer with the task loss alone, MiniLM, CoLA": lambda: student(apart(stage("isolayer", "joint", -1, "matthews"), stage("isolayer", "task", -1, "matthews"))),
    "IsoScore of [CLS] is higher for the layer with the joint loss than for stage one, MiniLM, CoLA": lambda: student(apart(stage("isolayer", "joint", -1, "cls_isoscore"), stage("isolayer", "joint", -2, "cls_isoscore"))),
}
numbers |= {
    "change in score with padding counted, λ = −0.3, MiniLM, CoLA": lambda: student(minus(randomly(**counted), randomly(**plain))),
    "change in score on real tokens, λ = −0.3, MiniLM, CoLA (5 of 5 runs collapsed)": lambda: student(minus(randomly(**weaker), randomly(**plain))),
    "real tokens keep more of their IsoScore where padding is counted, λ = −0.3, MiniLM, CoLA": lambda: student(minus(randomly(**counted), randomly(**weaker), end("isoscore"))),
    "a penalty that counts padding moves padding away from the text, λ = −0.3, MiniLM, CoLA": lambda: student(minus(randomly(**counted), randomly(**plain), end("padding_apart"))),
    "change in score, target 0.25, MiniLM, CoLA": lambda: student(minus(pulled(.25), small(**plain))),
    "change in score by the placebo, target 0.25, MiniLM, CoLA (5 of 5 runs collapsed)": lambda: student(minus(pulled(.25, True), small(**plain))),
    "score minus that of the placebo, target 0.4, MiniLM, CoLA": lambda: student(minus(pulled(.4), pulled(.4, True))),
    "IsoScore minus that of the placebo, target 0.4, MiniLM, CoLA": lambda: student(minus(pulled(.4), pulled(.4, True), end("isoscore"))),
    "change in score, target 0.05, MiniLM, STS-B": lambda: student(minus(pulled_pairs(.05), pairs(**plain))),
    "score minus that of the placebo, target 0.25, MiniLM, STS-B": lambda: student(minus(pulled_pairs(.25), pulled_pairs(.25, True))),
    "IsoScore minus that of the placebo, target 0.25, MiniLM, STS-B": lambda: student(minus(pulled_pairs(.25), pulled_pairs(.25, True), end("isoscore"))),
    "change in score with padding counted, λ = −5, MiniLM, STS-B, in float32": lambda: student(minus(random_pairs(method="istar", lam=-5., tokens="all"), random_pairs(**plain))),
    "real tokens keep more of their IsoScore where padding is counted, λ = −5, MiniLM, STS-B, in float32": lambda: student(minus(random_pairs(method="istar", lam=-5., tokens="all"), random_pairs(method="istar", lam=-5.), end("isoscore"))),
    "a penalty that counts padding moves padding away from the text, λ = −5, MiniLM, STS-B, in float32": lambda: student(minus(random_pairs(method="istar", lam=-5., tokens="all"), random_pairs(**plain), end("padding_apart"))),
    "the score is higher than with the penalty from the start, λ = −0.1 after one epoch, MiniLM, CoLA": lambda: student(minus(small(lam_start=1., **down), small(**down))),
    "score without a penalty, masked minus contrastive, MiniLM, CoLA": lambda: student(minus(small(masked, **plain), small(**plain))),
}


def started(shape, **options):
    "Runs of SST-2 that begin from the same function with IsoScore 0.02."
    return runs(task="sst2", model="minilm", lr=5e-5, limit=2000, head="linear", shape=shape, **options)


def most_moved(shape, lam):
    "Largest dimension's share of the squared change of the mean by CosReg, by seed."
    pulled = started(shape, method="cosreg", lam=lam, start_isoscore=.02)
    whole = started(shape, method="reparametrised", target=.02)
    def share(a, b): return (lambda squares: max(squares)/sum(squares))([(x - y)**2 for x, y in zip(a, b, strict=True)])
    mean_of = end("mean_activation")
    return {seed: share(mean_of(pulled[seed]), mean_of(whole[seed])) for seed in pulled.keys() & whole.keys()}


more = "changes the mean more in a single dimension with a planted outlier than without, MiniLM, SST-2"
numbers |= {
    f"CosReg with λ = +1 {more}": lambda: student(apart(most_moved("outlier", 1.), most_moved("spectrum", 1.))),
    f"CosReg with λ = −1 {more}": lambda: student(apart(most_moved("outlier", -1.), most_moved("spectrum", -1.))),
    "score after training, starting from target 0.02, one outlier, compared with the unchanged encoder, MiniLM, SST-2": lambda: student(minus(started("outlier", method="reparametrised", target=.02), started("spectrum", method="reparametrised"))),
}


mpnet = dict(model="mpnet", lr=3e-5, limit=4000, precision="bf16", max_length=None, validation_limit=2000)
bert = dict(sst2=(-5., .2), qnli=(-1., .4), qqp=(-1., .2), sst5=(-5., .2))    # λ and ζ that the paper selects
def large(task, **options): return runs(task=task, **mpnet | options)
def treated(task): return large(task, method="istar", lam=bert[task][0], zeta=bert[task][1])


def large_minus(other):
    "Seed by seed, the mean over tasks of MPNet's runs at the paper's strengths minus others."
    return [mean(d) for d in zip(*(minus(treated(task), large(task, **other)) for task in bert))]


def elsewhere(options):
    "Seed by seed, the score of the option that is best on the other seeds; ties go to the mean of the tied."
    seeds, found = sorted(set.intersection(*(set(of) for of in options))), {}
    for seed in seeds:
        means = [round(mean(score(of[s]) for s in seeds if s != seed), 9) for of in options]
        found[seed] = mean(score(of[seed]) for of, its in zip(options, means) if its == max(means))
    return found


rte = dict(minilm=dict(model="minilm", lr=5e-5, lam=-.01), mpnet=dict(model="mpnet", lr=3e-5, precision="bf16", lam=-1.))
def shrunk(model, zeta): return runs(task="rte", method="istar", zeta=zeta, limit=None, max_length=None, **rte[model])
def unshrunk(model): return runs(task="rte", limit=None, max_length=None, **rte[model] | dict(lam=0., method="none"))


def best_zeta(model, zeta):
    "The best ζ between 0 and 1 minus another."
    best, other = elsewhere([shrunk(model, z) for z in (.2, .4, .6, .8)]), shrunk(model, zeta)
    return [best[s] - score(other[s]) for s in sorted(best)]


def eighth(layers):
    "The runs of Figure 8 on CoLA, with the penalty on these layers; None for all."
    return {seed: r for seed, r in cola(method="istar", lam=-.01, layers=layers).items() if seed >= 13}


def best_layer():
    "The best single layer minus all."
    best, whole = elsewhere([eighth([layer]) for layer in range(1, 7)]), eighth(None)
    return [best[s] - score(whole[s]) for s in sorted(best)]


def linear(task, method): return runs(task=task, method=method, head="linear", max_length=None, **minilm)
def ends(task, method): return {seed: r["score"] for seed, r in linear(task, method).items()}
def first_ev(r): return r["epochs"][-1]["cls_explained_variance"][0]
def means_of_ev(task): return {seed: mean(curve[:3]) for seed, curve in stage("isolayer", "joint", -1, "cls_explained_variance", task).items()}
def of_isobn(task): return {seed: mean(r["epochs"][-1]["cls_explained_variance"][:3]) for seed, r in linear(task, "isobn").items()}


def sst2_arm(**options):
    "The declared experiment: 1,000 rows of SST-2 with MPNet."
    return runs(task="sst2", model="mpnet", lr=3e-5, limit=1000, epochs=2, batches="random", max_length=None, max_grad_norm=1., **options)


def log_iota(r): return math.log(end("isoscore")(r))
counting, half = sst2_arm(method="istar", lam=-5., tokens="all"), sst2_arm(method="istar", lam=1., target=.0345)
numbers |= {
    "P1, all positions minus no penalty: ln ι of the text, MPNet, SST-2": lambda: student(minus(counting, sst2_arm(**plain), log_iota)),
    "P2, all positions minus own means: ln ι of the text, MPNet, SST-2": lambda: student(minus(counting, sst2_arm(method="istar-own-means", lam=-5., tokens="all"), log_iota)),
    "P3, all positions minus text alone: score, MPNet, SST-2": lambda: student(minus(counting, sst2_arm(method="istar", lam=-5.))),
    "P4, half minus no penalty: score, MPNet, SST-2": lambda: student(minus(half, sst2_arm(**plain))),
}
joint, first = "the layer with the joint loss", "first {} component is lower with {} than with {}, MiniLM, MRPC"
for title, task in (("RTE", "rte"), ("MRPC", "mrpc")):
    after, linear_head = f"{joint} scores above", f"a plain run on all rows, linear head, MiniLM, {title}"
    numbers |= {
        f"{after} stage one, MiniLM, {title}": lambda task=task: student(apart(stage("isolayer", "joint", -1, "accuracy", task), stage("isolayer", "joint", -2, "accuracy", task))),
        f"{after} {linear_head}": lambda task=task: student(apart(stage("isolayer", "joint", -1, "accuracy", task), ends(task, "none"))),
        f"IsoScore of [CLS] is higher for {joint} than for stage one, MiniLM, {title}": lambda task=task: student(apart(stage("isolayer", "joint", -1, "cls_isoscore", task), stage("isolayer", "joint", -2, "cls_isoscore", task))),
        f"{joint} scores the same as IsoBN, MiniLM, {title}": lambda task=task: student(apart(stage("isolayer", "joint", -1, "accuracy", task), ends(task, "isobn"))),
        f"the mean of EV1 to EV3 is lower for {joint} than for IsoBN, MiniLM, {title}": lambda task=task: student(apart(means_of_ev(task), of_isobn(task))),
        f"EV1 is lower for IsoBN than for {linear_head}": lambda task=task: student(minus(linear(task, "isobn"), linear(task, "none"), first_ev))}
numbers |= {
    "I-STAR with λ = −5 or −1 scores above base, MPNet, mean of SST-2, QNLI, QQP, SST-5 (3 of 20 runs collapsed)": lambda: student(large_minus(plain)),
    "I-STAR with λ = −5 or −1 scores above CosReg, MPNet, mean of SST-2, QNLI, QQP, SST-5 (3 of 20 runs collapsed)": lambda: student(large_minus(dict(method="cosreg", lam=1.))),
    **{f"I-STAR with λ = −{-bert[task][0]:g} lowers IsoScore, MPNet, {title}": lambda task=task: student(minus(treated(task), large(task, **plain), end("isoscore")))
       for title, task in (("SST-2", "sst2"), ("QNLI", "qnli"), ("QQP", "qqp"), ("SST-5", "sst5"))},
    "the best ζ in (0, 1) scores above ζ = 0, no shrinkage, MiniLM, RTE": lambda: student(best_zeta("minilm", 0.)),
    "the best ζ in (0, 1) scores above ζ = 1, the batch ignored, MiniLM, RTE": lambda: student(best_zeta("minilm", 1.)),
    "CosReg with λ = +1 shortens the mean activation, MPNet, QNLI": lambda: student(minus(large("qnli", method="cosreg", lam=1.), large("qnli", **plain), lambda r: math.hypot(*end("mean_activation")(r)))),
    "CosReg with λ = +1 has no impact on the last layer's IsoScore, MPNet, QNLI": lambda: student(minus(large("qnli", method="cosreg", lam=1.), large("qnli", **plain), lambda r: end("isoscore_layers")(r)[-1])),
    "I-STAR with λ = −5 lowers TwoNN of the last layer, MPNet, SST-2": lambda: student(minus(treated("sst2"), large("sst2", **plain), lambda r: end("two_nn_layers")(r)[-1])),
    "the best ζ in (0, 1) scores above ζ = 0, no shrinkage, MPNet, RTE (24 of 25 runs collapsed)": lambda: student(best_zeta("mpnet", 0.)),
    "the best ζ in (0, 1) scores above ζ = 1, the batch ignored, MPNet, RTE (24 of 25 runs collapsed)": lambda: student(best_zeta("mpnet", 1.)),
    "ζ = 1 scores the same as no penalty, by algebra, MPNet, RTE": lambda: student(minus(shrunk("mpnet", 1.), unshrunk("mpnet"))),
    "the best single layer scores above all layers, MiniLM, CoLA": lambda: student(best_layer()),
    "selected bars score higher than no penalty, MiniLM, MRPC": lambda: student(shrink("atienza", late, ten)),
    "all bars score lower than selected bars, MiniLM, MRPC": lambda: student(shrink("none", late, ten, "atienza")),
    "all bars score the same as no penalty, MiniLM, MRPC": lambda: student(shrink("none", late, ten)),
    **{f"the {first.format(kind, bars, other)}": lambda value=value, a=a, b=b: student(shrink(a, value, ten, b))
       for kind, value in (("raw", late_share), ("centred", late_centred))
       for bars, a, other, b in (("selected bars", "atienza", "no penalty", None), ("all bars", "none", "no penalty", None), ("selected bars", "atienza", "all bars", "none"))},
    "change in the last layer's mean cosine with selected bars, MiniLM, MRPC": lambda: student(shrink("atienza", end("mean_cosine"), ten)),
}


def stored_rows():
    "Claim -> its row on the stored findings page, from the tables with a page column."
    cells = json.loads((root/"nbs"/"experiments"/"findings.ipynb").read_text(encoding="utf-8"))["cells"]
    texts = ["".join(out["data"]["text/markdown"]) for cell in cells for out in cell.get("outputs", []) if "text/markdown" in out.get("data", {})]
    rows = [[part.strip() for part in line.strip("| \n").split(" | ")] for text in texts for line in text.splitlines() if line.startswith("| [")]
    return {row[1]: row for row in rows}


rows = stored_rows()


@pytest.mark.parametrize("claim", numbers)
def test_a_number_of_the_findings_page_follows_from_the_json(claim):
    effect, low, high, seeds = numbers[claim]()
    said = [float(text.replace("−", "-")) for text in re.findall(r"[+−][\d.]+(?:e[+−]?\d+)?", rows[claim][3])]
    for value, text in zip((effect, low, high), said, strict=True): assert f"{value:+.3g}" == f"{text:+.3g}", (claim, value, text)
    assert int(rows[claim][5]) == seeds


def stored(page):
    "What a page says in Markdown outputs."
    cells = json.loads((root/"nbs"/"experiments"/f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(out["data"]["text/markdown"]) for cell in cells for out in cell.get("outputs", []) if "text/markdown" in out.get("data", {}))


def updates(r):
    "From the learning rate of the last logged step, which falls linearly to zero after a tenth of the updates."
    last, base = r["steps"][-1], r["config"]["lr"]
    fits = [n for n in range(last["update"], last["update"] + 25) if math.isclose(base*(n - last["update"] + 1)/(n - math.ceil(n/10)), last["lr"], rel_tol=1e-4)]
    return fits[0] if len(fits) == 1 else None


def signed(value, digits): return f"{100*value:+.{digits}f}".replace("-", "−")
def with_ends(d, digits=2): return "{} points [{}, {}]".format(*(signed(x, digits) for x in student(d)[:3]))
def without_unit(d): return with_ends(d).replace(" points", "")
def geometric(values): return math.exp(mean(map(math.log, values)))
def alone(): return sst2_arm(method="istar", lam=-5.)
def own_means(): return sst2_arm(method="istar-own-means", lam=-5., tokens="all")


def best_of_twelve(deviation):
    "Mean of the greatest of 12 normal draws by the trapezium rule, times the standard error of five seeds."
    return deviation/5**0.5*sum(z*12*stats.norm.cdf(z)**11*stats.norm.pdf(z)/100 for z in (i/100 for i in range(-800, 801)))


def table1():
    "The cells of the I-STAR paper's table as they are printed in the source."
    source = (root/"istar_nb"/"study"/"istar_claims.py").read_text(encoding="utf-8")
    return next(ast.literal_eval(node.value) for node in ast.parse(source).body if isinstance(node, ast.Assign) and node.targets[0].id == "table1_cells")


def test_the_five_sentences_follow_from_the_json():
    page = stored("findings")
    def says(*parts): return [line for line in page.splitlines() if re.match(r"\d\. ", line) and all(part in line for part in parts)]
    assert says("1. ", "λ = −0.01", "no clear gain", f"MiniLM {with_ends(minilm_tasks(-.01, plain))} (RTE, MRPC, CoLA)",
                f"scratch {with_ends(mean_over(('sst2', 'stsb', 'sst5'), scratch, -.01, plain))} (SST-2, STS-B, SST-5)")
    none, short, counted_ = sst2_arm(**plain), minus(alone(), sst2_arm(**plain)), minus(counting, sst2_arm(**plain))
    long = minus(treated("sst2"), large("sst2", **plain))
    assert {updates(r) for arm in (none, alone(), counting, half) for r in arm.values()} == {62}
    assert {updates(r) for r in [*treated("sst2").values(), *large("sst2", **plain).values()]} == {375}
    low, high = (signed(end, 1) for end in student(counted_)[1:3])
    assert says("2. ", "λ = −5", "MPNet's SST-2", f"by {signed(mean(short), 1)} points in 62 updates and {signed(mean(long), 1)} in 375", f"with padding counted, by {signed(mean(counted_), 1)} [{low}, {high}] in 62.")
    cells = {key: [[float(x) for x in cell.split("±")] for cell in row.split()] for key, row in table1().items()}
    gain = mean(a[0] - b[0] for m in ("ALBERT", "BERT", "DistilBERT") for a, b in zip(cells[m, "I-STAR"], cells[m, "base"]))
    most = max(best_of_twelve(mean(sd for m in ("ALBERT", "BERT", "DistilBERT") for _, sd in cells[m, method])) for method in ("base", "I-STAR"))
    assert says("3. ", f"at most {most:+.2f} of the {gain:+.2f} points", f"and {most*0.2**0.5:+.2f} if settings correlate at 0.8")
    assert says("4. ", "MiniLM", f"{with_ends(shrink('none', late, five, 'atienza'))} on CoLA, {without_unit(shrink('none', late, ten, 'atienza'))} on MRPC")
    joint, task = (apart(stage("isolayer", loss, -1, "matthews"), stage("isolayer", loss, -2, "matthews")) for loss in ("joint", "task"))
    assert says("5. ", "MiniLM on CoLA", f"gains {with_ends(joint)} over its stage one", f"and {without_unit(task)} without its isotropy loss")
    assert {r["config"]["task"] for r in records if r["config"].get("stage_loss") == "task"} == {"cola"}


def test_what_is_known_beside_the_declared_readings_follows_from_the_json():
    page, none = stored("declared"), sst2_arm(**plain)
    def average(arm, name, epoch=-1): return mean(r["epochs"][epoch][name] for r in arm.values())
    dose = [5*average(arm, name, 0) for arm, name in ((counting, "padded_isoscore"), (alone(), "isoscore"))]
    assert f"lower the loss by {dose[0]:.2f} with padding counted and by {dose[1]:.2f} on text alone" in page
    logs = [math.log(end("isoscore")(own_means()[s])/end("isoscore")(none[s])) for s in none]
    half_width = stats.t.ppf(0.95, len(logs) - 1)*stdev(logs)/len(logs)**0.5
    low, high = (math.exp(mean(logs) + side*half_width) for side in (-1, 1))
    assert 0.8 < low < high < 1.25 and f"×{math.exp(mean(logs)):.2f} of that without a penalty, 90 % interval [{low:.2f}, {high:.2f}], *unchanged*" in page
    assert f"whose own ι is {average(own_means(), 'padding_isoscore'):.4f}, and {average(none, 'padding_isoscore'):.4f} without" in page
    assert f"ι of all positions is {average(counting, 'padded_isoscore'):.4f}, and {average(none, 'padded_isoscore'):.4f} without" in page
    def guess(r): return r["score"] <= 0.509174 + 0.02    # the share of the more frequent label among the 872 rows
    assert f"in {sum(map(guess, alone().values()))} of 8 seeds it ends within two points" in page
    at20 = [mean(s["batch_isoscore"] for r in arm.values() for s in r["steps"] if s["update"] == 20) for arm in (half, none)]
    assert f"is {at20[0]:.3f}, and {at20[1]:.3f} without a penalty (×{at20[0]/at20[1]:.2f})" in page
    assert all(end("majority_share")(r) >= 0.99 for r in half.values()) and "8 of 8 runs collapsed" in page
    twin = sst2_arm(method="istar", lam=1., target=.0345, placebo="twin")
    assert f"raises it (×{geometric([end('isoscore')(twin[s])/end('isoscore')(none[s]) for s in none]):.2f})" in page


def test_what_belongs_beside_the_sentences_follows_from_the_json():
    page = stored("findings")
    assert f"MPNet changes by {with_ends(large_minus(plain))} on average over 4 tasks in 375 updates; SST-5 alone by {with_ends(minus(treated('sst5'), large('sst5', **plain)))}" in page
    doubled = minus(sst2_arm(method="istar", lam=1., target=.138), sst2_arm(**plain))
    assert f"MPNet on SST-2 (*double*, {with_ends(doubled)})" in page
    padded, none = randomly(method="istar", lam=-5., tokens="all"), randomly(**plain)
    iota = geometric([end("isoscore")(padded[s])/end("isoscore")(none[s]) for s in none])
    assert f"the same λ leaves ×{iota:.2f}, and 5 of 5 runs collapsed" in page


def test_there_are_at_least_thirty():
    assert 3*len(numbers) >= 30
