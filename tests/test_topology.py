"Trees and neighbours where a notebook cannot go: two processes, coarse products, an accelerator."
import pytest
import torch

from istar_nb.geometry.dimension import neighbor_distances, two_nn
from istar_nb.base.states import HiddenStates
from istar_nb.penalties.topology import EntropyRegularizer, h0_bars, persistent_entropy, select_bars
from istar_nb.penalties.trees import prim
from simulated import Accelerator
from processes import on_two

rows, dims = 50, 24


def cloud():
    "Last-layer states (rows, 2, dims), far from the origin, and labels: classes of several, of one, of equal points."
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(rows, 2, dims, generator=generator)*torch.linspace(3, 0.5, dims) + 100
    labels = torch.randint(2, (rows,), generator=generator)
    labels[7], labels[[3, 30, 49]] = 5, 3
    states[[3, 30, 49]] = states[3].clone()
    return states, labels


def share(x, rank, first): return x[:first] if rank == 0 else x[first:]


def value_and_gradient(states, labels, micro=1, **options):
    "The penalty of a batch, in `micro` prepared micro-batches, and its gradient in the [CLS] states."
    leaf, penalty, value = states.clone().requires_grad_(), EntropyRegularizer(**options), 0.
    def batches(x):
        return [(HiddenStates([part]*2, torch.ones(part.shape[:2])), own)
                for part, own in zip(x.tensor_split(micro), labels.tensor_split(micro))]
    if micro > 1: penalty.prepare(batches(states))
    for one, own in batches(leaf):
        loss = penalty(one, own)/micro
        loss.backward()
        value += loss.item()
    assert (leaf.grad[:, 1] == 0).all()
    return value, leaf.grad[:, 0]


cases = [(first, micro, options) for first in (25, 40, 47, 50) for micro in (1, 3)
         for options in (dict(), dict(selection="none"), dict(selection="released", by_class=False),
                         dict(selection="released", noise=0.5, maxdim=1))]


def penalties(rank):
    states, labels = cloud()
    return [value_and_gradient(share(states, rank, first), share(labels, rank, first), micro, **options)
            for first, micro, options in cases]


def test_penalty_and_gradient_are_those_of_the_global_batch(tmp_path):
    states, labels = cloud()
    for (first, micro, options), (a, grad_a), (b, grad_b) in zip(cases, *on_two(penalties, folder=tmp_path),
                                                                 strict=True):
        value, gradient = value_and_gradient(states, labels, **options)
        assert a == pytest.approx(b, rel=1e-6) == pytest.approx(value, rel=1e-5), (first, micro, options)
        averaged = torch.cat([grad_a, grad_b])/2    # what data-parallel training makes of it
        assert gradient.norm() > 0 and (averaged - gradient).norm()/gradient.norm() < 1e-5, (first, micro, options)


def local_penalty(rank):
    states, labels = cloud()
    return value_and_gradient(share(states, rank, 30), share(labels, rank, 30), scope="local")


def test_local_scope_knows_only_its_own_rows(tmp_path):
    states, labels = cloud()
    for rank, (value, gradient) in enumerate(on_two(local_penalty, folder=tmp_path)):
        alone, expected = value_and_gradient(share(states, rank, 30), share(labels, rank, 30))
        assert value == alone and torch.equal(gradient, expected)


kinds = {"missing": "`labels` are missing", "float": "`labels` must be integers", "short": "differ in number",
         "nan": "not finite", "empty": "n ≥ 1"}


def errors(rank):
    messages = []
    for kind in kinds:
        states, labels = (share(x, rank, 25) for x in cloud())
        if rank == 1 and kind == "missing": labels = None
        if rank == 1 and kind == "float": labels = labels.float()
        if rank == 1 and kind == "short": labels = labels[:3]
        if rank == 1 and kind == "nan": states[2] = float("nan")
        if kind == "empty": states, labels = states[:0], labels[:0]
        try: EntropyRegularizer()(HiddenStates([states], torch.ones(states.shape[:2])), labels)
        except ValueError as e: messages.append(str(e))
    return messages


def test_every_process_finds_the_same_errors(tmp_path):
    for text, a, b in zip(kinds.values(), *on_two(errors, folder=tmp_path), strict=True): assert a == b and text in a


@pytest.mark.parametrize("number", range(30))
def test_the_search_is_right_on_clouds_with_ties(number):
    generator = torch.Generator().manual_seed(number)
    n, d = (torch.randint(low, high, (), generator=generator).item() for low, high in [(100, 300), (1, 6)])
    x = torch.randint(2 + number % 5, (n, d), generator=generator).float()    # few distinct values: duplicates and ties
    lengths = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    expected = lengths[tuple(torch.from_numpy(prim(lengths.numpy())).T)].sort().values
    torch.testing.assert_close(h0_bars(x).sort().values.double(), expected, rtol=1e-6, atol=0)


def in_bfloat16(product):
    "`product` as a CPU with units for bfloat16 computes it, where they are allowed: its factors are rounded."
    def rounded(added, a, b, **options):
        if torch.backends.mkldnn.matmul.fp32_precision == "bf16" and a.dtype == torch.float32:
            a, b = a.bfloat16().float(), b.bfloat16().float()
        return product(added, a, b, **options)
    return rounded


def all_pairs(x): return torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")


@pytest.fixture
def coarse(request, monkeypatch):
    "An owner of settings, set so that products have few digits, as if on a CPU with units for them."
    monkeypatch.setattr(torch, "addmm", in_bfloat16(torch.addmm))
    request.param.fp32_precision = "bf16"
    yield request.param
    request.param.fp32_precision = "none"
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("coarse", (torch.backends, torch.backends.mkldnn, torch.backends.mkldnn.matmul), indirect=True)
@pytest.mark.parametrize("d", (2, 5, 64, 512))
def test_neighbours_and_trees_are_exact_with_coarse_products(d, coarse):
    x = torch.randn(700, d, generator=torch.Generator().manual_seed(d))*torch.logspace(0, -2, d) + 3
    distances = all_pairs(x)
    i, j = prim(distances.numpy()).T
    square = torch.addmm(torch.zeros(700), x, x.T)
    assert (square - x.double() @ x.double().T).abs().max() > 1e-4*square.abs().max()
    nearest = distances.fill_diagonal_(torch.inf).topk(3, largest=False).values
    torch.testing.assert_close(neighbor_distances(x, 3).double(), nearest, rtol=1e-6, atol=0)
    torch.testing.assert_close(h0_bars(x).double().sort().values, all_pairs(x)[i, j].sort().values, rtol=1e-6, atol=0)
    assert coarse.fp32_precision == "bf16"


@pytest.mark.parametrize("float64", (True, False))
def test_neighbours_and_trees_on_an_accelerator(float64):
    generator = torch.Generator().manual_seed(0)
    cloud = torch.randn(200, 12, generator=generator)
    cloud[150:] = cloud[:50]    # doubles
    labels = torch.randint(3, (200,), generator=generator)
    def values(x, labels):
        x = x.detach().requires_grad_()
        bars = h0_bars(x)
        states = HiddenStates([x[:, None]], torch.ones(200, 1, device=x.device))
        penalties = [EntropyRegularizer(rule)(states, labels) for rule in ("atienza", "released", "none")]
        found = [two_nn(x), bars.sort().values, persistent_entropy(bars), select_bars(bars), *penalties]
        return [value.detach().cpu() for value in found] + [torch.autograd.grad(sum(penalties), x)[0].cpu()]
    expected = values(cloud, labels)
    with Accelerator(float64=float64) as sim: found = values(cloud.to(sim.device), labels.to(sim.device))
    for a, b in zip(found, expected, strict=True): torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options",
                         (dict(), dict(selection="released"), dict(selection="none", by_class=False),
                          dict(selection="released", noise=0.05)))
@pytest.mark.parametrize("micro", (1, 2))
def test_the_entropy_penalty_makes_the_host_wait_three_times_at_most(options, micro):
    x, labels = torch.randn(64, 1, 16, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 7
    with Accelerator() as sim:
        leaf, labels, penalty = x.to(sim.device).requires_grad_(), labels.to(sim.device), EntropyRegularizer(**options)
        batch = HiddenStates([leaf], torch.ones(64, 1, device=sim.device)), labels
        if micro > 1: penalty.prepare([batch]*micro)
        sim.waits.clear()
        penalty(*batch).backward()
    assert sum(sim.waits.values()) <= 3, sim.waits


@pytest.mark.parametrize("n", (3, 300))
@pytest.mark.parametrize("bad", (float("nan"), float("inf")))
def test_points_that_are_not_finite_are_refused_in_words(n, bad):
    x = torch.ones(n, 4)
    x[n//2, 1] = bad
    states = HiddenStates([x[:, None]], torch.ones(n, 1))
    for penalty in (EntropyRegularizer(by_class=False), lambda states: h0_bars(states.points(-1, "cls"))):
        with pytest.raises(ValueError, match="`x` has values that are not finite"): penalty(states)


@pytest.mark.parametrize("n", (100, 400))
def test_gradients_at_equal_points_are_finite(n):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(n)).repeat(n//4, 1).requires_grad_()
    bars = h0_bars(x)
    persistent_entropy(bars).backward()
    assert (bars > 0).sum() == 3 and x.grad.isfinite().all() and x.grad.any()
    same = torch.ones(n, 8, requires_grad=True)
    persistent_entropy(h0_bars(same)).backward()
    assert not same.grad.any()


@pytest.mark.parametrize("selection", ["atienza", "released"])
def test_a_bar_that_vanishes_beside_the_longest_is_noise(selection):
    "As of points that are equal but for rounding near zero."
    for short, dtype in ((1e-17, torch.float32), (1e-300, torch.float64), (1e-310, torch.float64)):
        bars = torch.tensor([short, 1e5, 1.1e5, 1.2e5, 1.3e5, 1.4e5], dtype=dtype)
        slightly = select_bars(torch.tensor([1e-6, *bars[1:]], dtype=dtype), selection)
        assert torch.equal(select_bars(bars, selection), slightly) and short not in slightly


@pytest.mark.parametrize("labels, message", ((None, "are missing"), ([0, 1], "must be integers"),
                                             (torch.ones(2, 3, dtype=torch.int64), "must be integers")))
@pytest.mark.parametrize("first", (True, False))
def test_micro_batches_name_labels_that_cannot_be_joined(labels, message, first):
    "Also where another micro-batch has good ones."
    states, good = HiddenStates([torch.randn(2, 3, 4)], torch.ones(2, 3)), torch.tensor([0, 1])
    batches = [(states, labels), (states, good)] if first else [(states, good), (states, labels)]
    penalty = EntropyRegularizer()
    with pytest.raises(ValueError, match=f"`labels` {message}"): penalty.prepare(batches)


def test_an_update_may_be_prepared_in_inference_mode():
    x, labels = torch.randn(8, 1, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    mask, gradients = torch.ones(8, 1), []
    for mode in (torch.no_grad, torch.inference_mode):
        penalty, leaf = EntropyRegularizer("none"), x.clone().requires_grad_()
        with mode(): penalty.prepare([(HiddenStates([x.clone()], mask), labels)])
        gradients += torch.autograd.grad(penalty(HiddenStates([leaf], mask), labels), leaf)
    assert torch.equal(*gradients) and gradients[0].any()


@pytest.mark.filterwarnings("ignore")    # of the tracer
@pytest.mark.parametrize("by_class", (True, False))
def test_a_compiled_loss_has_the_same_entropy(by_class):
    x, mask, labels = torch.randn(8, 5, 12), torch.ones(8, 5), torch.arange(8) % 2
    penalty, found = EntropyRegularizer(by_class=by_class), []
    def loss(x): return penalty(HiddenStates([x], mask), labels)
    for function in (loss, torch.compile(loss, backend="eager")):
        leaf = x.clone().requires_grad_()
        value = function(leaf)
        found.append((value, *torch.autograd.grad(value, leaf)))
    assert all(torch.equal(a, b) for a, b in zip(*found))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("n", (1, 2, 3, 64, 1024))
def test_on_a_gpu(n):
    x = torch.randn(n, 96, generator=torch.Generator().manual_seed(n))
    if n > 3: x[n//2:] = x[:n//2].clone()    # duplicates
    here, there = x.clone().requires_grad_(), x.cuda().requires_grad_()
    bars, copy = h0_bars(here), h0_bars(there)
    assert copy.is_cuda
    torch.testing.assert_close(copy.sort().values.cpu(), bars.sort().values, rtol=1e-5, atol=1e-6)
