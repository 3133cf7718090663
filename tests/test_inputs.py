"Every measure gives the same number however its points come, whatever torch is set to, and on several threads at once."
import contextlib
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import istar_nb
from istar_nb.geometry.dimension import gride, two_nn
from istar_nb.penalties.isolayer import isotropy_loss
from istar_nb.geometry.scores import isoscore, isoscore_unbiased
from istar_nb.geometry.measures import (effective_rank, explained_variance, high_variance_dimensions, mean_activation,
                                        mean_cosine, outlier_dimensions, partition_score, sv_anisotropy)
from istar_nb.penalties.topology import h0_bars, persistent_entropy, select_bars
from istar_nb.geometry.transforms import AllButTheTop, NormMoments, Whitening

MEASURES = dict(
    isoscore=isoscore, unbiased=isoscore_unbiased, isotropy_loss=isotropy_loss, mean_cosine=mean_cosine,
    pairs=lambda x: mean_cosine(x, 50, torch.Generator().manual_seed(0)), partition=partition_score,
    explained=lambda x: explained_variance(x, 1), anisotropy=lambda x: sv_anisotropy(x, center=False),
    rank=effective_rank, outliers=lambda x: outlier_dimensions(x).share, mean=mean_activation,
    high_variance=lambda x: high_variance_dimensions(x).share, two_nn=two_nn, gride=lambda x: gride(x, 8).dimension,
    bars=lambda x: h0_bars(x).sort().values, entropy=lambda x: persistent_entropy(h0_bars(x)),
    selected=lambda x: select_bars(h0_bars(x)), moments=lambda x: NormMoments().update(x).quartic)

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
@pytest.mark.parametrize("make", (lambda: Whitening("zca", "auto"), AllButTheTop))
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
    found = istar_nb.measure(CLOUD)
    names = [name for name in found.frame().select_dtypes("number") if not name.endswith("_se")]
    assert {"isoscore", "ev_1", "effective_rank_raw"} <= set(names)
    for name in names: assert found.plot(name).get_title()
    with pytest.raises(ValueError, match="`name` must be one of"): found.plot("reason")
