"The penalty of a whole update: two processes against one, fine-tuning, the Trainer and sentence-transformers."
from copy import deepcopy

import pytest
import torch
from transformers import PrinterCallback, Trainer, TrainingArguments

from istar_nb.base.covariance import covariance
from istar_nb.base.states import HiddenStates
from istar_nb.penalties.baselines import GOR, CosReg, FroSSL, KoLeo, SIGReg, Uniformity, VICRegCovariance
from istar_nb.penalties.integrations import IsotropyTrainerMixin
from istar_nb.penalties.isolayer import ClsModel, IsoBN
from istar_nb.penalties.regularizers import IStar, Regularizer, UnbiasedIStar, WholeUpdate
from istar_nb.text.encoders import load_encoder
from istar_nb.text.features import Collator, encode
from istar_nb.text.tasks import load_task
from istar_nb.training.runs import RunConfig
from istar_nb.training.training import train
from istar_nb.training.updates import add_gradients, fine_tuning, losses, prepare_penalty, refresh_reference
from processes import on_two
from trainers import KeepGradients, without_dropout

dims, parts = 12, (slice(0, 9), slice(9, 20), slice(20, 24))


def cloud(dtype=torch.float32):
    "Three layers of 24 sentences of one to five tokens, away from the origin."
    generator = torch.Generator().manual_seed(0)
    layers = [torch.randn(24, 5, dims, generator=generator)*torch.linspace(3, 0.5, dims)
              + torch.randn(24, 1, dims, generator=generator) + 3 for _ in range(3)]
    mask = (torch.arange(5) < torch.randint(1, 6, (24, 1), generator=generator)).long()
    return [layer.to(dtype) for layer in layers], mask


def make(name):
    "A fresh penalty."
    cov = covariance(torch.randn(200, dims, generator=torch.Generator().manual_seed(1))*3)
    return {"istar": lambda: IStar(0.2, cov), "auto": lambda: IStar("auto", cov), "unbiased": UnbiasedIStar,
            "cosreg": CosReg, "vicreg": lambda: VICRegCovariance("all", "real"), "gor": lambda: GOR(tokens="real"),
            "frossl": FroSSL, "uniformity": Uniformity, "koleo": KoLeo, "sigreg": lambda: SIGReg(8)}[name]()


names = ["istar", "auto", "unbiased", "cosreg", "vicreg", "gor", "frossl", "uniformity", "koleo", "sigreg"]


def value_and_gradient(penalty, rows, dtype=torch.float32):
    "Of the sentences of every micro-batch; the gradient in all states."
    layers, mask = cloud(dtype)
    leaves = [layer.requires_grad_() for layer in layers]
    batches = [HiddenStates([leaf[r] for leaf in leaves], mask[r]) for r in rows]
    if len(rows) > 1: penalty.prepare((batch, None) for batch in batches)
    for batch in batches: ((value := penalty(batch))/len(rows)).backward()
    return value.detach(), torch.stack([torch.zeros_like(x) if x.grad is None else x.grad for x in leaves])


def on_each(rank):
    "Every process has some sentences of every micro-batch."
    every = torch.arange(24)
    return [value_and_gradient(WholeUpdate(make(name)), [every[part][rank::2] for part in parts]) for name in names]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory): return list(zip(*on_two(on_each, folder=tmp_path_factory.mktemp("processes"))))


@pytest.mark.parametrize("name", names)
def test_two_processes_and_micro_batches_have_the_penalty_of_one_batch(name, of_two):
    value, gradient = value_and_gradient(make(name), [slice(0, 24)], torch.float64)
    (a, grad_a), (b, grad_b) = of_two[names.index(name)]
    torch.testing.assert_close(a.double(), value, rtol=1e-5, atol=1e-6)
    assert torch.equal(a, b)
    averaged = (grad_a + grad_b).double()/2    # what data-parallel training makes of it
    assert (averaged - gradient).norm() <= 1e-5*gradient.norm()


@pytest.mark.parametrize("options", [dict(method="istar", lam=1.), dict(method="istar-unbiased", lam=1., tokens="cls"),
                                     dict(method="vicreg"), dict(method="koleo")], ids=lambda c: c["method"])
def test_a_run_has_the_penalty_of_the_update(options):
    config = RunConfig(model="tiny-bert", accumulate=3, limit=48, batch_size=16, whole_update=True, **options)
    session = fine_tuning(config, progress=False)
    without_dropout(session.model)
    refresh_reference(session)
    assert isinstance(session.penalty, WholeUpdate)
    def gradient(group):
        session.model.train()
        session.optimizer.zero_grad()
        prepare_penalty(session, group)
        for rows in group: (losses(session, rows)[1]/len(group)).backward()
        return torch.cat([p.grad.flatten() for p in session.model.parameters() if p.grad is not None])
    rows = list(range(48))
    one, three = gradient([rows]), gradient([rows[:16], rows[16:20], rows[20:]])
    assert (one - three).norm() < 1e-4*one.norm()


def test_an_update_of_too_few_points_has_no_gradient():
    "Of penalties that keep their points, too, whose points were once taken for their gradients."
    layers, mask = cloud()
    for name in ("frossl", "uniformity", "koleo", "sigreg"):
        leaves = [layer[:1].clone().requires_grad_() for layer in layers]
        one, penalty = HiddenStates(leaves, mask[:1]), WholeUpdate(make(name))
        with pytest.warns(UserWarning, match="the penalty of such a batch is zero"): penalty.prepare([(one, None)])
        penalty(one).backward()
        assert all(leaf.grad is None or not leaf.grad.any() for leaf in leaves), name


def test_the_first_pass_keeps_no_graph():
    weight, seen = torch.randn(6, 3, dims, requires_grad=True), []
    def batches():
        for _ in range(3):
            states = HiddenStates([2*weight], torch.ones(6, 3))
            seen.append(states.layers[0].requires_grad)
            yield states, None
    WholeUpdate(CosReg()).prepare(batches())
    assert seen == [False]*3
    with torch.inference_mode(): parts = [HiddenStates([torch.randn(6, 3, dims)], torch.ones(6, 3)) for _ in range(2)]
    for few in (parts, parts[:1]): WholeUpdate(CosReg()).prepare((part, None) for part in few)


class Mean(Regularizer):
    "A penalty of one's own, whose gradient is one number that all states share, read as a decoder's head reads them."
    def forward(self, states, labels=None): return states.points(-1, "cls").sum()/24 + states.layer(0).sum()/1000


def test_a_penalty_of_ones_own_is_that_of_one_batch():
    layers, mask = cloud()
    ends = (torch.arange(24) % 2).minimum(mask.sum(1) - 1)    # how many tokens behind the one that is read
    def gradient(rows):
        penalty, leaves = WholeUpdate(Mean()), [layer.clone().requires_grad_() for layer in layers]
        batches = [HiddenStates([leaf[r] for leaf in leaves], mask[r], causal=ends[r]) for r in rows]
        penalty.prepare((batch, None) for batch in batches)
        for batch in batches: ((value := penalty(batch))/len(rows)).backward()
        return value.detach(), leaves[-1].grad
    (one, wanted), (several, found) = gradient([slice(0, 24)]), gradient(parts)
    torch.testing.assert_close(several, one)
    torch.testing.assert_close(found, wanted)
    assert found.count_nonzero() == 24*dims


class IsotropyTrainer(IsotropyTrainerMixin, Trainer): pass


def test_the_trainer_shows_the_whole_update(tmp_path):
    texts = load_task("stdlib-docs")
    model, tokenizer = load_encoder("tiny-bert", texts.task)
    without_dropout(model)
    rows = encode(texts.train[:16], texts.task, tokenizer, 32)
    def gradient(penalty, **args):
        args = TrainingArguments(output_dir=str(tmp_path), report_to="none", save_strategy="no", use_cpu=True,
                                 disable_tqdm=True, max_steps=1, max_grad_norm=1e9, seed=0, **args)
        made, keep = IsotropyTrainer(deepcopy(model), args, train_dataset=rows, data_collator=Collator(tokenizer),
                                     regularizer=penalty, lam=50.), KeepGradients()
        made.add_callback(keep)
        made.remove_callback(PrinterCallback)
        made.train()
        return keep.found
    whole, halves = dict(per_device_train_batch_size=16), dict(per_device_train_batch_size=4,
                                                               gradient_accumulation_steps=4)
    one = gradient(UnbiasedIStar(), **whole)
    assert (gradient(WholeUpdate(UnbiasedIStar()), **halves) - one).norm() < 1e-4*one.norm()
    assert (gradient(UnbiasedIStar(), **halves) - one).norm() > 1e-2*one.norm()    # the mean of four penalties
    one = gradient(IStar(0.2), **whole)
    assert (gradient(WholeUpdate(IStar(0.2)), **halves) - one).norm() < 1e-4*one.norm()


def test_what_a_record_takes_from_the_penalty_inside(tmp_path):
    "Its target in units of the plain run, and IsoScore* with its ζ and reference."
    usual = dict(model="tiny-bert", limit=64, epochs=1, batch_size=16, accumulate=2, max_length=16, validation_limit=64)
    plain = train(RunConfig(**usual), tmp_path, progress=False)
    pulled = train(RunConfig(**usual, method="istar", target="0.5x", whole_update=True), tmp_path, progress=False)
    assert pulled.data["target"] == 0.5*plain.epochs[-1]["isoscore"]
    assert 0 < pulled.epochs[-1]["isoscore_star"] < 1


def a_trainer(folder, model, tokenizer, rows, penalty, **args):
    args = TrainingArguments(output_dir=str(folder), report_to="none", save_strategy="no", use_cpu=True,
                             disable_tqdm=True, max_steps=1, per_device_train_batch_size=4,
                             gradient_accumulation_steps=4, **args)
    made = IsotropyTrainer(model, args, train_dataset=rows, data_collator=Collator(tokenizer), regularizer=penalty)
    made.remove_callback(PrinterCallback)
    return made


def test_looking_ahead_counts_no_batch_twice(tmp_path):
    "The pass that shows a penalty the micro-batches is in train mode, where IsoBN and BatchNorm keep averages."
    texts = load_task("stdlib-docs")
    tokenizer, counts = load_encoder("tiny-bert").tokenizer, []
    rows = encode(texts.train[:16], texts.task, tokenizer, 32)
    for penalty in (CosReg(), WholeUpdate(CosReg())):
        torch.manual_seed(0)
        model = ClsModel(load_encoder("tiny-bert").model, texts.task.num_labels, IsoBN(32))
        a_trainer(tmp_path, model, tokenizer, rows, penalty).train()
        counts.append(model.transform.count.item())
    for whole in (False, True):
        session = fine_tuning(RunConfig(model="tiny-bert", method="cosreg", accumulate=4, batch_size=4, limit=16,
                                        whole_update=whole, epochs=1), progress=False)
        session.model.norm = norm = torch.nn.BatchNorm1d(32)
        def count(module, args, out, norm=norm): norm(out.hidden_states[-1][:, 0])
        session.model.register_forward_hook(count)
        add_gradients(session, [list(range(i, i+4)) for i in range(0, 16, 4)])
        counts.append(norm.num_batches_tracked.item())
    assert counts == [4]*4
