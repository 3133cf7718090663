"Two gloo processes against one: penalties, gradients, references, errors, whole runs."
import pytest
import torch
import torch.distributed as dist

from istar_nb.penalties.controls import OwnMeans
from istar_nb.base.covariance import Moments, covariance
from istar_nb.training.evaluation import LayerMoments
from istar_nb.base.states import HiddenStates
from istar_nb.penalties.regularizers import IStar, UnbiasedIStar, batch_zeta, pooled_isoscore
from istar_nb.training.records import find_record
from istar_nb.training.runs import RunConfig
from istar_nb.geometry.scores import isoscore_unbiased, reference_of
from istar_nb.geometry.unbiased import optimal_zeta
from istar_nb.training.training import train
from processes import on_two

rows, dims = 50, 24


def cloud(offset=1000.):
    "States of two layers, (rows, 1, dims) each: every row a sentence of one token, far from the origin."
    generator = torch.Generator().manual_seed(0)
    scale = torch.linspace(3, 0.5, dims)
    return [torch.randn(rows, 1, dims, generator=generator)*scale + offset*(l+1)/2 for l in range(2)]


def share(states, rank, first): return [s[:first] if rank == 0 else s[first:] for s in states]


def penalty_and_gradient(states, cov_ref, zeta):
    leaves = [s.clone().requires_grad_() for s in states]
    penalty = IStar(zeta, cov_ref)(HiddenStates(leaves, torch.ones(leaves[0].shape[:2])))
    penalty.backward()
    return penalty.item(), torch.cat([leaf.grad for leaf in leaves[1:]], 0).flatten(0, 1)


splits = [(first, zeta) for first in (25, 40, 45, 50) for zeta in (0., 0.2)]


def global_penalties(rank, cov_ref):
    return [penalty_and_gradient(share(cloud(), rank, first), cov_ref, zeta) for first, zeta in splits]


def test_penalty_and_gradient_are_those_of_the_global_batch(tmp_path):
    cov_ref = covariance(torch.randn(200, dims, generator=torch.Generator().manual_seed(1)))
    for (first, zeta), (a, grad_a), (b, grad_b) in zip(splits, *on_two(global_penalties, cov_ref, folder=tmp_path)):
        value, gradient = penalty_and_gradient([s.double() for s in cloud()], cov_ref.double(), zeta)
        assert a == b == pytest.approx(value, abs=1e-6), (first, zeta)
        averaged = torch.cat([grad_a, grad_b])/2    # what data-parallel training makes of it
        assert (averaged - gradient).norm()/gradient.norm() < 1e-6, (first, zeta)


sentence_lengths = torch.tensor([30, 2, 3, 1, 4, 9, 2, 5])


def uneven(first, last, dtype=torch.float32):
    "Sentences of very unequal lengths, whose tokens resemble each other, in an embedding and two layers."
    generator = torch.Generator().manual_seed(2)
    common, own = torch.randn(3, 8, 1, dims, generator=generator), torch.randn(3, 8, 30, dims, generator=generator)
    mask = torch.arange(30) < sentence_lengths[:, None]
    layers = (3*common + own + 10).to(dtype)[:, first:last]
    return HiddenStates([layer.requires_grad_() for layer in layers], mask[first:last])


def unbiased_and_gradient(states):
    penalty = UnbiasedIStar()(states)
    penalty.backward()
    zeta, _ = batch_zeta(states, [1, 2], reference_of(torch.eye(dims)), "real", UnbiasedIStar().group)
    return penalty.item(), zeta.item(), torch.stack([layer.grad for layer in states.layers[1:]])


def unbiased_penalties(rank, first): return unbiased_and_gradient(uneven(*((0, first), (first, 8))[rank]))


@pytest.mark.parametrize("first", [4, 1, 7])
def test_unequal_sentences_of_two_processes_are_compared_like_those_of_one(tmp_path, first):
    "Four sentences on each process, or all but one on the other; the plain formula has the same value."
    states = uneven(0, 8, torch.float64)
    value, zeta, gradient = unbiased_and_gradient(states)
    union = torch.cat([states.points(l).detach() for l in (1, 2)])
    ids = torch.arange(8).repeat_interleave(sentence_lengths).repeat(2)
    assert value == pytest.approx(1 - isoscore_unbiased(union, ids).item(), abs=1e-9)
    assert zeta == pytest.approx(optimal_zeta(union, torch.eye(dims), ids), abs=1e-6)
    (a, zeta_a, one), (b, zeta_b, other) = on_two(unbiased_penalties, first, folder=tmp_path)
    assert a == b == pytest.approx(value, abs=1e-5) and zeta_a == zeta_b == pytest.approx(zeta, abs=1e-5)
    assert (torch.cat([one, other], 1)/2 - gradient).norm()/gradient.norm() < 1e-5


def reference(rank, first):
    penalty = IStar(0.2, reference_points=10**6)
    part = share(cloud(), rank, first)
    penalty.collect([HiddenStates(part, torch.ones(part[0].shape[:2]))])
    empty = Moments(dims) if rank else Moments(dims).update(cloud()[0][:, 0])
    return penalty.cov_ref, empty.all_reduce().covariance()


def test_reference_is_that_of_all_processes(tmp_path):
    (a, one), (b, other) = on_two(reference, 40, folder=tmp_path)
    assert torch.equal(a, b) and torch.equal(one, other)
    torch.testing.assert_close(a, covariance(cloud()[1][:, 0]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(one, covariance(cloud()[0][:, 0]), rtol=1e-4, atol=1e-4)


def layer_scores(rank, parts, copies):
    "Scores of sentences that the processes share, of two layers that are alike; None for a single process."
    moments, states = LayerMoments(rows), [cloud(5.)[0].expand(-1, copies, -1)*torch.linspace(1, 2, copies)[:, None]]*2
    for numbers in parts if rank is None else [parts[rank]]:
        moments.add(HiddenStates([s[numbers] for s in states], torch.ones(len(numbers), copies)), numbers)
    if rank is not None: moments.all_reduce()
    return moments.scores()


@pytest.mark.parametrize("copies, estimator", [(1, "quadruples of sentences"), (1400, "two halves")])
def test_an_evaluation_does_not_depend_on_the_number_of_processes(copies, estimator, tmp_path):
    "The unbiased score and its error too; one process sees three sentences."
    parts = [[0, 7, 30], sorted(set(range(rows)) - {0, 7, 30})]
    a, b = on_two(layer_scores, parts, copies, folder=tmp_path)
    one = layer_scores(None, parts, copies)
    assert a == b and a["estimator"] == one["estimator"] == estimator
    assert a["sentences"] == rows and a["tokens"] == rows*copies
    for name in ("isoscore", "isoscore_unbiased", "isoscore_unbiased_se"):
        assert a[name] == pytest.approx(one[name], rel=1e-5)


kinds = dict(constant="zero variance", nan="not finite", empty="`mask` selects 0 tokens")


def padded(first, rank=None):
    "States of 50 sentences of 1 to 4 tokens, with padding far from the text; all of them, or a share of one process."
    mask = torch.arange(4)[None] < 1 + torch.arange(rows)[:, None]%4
    scale = torch.linspace(3, 0.5, dims)
    layers = [torch.randn(rows, 4, dims, generator=torch.Generator().manual_seed(l))*scale + 50*(~mask)[..., None]
              for l in range(3)]
    return layers, mask if rank is None else share([mask], rank, first)[0]


def own_means(rank, first):
    layers, mask = padded(first, rank)
    leaves, penalty = [s.clone().requires_grad_() for s in share(layers, rank, first)], OwnMeans(0.3)
    penalty.collect([HiddenStates([s.detach()*1.5 for s in leaves], mask)])
    value = penalty(HiddenStates(leaves, mask))
    value.backward()
    return value.item(), penalty.cov_ref, torch.cat([leaf.grad for leaf in leaves[1:]], 1)


@pytest.mark.parametrize("first", [25, 48])
def test_text_and_padding_are_centred_over_all_processes(first, tmp_path):
    (a, cov, grad_a), (b, other, grad_b) = on_two(own_means, first, folder=tmp_path)
    layers, mask = padded(first)
    leaves, penalty = [s.double().requires_grad_() for s in layers], OwnMeans(0.3)
    penalty.collect([HiddenStates([s.detach()*1.5 for s in leaves], mask)])
    value = penalty(HiddenStates(leaves, mask))
    value.backward()
    assert torch.equal(cov, other) and a == b == pytest.approx(value.item(), abs=1e-6)
    torch.testing.assert_close(cov.double(), penalty.cov_ref, rtol=1e-4, atol=1e-5)
    expected = torch.cat([leaf.grad for leaf in leaves[1:]], 1)
    assert (torch.cat([grad_a, grad_b])/2 - expected).norm()/expected.norm() < 1e-5


def errors(rank):
    messages = []
    for kind in kinds:
        states = share([torch.ones(rows, 1, dims)]*2 if kind == "constant" else cloud(), rank, 25)
        if kind == "nan" and rank == 1: states[1][3] = float("nan")
        mask = torch.zeros(25, 1) if kind == "empty" else torch.ones(25, 1)
        try: pooled_isoscore(HiddenStates(states, mask), group=dist.group.WORLD)
        except ValueError as e: messages.append(str(e))
    return messages


def test_every_process_finds_the_same_errors(tmp_path):
    for text, a, b in zip(kinds.values(), *on_two(errors, folder=tmp_path), strict=True): assert a == b and text in a


def run_training(rank, config, root):
    return train(config, root, checkpoints=f"{root}/checkpoints", progress=False).status


def test_two_processes_train_like_one(tmp_path):
    "The same configuration without dropout: every logged loss and penalty agrees to 1e-5 over 20 updates."
    from istar_nb.text.encoders import load_encoder
    torch.manual_seed(0)
    model, tokenizer = load_encoder("tiny-bert")
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.
    model.save_pretrained(tmp_path/"model")
    tokenizer.save_pretrained(tmp_path/"model")
    config = RunConfig(model=str(tmp_path/"model"), method="istar", lam=-0.5, limit=330, validation_limit=100, epochs=2,
                       lr=1e-3, accumulate=1, reference_points=4000)
    one = train(config, tmp_path/"one", checkpoints=tmp_path/"one"/"checkpoints", progress=False)
    on_two(run_training, config, str(tmp_path/"two"), folder=tmp_path, connected=False)
    two = find_record(tmp_path/"two", config.id)
    assert two.environment["processes"] == 2 and len(one.steps) == len(two.steps) == 2
    for a, b in zip(one.steps, two.steps):
        for name in ("task_loss", "penalty", "grad_norm", "batch_isoscore"):
            assert a[name] == pytest.approx(b[name], rel=2e-4, abs=1e-5), name
    for a, b in zip(one.epochs, two.epochs): assert a["isoscore"] == pytest.approx(b["isoscore"], abs=1e-5)
