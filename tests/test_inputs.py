"Every measure gives the same number however its points come, whatever torch is set to, and on several threads at once."
import contextlib
import copy
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from datasets import Dataset
from scipy.sparse import csr_matrix

import istar_nb as inb
from istar_nb.geometry.dimension import two_nn
from istar_nb.penalties.controls import RelativeStrength
from istar_nb.penalties.isolayer import Features, isotropy_loss
from istar_nb.geometry.scores import isoscore, isoscore_unbiased
from istar_nb.geometry.measures import (effective_rank, explained_variance, mean_activation,
                                        mean_cosine, outlier_dimensions, partition_score, sv_anisotropy)
from istar_nb.report.model_measures import Measurement, with_union
from istar_nb.penalties.topology import h0_bars, persistent_entropy, select_bars
from istar_nb.geometry.transforms import AllButTheTop, Whitening

MEASURES = dict(
    isoscore=isoscore, unbiased=isoscore_unbiased, isotropy_loss=isotropy_loss, mean_cosine=mean_cosine,
    partition=partition_score,
    explained=lambda x: explained_variance(x, 1), anisotropy=lambda x: sv_anisotropy(x, center=False),
    rank=effective_rank, outliers=lambda x: outlier_dimensions(x).share, mean=mean_activation,
    two_nn=two_nn,
    bars=lambda x: h0_bars(x).sort().values, entropy=lambda x: persistent_entropy(h0_bars(x)),
    selected=lambda x: select_bars(h0_bars(x)))

CLOUD = torch.randn(60, 7, generator=torch.Generator().manual_seed(0))*torch.linspace(1, 0.2, 7) + 0.5


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def mapped(folder):
    np.save(folder/"cloud.npy", CLOUD.numpy())
    return np.load(folder/"cloud.npy", mmap_mode="r")


def inferred():
    with torch.inference_mode(): return CLOUD.clone()


FORMS = dict(
    array=lambda _: CLOUD.numpy(), fortran=lambda _: np.asfortranarray(CLOUD.numpy()),
    big_endian=lambda _: CLOUD.numpy().astype(">f4"), backwards=lambda _: CLOUD.numpy()[::-1].copy()[::-1],
    read_only=lambda _: read_only(CLOUD.numpy()), mapped=mapped,
    every_second=lambda _: torch.stack([CLOUD, CLOUD], 2)[:, :, 0], transposed=lambda _: CLOUD.T.contiguous().T,
    inferred=lambda _: inferred(), leaf=lambda _: CLOUD.clone().requires_grad_(),
    parameter=lambda _: torch.nn.Parameter(CLOUD.clone()), double=lambda _: CLOUD.double())


def check(x):
    "All measures of `x`, against those of the cloud as it is."
    for name, measure in MEASURES.items():
        found = measure(x).detach().double()
        torch.testing.assert_close(found, EXPECTED[name], rtol=1e-4, atol=1e-5, msg=name)


EXPECTED = {name: measure(CLOUD).detach().double() for name, measure in MEASURES.items()}


@pytest.mark.parametrize("form", FORMS)
def test_points_in_every_form(form, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(FORMS[form](tmp_path))


@contextlib.contextmanager
def setting(setter, value, before):
    "A global setting of torch, and back."
    setter(value)
    try: yield
    finally: setter(before)


SETTINGS = dict(
    default_float64=lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    default_float16=lambda: setting(torch.set_default_dtype, torch.float16, torch.float32),
    default_device=lambda: torch.device("meta"),     # has no numbers: what is made there cannot be used
    deterministic=lambda: setting(torch.use_deterministic_algorithms, True, False),
    inference=torch.inference_mode, no_grad=torch.no_grad, autocast=lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    anomaly=lambda: torch.autograd.set_detect_anomaly(True))


@pytest.mark.parametrize("name", SETTINGS)
def test_measures_under_every_setting(name):
    with SETTINGS[name]():
        check(CLOUD)
        found = {name: measure(CLOUD).dtype for name, measure in MEASURES.items() if name != "moments"}
    assert set(found.values()) == {torch.float32}, found


def test_measures_on_several_threads():
    with ThreadPoolExecutor(8) as pool: list(pool.map(check, [CLOUD]*16))


def test_a_transformer_keeps_its_map_where_learning_fails():
    learned, x = Whitening().fit(CLOUD.clone().requires_grad_()), CLOUD[:5].numpy()
    before = learned.transform(x)
    with pytest.raises(ValueError, match="zero variance"): learned.fit(np.ones((50, CLOUD.shape[1])))
    np.testing.assert_array_equal(learned.transform(x), before)


@pytest.mark.parametrize("form", ("array", "fortran", "big_endian", "backwards", "read_only", "mapped", "transposed"))
@pytest.mark.parametrize("make", (lambda: Whitening("zca", 0.1), AllButTheTop))
def test_transforms_take_every_form(form, make, tmp_path):
    expected = make().fit(CLOUD.numpy()).transform(CLOUD.numpy())
    x = FORMS[form](tmp_path)
    transform = make().partial_fit(x[:20]).partial_fit(x[20:])
    np.testing.assert_allclose(transform.transform(x), expected, atol=1e-5)


def test_transforms_take_bfloat16_and_refuse_masked_entries():
    rounded = CLOUD.bfloat16()
    learned = Whitening("zca", "auto").fit(rounded)
    np.testing.assert_array_equal(learned.transform(rounded), learned.transform(rounded.float()))
    hidden = np.ma.masked_less(CLOUD.numpy(), -1)
    for refuse in (Whitening().fit, learned.transform):
        with pytest.raises(TypeError, match="`X` has masked entries"): refuse(hidden)


@pytest.mark.parametrize("method", ("pca", "zca"))
def test_the_inverse_reads_what_transform_reads(method):
    learned = Whitening(method).fit(CLOUD)
    y = learned.transform(CLOUD)
    for form in (torch.from_numpy(y).requires_grad_(), torch.from_numpy(y).bfloat16(), y.tolist()):
        np.testing.assert_allclose(learned.inverse_transform(form), CLOUD, atol=0.05)
    hidden, holes = np.ma.masked_less(y, -1), np.where(y < -1, np.nan, y)
    with pytest.raises(TypeError, match="`X` has masked entries"): learned.inverse_transform(hidden)
    with pytest.raises(ValueError, match="contains NaN"): learned.inverse_transform(holes)
    with pytest.raises(ValueError, match="Complex data"): learned.inverse_transform(y + 1j)
    with pytest.raises(TypeError, match="Sparse data"): learned.inverse_transform(csr_matrix(y))
    with pytest.raises(ValueError, match=r"`X` must be \(n, 7\)"): learned.inverse_transform(y[:, 1:])


@pytest.mark.parametrize("wrong, right", ((Whitening(n_components=99), dict(n_components=7)),
                                          (Whitening(method="svd"), dict(method="pca")),
                                          (AllButTheTop(99), dict(n_directions=1))))
def test_points_count_once_though_a_setting_was_wrong_at_first(wrong, right):
    with pytest.raises(ValueError): wrong.partial_fit(CLOUD)
    assert wrong.set_params(**right).partial_fit(CLOUD).n_samples_seen_ == len(CLOUD)


ODD = dict(
    two=CLOUD[:2], three=CLOUD[:3], wide=torch.randn(3, 200, generator=torch.Generator().manual_seed(1)),
    doubles=CLOUD.repeat(2, 1), constant_column=torch.cat([CLOUD, torch.full((60, 1), 5.)], 1),
    zero_column=torch.cat([CLOUD, torch.zeros(60, 1)], 1), far_away=CLOUD + 1e4, tiny=CLOUD*1e-15, huge=CLOUD*1e15,
    vanishing=CLOUD*1e-25, denormal=CLOUD*1e-40, vast=CLOUD*1e19, edge=CLOUD*1e37,
    half=CLOUD.half(), half_tiny=(CLOUD*1e-4).half(), bfloat=CLOUD.bfloat16())


@pytest.mark.parametrize("name", ODD)
def test_odd_clouds_have_finite_values_or_an_error_that_names_the_argument(name):
    for label, measure in MEASURES.items():
        try: value = measure(ODD[name]).detach()
        except ValueError as error: assert "`x`" in str(error), (label, error)
        else: assert value.isfinite().all(), (label, value)


@pytest.mark.parametrize("form", [lambda x: x.to_sparse(), lambda x: x.to(torch.float8_e4m3fn)])
@pytest.mark.parametrize("name", sorted(set(MEASURES) - {"moments"}))    # which take in what can be added up
def test_what_cannot_be_computed_with_is_refused_by_name(name, form):
    with pytest.raises(TypeError, match="`.+` must be dense and of 16 bits or more"): MEASURES[name](form(CLOUD))


def test_every_number_of_a_layer_can_be_plotted():
    found = inb.measure(CLOUD)
    names = [name for name in found.frame().select_dtypes("number") if not name.endswith("_se")]
    assert {"isoscore", "ev_1", "effective_rank_raw"} <= set(names)
    for name in names: assert found.plot(name).get_title()
    with pytest.raises(ValueError, match="`name` must be one of"): found.plot("reason")


NUMBERS = [    # an argument that is a number in an interval, and a call that takes it
    ("k", lambda v: explained_variance(CLOUD, v)),
    ("eps", lambda v: effective_rank(CLOUD, eps=v)), ("n_sigma", lambda v: outlier_dimensions(CLOUD, v)),
    ("discard", lambda v: two_nn(CLOUD, v)),
    ("zeta", lambda v: inb.isoscore_star(CLOUD, torch.eye(7), v)),
    ("memory", lambda v: inb.IsotropyMetrics(memory=v)), ("memory", lambda v: inb.compare(CLOUD, CLOUD, memory=v)),
    ("d", lambda v: inb.IsotropyMetrics(v)),
    ("neighbors", lambda v: inb.compare(CLOUD, CLOUD, neighbors=v)),
    ("sample", lambda v: inb.compare(CLOUD, CLOUD, sample=v)), ("k", lambda v: inb.health(CLOUD, k=v)),
    ("margin", lambda v: inb.health(CLOUD, margin=v)), ("t", lambda v: inb.Uniformity(v)),
    ("target", lambda v: inb.IStar(target=v)),
    ("reference_points", lambda v: inb.IStar(reference_points=v)), ("slices", lambda v: inb.SIGReg(v)),
    ("noise", lambda v: inb.EntropyRegularizer(noise=v)), ("maxdim", lambda v: inb.EntropyRegularizer(maxdim=v)),
    ("average", lambda v: RelativeStrength(0.5, v)), ("every", lambda v: RelativeStrength(0.5, every=v)),
    ("smoothing", lambda v: inb.JointLoss(v)), ("alpha", lambda v: inb.JointLoss(alpha=v)),
    ("dim", lambda v: inb.IsoLayer(v)), ("depth", lambda v: inb.IsoLayer(4, v)),
    ("momentum", lambda v: inb.IsoBN(4, v)), ("eps", lambda v: inb.IsoBN(4, eps=v)),
    ("shrinkage", lambda v: Whitening(shrinkage=v).fit(CLOUD)),
    ("n_components", lambda v: Whitening(n_components=v).fit(CLOUD)),
    ("n_directions", lambda v: AllButTheTop(v).fit(CLOUD)), ("confidence", lambda v: inb.student_interval([1., 2.], v)),
    ("wanted", lambda v: inb.seeds_needed(1., 1., v)), ("most", lambda v: inb.seeds_needed(1., 1., most=v)),
    ("sd", lambda v: inb.seeds_needed(1., v))]


@pytest.mark.parametrize("wrong", ["x", True, float("nan"), float("-inf"), -2, [1, 2], torch.ones(2)], ids=str)
@pytest.mark.parametrize("name, call", NUMBERS, ids=[name for name, _ in NUMBERS])
def test_what_is_no_number_of_the_interval_is_refused_by_name(name, call, wrong):
    with pytest.raises((TypeError, ValueError), match=f"`{name}`"): call(wrong)


@pytest.mark.parametrize("wrong", [dict(alpha=2), dict(smoothing=0), dict(weight_decay=-1), dict(seed="x"),
                                   dict(depth=0), dict(activation="sine")], ids=str)
def test_a_second_stage_that_cannot_begin_changes_no_model(wrong):
    encoder, _ = inb.load_encoder("tiny-bert")
    model = inb.ClsModel(encoder, 2).train()
    features = Features(torch.randn(12, encoder.config.hidden_size), torch.arange(12) % 2)
    with pytest.raises((TypeError, ValueError), match=f"`{next(iter(wrong))}`"):
        inb.train_isolayer(model, features, features, epochs=1, **wrong)
    assert model.training and model.transform is None and all(p.requires_grad for p in model.parameters())
    assert inb.train_isolayer(model, features, features, epochs=1).best == 1


def test_the_first_losses_of_a_joint_loss_are_finite():
    joint = inb.JointLoss()
    with pytest.raises(ValueError, match="finite and above 0"): joint(torch.tensor(float("inf")), torch.tensor(1.))
    assert joint(torch.tensor(2.), torch.tensor(1.)).isfinite()


def test_sentences_come_as_hashes_of_64_bits():
    metrics, ids = inb.IsotropyMetrics(), np.arange(60, dtype=np.uint64) + np.uint64(2**63)
    metrics.update(CLOUD, sentences=ids)
    assert float(metrics.compute()["isoscore"]) == pytest.approx(float(isoscore(CLOUD)), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-155, 1e155])
def test_directions_do_not_depend_on_scale(scale):
    found = inb.second_moments(CLOUD.double()*scale, names=["mean_cosine"])["mean_cosine"].value
    assert float(found) == pytest.approx(float(mean_cosine(CLOUD)), abs=1e-6)


def test_four_sentences_have_no_standard_error():
    four = torch.arange(60) % 4
    for call in (lambda: inb.second_moments(CLOUD, four), lambda: inb.cka(CLOUD, CLOUD[:, :3], four)):
        with pytest.raises(ValueError, match="`sentences` must be at least 5 different, and there are 4"): call()


def test_what_a_report_leaves_out_is_explained(capsys):
    "Three of five long sentences fit into the sample, and a half of those has one; a zero vector has no direction."
    points = torch.randn(100_000, 4, generator=torch.Generator().manual_seed(0))
    inb.measure(points, sentences=np.arange(5).repeat(20_000)).show()
    inb.measure(torch.cat([CLOUD, CLOUD, torch.zeros(1, 7)])).show()
    shown = " ".join(capsys.readouterr().out.split())
    for note in ("no standard errors for points: they need 5 texts, or rows of points; no unbiased score for points",
                 "no mean cosine for points: it needs points that are not zero; no TwoNN for points"):
        assert note in shown


def test_one_layer_is_asked_for_by_its_number():
    states = inb.HiddenStates([torch.randn(2, 3, 4) for _ in range(3)], torch.ones(2, 3))
    assert torch.equal(states.points(1), states.layers[1].flatten(0, 1))
    for layer in ("all", None, [2, 1], True):
        with pytest.raises(TypeError, match="`layer` must be"): states.points(layer)
        with pytest.raises(TypeError, match="`layer` must be"): inb.EntropyRegularizer(layer=layer)


def test_points_have_no_layers_or_tokens_to_choose():
    for choice in (dict(layers=[7]), dict(tokens="cls")):
        for call in (lambda: inb.measure(CLOUD, **choice), lambda: inb.compare(CLOUD, CLOUD, **choice)):
            with pytest.raises(ValueError, match="`tokens` and `layers` choose among a model's states"): call()


@pytest.mark.parametrize("option", ["column", "ids"])
def test_points_without_columns_are_given_none(option, tmp_path):
    np.save(tmp_path/"cloud.npy", CLOUD.numpy())
    for points in (CLOUD, CLOUD.numpy(), [CLOUD], tmp_path/"cloud.npy", tmp_path):
        with pytest.raises(ValueError, match=f"has no columns, and `{option}` names one"):
            inb.measure(points, **{option: "vector"})


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("column, ids, message", [
    ("vectors", None, "has no column 'vectors'; it has id, part, vector, text"), ("vector", "name", "no column 'name'"),
    ("text", None, "'text' must hold lists of numbers"), ("part", None, "'part' must hold lists of numbers"),
    ("vector", "text", "'text' must hold whole numbers"), ("vector", "part", "'part' must hold whole numbers")])
def test_a_dataset_whose_columns_do_not_fit_is_refused_by_their_names(column, ids, message, streaming):
    rows = Dataset.from_dict(dict(id=range(60), part=np.arange(60)/2, vector=CLOUD.tolist(), text=["A text."]*60))
    rows = rows.to_iterable_dataset() if streaming else rows
    with pytest.raises(ValueError, match=message): inb.measure(rows, column=column, ids=ids)
    with pytest.raises(ValueError, match="has no column 'txt'.*did you mean text"):
        inb.measure("tiny-bert", rows, column="txt")
    inb.measure(rows, column="vector", ids="id")


def test_numbers_that_begin_again_in_every_shard_are_refused(tmp_path):
    for name, n in dict(a=8192, b=8192, c=60).items():
        rows = pa.table(dict(id=range(n), vector=list(np.ones((n, 2), "float32"))))
        parquet.write_table(rows, tmp_path/f"{name}.parquet")
    for second in "bc":
        with pytest.raises(ValueError, match="numbers of the rows must differ: one of 0 to 8,191 comes twice"):
            inb.measure(f"{tmp_path}/[a{second}].parquet*", column="vector", ids="id")


def test_a_reference_without_columns_stands_beside_a_table(tmp_path):
    parquet.write_table(pa.table(dict(id=range(60), vector=list(CLOUD.numpy()))), tmp_path/"cloud.parquet")
    np.save(tmp_path/"reference.npy", CLOUD.numpy())
    found = inb.measure(tmp_path/"cloud.parquet", column="vector", ids="id", zeta=0.5,
                        reference=tmp_path/"reference.npy")
    summary = found.measures["cloud.parquet"]["points"]
    assert summary["isoscore_star"] == pytest.approx(summary["isoscore"], rel=1e-6)


def test_masked_values_are_no_values():
    hidden = np.ma.array([1., 2., 9.], mask=[0, 0, 1])
    for call in (inb.sign_flip_test, inb.student_interval):
        with pytest.raises(TypeError, match="masked entries"): call(hidden)
    with pytest.raises(TypeError, match="`sentences` has masked entries"):
        isoscore_unbiased(CLOUD, np.ma.masked_less(np.arange(60), 3))


def test_texts_without_a_token_are_refused_by_their_name():
    texts = ["A text.", "Another one."]
    for call, name in ((lambda: inb.measure("tiny-gpt2", ["", ""]), "texts"),
                       (lambda: inb.audit("tiny-gpt2", ["", ""]), "texts"),
                       (lambda: inb.measure("tiny-gpt2", texts, zeta=0.5, reference=[""]), "reference")):
        with pytest.raises(ValueError, match=f"`{name}` hold no token"): call()


def test_an_audit_keeps_as_many_tokens_as_it_is_told():
    texts = [f"the value number {i} is returned" for i in range(12)]
    for length in (0, 1, 1.5, "x"):
        with pytest.raises((TypeError, ValueError), match="`max_length` must be"):
            inb.audit(inb.load_encoder("tiny-bert"), texts, max_length=length)


def test_an_entry_larger_than_every_variance_is_no_covariance():
    with pytest.raises(ValueError, match="`cov` is no covariance"):
        inb.isoscore_from_cov(torch.tensor([[1., 5.], [5., 1.]]))


def test_a_union_of_layers_has_the_dimension_of_tokens_not_of_their_way_through_layers():
    "States of one token in two layers are close, and neighbours of each other in a sample that holds both."
    states, parts = torch.randn(1200, 8, generator=torch.Generator().manual_seed(3)), []
    for l in range(3):
        parts.append(Measurement(sample=600))
        parts[l].update(states + 0.05*l)
    alone, union = two_nn(states), with_union(dict(enumerate(parts, 1)))["pooled"].summary()
    assert abs(union["two_nn"] - alone) < 1 and union["count"] == 3600
    near = torch.cat([states[:300], states[:300]*(1 + 1e-7)])
    with pytest.raises(ValueError, match="0 points without a double"): two_nn(near)
    with pytest.raises(ValueError, match="0 points without a double"): two_nn(near.double())


def test_an_audit_names_the_text_whose_states_are_not_finite():
    model, tokenizer = inb.load_encoder("tiny-bert")
    model, texts = copy.deepcopy(model), [f"the value number {i} is returned" for i in range(12)] + ["zebra"]
    with torch.no_grad(): model.embeddings.word_embeddings.weight[tokenizer("zebra")["input_ids"][1]] = torch.nan
    with pytest.raises(ValueError, match="`texts`: layer 0 is not finite for 'zebra'"):
        inb.audit((model, tokenizer), texts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_error_of_a_score_is_not_known_where_one_point_decides_if_there_is_one(dtype):
    "Of two points beside equal ones, each leaves too few different ones behind, whose score was rounding."
    x = torch.zeros(6, 3, dtype=dtype)
    x[:2] = torch.tensor([[0.3, 0.1, 0.7], [1.1, -0.3, 0.2]])
    for points in (x, x + 0.1):
        found = inb.isoscore_with_error(points)
        assert found.score.isfinite() and found.standard_error.isnan()
        metric = inb.IsotropyMetrics()
        metric.update(points)
        assert metric.errors()["isoscore_unbiased"].isnan()
    assert inb.isoscore_with_error(torch.cat([x, x[:2] + 1])).standard_error.isfinite()


def test_a_file_that_holds_no_transform_is_named(tmp_path):
    (tmp_path/"vectors.safetensors").write_text("no such file")
    with pytest.raises(ValueError, match="`path` .*vectors.safetensors is no safetensors file"):
        Whitening.load(tmp_path/"vectors.safetensors")


def test_an_empty_list_of_layers_is_not_called_a_model_without_blocks():
    with pytest.raises(ValueError, match="`layers` names none: name modules"), inb.watch(torch.nn.Linear(3, 3), []):
        pass
