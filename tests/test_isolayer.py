"IsoLayer, IsoBN and transforms where a notebook cannot go: every family, two processes, mixed precision, old weights."
import json

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.nn.parallel import DistributedDataParallel

from istar_nb.text.encoders import forward_with_states, load_encoder
from istar_nb.penalties.isolayer import (ClsModel, Features, IsoBN, IsoLayer, JointLoss, cls_features,
                                         train_isolayer)
from istar_nb.text.features import Collator, encode, split_rows
from istar_nb.text.tasks import load_task
from istar_nb.training.runs import RunConfig
from istar_nb.training.training import train
from istar_nb.geometry.transforms import AllButTheTop, Whitening
from processes import on_two
from simulated import Accelerator

families = ("bert", "albert", "distilbert", "roberta", "gpt2")


def batches(tokenizer, sizes=(5, 7, 4)):
    "Padded batches of labelled sentences."
    data, start, made = load_task("stdlib-docs"), 0, []
    for size in sizes:
        made.append(Collator(tokenizer)(encode(data.train[start:start+size], data.task, tokenizer, 24)))
        start += size
    return made


@pytest.mark.parametrize("family", families)
@pytest.mark.parametrize("kind", [None, "isolayer", "isobn"])
def test_every_family_trains_and_comes_back_bit_equal(family, kind, tmp_path):
    torch.manual_seed(0)
    encoder, tokenizer = load_encoder(f"tiny-{family}")
    transform = kind and dict(isolayer=IsoLayer, isobn=IsoBN)[kind](32)
    model = ClsModel(encoder, 8, transform, token="last" if family == "gpt2" else "first")
    made = batches(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in made:
        out, states = forward_with_states(model.train(), batch)
        out.loss.backward()
        assert all(p.grad is not None for p in model.parameters()
                   if p.requires_grad), "a parameter that nothing trains breaks data-parallel training"
        optimizer.step()
    assert len(states.layers) == model.config.num_hidden_layers + 1
    model.save_pretrained(tmp_path)
    before = torch.get_rng_state()
    again = ClsModel.from_pretrained(tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    with torch.no_grad():
        for batch in made: assert torch.equal(model.eval()(**batch).logits, again(**batch).logits)
    if kind == "isobn": assert again.transform.count == 3


def test_saved_encoder_is_an_ordinary_model_of_transformers(tmp_path):
    from transformers import AutoModel
    encoder, tokenizer = load_encoder("tiny-bert")
    model = ClsModel(encoder, 8).eval()
    model.save_pretrained(tmp_path)
    alone = AutoModel.from_pretrained(tmp_path/"encoder", dtype=torch.float32, local_files_only=True,
                                      add_pooling_layer=False).eval()
    batch = {k: v for k, v in batches(tokenizer)[0].items() if k != "labels"}
    assert torch.equal(alone(**batch).last_hidden_state, model.encoder(**batch).last_hidden_state)
    assert not [p for p in tmp_path.rglob("*") if p.suffix in (".bin", ".pt", ".pkl")]


def test_a_folder_that_does_not_fit_is_refused(tmp_path):
    ClsModel(load_encoder("tiny-bert").model, 8, IsoBN(32)).save_pretrained(tmp_path)
    settings = json.loads((tmp_path/"isolayer.json").read_text())
    for transform in (None, dict(kind="isolayer", dim=32)):
        (tmp_path/"isolayer.json").write_text(json.dumps({**settings, "transform": transform}))
        with pytest.raises(ValueError, match="does not fit"): ClsModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("num_labels", [3, 1])
def test_second_stage_touches_nothing_but_the_layer(num_labels):
    "Two clusters, most of whose variance does not concern the label: isotropy can rise, the task stay solved."
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = ClsModel(load_encoder("tiny-bert").model, num_labels)
    x = torch.randn(400, 32, generator=generator)*torch.cat([torch.tensor([6.]), torch.linspace(1.5, 0.5, 31)])
    labels = x[:, 1:4].argmax(1) if num_labels > 1 else x[:, 1] + 0.5*torch.randn(400, generator=generator)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.weight[range(num_labels), range(1, num_labels+1)] = 3. if num_labels > 1 else 1.
    learn, stop = split_rows(range(400))
    train, held_out = (Features(x[part], labels[part]) for part in (learn, stop))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    history = train_isolayer(model, train, held_out, keep="isoscore", tolerance=0.05, epochs=150, lr=3e-3)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items() if not k.startswith("transform."))
    start, end = history.epochs[0], history.epochs[history.best]
    assert (end["isoscore"] > 2*start["isoscore"] and end["ev1"] < 0.6*start["ev1"]
            and end["score"] >= start["score"] - 0.05)
    model.transform = None
    assert train_isolayer(model, train, held_out, keep="isoscore", tolerance=0.05, epochs=150, lr=3e-3) == history


def test_labels_of_any_integer_type_are_classes():
    encoder, tokenizer = load_encoder("tiny-bert")
    model, batch = ClsModel(encoder, 8).eval(), batches(tokenizer)[0]
    losses = [model(**batch | dict(labels=batch["labels"].to(dtype))).loss
              for dtype in (torch.int64, torch.int32, torch.uint8)]
    assert losses[0] == losses[1] == losses[2]


def test_features_are_what_the_head_would_see():
    encoder, tokenizer = load_encoder("tiny-roberta")
    model, made = ClsModel(encoder, 8).train(), batches(load_encoder("tiny-roberta").tokenizer)
    features = cls_features(model, made)
    assert model.training and torch.equal(features.labels, torch.cat([batch["labels"] for batch in made]))
    with torch.no_grad(): assert torch.equal(features.x, torch.cat([model.eval()(**batch).embedding for batch in made]))


def test_features_leave_every_module_in_the_mode_it_had():
    encoder, tokenizer = load_encoder("tiny-bert")
    model = ClsModel(encoder, 8).train()
    model.encoder.eval()    # frozen
    before = [module.training for module in model.modules()]
    cls_features(model, [batches(tokenizer)[0]])
    assert [module.training for module in model.modules()] == before and model.training and not model.encoder.training


def test_split_is_70_30_and_repeatable():
    first, second = split_rows(range(101), seed=3)
    assert (len(second) == 30 and sorted(first + second) == list(range(101))
            and split_rows(range(101), seed=3) == (first, second))
    assert split_rows(range(101), seed=4) != (first, second)


def test_bf16_autocast_through_accelerate():
    "The extra field survives accelerate's conversion of outputs; IsoBN's statistics stay float32."
    import accelerate
    from accelerate.state import AcceleratorState, GradientState
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    encoder, tokenizer = load_encoder("tiny-bert")
    model = accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare(ClsModel(encoder, 8, IsoBN(32)))
    out = model.train()(**batches(tokenizer)[0], output_hidden_states=True)
    out.loss.backward()
    assert out.embedding.dtype == out.logits.dtype == torch.float32 and "hidden_states" in out
    AcceleratorState._reset_state(reset_partial_state=True)


rows, dims = 50, 12


def cloud():
    return torch.randn(rows, dims, generator=torch.Generator().manual_seed(1))*torch.linspace(3, 0.3, dims) + 10


def normalized_on_two(rank):
    "IsoBN under data-parallel training, on unequal shares: its state after three batches, and one share's gradient."
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(dims, dims), IsoBN(dims)))
    for first in (25, 40, 49): model(cloud()[:first] if rank == 0 else cloud()[first:])
    local = IsoBN(dims, scope="local")
    local(cloud()[:30] if rank == 0 else cloud()[30:])
    joint = JointLoss()
    balanced = [joint(torch.tensor(1. + rank + k), torch.tensor(4. - rank)) for k in range(3)]
    return dict(cov=model.module[1].cov, std=model.module[1].std, count=model.module[1].count, local=local.std,
                means=joint.means, balanced=torch.stack(balanced))


def test_two_processes_normalize_as_one(tmp_path):
    results = on_two(normalized_on_two, folder=tmp_path)
    torch.manual_seed(0)
    linear, one, joint = torch.nn.Linear(dims, dims), IsoBN(dims), JointLoss()
    for _ in range(3): one(linear(cloud()))
    for k in range(3): joint(torch.tensor(1.5 + k), torch.tensor(3.5))
    for result in results:
        torch.testing.assert_close(result["cov"], one.cov, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(result["std"], one.std, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(result["means"], joint.means)
        assert result["count"] == 3
    assert (torch.equal(results[0]["cov"], results[1]["cov"])
            and not torch.equal(results[0]["local"], results[1]["local"]))


def test_a_saved_joint_loss_goes_on():
    "Averages, and the look at their start, come back with the state."
    joint, again = JointLoss(), JointLoss()
    joint(torch.tensor(2.), torch.tensor(8.))
    again.load_state_dict(joint.state_dict())
    for a in (1., 3.): assert joint(torch.tensor(a), torch.tensor(8.)) == again(torch.tensor(a), torch.tensor(8.))
    again.load_state_dict(JointLoss().state_dict())
    with pytest.raises(ValueError, match="finite and above 0"): again(torch.tensor(0.), torch.tensor(8.))


def steps_on(device, make):
    "Two training steps of a transform and a head with `make`'s loss: outputs and state."
    torch.manual_seed(0)
    transform, head, joint = make().to(device), torch.nn.Linear(dims, 2).to(device), JointLoss().to(device)
    x, labels = cloud().to(device), (torch.arange(rows) % 2).to(device)
    for _ in range(2):
        y = transform(x)
        task = torch.nn.functional.cross_entropy(head(y.float()), labels)
        loss = task if isinstance(transform, IsoBN) else joint(task, y.square().mean())
        loss.backward()
    return [y, loss, *transform.state_dict().values(), *joint.state_dict().values()]


@pytest.mark.parametrize("make", (lambda: IsoBN(dims), lambda: IsoLayer(dims, 2, "gelu")))
@pytest.mark.parametrize("float64", (True, False))
def test_transforms_on_an_accelerator(make, float64):
    expected = steps_on("cpu", make)
    with Accelerator(float64=float64) as sim: found = [value.detach().cpu() for value in steps_on(sim.device, make)]
    for a, b in zip(found, expected, strict=True): torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make, allowed", ((lambda: IsoBN(dims), 2), (lambda: IsoLayer(dims, 2, "gelu"), 0)))
def test_transforms_and_the_joint_loss_hardly_make_the_host_wait(make, allowed):
    with Accelerator() as sim:
        steps_on(sim.device, make)
        waits = dict(sim.waits)
    started = sum(count for wait, count in waits.items() if "begun" in wait.place)    # the look at the first losses
    assert started <= 2 and sum(waits.values()) - started <= 2*allowed, waits          # of two steps


@parametrize_with_checks([Whitening(), Whitening("zca", 0.1), Whitening(shrinkage=0.2, n_components=2),
                          AllButTheTop(), AllButTheTop(0)])
def test_estimators(estimator, check): check(estimator)


def test_streaming_far_from_the_origin_and_at_odd_scales():
    generator = np.random.default_rng(0)
    for shift, scale in [(1e5, 1.), (0., 1e-15), (0., 1e15), (10., 1e-3)]:
        x = (generator.standard_normal((300, 8))*np.arange(1, 9) + shift)*scale
        once, often = Whitening("zca", 0.1).fit(x), Whitening("zca", 0.1)
        for part in np.split(x, [1, 7, 150]): often.partial_fit(part)
        np.testing.assert_allclose(often.transform(x), once.transform(x), atol=1e-6)
        np.testing.assert_allclose(np.cov(Whitening().fit_transform(x).T), np.eye(8), atol=1e-5)


@pytest.mark.parametrize("overflow", [float("inf"), float("nan")])
def test_one_overflow_does_not_stay_in_a_joint_loss(overflow):
    joint = JointLoss()
    for task, isotropy in [(2., 8.), (overflow, 8.), (1., 4.)]: last = joint(torch.tensor(task), torch.tensor(isotropy))
    assert last.isfinite() and joint.count == 3
    assert joint.means[0] == pytest.approx(2*(1 - 0.15/3) + 0.15/3)    # the second batch is counted and leaves no trace


@pytest.mark.parametrize("rows, batch_size", [(17, 3), (8, 3), (4, 1), (3, 256)])
def test_no_batch_of_the_second_stage_has_too_few_rows_for_isotropy(rows, batch_size):
    torch.manual_seed(0)
    model = ClsModel(load_encoder("tiny-bert").model, 2, None)
    features = Features(torch.randn(rows, 32), torch.arange(rows) % 2)
    assert len(train_isolayer(model, features, features, epochs=2, batch_size=batch_size).epochs) == 3


def test_an_epoch_without_a_metric_is_not_the_best():
    "A correlation is undefined as long as all answers are the same; what comes later is better than that."
    torch.manual_seed(0)
    model = ClsModel(load_encoder("tiny-bert").model, 2, None)
    features = Features(torch.randn(9, 32), torch.arange(9) % 2)
    scores = iter([np.nan, np.nan, 0.2, 0.3, 0.1])    # of the model without the layer first
    history = train_isolayer(model, features, features, lambda *_: next(scores), epochs=4, patience=2)
    assert history.best == 3 and len(history.epochs) == 5


def test_too_few_rows_for_a_second_stage_are_refused_before_training(tmp_path):
    config = RunConfig(model="tiny-bert", method="isolayer", limit=6, batch_size=2, epochs=1, max_length=16)
    with pytest.raises(ValueError, match="4 rows to train on and 2 to the second stage"):
        train(config, tmp_path, progress=False)
    assert not list(tmp_path.glob("*.json"))
