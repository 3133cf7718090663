"Penalties of two gloo processes against one: values, gradients, references, errors, strengths; precision, waits."
import warnings

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from istar_nb.penalties.baselines import (GOR, CosReg, FroSSL, KoLeo, SIGReg, Uniformity, VICRegCovariance)
from istar_nb.penalties.controls import RelativeStrength
from istar_nb.base.covariance import covariance
from istar_nb.text.encoders import hidden_states, load_encoder
from istar_nb.base.devices import product_format, products_in
from istar_nb.penalties.regularizers import IStar, UnbiasedIStar, batch_zeta
from istar_nb.geometry.scores import isoscore, isoscore_star, isoscore_unbiased, reference_of
from istar_nb.geometry.unbiased import optimal_zeta
from istar_nb.base.states import HiddenStates
from istar_nb.base.testing import Work, factors
from istar_nb.penalties.topology import EntropyRegularizer
from simulated import Accelerator
from processes import on_two

sentences, length, dims = 50, 6, 24
splits = (25, 40, 45, 50)


def cloud(offset=5.):
    "Three layers of 50 sentences of 1 to 6 tokens, whose tokens resemble each other, away from the origin."
    generator = torch.Generator().manual_seed(0)
    scale = torch.linspace(3, 0.5, dims)
    layers = [(torch.randn(sentences, length, dims, generator=generator)
               + torch.randn(sentences, 1, dims, generator=generator))*scale
              + offset*(l+1)/2*torch.linspace(0, 1, dims) for l in range(3)]
    return HiddenStates(layers,
                        (torch.arange(length) < torch.randint(1, length+1, (sentences, 1), generator=generator)).long())


def share(states, rank, first):
    rows = slice(first) if rank == 0 else slice(first, None)
    return HiddenStates([layer[rows] for layer in states.layers], states.mask[rows])


def reference(dtype=torch.float32):
    return covariance(torch.randn(200, dims, generator=torch.Generator().manual_seed(1),
                                  dtype=torch.float64)*3).to(dtype)


def make(name, dtype=torch.float32):
    "A fresh penalty."
    cov = reference(dtype)
    return {"auto": lambda: IStar("auto", cov), "target": lambda: IStar(0.2, cov, target=0.3),
            "unbiased": UnbiasedIStar, "unbiased target": lambda: UnbiasedIStar("all", target=0.2),
            "unbiased cls": lambda: UnbiasedIStar(tokens="cls"),
            "cosreg": CosReg, "cosreg all": lambda: CosReg("all", "all"), "vicreg": VICRegCovariance,
            "vicreg real": lambda: VICRegCovariance([0, 2], "real"),
            "uniformity": Uniformity, "uniformity real": lambda: Uniformity(3., [1, 2], "real"),
            "gor": GOR, "frossl real": lambda: FroSSL([1, 2], "real"), "koleo": KoLeo,
            "koleo real": lambda: KoLeo("all", "real"), "sigreg": lambda: SIGReg(8).eval()}[name]()


names = ["auto", "target", "unbiased", "unbiased target", "unbiased cls", "cosreg",
         "cosreg all", "vicreg", "vicreg real", "uniformity", "uniformity real", "gor",
         "frossl real", "koleo", "koleo real", "sigreg"]


def value_and_gradients(states, penalty):
    leaves = [layer.clone().requires_grad_() for layer in states.layers]
    value = penalty(HiddenStates(leaves, states.mask))
    value.backward()
    return (value.detach(), [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves],
            dict(penalty.state_dict()))


def few_points(dtype=torch.float32):
    "Six sentences, their [CLS] in two layers half as many as dimensions, a penalty; one process uses the Gram matrix."
    states = cloud()
    return (HiddenStates([layer[:6].to(dtype) for layer in states.layers], states.mask[:6]),
            IStar(0.2, reference(dtype), tokens="cls"))


def all_penalties(rank):
    few, penalty = few_points()
    return ([value_and_gradients(share(cloud(), rank, first), make(name)) for name in names for first in splits]
            + [value_and_gradients(share(few, rank, 4), penalty)])


@pytest.fixture(scope="module")
def of_two(tmp_path_factory): return list(zip(*on_two(all_penalties, folder=tmp_path_factory.mktemp("penalties"))))


def test_few_points_have_the_same_penalty_on_one_process_and_on_two(of_two):
    value, gradients, _ = value_and_gradients(*few_points(torch.float64))
    (a, grads_a, _), (b, grads_b, _) = of_two[-1]
    torch.testing.assert_close(a.double(), value, rtol=1e-5, atol=1e-6)
    for x, y, gradient in zip(grads_a, grads_b, gradients):
        assert (torch.cat([x, y])/2 - gradient).norm() <= 1e-5*gradient.norm()


def double(states): return HiddenStates([layer.double() for layer in states.layers], states.mask)


@pytest.mark.parametrize("name", names)
def test_penalty_and_gradient_are_those_of_the_global_batch(name, of_two):
    start = names.index(name)*len(splits)
    value, gradients, after = value_and_gradients(double(cloud()), make(name, torch.float64))
    assert any(g.norm() > 0 for g in gradients)
    for first, ((a, grads_a, after_a), (b, grads_b, after_b)) in zip(splits, of_two[start:start+len(splits)]):
        assert a.dtype == torch.float32 and torch.equal(a, b), first
        torch.testing.assert_close(a.double(), value, rtol=1e-5, atol=1e-6)
        for x, y, gradient in zip(grads_a, grads_b, gradients):
            averaged = torch.cat([x, y])/2    # what data-parallel training makes of it
            assert (averaged - gradient).norm() <= 1e-5*gradient.norm(), first
        for key in after:
            assert torch.equal(after_a[key], after_b[key])
            torch.testing.assert_close(after_a[key].double(), after[key].double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", names)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_penalty_is_logged_where_nothing_is_trained(name, mode):
    "Lightning validates in inference mode."
    trained = make(name)(cloud())
    with mode(): logged = make(name)(HiddenStates([layer.clone() for layer in cloud().layers], cloud().mask))
    torch.testing.assert_close(logged, trained, rtol=1e-6, atol=1e-7)


def test_automatic_shrinkage_is_that_of_the_joined_sentences():
    states, cov = cloud(), reference()
    ids = torch.arange(sentences)[:, None].expand(sentences, length)[states.mask.bool()].repeat(2)
    expected = optimal_zeta(torch.cat([states.points(1), states.points(2)]), cov, ids)
    zeta, _ = batch_zeta(states, [1, 2], reference_of(cov), "real", IStar("auto").group)
    assert 0 < expected < 1 and zeta.item() == pytest.approx(expected, rel=1e-4)


faults = {"nan": "not finite", "empty": "`mask` ", "zero": "zero vector", "constant": "zero variance", "few": "`mask` "}
raised = {"nan": ["auto", "target", "unbiased", "cosreg", "vicreg", "uniformity"],
          "empty": ["auto", "target", "unbiased", "cosreg", "vicreg", "uniformity"],
          "zero": ["cosreg", "uniformity"], "constant": ["target", "unbiased"], "few": ["auto", "unbiased"]}


def faulty(kind, rank):
    "A share of the batch with a fault that only the second process has, where that is possible."
    part = share(cloud(), rank, 25)
    layers, mask = [layer.clone() for layer in part.layers], part.mask.clone()
    if kind == "nan" and rank == 1: layers[-1][3, 0] = float("nan")
    if kind == "zero" and rank == 1: layers[-1][3, 0] = 0
    if kind == "constant": layers = [torch.ones_like(layer) for layer in layers]
    if kind == "empty": mask.zero_()
    if kind == "few": mask[2 - rank:] = 0      # two sentences and one
    return HiddenStates(layers, mask)


def error_text(penalty, states):
    try: return f"no error: {penalty(states)}"
    except ValueError as e: return str(e)


def errors(rank):
    return [error_text(make(name).eval(), faulty(kind, rank)) for kind, wanted in raised.items() for name in wanted]


def test_every_process_finds_the_same_errors(tmp_path):
    cases = [(kind, name) for kind, wanted in raised.items() for name in wanted]
    for (kind, name), a, b in zip(cases, *on_two(errors, folder=tmp_path), strict=True):
        assert a == b and faults[kind] in a, (kind, name, a, b)


too_small = {"unbiased": 3, "unbiased target": 3, "auto": 3, "unbiased cls": 3, "vicreg": 1,
             "uniformity": 1}


def short_batches(rank):
    "Value, largest gradient and warning of too small global batches, of which the first process has one sentence."
    found = []
    for name, count in too_small.items():
        states = share(cloud(), 0, count)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value, gradients, _ = value_and_gradients(share(states, rank, 1), make(name))
        found.append((name, value.item(), max(g.abs().max().item() for g in gradients if g.numel()) if rank == 0
                      else 0., [str(w.message) for w in caught]))
    return found


def test_every_process_gives_a_short_batch_no_penalty(tmp_path):
    first, second = on_two(short_batches, folder=tmp_path)
    assert first == second
    for name, value, gradient, messages in first:
        assert (value == gradient == 0 and len(messages) == 1
                and f"selects {too_small[name]} " in messages[0]), (name, messages)


def second_derivatives(rank):
    "Whether differentiating a global gradient again is refused."
    refused = []
    for name in names:
        leaves = [layer.clone().requires_grad_() for layer in share(cloud(), rank, 25).layers]
        value = make(name)(HiddenStates(leaves, share(cloud(), rank, 25).mask))
        try: torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True)
        except RuntimeError as e: refused.append("second derivative" in str(e))
        else: refused.append(False)
    return refused


def test_second_derivatives_over_processes_are_refused(tmp_path):
    for refused in on_two(second_derivatives, folder=tmp_path): assert all(refused), dict(zip(names, refused))


def local_penalties(rank): # in one process there is nothing to share
    return [type(make(n))(scope="local")(share(cloud(), rank, 25))
            for n in ("unbiased", "cosreg", "vicreg", "uniformity")]


def test_local_scope_is_each_process_by_itself(tmp_path):
    results = on_two(local_penalties, folder=tmp_path)
    for rank, values in enumerate(results): torch.testing.assert_close(values, local_penalties(rank))
    assert all(a != b for a, b in zip(*results))


class Tiny(nn.Module):
    "States of two layers and class scores."
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head, self.idle = (nn.Linear(dims, dims), nn.Linear(dims, dims),
                                                         nn.Linear(dims, 3), nn.Linear(2, 2))

    def forward(self, x):
        states = [x, self.first(x).tanh()]
        states.append(self.second(states[-1]))
        return states, self.head(states[-1][:, 0])


def strengths(rank, first, scale=1.):
    "λ after each of three measurements, and the gradients of the update after them; `first` None for one process."
    several = first is not None
    model, strength, states = Tiny(), RelativeStrength(-0.2, average=0.5), cloud()
    net = DistributedDataParallel(model, find_unused_parameters=True) if several else model
    part, seen = share(states, rank, first) if several else states, []
    labels = (torch.arange(sentences) % 3)[(slice(first) if rank == 0 else slice(first, None)) if several
                                           else slice(None)]
    for step in range(3):
        layers, scores = net(part.layers[0] + step)
        penalty = IStar(0.)(HiddenStates(layers, part.mask))
        task = nn.functional.cross_entropy(scores, labels, reduction="sum")*((2 if several else 1)/sentences)
        seen.append(strength.update(task, penalty, model.parameters(), scale=scale))
    (task + strength.lam*penalty).backward()
    return seen, strength.norms, [p.grad for p in model.parameters() if p.grad is not None]


def test_relative_strength_is_that_of_one_process(tmp_path):
    lams, norms, gradients = strengths(0, None)
    assert len(set(lams)) == 3 and all(lam < 0 for lam in lams)
    scaled, _, _ = strengths(0, None, 1024.)
    assert scaled == pytest.approx(lams, rel=1e-5)
    for first in (25, 40, 45):
        for seen, found, grads in on_two(strengths, first, folder=tmp_path):
            assert seen == pytest.approx(lams, rel=1e-5) and found == pytest.approx(norms, rel=1e-5)
            for a, b in zip(grads, gradients): assert (a - b).norm() <= 1e-4*b.norm() + 1e-7


@pytest.mark.parametrize("name", names)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduced_precision_is_computed_in_float32(name, dtype):
    states = cloud()
    rounded = HiddenStates([layer.to(dtype) for layer in states.layers], states.mask)
    wide = HiddenStates([layer.float() for layer in rounded.layers], states.mask)
    value, gradients, _ = value_and_gradients(wide, make(name))
    with torch.autocast("cpu", dtype=torch.bfloat16): ours, grads, _ = value_and_gradients(rounded, make(name))
    with torch.autocast("cpu", dtype=torch.bfloat16): again, _, _ = value_and_gradients(wide, make(name))
    assert ours.dtype == again.dtype == torch.float32 and torch.equal(again, value)
    torch.testing.assert_close(ours, value, rtol=1e-5, atol=1e-7)
    for a, b in zip(grads, gradients):
        assert a.dtype == dtype
        assert (a.float() - b).norm() <= 0.01*b.norm()


def squared_gradient(value, x):
    "‖∂f/∂x‖², with its graph, which a gradient penalty adds to a loss."
    gradient, = torch.autograd.grad(value(x), x, create_graph=True)
    return gradient.square().sum()


def stacked(penalty): # of states in which every layer depends on the one below, as in a model
    def value(x):
        first = x.tanh()
        return penalty(HiddenStates([x, first, first*x + x.roll(1, 0)], cloud().mask[:6]))
    return value


points = {"covariance": lambda x: covariance(x.flatten(0, 1)).square().sum(),
          "isoscore": lambda x: isoscore(x.flatten(0, 1)),
          "isoscore, few points": lambda x: isoscore(x.reshape(9, 12)),
          "isoscore_star": lambda x: isoscore_star(x.flatten(0, 1), torch.eye(3).double(), 0.3),
          "isoscore_unbiased": lambda x: isoscore_unbiased(x.flatten(0, 1))}
of_three = {"istar": lambda: IStar(0.2, torch.eye(3).double()), "unbiased": UnbiasedIStar,
            "cosreg": lambda: CosReg("all"), "vicreg": lambda: VICRegCovariance("all", "real"),
            "uniformity": lambda: Uniformity(2., "all", "real")}


@pytest.mark.parametrize("name", [*points, *of_three])
def test_second_derivatives_are_right(name):
    value = points[name] if name in points else stacked(of_three[name]())
    x = torch.randn(6, 6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True)
    gradient, = torch.autograd.grad(squared_gradient(value, x), x)
    direction, step = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64), 1e-5
    both = [squared_gradient(value, (x.detach() + sign*step*direction).requires_grad_()) for sign in (1, -1)]
    expected = ((both[0] - both[1])/(2*step)).item()
    assert abs(expected) > 1e-9 and (gradient*direction).sum().item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")    # within torch.func.hessian
@pytest.mark.parametrize("name", points)
@pytest.mark.parametrize("transform", ["grad", "vmap", "hessian"])
def test_function_transforms_are_right_or_refused(name, transform):
    x = torch.randn(6, 6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    value = points[name]
    try:
        if transform == "vmap":
            found, expected = torch.func.vmap(value)(torch.stack([x, 2*x + 1])), torch.stack([value(x), value(2*x + 1)])
        elif transform == "grad":
            found, expected = (torch.func.grad(value)(x),
                               torch.autograd.grad(value(y := x.clone().requires_grad_()), y)[0])
        else: found, expected = torch.func.hessian(value)(x), torch.autograd.functional.hessian(value, x)
    except RuntimeError as e: assert "functorch" in str(e) or "vmap" in str(e)
    else: torch.testing.assert_close(found, expected)


def waits_of_a_step(penalty, states):
    "How often the host waited for a simulated accelerator, forward and backward; the value, the last layer's gradient."
    with Accelerator() as sim:
        moved = HiddenStates([layer.to(sim.device) for layer in states.layers], states.mask.to(sim.device))
        penalty = penalty.to(sim.device)
        sim.waits.clear()
        leaves = [layer.requires_grad_() for layer in moved.layers]
        value = penalty(HiddenStates(leaves, moved.mask))
        value.backward()
        waits = dict(sim.waits)
        return sum(waits.values()), value.detach().cpu(), leaves[-1].grad.cpu(), waits


@pytest.mark.parametrize("name", names)
def test_a_step_waits_twice_or_once_more_for_each_layer(name):
    waits, value, gradient, where = waits_of_a_step(make(name), cloud())
    layers = {"cosreg all": 3, "koleo real": 3, "vicreg real": 2, "uniformity real": 2, "frossl real": 2}
    assert waits <= 1 + layers.get(name, 1), where
    expected, gradients, _ = value_and_gradients(cloud(), make(name))
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient, gradients[-1], rtol=1e-5, atol=1e-8)


scores = {"covariance": (lambda x: covariance(x).sum(), 1), "isoscore": (isoscore, 1),
          "isoscore, few points": (lambda x: isoscore(x[:10]), 1),
          "isoscore_star": (lambda x: isoscore_star(x, reference().to(x), 0.2), 2),
          "isoscore_unbiased": (isoscore_unbiased, 2)}


@pytest.mark.parametrize("name", scores)
@pytest.mark.parametrize("float64", [True, False])
def test_a_score_waits_at_most_twice(name, float64):
    f, most = scores[name]
    x = cloud().layers[1].flatten(0, 1)
    expected = torch.autograd.grad(f(y := x.clone().requires_grad_()), y)[0]
    with Accelerator(float64=float64) as sim:
        moved = x.to(sim.device).requires_grad_()
        sim.waits.clear()
        f(moved).backward()
        assert sum(sim.waits.values()) <= most, sim.waits
        torch.testing.assert_close(moved.grad.cpu(), expected, rtol=1e-4, atol=1e-6*expected.abs().max().item())


@pytest.mark.parametrize("name", names)
def test_a_device_without_float64_computes_the_same(name):
    expected, gradients, _ = value_and_gradients(cloud(0.), make(name))
    with Accelerator(float64=False) as sim:
        leaves = [layer.to(sim.device).requires_grad_() for layer in cloud(0.).layers]
        value = make(name).to(sim.device)(HiddenStates(leaves, cloud().mask.to(sim.device)))
        value.backward()
        torch.testing.assert_close(value.detach().cpu(), expected, rtol=1e-4, atol=1e-6)
        assert (leaves[-1].grad.cpu() - gradients[-1]).norm() <= 1e-3*gradients[-1].norm()


class Rounded(Work):
    "Rounds factors of products where the setting allows it, as a CPU with bfloat16 units does; `rounded` counts them."
    rounded = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        k = factors.get(func.overloadpacket.__name__)
        if k is not None and product_format(torch.device("cpu")) == "bf16":
            args, self.rounded = ((*args[:k], *(factor.bfloat16().float() for factor in args[k:k+2]), *args[k+2:]),
                                  self.rounded + 1)
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.fixture(scope="module")
def activations():
    "States of MiniLM, which has dimensions far larger than the others."
    model, tokenizer = load_encoder("minilm")
    texts = [f"{a} {b} {c}." for a in ("The file", "A socket", "This module", "The old parser")
             for b in ("is opened", "waits and waits for data", "fails")
             for c in ("here", "in the next release of the library", "twice")]
    with torch.no_grad(): return hidden_states(model, dict(tokenizer(texts, padding=True, return_tensors="pt")))


rounding = {"istar": lambda states: IStar(0.),
            "shrunk": lambda states: IStar(0.2, covariance(states.points(3))),
            "few points": lambda states: IStar(0.2, covariance(states.points(3)), layers=3, tokens="cls"),
            "unbiased": lambda states: UnbiasedIStar()}


@pytest.mark.parametrize("name", rounding)
def test_a_backward_pass_rounds_as_its_forward_pass_did(name, activations):
    cpu, penalty = torch.device("cpu"), rounding[name](activations)
    value, gradients, _ = value_and_gradients(activations, penalty)
    leaves = [layer.clone().requires_grad_() for layer in activations.layers]
    with Rounded() as forward, products_in("bf16", cpu): coarse = penalty(HiddenStates(leaves, activations.mask))
    with Rounded() as backward: coarse.backward()
    assert forward.rounded and backward.rounded
    approximate = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    assert abs((1 - coarse.double())/(1 - value.double()) - 1) < 2e-4
    exact, found = (torch.cat([t.double().flatten() for t in each]) for each in (gradients, approximate))
    assert (found - exact).norm() < 1e-2*exact.norm()
    with Rounded() as off: value_and_gradients(activations, penalty)
    assert not off.rounded


def test_the_setting_of_products_is_put_back_after_an_error_too():
    cpu = torch.device("cpu")
    bad = HiddenStates([torch.full((5, 3, 4), torch.nan).requires_grad_()]*2, torch.ones(5, 3))
    for outside in ("tf32", "none"):
        torch.backends.mkldnn.matmul.fp32_precision = outside
        with pytest.raises(ValueError, match="finite"), products_in("bf16", cpu): IStar(0.)(bad)
        assert product_format(cpu) == outside


def test_a_pytorch_without_the_setting_computes_as_it_does(monkeypatch):
    monkeypatch.delattr(type(torch.backends.mkldnn), "matmul")
    value_and_gradients(cloud(), IStar(0.))
    with products_in("bf16", torch.device("cpu")): assert product_format(torch.device("cpu")) is None


@pytest.mark.parametrize("make", (lambda: IStar(0.), CosReg, VICRegCovariance, Uniformity))
@pytest.mark.parametrize("dtype", (torch.complex64, torch.int64))
def test_states_that_are_no_real_numbers_are_refused(make, dtype):
    with pytest.raises(TypeError, match=r"`layers\[0\]` must be floating point"):
        make()(HiddenStates([torch.ones(6, 5, 8, dtype=dtype)]*2, torch.ones(6, 5)))


@pytest.mark.parametrize("unit, zeta", ((1e-25, 0.), (1e19, 0.), (1e19, 0.2)))
def test_a_penalty_of_states_out_of_range_names_them(unit, zeta):
    "Squares of such states vanish or overflow in float32."
    points = torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(0))
    penalty = IStar(zeta, torch.eye(8), layers=0)
    penalty(HiddenStates([points], torch.ones(6, 5)))
    with pytest.raises(ValueError, match="`x` is about"): penalty(HiddenStates([points*unit], torch.ones(6, 5)))


def test_a_reference_of_zero_that_is_all_there_is_names_itself():
    with pytest.raises(ValueError, match="`cov_ref` is zero"):
        IStar(1., torch.zeros(8, 8), layers=0)(HiddenStates([torch.randn(6, 5, 8)], torch.ones(6, 5)))


@pytest.mark.parametrize("penalty", [IStar(0.), UnbiasedIStar(), CosReg(), Uniformity(), EntropyRegularizer()])
def test_the_bare_states_of_a_model_are_refused_by_name(penalty):
    with pytest.raises(TypeError, match="`states` must be HiddenStates"): penalty(tuple(cloud().layers))
