"""What scores and penalties cost, counted: products exactly; memory kept, operators and waits at most.

Seconds depend on the machine and on its neighbours, these counts do not. Formulas are in the n points that are scored,
the d dimensions and, where sentences matter, the G sentences of m points. Whoever lowers a count lowers its formula;
whoever raises one makes every training step dearer.
"""
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from processes import Process
from simulated import Accelerator
from torch import Tensor

from istar_nb.penalties.baselines import CosReg, Uniformity, VICRegCovariance
from istar_nb.penalties.isolayer import isotropy_loss
from istar_nb.penalties.regularizers import IStar, UnbiasedIStar
from istar_nb.geometry.scores import isoscore, isoscore_star, isoscore_unbiased
from istar_nb.base.states import HiddenStates
from istar_nb.base.testing import Work, kept_for_backward
from istar_nb.penalties.topology import EntropyRegularizer


class Batch(NamedTuple):
    "A batch without padding."
    sentences:int
    length:int
    d:int


many, few = Batch(16, 8, 32), Batch(4, 4, 64)    # more points than dimensions, and fewer
several = (many, many._replace(sentences=32), many._replace(d=64))


# Multiplications of a value and its gradient. Five eighths of a symmetric product are computed.
def by_covariance(n, d): return 13*n*d*d//8 + d*d      # XᵀX; XG, and the drift of the mean times G

def by_gram(n, d): return 2*n*n*d                      # XXᵀ; its product with X

def by_shrunk_gram(n, d): return 2*n*n*d + n*d*d       # these, and XΣ_S

def squares(G, m, d): return 5*G*m*d*(m if 4*m < d else d)//8    # X_gX_gᵀ of short sentences, else X_gᵀX_g

def sentence_sums(G, m, d):
    "The squares, and XᵀX where they do not give it; X_g s_g; B_g s_g; M."
    return squares(G, m, d) + (4*m < d)*(5*G*m*d*d//8) + 2*G*m*d + G*d*d

def by_sentences(G, m, d):
    "The sums; for the gradient the squares, X_g s_g and B_g s_g again, their products with X and s_g, and M's with s."
    again = squares(G, m, d) + 2*G*m*d
    return sentence_sums(G, m, d) + again + G*m*d*(d + m*(4*m < d)) + G*m*d + G*d*d

def by_rows(G, m, d):
    "The plain formula and its two gradients: XᵀX and, where sentences have several rows, M and the smaller squares."
    return 3*(G*m*d*d + (m > 1)*(G*d*d + G*m*d*min(m, d)))


class Cost(NamedTuple):
    "What a score or a penalty may cost, forward and backward."
    make:Callable            # (reference,) -> score of (n, d) points or penalty
    products:int|Callable    # (n, d) or (G, m, d) -> multiplications in matrix products
    kept:Callable            # (n, d) -> numbers of four bytes kept between the passes, beside the states; at most
    operators:int            # at most: a tenth above what PyTorch 2.13 calls
    waits:int                # of the host for an accelerator
    layers:int = 1           # whose points are scored
    batches:tuple = several  # that are counted


def star(cov): return lambda x: isoscore_star(x, cov, 0.2)
def sentenced(cov): return lambda x: isoscore_unbiased(x, torch.arange(len(x), device=x.device)//many.length)
def by_one_row(n, d): return by_rows(n, 1, d)
def square(n, d): return d*d + 3*d
def two_squares(n, d): return 2*d*d + 4*d

SCORES = {
    "isoscore": Cost(lambda cov: isoscore, by_covariance, square, 175, 1),
    "isoscore, few points": Cost(lambda cov: isoscore, by_gram, lambda n, d: n*d + n*n + 8, 62, 1, 1, (few,)),
    "isoscore_star": Cost(star, by_covariance, square, 229, 2),
    "isoscore_star, few points": Cost(star, by_shrunk_gram, lambda n, d: 2*n*d + n*n + 8, 179, 2, 1, (few,)),
    "isoscore_unbiased": Cost(lambda cov: isoscore_unbiased, by_one_row, lambda n, d: 3*n*d + d*d + 14*n + 19, 322, 2),
    "isoscore_unbiased, sentences": Cost(sentenced, by_rows, lambda n, d: 3*n*d + 4*d*d + 100*n, 700, 4, 1,
                                         (many, many._replace(d=64))),
    "isotropy_loss": Cost(lambda cov: isotropy_loss, by_covariance, square, 182, 2)}
PENALTIES = {
    "I-STAR, ζ = 0": Cost(lambda cov: IStar(0.), by_covariance, square, 302, 1, 2),
    "I-STAR, ζ = 0.2": Cost(lambda cov: IStar(0.2, cov), by_covariance, square, 303, 1, 2),
    "I-STAR, few points": Cost(lambda cov: IStar(0.), by_gram, lambda n, d: 2*n*d + n*n + 2*n, 95, 1, 2, (few,)),
    "I-STAR, ζ = 0.2, few points": Cost(lambda cov: IStar(0.2, cov), by_shrunk_gram,
                                        lambda n, d: 3*n*d + n*n + 2*n, 131, 1, 2, (few,)),
    "I-STAR, automatic ζ": Cost(lambda cov: IStar("auto", cov),
                                lambda G, m, d: by_covariance(G*m, d) + sentence_sums(G, m, d), square, 668, 1, 2),
    "unbiased I-STAR": Cost(lambda cov: UnbiasedIStar(), by_sentences, two_squares, 662, 1, 2),
    "unbiased I-STAR, few points": Cost(lambda cov: UnbiasedIStar(), by_sentences, two_squares, 684, 1, 2, (few,)),
    "CosReg": Cost(lambda cov: CosReg(), lambda n, d: 0, lambda n, d: n*d + 5*n + 2*d + 8, 93, 1),
    "VICReg": Cost(lambda cov: VICRegCovariance(tokens="real"), lambda n, d: 3*n*d*d,
                   lambda n, d: n*d + 2*n + 4*d*d + 4*d + 4, 107, 1),
    "uniformity": Cost(lambda cov: Uniformity(tokens="real"), lambda n, d: 2*n*n*d, lambda n, d: 3*n*d + 5*n, 98, 1)}


def reference(batch:Batch, device="cpu")->Tensor: return torch.linspace(2, 1, batch.d).diag().to(device)


def states_of(batch:Batch, device="cpu")->HiddenStates:
    "The states of an embedding and two layers, as leaves; the host has the mask."
    rng = torch.Generator().manual_seed(0)
    layers = [torch.randn(batch, generator=rng).to(device).requires_grad_() for _ in range(3)]
    return HiddenStates(layers, torch.ones(batch[:2], dtype=torch.long))


def input_of(name:str, batch:Batch, device="cpu")->HiddenStates|Tensor:
    "What a score or a penalty takes."
    states = states_of(batch, device)
    return states if name in PENALTIES else states.layers[-1].detach().flatten(0, 1).requires_grad_()


def leaves(x:HiddenStates|Tensor)->list[Tensor]: return list(x.layers) if isinstance(x, HiddenStates) else [x]


def sizes(cost:Cost, batch:Batch)->dict: # by their names in the formulas
    m = batch.length*cost.layers
    return dict(G=batch.sentences, m=m, n=batch.sentences*m, d=batch.d)


def evaluated(formula:Callable, values:dict)->int:
    "A formula of some of the sizes."
    return formula(*(values[name] for name in formula.__code__.co_varnames[:formula.__code__.co_argcount]))


CASES = SCORES | PENALTIES
over_batches = pytest.mark.parametrize("name, batch", [(name, b) for name, cost in CASES.items() for b in cost.batches])
over_cases = pytest.mark.parametrize("name", CASES)


def work_of(name:str, batch:Batch)->Work:
    "What is done for a value and its gradient, after what is looked up once, such as the numbers of a reference."
    value, x = CASES[name].make(reference(batch)), input_of(name, batch)
    value(input_of(name, batch))
    with Work() as work: value(x).backward()
    return work


@over_batches
def test_products_are_those_of_the_formula(name, batch):
    cost = CASES[name]
    assert work_of(name, batch).products == evaluated(cost.products, sizes(cost, batch))


@over_batches
def test_no_more_is_kept_than_the_formula_says(name, batch):
    cost, x = CASES[name], input_of(name, batch)
    value = cost.make(cov := reference(batch))
    with kept_for_backward(*leaves(x), cov) as kept: result = value(x)
    assert 0 < kept() <= 4*evaluated(cost.kept, sizes(cost, batch))
    result.backward()
    assert kept() == 0


@over_cases
def test_operators_are_few_and_as_many_for_every_size(name):
    counts = {batch: work_of(name, batch).operations for batch in CASES[name].batches}
    assert len(set(counts.values())) == 1 and max(counts.values()) <= CASES[name].operators, counts


@over_cases
def test_the_host_waits_as_often_as_stated(name):
    batch = CASES[name].batches[0]
    with Accelerator() as sim:
        value = CASES[name].make(reference(batch, sim.device))
        value(input_of(name, batch, sim.device))
        x = input_of(name, batch, sim.device)
        sim.waits.clear()
        value(x).backward()
        assert sim.waits.total() == CASES[name].waits, sim.waits


@pytest.mark.parametrize("name", ["I-STAR, ζ = 0", "I-STAR, ζ = 0.2"])
@pytest.mark.parametrize("batch", several)
def test_the_layers_are_never_joined(name, batch):
    layer, value = batch.sentences*batch.length*batch.d, CASES[name].make(reference(batch))
    value(states_of(batch))
    states = states_of(batch)
    with Work() as work: result = value(states)
    assert work.peak <= 4*(2*layer + 4*batch.d**2)    # the rows that count, centred; the products and their gradient
    with work: result.backward()
    assert work.largest == max(layer, batch.d**2)     # the gradient of one layer


def test_entropy_costs_at_most_one_product_of_all_pairs():
    counts = {}
    for batch in several:
        value, states, (n, _, d) = EntropyRegularizer(selection="none", by_class=False), states_of(batch), batch
        with kept_for_backward(*states.layers) as kept: result = value(states)
        assert 0 < kept() <= 4*3*n*d
        with Work() as work: value(states).backward()
        counts[batch] = work.operations
        assert work.products <= n*n*d and result.isfinite()
    assert max(counts.values()) <= 200, counts


def test_sentences_of_unequal_length_take_hardly_more_products():
    "B with three weights takes three products if it is computed row by row; of each length it takes one."
    def products(lengths):
        states = states_of(Batch(64, 8, 128))
        with Work() as work: UnbiasedIStar()(HiddenStates(states.layers, torch.arange(8) < lengths[:, None])).backward()
        return work.products
    assert products(torch.arange(64)//8 + 1) < 1.15*products(torch.full((64,), 8))


def benchmark(script, *options):
    "What Python does with a script."
    sys.argv, sys.path[:0] = [script, *options], [str(Path(script).parent)]
    runpy.run_path(script, run_name="__main__")


@pytest.mark.system
@pytest.mark.parametrize("command", ("watch --repeats 2 --batch 2 --length 8", "isoscore --repeats 2 --points 32",
                                     "step --repeats 2 --batch 2 --max-length 16"))
def test_a_benchmark_runs_to_its_end(command):
    name, *options = command.split()
    process = Process(benchmark, str(Path(__file__).resolve().parents[1]/"benchmarks"/f"{name}.py"), *options)
    said = process.wait()
    assert process.code == 0 and said, said
