"""Random configurations, records, grids, masks and tensors: a named error or a right answer, never anything else.

The cases are the same every time. ISTAR_FUZZ=10 draws ten times as many.
"""
import json
import os
import warnings
from dataclasses import asdict, fields

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.sparse.csgraph import minimum_spanning_tree

from istar_nb.base.states import HiddenStates, token_mask
from istar_nb.geometry.scores import isoscore, isoscore_eig, isoscore_star, isoscore_unbiased
from istar_nb.geometry.measures import effective_rank, mean_cosine, sv_anisotropy
from istar_nb.penalties.baselines import CosReg
from istar_nb.penalties.regularizers import IStar, UnbiasedIStar, pooled_isoscore
from istar_nb.sweeps.grids import grid, load_records
from istar_nb.training.records import RunRecord, record_path
from istar_nb.training.runs import RunConfig
from istar_nb.penalties.topology import h0_bars, persistent_entropy, select_bars

named = (ValueError, TypeError)
more = float(os.environ.get("ISTAR_FUZZ", 1))
names = [f.name for f in fields(RunConfig)]


def fuzz(examples):
    "A test on so many random cases, the same ones every time."
    def decorate(f):
        return settings(max_examples=round(examples*more), derandomize=True, deadline=None, database=None,
                        suppress_health_check=list(HealthCheck))(f)
    return decorate


def outcome(f, *args, **kwargs):
    "What `f` returns, or None if it raises a named error, which must say something."
    try: return f(*args, **kwargs)
    except named as e:
        assert len(str(e)) > 10, e


plain = st.one_of(st.none(), st.booleans(), st.integers(-3, 9), st.floats(), st.text(max_size=8))
values = st.one_of(plain, st.lists(plain, max_size=3), st.sampled_from(
    ["cola", "minilm", "istar", "istar-unbiased", "cosreg", "entropy", "isolayer", "isobn", "none", "epoch", "start",
     "auto", "cls", "real", "local", "linear", "fp16", "../..", 0.1, 1e-4, -1.0]))
likely = st.fixed_dictionaries({}, optional={
    "method": st.sampled_from(["none", "istar", "istar-unbiased", "cosreg", "entropy", "vicreg", "uniformity",
                               "isolayer", "isobn"]),
    "lam": st.one_of(st.none(), st.floats(-5, 5)), "relative": st.one_of(st.none(), st.floats(-1, 1)),
    "target": st.one_of(st.none(), st.floats(-0.1, 1.1)),
    "zeta": st.one_of(st.just("auto"), st.floats(-0.1, 1.1)),
    "layers": st.one_of(st.none(), st.lists(st.integers(-1, 6), max_size=3)), "seed": st.integers(-1, 5),
    "epochs": st.integers(0, 4), "hold_out": st.floats(-0.1, 1.1), "head": st.sampled_from([None, "own", "linear"]),
    "tokens": st.sampled_from([None, "real", "cls", "all"])})


@fuzz(300)
@given(st.one_of(likely, st.dictionaries(st.one_of(st.sampled_from(names), st.text(max_size=6)), values, max_size=5)))
def test_configurations(given):
    config = outcome(RunConfig.from_dict, given)
    if config is None: return
    assert config.complete.complete == config.complete and config.complete.id == config.id
    assert (RunConfig.from_dict(json.loads(json.dumps(asdict(config)))).id == config.id
            == RunConfig.from_dict(asdict(config.complete)).id)
    assert record_path("memory://fuzz", config.id) == f"/fuzz/{config.id}.json"


good = RunRecord(asdict(RunConfig().complete), RunConfig().id, "done", "accuracy", 0.5,
                 [dict(epoch=0, isoscore=0.2), dict(epoch=1, isoscore=0.3, layers=[0.1, None])],
                 [dict(update=10, task_loss=1.)], dict(source="x", sha256="0"), dict(python="3.11"), 1.5,
                 "2026-01-01T00:00:00+00:00")
tree = st.recursive(plain,
                    lambda inner: st.one_of(st.lists(inner, max_size=3),
                                            st.dictionaries(st.text(max_size=5), inner, max_size=3)), max_leaves=6)


@fuzz(250)
@given(st.data())
def test_records(tmp_path_factory, data):
    changed = json.loads(good.to_json())
    for name in data.draw(st.lists(st.sampled_from([*changed, "colour"]), max_size=3)):
        if data.draw(st.booleans()): changed.pop(name, None)
        else: changed[name] = data.draw(tree)
    text = json.dumps(changed)
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(text))))
    record = outcome(RunRecord.from_json, text if cut is None else text[:cut])
    if record is not None:
        assert RunRecord.from_json(record.to_json()).to_json() == record.to_json()
        folder = tmp_path_factory.getbasetemp()/"fuzz"
        folder.mkdir(exist_ok=True)
        (folder/f"{record.id}.json").write_text(record.to_json(), encoding="utf-8")
        assert len(load_records(folder)) == 1


@pytest.mark.parametrize("text",
                         ["", "[]", "null", "1", "[" * 100_000, '{"config": ' * 50_000, "\x00", '{"schema": 1e400}'])
def test_texts_that_are_no_records(text):
    with pytest.raises(named): RunRecord.from_json(text)


@fuzz(100)
@given(st.dictionaries(st.sampled_from(["base", "seeds", "runs", "colour"]),
                       st.one_of(tree, likely, st.lists(likely, max_size=2), st.lists(st.integers(0, 2), max_size=3)),
                       max_size=3))
@pytest.mark.filterwarnings("ignore")
def test_grids(spec):
    configs = outcome(grid, spec)
    if configs is not None:
        assert len({c.id for c in configs}) == len(configs) and all(isinstance(c, RunConfig) for c in configs)


@st.composite
def tensors(draw, ranks=(2,), most=9):
    "Tensors of many shapes, dtypes and magnitudes, some with equal rows, zeros, NaN or infinity."
    shape = [draw(st.integers(0, most)) for _ in range(draw(st.sampled_from(ranks)))]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    x = (torch.randn(shape, generator=generator, dtype=torch.float64)*10.**draw(st.integers(-14, 14))
         + draw(st.sampled_from([0., 0., 1., -1e3])))
    if x.numel() and draw(st.booleans()):
        x.view(-1)[draw(st.integers(0, x.numel()-1))] = draw(st.sampled_from([0., float("nan"), float("inf"), 1.]))
    if len(x) > 1 and draw(st.booleans()): x[1:draw(st.integers(1, len(x)))] = x[0].clone()
    return x.to(draw(st.sampled_from([torch.float64, torch.float32, torch.float32, torch.bfloat16, torch.float16,
                                      torch.int64])))


@fuzz(200)
@given(tensors(ranks=(1, 2, 2, 2, 3)))
def test_scores(x):
    score = outcome(isoscore, x)
    if score is not None:
        assert (0 <= score <= 1 and score.dtype == (torch.float64 if x.dtype == torch.float64 else torch.float32)
                and score.shape == ())
        wide, eps = x.double(), torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
        centred = wide - wide.mean(0)
        # what rounding of far points leaves no method can give back
        far = (wide.abs().max()/centred.abs().max()).item()
        exact = isoscore_eig(centred/centred.abs().max())
        assert (abs(score.double() - exact)
                < 300*eps + (10*torch.finfo(torch.float64).eps + 1e-3*eps)*far), (score, exact, far)
    unbiased = outcome(isoscore_unbiased, x)
    if unbiased is not None: assert not unbiased < -1e-5
    for f in (mean_cosine, sv_anisotropy, effective_rank):
        value = outcome(f, x)
        if value is not None: assert value.isfinite().all()


@fuzz(100)
@given(tensors(), st.floats(-0.2, 1.2), tensors())
def test_shrinkage(x, zeta, cov_ref):
    if cov_ref.ndim == 2 and cov_ref.shape[0] == cov_ref.shape[1] and cov_ref.is_floating_point():
        cov_ref = cov_ref @ cov_ref.T
    score = outcome(isoscore_star, x, cov_ref, zeta)
    if score is not None: assert 0 <= score <= 1


@fuzz(150)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(0, 10**6),
       st.sampled_from(["real", "cls", "all", "some"]), st.booleans())
def test_masks(batch, length, d, seed, tokens, collapse):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(batch, length, generator=generator) < 0.6
    layers = [torch.randn(batch, length, d, generator=generator) for _ in range(3)]
    if collapse: layers = [torch.ones_like(layer) for layer in layers]
    chosen = outcome(token_mask, mask, tokens)
    states = outcome(HiddenStates, layers, mask)
    if chosen is None or states is None: return
    score = outcome(pooled_isoscore, states, tokens=tokens)
    if score is not None:
        torch.testing.assert_close(score.double(),
                                   isoscore_eig(torch.cat([layer[chosen] for layer in layers[1:]]).double()),
                                   atol=1e-5, rtol=1e-4)
    for penalty in (IStar(0., tokens=tokens), UnbiasedIStar(tokens=tokens), CosReg(tokens=tokens)):
        value = outcome(penalty.eval(), states)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")    # of batches that are too small
            trained = outcome(penalty.train(), states)
        if trained is not None: assert trained.isfinite() and trained.dtype == torch.float32
        if value is not None: assert torch.equal(value, trained)


@fuzz(100)
@given(tensors(ranks=(2, 2, 1), most=12), st.sampled_from(["atienza", "released", "none", "magic"]))
def test_barcodes(x, selection):
    bars = outcome(h0_bars, x)
    if bars is None: return
    points = x.double().numpy()
    lengths = cdist(points, points)
    scale = lengths.max() or 1.
    exact = (np.sort(minimum_spanning_tree(lengths/scale + 1 - np.eye(len(points))).data - 1)*scale if len(points) > 1
             else np.zeros(0))
    np.testing.assert_allclose(np.sort(bars.double().numpy()), exact, rtol=1e-4, atol=1e-5*scale)
    features = outcome(select_bars, bars, selection)
    if features is not None: assert 0 <= persistent_entropy(features) <= np.log(max(1, len(features))) + 1e-5
