"""On an accelerator everything gives the CPU's values, mixes no devices, and rarely makes the host wait.

The accelerator is simulated (`simulated.py`), once as a GPU and once as a device without float64, as Apple's MPS is.
Values may differ from the CPU's only by the order of sums: chunks are larger there, and without float64 scalars are
combined in float32.
"""
import os
from collections import Counter
from contextlib import nullcontext
from copy import deepcopy
from functools import lru_cache, partial

import numpy as np
import pytest
import torch
from processes import Process
from simulated import NAME, Accelerator, default_device
from toy_task import write_task
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainingArguments, default_data_collator

from istar_nb.penalties.baselines import CosReg, Uniformity, VICRegCovariance
from istar_nb.penalties.controls import RelativeStrength
from istar_nb.base.covariance import Moments, covariance, participation_ratio, shrink
from istar_nb.geometry.dimension import two_nn, two_nn_with_error
from istar_nb.text.encoders import load_encoder, tiny_shapes
from istar_nb.sweeps.executors import Resources, divided
from istar_nb.penalties.integrations import IsotropyTrainerMixin
from istar_nb.penalties.isolayer import IsoBN, IsoLayer, JointLoss, isotropy_loss
from istar_nb.geometry.measures import (effective_rank, explained_variance, mean_activation,
                                        mean_cosine, outlier_dimensions, partition_score, spectrum, sv_anisotropy)
from istar_nb.embeddings.alarm import CollapseAlarm
from istar_nb.embeddings.health import health
from istar_nb.report.audit import audit
from istar_nb.report.comparing import compare
from istar_nb.report.isotropy import measure
from istar_nb.report.model_measures import measure_model
from istar_nb.text.features import text_batches
from istar_nb.base.devices import accelerators, random_state, same_random_state, set_random_state
from istar_nb.study.pretrain_runs import PretrainConfig
from istar_nb.study.pretraining import pretrain
from istar_nb.training.records import environment, find_record
from istar_nb.penalties.regularizers import IStar, UnbiasedIStar, pooled_isoscore, pooled_unbiased
from istar_nb.training.runs import RunConfig
from istar_nb.geometry.second_moments import cka
from istar_nb.geometry.scores import (isoscore, isoscore_eig, isoscore_from_cov, isoscore_star, isoscore_unbiased,
                                      isoscore_with_error)
from istar_nb.base.programs import launched
from istar_nb.base.states import HiddenStates
from istar_nb.geometry.streaming import IsoScoreMetric, IsotropyMetrics
from istar_nb.sweeps.sweeps import sweep
from istar_nb.text.tasks import load_task
from istar_nb.penalties.topology import EntropyRegularizer, barcode, h0_bars, persistent_entropy, select_bars
from istar_nb.training.evaluation import evaluate
from istar_nb.training.training import _launched, launch, load_checkpoint, save_checkpoint, train
from istar_nb.training.updates import Progress, fine_tuning, update
from istar_nb.geometry.transforms import AllButTheTop, Whitening
from istar_nb.geometry.unbiased import optimal_zeta, unbiased_traces
from istar_nb.geometry.watching import watch


@pytest.fixture(params=[True, False], ids=["float64", "no-float64"])
def sim(request):
    "A GPU, and a device without float64."
    with Accelerator(request.param) as sim: yield sim


@pytest.fixture
def gpu():
    "A GPU alone: for an option of something that is tested on both devices."
    with Accelerator() as sim: yield sim


@pytest.fixture(scope="module", autouse=True)
def of_one_layer():
    "Every operation of the simulated device is carried out by Python: `tiny-bert` has one layer here, and so two states."
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny_shapes, "bert", tiny_shapes["bert"] | dict(num_hidden_layers=1))
        yield


METHODS = ["none", "istar", "istar-own-means", "istar-unbiased", "cosreg", "entropy", "vicreg", "uniformity", "isolayer",
           "isobn"]


# Methods whose penalties keep no reference, no running numbers and no map, as CosReg: `test_penalties` has their values and
# gradients on both devices, `test_a_penalty_makes_the_host_wait_at_most_twice` whole updates of a run.
ALIKE = ["istar-unbiased", "vicreg", "uniformity"]


def draw(n:int=120, d:int=12, seed:int=0)->Tensor: # (n, d), with unequal variances and a mean
    "A cloud of points."
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))*torch.linspace(0.5, 2, d) + 0.3


def to_host(value):
    "A result as CPU tensors in float64, whatever it is made of."
    if isinstance(value, Tensor): return value.detach().cpu().double() if value.is_floating_point() else value.cpu()
    if isinstance(value, np.ndarray): return torch.from_numpy(value)
    if isinstance(value, dict): return {k: to_host(v) for k, v in value.items()}
    return [to_host(v) for v in value] if isinstance(value, (tuple, list)) else value


def assert_same(found, expected, sim, tolerance:float=0.)->None:
    "The CPU's values, to rounding: 1e-5, 1e-4 where there is no float64, or what a test needs."
    tolerance = tolerance or (1e-5 if sim.float64 else 1e-4)
    torch.testing.assert_close(to_host(found), to_host(expected), rtol=tolerance, atol=tolerance/10, equal_nan=True)


def value_and_gradient(f, *tensors:Tensor)->list:
    "A function's result, and the gradient of its sum in every tensor."
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    value = f(*leaves)
    if not value.requires_grad: return [value]
    return [value, *torch.autograd.grad(value.sum(), leaves)]


REFERENCE, SENTENCES = covariance(draw(300, seed=1)), torch.arange(120)//6
KERNELS = {
    "covariance": covariance,
    "participation_ratio": lambda x: participation_ratio(covariance(x)),
    "shrink": lambda x: shrink(covariance(x), REFERENCE.to(x), 0.2),
    "isoscore": isoscore,
    "isoscore of few points": lambda x: isoscore(x[:6]),
    "isoscore_star": lambda x: isoscore_star(x, REFERENCE.to(x), 0.2),
    "isoscore_from_cov": lambda x: isoscore_from_cov(covariance(x)),
    "isoscore_unbiased": lambda x: isoscore_unbiased(x),
    "isoscore_unbiased by sentence": lambda x: isoscore_unbiased(x, SENTENCES.to(x.device)),
    "unbiased_traces": lambda x: torch.stack(unbiased_traces(x)),
    "mean_cosine": mean_cosine,
    "partition_score": partition_score,
    "explained_variance": lambda x: explained_variance(x, 3),
    "sv_anisotropy, raw": lambda x: sv_anisotropy(x, 1, center=False),
    "sv_anisotropy, centred": lambda x: sv_anisotropy(x, 1, center=True),
    "spectrum": lambda x: spectrum(x, center=True),
    "effective_rank": lambda x: effective_rank(x),
    "mean_activation": mean_activation,
    "h0_bars": lambda x: h0_bars(x).sort().values,
    "persistent_entropy": lambda x: persistent_entropy(h0_bars(x)),
    "select_bars": lambda x: select_bars(h0_bars(x)),
    "isotropy_loss": isotropy_loss,
}
MEASURES = {
    "isoscore_unbiased with its error": lambda x: isoscore_with_error(x, SENTENCES.to(x.device)),
    "cka with points on the host": lambda x: cka(x, draw().square()),
    "cka of points on the host": lambda x: cka(draw().square(), x),
    "barcode with loops": lambda x: barcode(x[:30], 1)[1],
    "optimal_zeta": lambda x: optimal_zeta(x, REFERENCE.to(x), SENTENCES.to(x.device)),
    "two_nn": two_nn,
    "two_nn with its error": lambda x: two_nn_with_error(x),
    "outlier_dimensions": lambda x: outlier_dimensions(x, 1.),
    "Moments": lambda x: Moments(device=x.device).update(x[:50]).update(x[50:]).covariance(),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name, sim):
    expected = value_and_gradient(KERNELS[name], draw())
    found = value_and_gradient(KERNELS[name], draw().to(sim.device))
    assert all(t.device == sim.device for t in found)
    assert_same(found, expected, sim)


@pytest.mark.parametrize("name", MEASURES)
def test_measures(name, sim): assert_same(MEASURES[name](draw().to(sim.device)), MEASURES[name](draw()), sim)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_half_precision(name, sim):
    "bfloat16 on the GPU, float16 on the other device."
    dtype = torch.bfloat16 if sim.float64 else torch.float16
    x = draw().to(dtype)
    found, expected = (value_and_gradient(KERNELS[name], points) for points in (x.to(sim.device), x))
    assert_same(found, expected, sim, tolerance=2*torch.finfo(dtype).eps)    # the last digit of the gradient


def test_the_eigenvalue_form(sim): assert_same(isoscore_eig(draw().to(sim.device)), isoscore_eig(draw()), sim)


def batch_states(device=None, layers:int=3)->HiddenStates: # 8 sentences of 3 to 10 tokens, 12 dimensions
    "States of a batch, as leaves."
    lengths = torch.tensor([10, 3, 7, 5, 9, 4, 6, 8])
    mask = (torch.arange(10) < lengths[:, None]).long().to(device)
    return HiddenStates([draw(80, seed=l).view(8, 10, 12).to(device).requires_grad_() for l in range(layers)], mask)


PENALTIES = {
    "istar": lambda: IStar(0.2, cov_ref=REFERENCE), "istar without reference": lambda: IStar(0.),
    "istar, automatic": lambda: IStar("auto", cov_ref=REFERENCE), "istar, target": lambda: IStar(0., target=0.5),
    "istar, all tokens": lambda: IStar(0., tokens="all"), "istar-unbiased": lambda: UnbiasedIStar(),
    "cosreg": lambda: CosReg(),
    "vicreg": lambda: VICRegCovariance(), "uniformity": lambda: Uniformity(), "entropy": lambda: EntropyRegularizer(),
    "entropy as released": lambda: EntropyRegularizer("released"), "entropy, all bars": lambda: EntropyRegularizer("none"),
    "entropy of the whole batch": lambda: EntropyRegularizer(by_class=False),
}


def penalty_and_gradients(name:str, device=None, forward=nullcontext())->list:
    "The penalty of a batch, the gradients in its states, and what the penalty remembers; `forward` is a context for the value."
    penalty, states = PENALTIES[name]().to(device), batch_states(device)
    with forward: value = penalty(states, (torch.arange(8) % 2).to(device))
    value.backward()
    return [value, *(t.grad for t in states.layers if t.grad is not None), *penalty.state_dict().values()]


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties(name, sim):
    assert_same(penalty_and_gradients(name, sim.device), penalty_and_gradients(name), sim)


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_take_no_notice_of_autocast(name, sim):
    dtype = torch.bfloat16 if sim.float64 else torch.float16
    x = draw().to(sim.device)
    with torch.autocast(NAME, dtype): assert (x.T @ x).dtype == dtype and x.softmax(1).dtype == torch.float32, "else the test shows nothing"
    assert_same(penalty_and_gradients(name, sim.device, torch.autocast(NAME, dtype)), penalty_and_gradients(name), sim)


@pytest.mark.parametrize("last", ["cpu", NAME])
@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_of_a_model_that_is_split_over_two_devices(name, last):
    expected = penalty_and_gradients(name)
    with Accelerator() as sim:
        first = {NAME: "cpu", "cpu": NAME}[last]
        states, penalty, labels = batch_states(), PENALTIES[name]().to(last), (torch.arange(8) % 2).to(last)
        layers = [layer.detach().to(first if l < 2 else last).requires_grad_() for l, layer in enumerate(states.layers)]
        value = penalty(HiddenStates(layers, states.mask.to(first)), labels)
        value.backward()
        assert value.device.type == last    # where the task's loss is
        assert_same([value, *(t.grad for t in layers if t.grad is not None), *penalty.state_dict().values()], expected, sim)


def test_the_reference_of_a_model_that_is_split_over_two_devices():
    def collected(first, last):
        states, penalty = batch_states(), IStar(0.2)
        penalty.collect([HiddenStates([*(t.to(first) for t in states.layers[:2]), states.layers[2].to(last)], states.mask.to(first))])
        return penalty.cov_ref
    with Accelerator() as sim: assert_same(collected(NAME, "cpu"), collected("cpu", "cpu"), sim)


@pytest.mark.parametrize("score", [pooled_isoscore, pooled_unbiased])
def test_pooled_scores(score, sim): assert_same(score(batch_states(sim.device)), score(batch_states()), sim)


@pytest.mark.parametrize("name", ["istar", "istar-unbiased", "cosreg", "vicreg", "uniformity"])
def test_a_batch_too_small_is_refused_on_the_device_too(name, gpu):
    penalty, states = PENALTIES[name]().to(gpu.device), batch_states(gpu.device)
    with pytest.raises(ValueError): penalty(HiddenStates(states.layers, torch.zeros_like(states.mask)))


@pytest.mark.parametrize("name", PENALTIES)
def test_states_that_are_not_finite_are_refused_on_the_device_too(name, gpu):
    penalty, states = PENALTIES[name]().to(gpu.device), batch_states(gpu.device)
    layers = [layer.detach().masked_fill(layer > 2, torch.nan).requires_grad_() for layer in states.layers]
    with pytest.raises(ValueError, match="finite|not negative"):
        penalty(HiddenStates(layers, states.mask), (torch.arange(8) % 2).to(gpu.device)).backward()


def test_a_reference_is_collected(sim):
    def collected(device=None):
        penalty = IStar(0.2)
        penalty.to(device).collect([batch_states(device), batch_states(device)])
        return penalty.cov_ref
    assert_same(collected(sim.device), collected(), sim)


@pytest.mark.parametrize("name", ["entropy", "entropy of the whole batch"])
def test_micro_batches_share_an_entropy(name, sim):
    def shared(device=None):
        penalty, labels = PENALTIES[name]().to(device), (torch.arange(8) % 2).to(device)
        penalty.prepare([(batch_states(device), labels), (batch_states(device), labels)])
        return [penalty(batch_states(device), labels), penalty(batch_states(device), labels)]
    assert_same(shared(sim.device), shared(), sim)


def test_a_strength_follows_gradients_on_the_device(sim):
    def strength(device=None):
        states, lam = batch_states(device), RelativeStrength(0.3)
        lam.update(states.layers[-1].square().mean(), IStar(0.)(states), list(states.layers))
        return lam.lam
    assert_same(strength(sim.device), strength(), sim)


def test_a_strength_waits_once_for_each_norm(gpu):
    "However many weights there are."
    weights = [torch.randn(5, 5).to(gpu.device).requires_grad_() for _ in range(20)]
    task, penalty = (sum((w**power).sum() for w in weights) for power in (2, 4))
    gpu.waits.clear()
    RelativeStrength(0.3).update(task, penalty, weights)
    assert sum(gpu.waits.values()) == 2


def layer_steps(layer:nn.Module, device=None)->list:
    "What a layer makes of two batches, its gradients, and what it remembers."
    layer = deepcopy(layer).to(device).train()
    first, second = (layer(draw(seed=s).to(device)) for s in (0, 1))
    (first.square().sum() + second.sum()).backward() if first.requires_grad else None
    return [first, second, *(p.grad for p in layer.parameters()), *layer.state_dict().values()]


@pytest.mark.parametrize("layer", [IsoLayer(12), IsoLayer(12, 2, "gelu"), IsoBN(12), IsoBN(12, bias_correction=False)],
                         ids=["IsoLayer", "two layers", "IsoBN", "IsoBN as released"])
def test_layers(layer, sim): assert_same(layer_steps(layer, sim.device), layer_steps(layer), sim)


def test_the_joint_loss(sim):
    def losses(device=None):
        combine, pairs = JointLoss().to(device), torch.tensor([[2., 1.], [1.5, 1.2], [1., 1.1]]).to(device)
        return [combine(task, isotropy) for task, isotropy in pairs]
    assert_same(losses(sim.device), losses(), sim)


@pytest.mark.parametrize("transformer", [Whitening(), Whitening(shrinkage="auto"), AllButTheTop(2)], ids=str)
def test_transforms_take_the_devices_tensors_from_the_host(transformer, sim):
    "scikit-learn computes on the CPU; a tensor of the device is refused, as scikit-learn does."
    x = draw()
    assert_same(deepcopy(transformer).fit_transform(x.to(sim.device).cpu().numpy()), deepcopy(transformer).fit_transform(x.numpy()), sim)


METRICS = {"isoscore": lambda: IsoScoreMetric(), "isoscore*": lambda: IsoScoreMetric(cov_ref=REFERENCE, zeta=0.2),
           "all measures": lambda: IsotropyMetrics(), "[CLS]": lambda: IsotropyMetrics(tokens="cls")}


def metric_values(name:str, device=None)->list:
    "What a metric says after two batches of states and one of points, and again after `reset`."
    metric, states, values = METRICS[name](), batch_states(device), []
    if device is not None: metric.to(device)
    for _ in range(2):
        for layer in states.layers[1:]: metric.update(layer, states.mask)
        metric.update(draw(seed=3).to(device))
        values.append(metric.compute())
        if isinstance(metric, IsotropyMetrics) and len(values) == 1: values.append(metric.errors())
        metric.reset()
    return values


@pytest.mark.parametrize("name, sim", [*((name, False) for name in METRICS), ("isoscore*", True), ("all measures", True)], indirect=["sim"])
def test_metrics(name, sim): assert_same(metric_values(name, sim.device), metric_values(name), sim)


def test_a_metric_that_was_not_moved_follows_nothing(sim):
    "As torchmetrics': states of another device than the metric's are measured, or refused by name."
    metric, expected = IsotropyMetrics(), IsotropyMetrics()
    metric.update(draw().to(sim.device))
    expected.update(draw())
    assert_same(metric.compute(), expected.compute(), sim)


TEXTS = ["a file is opened", "the socket waits for a connection", "numbers are added", "a window is drawn on the screen again",
         "the module is imported once", "tests are found and run", "text is parsed", "an archive is written to disk"]


@lru_cache
def encoder(name:str): # model and tokenizer
    "A tiny encoder, the same every time."
    torch.manual_seed(0)
    return load_encoder(name)


def tokens_of(name:str="tiny-bert")->dict[str,Tensor]: # `input_ids` and `attention_mask`
    "A padded batch."
    _, tokenizer = encoder(name)
    tokenizer.padding_side = "right"
    return dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))


def on(device, batch:dict)->dict: return {k: v.to(device) for k, v in batch.items()}


def watched(name:str, device=None)->list:
    "What `watch` saw of two batches: measures, and their errors."
    model = deepcopy(encoder(name)[0]).to(device)
    with watch(model) as seen, torch.no_grad():
        for _ in range(2): model(**on(device, tokens_of(name)))
    values, errors = seen.compute(), seen.errors()
    seen.compute = lambda: values    # which a frame is made of
    return [values, seen.frame().to_dict()], errors


@pytest.mark.parametrize("name, sim", [("tiny-bert", True), ("tiny-bert", False), ("tiny-gpt2", False)], indirect=["sim"])
def test_watch(name, sim):
    "A model that reads both ways, on both devices, and a decoder."
    (found, errors), (expected, cpu_errors) = watched(name, sim.device), watched(name)
    assert_same(found, expected, sim, tolerance=1e-4)
    assert_same(errors, cpu_errors, sim, tolerance=1e-3)    # differences of nearly equal numbers


def test_watch_counts_states_that_are_not_finite(sim):
    model = deepcopy(encoder("tiny-bert")[0])
    with torch.no_grad(): model.embeddings.word_embeddings.weight[tokens_of()["input_ids"][0, 1]] = torch.inf
    with watch(model.to(sim.device)) as seen, torch.no_grad(): model(**on(sim.device, tokens_of()))
    assert all(int(count) > 0 for count in seen.skipped.values())


DOCSTRINGS = [row["sentence"] for row in load_task("stdlib-docs").validation[:40]]

def _looked_at():
    "What an alarm says of a model of two equal blocks."
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(2)))
    with CollapseAlarm(every=1).attach(model) as alarm:
        model(torch.randn(60, 64))
        return alarm.step()

def _of_points():
    "What `health` says of points from NumPy, and `compare`."
    x = np.random.default_rng(0).normal(size=(60, 64)).astype("float32")
    found = health(x, pairs=[(i, i + 1, i % 7) for i in range(30)], relevant=[(i, i + 1) for i in range(20)], k=3,
                   labels=[i % 3 for i in range(60)], queries=x[:9] + 1)
    return found, compare(x, x + 0.1)

def _penalty(make):
    "A penalty of states that are where torch puts them."
    layers, mask = [torch.randn(6, 7, 16, requires_grad=True) for _ in range(3)], torch.ones(6, 7, dtype=torch.bool)
    return make()(HiddenStates(layers, mask, most=40), torch.arange(6) % 2)

BY_DEFAULT = {
    "measure": lambda: measure("tiny-bert", DOCSTRINGS), "audit": lambda: audit("tiny-bert", DOCSTRINGS), "points": _of_points,
    "health": lambda: health("tiny-bert", DOCSTRINGS), "alarm": _looked_at,
    "two devices": lambda: compare("tiny-bert", load_encoder("tiny-bert"), DOCSTRINGS),
    "metric": lambda: IsotropyMetrics()(torch.randn(50, 16)),
    **{make.__name__: partial(_penalty, make) for make in (UnbiasedIStar, CosReg, EntropyRegularizer)}}


@pytest.mark.parametrize("name", BY_DEFAULT)
def test_torchs_default_device_may_be_an_accelerator(name, gpu):
    "As after `torch.set_default_device('cuda')`: what must be on the host is made there."
    with torch.device(gpu.device): found = BY_DEFAULT[name]()
    if name == "points": assert found == _of_points()


@pytest.mark.parametrize("tokens, sim", [("real", True), ("real", False), ("cls", False), ("mean", False)], indirect=["sim"])
def test_measure_model(tokens, sim):
    "Every choice of tokens on the device that refuses more, one of them on the GPU."
    model, tokenizer = encoder("tiny-distilbert")
    def measured(device=None):
        batches = text_batches([(text,) for text in TEXTS*2], tokenizer, batch_tokens=80)
        found = measure_model(deepcopy(model).to(device), batches, tokens, [1, 2])
        assert {layer.pop("sample") for layer in found.values()} == {"all 16 whole texts"}
        return found
    assert_same(measured(sim.device), measured(), sim, tolerance=1e-2)    # slopes by the smallest eigenvalues are steep


@pytest.fixture(scope="module")
def data(tmp_path_factory): # folder of a small task
    return write_task(tmp_path_factory.mktemp("data"), rows=64)


def config_of(method:str, **options)->RunConfig:
    "A run of a few steps."
    own = {"istar": dict(lam=-1.), "istar-own-means": dict(lam=-1.), "istar-unbiased": dict(lam=-1.), "isolayer": dict(stage_epochs=2)}.get(method, {})
    return RunConfig(**dict(dict(task="sst2", model="tiny-bert", method=method, epochs=1, batch_size=32//options.get("accumulate", 1), limit=64, lr=1e-3), **own, **options))


def numbers_of(record)->list: # epochs and steps
    "What a record says in numbers."
    def numbers(entry): return {k: v for k, v in entry.items() if isinstance(v, (int, float, list))}
    return [numbers(entry) for entry in [*record.epochs, *record.steps]]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    "A function that trains as configured and returns the record; the CPU's are made once."
    def run(config, device:str):
        folder = tmp_path_factory.mktemp(device)
        record = train(config, root=str(folder), data_dir=data, checkpoints=folder/"checkpoints", progress=False)
        assert record.environment["device"] == device
        return numbers_of(record)
    return lru_cache(lambda config: run(config, "cpu")), lambda config: run(config, NAME)


@pytest.mark.parametrize("method", [method for method in METHODS if method not in ALIKE])
def test_train(method, trained):
    "Every kind of method on the device that refuses more; the options below are trained with on the GPU."
    on_cpu, on_device = trained
    expected = on_cpu(config_of(method))
    with Accelerator(float64=False) as sim: found = on_device(config_of(method))
    assert_same(found, expected, sim, tolerance=1e-3)    # of AdamW's first steps few digits are equal


@pytest.mark.parametrize("options", [dict(zeta="auto"), dict(accumulate=2, gradient_checkpointing=True, tokens="all")], ids=str)
def test_train_with_options(options, gpu, trained):
    on_cpu, on_device = trained
    with gpu.away(): expected = on_cpu(config_of("istar", **options))
    assert_same(on_device(config_of("istar", **options)), expected, gpu, tolerance=1e-3)


def neighbours(numbers:list)->list:
    "TwoNN of every entry, taken out of it: it divides the smallest distances, which half precision rounds most."
    return [[entry.pop(name) for name in [*entry] if name.startswith("two_nn")] for entry in numbers]


def test_train_under_autocast(gpu, trained):
    "`test_penalties_take_no_notice_of_autocast` has the other penalties. The devices choose in part other operations for bf16, so that only a few digits are equal."
    on_cpu, on_device = trained
    with gpu.away(): expected, full = on_cpu(config_of("istar", precision="bf16")), on_cpu(config_of("istar"))
    found = on_device(config_of("istar", precision="bf16"))
    assert found != full
    found, expected = ([dict(entry) for entry in numbers] for numbers in (found, expected))
    assert_same(neighbours(found), neighbours(expected), gpu, tolerance=0.1)
    assert_same(found, expected, gpu, tolerance=2e-2)


@pytest.mark.parametrize("options", [dict(), dict(tokens="all")], ids=str)
def test_what_an_update_logs(options, data, gpu):
    "The runs above are too short for an entry of the log."
    def log():
        session = fine_tuning(config_of("istar", **options), data, progress=False, log_every=1)
        return update(session, Progress(), session.data.groups(0)[0])
    with gpu.away(): expected = log()
    found = log()
    assert "batch_isoscore" in found and ("padding_gradient" in found) == bool(options)
    assert_same(found, expected, gpu, tolerance=1e-3)


def step_waits(sim, data, method:str, **options)->Counter:
    "Why the host waits in the second step of a run, beyond the model's own reasons; the first makes the optimizer's state."
    session = fine_tuning(config_of(method, **options), data, progress=False, log_every=1000)
    progress, (first, second, *_) = Progress(), session.data.groups(0)
    update(session, progress, first)
    sim.waits.clear()
    update(session, progress, second)
    return Counter({wait: n for wait, n in sim.waits.items() if "encoder" not in wait.place})    # where models are called


@pytest.mark.parametrize("there", ["cpu", NAME])
@pytest.mark.parametrize("method", ["istar", "isobn"])
def test_a_checkpoint_of_one_device_is_resumed_on_another(method, there, data, tmp_path):
    with Accelerator():
        with default_device(torch.device({NAME: "cpu", "cpu": NAME}[there])):
            session = fine_tuning(config_of(method), data, progress=False, log_every=1)
            progress, (first, second, *_) = Progress(), session.data.groups(0)
            update(session, progress, first)
            save_checkpoint(session, progress, tmp_path)
            expected = update(session, progress, second)
        with default_device(torch.device(there)):
            resumed = fine_tuning(config_of(method), data, progress=False, log_every=1)
            progress = load_checkpoint(resumed, tmp_path)
            assert progress.updates == 1 and resumed.accelerator.device.type == there
            found = update(resumed, progress, second)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


PENALTY_STEPS = {name: dict(method=name) for name in METHODS if name not in ("none", "isolayer")} | {
    "istar without reference": dict(method="istar", zeta=0.), "istar, automatic": dict(method="istar", zeta="auto"),
    "istar, accumulated": dict(method="istar", accumulate=2),
    "entropy, accumulated": dict(method="entropy", accumulate=2)}


@pytest.fixture(scope="module")
def plain_waits(data):
    "Why the host waits in a step without a penalty, of so many micro-batches."
    @lru_cache
    def waits(batches):
        with Accelerator() as sim: return step_waits(sim, data, "none", accumulate=batches)
    return waits


@pytest.mark.parametrize("name", PENALTY_STEPS)
def test_a_penalty_makes_the_host_wait_at_most_twice(name, data, plain_waits):
    options = PENALTY_STEPS[name]
    plain = plain_waits(options.get("accumulate", 1))
    with Accelerator() as sim: waits = step_waits(sim, data, **options)
    most = 3 if name == "entropy, accumulated" else 2    # it is shown all micro-batches before
    assert waits.total() - plain.total() <= most, dict(waits - plain)    # in an update, however many micro-batches it has
    assert not [wait for wait in waits if "host_mask" in wait.place], waits    # the host has made the mask


@pytest.mark.parametrize("shape", [(4, 1, 6), (3, 1, 6)], ids=["other states", "fewer states"])
@pytest.mark.parametrize("wrong", [0, 1])
def test_states_that_differ_from_the_prepared_are_refused_once_an_update(wrong, shape, sim):
    penalty, mask = EntropyRegularizer("none", by_class=False), torch.ones(4, 1)
    batches = [HiddenStates([draw(4, 6, seed=s)[:, None].to(sim.device)], mask) for s in (0, 1)]
    penalty.prepare([(batch, None) for batch in batches])
    batches[wrong] = HiddenStates([draw(shape[0], 6, seed=9)[:, None].to(sim.device)], mask[:shape[0]])
    with pytest.raises(ValueError, match="differ from those given to `prepare`"):
        for batch in batches: penalty(batch)
    penalty(batches[0])    # and nothing of the refused update is left


def test_a_record_names_the_accelerators(monkeypatch):
    with Accelerator(): assert environment()["gpus"] == [f"{NAME}:0"]
    assert environment()["gpus"] == []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"number {device.index}")
    assert environment()["gpus"] == ["number 0", "number 1"]


def test_launch_takes_no_more_processes_than_accelerators(data, tmp_path):
    with Accelerator(), pytest.raises(ValueError, match=f"`processes` is 2, and the accelerators are {NAME}:0"): launch(config_of("none"), 2, root=tmp_path, data_dir=data)
    assert not list(tmp_path.iterdir())


def launched_on_the_device(config, folder, data):
    "What `launch` makes a process do where there is an accelerator, for which torch has no collectives of its own."
    os.environ.pop("ACCELERATE_USE_CPU", None)    # of the tests' processes
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder.parent}/meeting", rank=0, world_size=1)
    with Accelerator(): launched(0, _launched, (1, config, dict(root=folder, data_dir=data, progress=False)), 1, 0)


def test_launched_processes_use_the_accelerator(data, tmp_path):
    config, process = config_of("none"), Process(launched_on_the_device, config_of("none"), tmp_path/"runs", data)
    said = process.wait()
    record = find_record(tmp_path/"runs", config.id)
    assert record is not None, said
    assert record.environment["device"] == NAME and record.environment["gpus"] == [f"{NAME}:0"]


@pytest.mark.parametrize("kind, variable", [("cuda", "CUDA_VISIBLE_DEVICES"), ("xpu", "ZE_AFFINITY_MASK")])
def test_workers_share_the_accelerators(kind, variable, monkeypatch):
    monkeypatch.setattr(getattr(torch, kind), "device_count", lambda: 2)
    monkeypatch.delenv(variable, raising=False)
    assert divided(Resources(workers=3))[0] == [f"{variable}=0", f"{variable}=1", f"{variable}=0"] and len(divided(Resources())[0]) == 2
    monkeypatch.setenv(variable, "3,5")
    assert divided(Resources())[0] == [f"{variable}=3", f"{variable}=5"]


def test_a_worker_has_what_accelerator_there_is():
    with Accelerator(): assert divided(Resources())[0] == [None]


def test_a_failed_run_gives_its_memory_back(data, tmp_path, monkeypatch):
    freed = []
    monkeypatch.setattr(type(getattr(torch, NAME)), "empty_cache", lambda self: freed.append(NAME))
    with Accelerator(): [record] = sweep([config_of("istar", lr=1e30)], root=tmp_path, data_dir=data, progress=False)
    assert record.status == "failed" and record.environment["gpus"] == [f"{NAME}:0"] and freed


def test_random_states_are_kept_of_whichever_accelerator_is_used(monkeypatch):
    kind, restored, both = type(getattr(torch, NAME)), [], [torch.device(NAME, 0), torch.device(NAME, 1)]
    with Accelerator():
        monkeypatch.setattr(kind, "device_count", lambda self: 2)
        monkeypatch.setattr(kind, "set_rng_state", lambda self, state, device: restored.append(device))
        state = random_state()
        assert accelerators() == both and list(state) == ["cpu", f"{NAME}.0", f"{NAME}.1"]
        set_random_state(state)
        assert sorted(restored, key=str) == both
        with same_random_state(): restored.clear()
        assert sorted(restored, key=str) == both
    assert list(random_state()) == ["cpu"] and not accelerators()    # outside of the block there is no such device


def test_a_random_state_of_more_devices_is_restored_on_fewer(monkeypatch):
    device_module = getattr(torch, NAME)
    with Accelerator():
        with monkeypatch.context() as m:
            m.setattr(type(device_module), "device_count", lambda self: 3)
            state = random_state()
        drawn = torch.rand(3)
        with pytest.warns(UserWarning, match=f"of {NAME}.1, {NAME}.2 are left out"): set_random_state(state)
        assert torch.equal(torch.rand(3), drawn)
    with pytest.warns(UserWarning, match=f"of {NAME}.0, {NAME}.1, {NAME}.2 are left out"): set_random_state(state)
    assert torch.equal(torch.rand(3), drawn)


def test_a_checkpoint_of_more_gpus_is_resumed_on_fewer(data, tmp_path, monkeypatch):
    def session(): return fine_tuning(config_of("none"), data, progress=False, log_every=1)
    with Accelerator():
        made, progress = session(), Progress()
        first, second, *_ = made.data.groups(0)
        update(made, progress, first)
        with monkeypatch.context() as m:
            m.setattr(type(getattr(torch, NAME)), "device_count", lambda self: 4)
            save_checkpoint(made, progress, tmp_path)
        expected, resumed = update(made, progress, second), session()
        with pytest.warns(UserWarning, match=f"{NAME}.3 are left out"): again = load_checkpoint(resumed, tmp_path)
        assert update(resumed, again, second) == expected


def test_a_plain_step_makes_the_host_wait_once_for_its_check(plain_waits):
    assert plain_waits(1).total() <= 1, plain_waits(1)


def test_an_evaluation_waits_only_for_one_check_and_two_results_a_batch(data):
    with Accelerator() as sim:
        session = fine_tuning(config_of("none"), data, progress=False)
        sim.waits.clear()
        evaluate(session)
    own = Counter({wait: n for wait, n in sim.waits.items() if "encoder" not in wait.place})    # not the model's
    batches = -(-len(session.data.held_out)//64)
    padded = len(session.data.batches(session.data.held_out, session.config.seed, 0))
    assert not [wait for wait in own if wait.kind in ("nonzero", "mask") or "host_mask" in wait.place], own
    assert own.total() <= 3*batches + padded + 17, own    # and at the end for the measures


def test_metrics_make_the_host_wait_once_a_batch():
    with Accelerator() as sim:
        metric, states = IsotropyMetrics().to(sim.device), batch_states(sim.device)
        metric.update(states.layers[0], states.mask)
        sim.waits.clear()
        for layer in states.layers[1:]: metric.update(layer, states.mask)
    assert sim.waits.total() <= 2*len(states.layers[1:]), sim.waits


@pytest.fixture(scope="module")
def pretrained(data, tmp_path_factory):
    "A function that pretrains a few steps on the texts of the small task and returns the record; the CPU's is made once."
    config = PretrainConfig(texts="sst2", hold_out=0.2, vocabulary=150, length=16, depth=1, width=32, heads=2, steps=2,
                            batch_size=8, evaluate_every=2, lam=0.5)
    def run(device):
        folder = tmp_path_factory.mktemp("pretrained")
        record = pretrain(config, folder, data_dir=data, models=folder, checkpoints=folder/"checkpoints", progress=False)
        assert record.environment["device"] == device
        return [{k: v for k, v in entry.items() if not isinstance(v, str)} for entry in (*record.evaluations, *record.steps)]
    return lru_cache(lambda: run("cpu")), lambda: run(NAME)


def test_pretraining(sim, pretrained):
    on_cpu, on_device = pretrained
    with sim.away(): expected = on_cpu()
    assert_same(on_device(), expected, sim, tolerance=1e-3)


class PenaltyTrainer(IsotropyTrainerMixin, Trainer): "A Trainer with a penalty."


def trainer_steps(folder, penalty, lam, **options)->list[dict]: # what it logged
    "Two updates of the Hugging Face Trainer."
    batch = tokens_of()
    rows = [{k: v[i] for k, v in batch.items()} | dict(labels=i % 2) for i in range(len(TEXTS))]
    torch.manual_seed(0)
    model, tokenizer = load_encoder("tiny-bert", load_task("stdlib-docs").task)
    args = TrainingArguments(output_dir=str(folder), report_to="none", save_strategy="no", disable_tqdm=True, logging_steps=1, seed=0,
                             per_device_train_batch_size=4, max_steps=2, dataloader_pin_memory=False, **options)
    made = PenaltyTrainer(model, args, train_dataset=rows, regularizer=penalty, lam=lam, data_collator=default_data_collator)
    made.remove_callback(PrinterCallback)
    made.train()
    return [{k: log[k] for k in ("task_loss", "penalty", "lam", "grad_norm")} for log in made.state.log_history if "penalty" in log]


TRAINED = {"istar": lambda: (IStar(0.2), 1.), "a relative strength": lambda: (IStar(0.), RelativeStrength(0.3)),
           "entropy": lambda: (EntropyRegularizer(), 1.)}


@pytest.mark.parametrize("name, options", [("istar", {}), ("a relative strength", {}), ("entropy", dict(gradient_accumulation_steps=2))])
def test_the_trainer(name, options, gpu, tmp_path):
    found = trainer_steps(tmp_path, *TRAINED[name](), **options)
    with gpu.away(): expected = trainer_steps(tmp_path, *TRAINED[name](), **options)
    assert found, "the Trainer logged no penalty"
    assert_same(found, expected, gpu, tolerance=1e-3)
