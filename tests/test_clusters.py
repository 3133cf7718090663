"The two experiments on isotropy and clusters: their runs are those stored and declared, and their sums are right."
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import istar_nb as inb

root = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def benchmark(): return runpy.run_path(str(root/"nbs"/"experiments"/"clusters.py"))


@pytest.mark.parametrize("experiment", ["tokens", "cls"])
def test_the_stored_runs_are_those_that_the_benchmark_makes(experiment, benchmark):
    chosen = benchmark["experiments"][experiment]
    stored = json.loads((root/"results"/"benchmarks"/f"{chosen['record']}.json").read_text(encoding="utf-8"))
    made = {arm: [inb.RunConfig(**chosen["shared"], **options, seed=seed).id for seed in range(chosen["seeds"])]
            for arm, options in chosen["arms"].items()}
    assert made == {arm: [row["run"] for row in rows] for arm, rows in stored["arms"].items()}


def test_a_placebo_is_its_penalty_in_other_directions(benchmark):
    "Arms of the second experiment differ in nothing else, and strengths are those of the page."
    arms = benchmark["experiments"]["cls"]["arms"]
    for name in ("weak", "strong"): assert arms[f"{name} placebo"] == arms[name] | dict(placebo="twin")
    shares = [arms[name]["relative"] for name in ("weak", "strong")]
    assert shares == [0.3, 1.] and arms["weak"] | dict(relative=1.) == arms["strong"]
    pilot = [c.complete for c in inb.grid(root/"nbs"/"experiments"/"grids"/"clusters-cls-pilot.yaml")]
    tried = {c.relative: c for c in pilot if c.relative is not None}
    for name, share in zip(("weak", "strong"), shares):
        made = inb.RunConfig(**benchmark["experiments"]["cls"]["shared"], **arms[name], seed=99).complete
        assert made == tried[share], "the pilot tried what is run"


def test_the_share_in_the_bound(benchmark):
    "tr B/tr T of unequal classes, from the covariances themselves."
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3 % 2    # 40 of one class, 20 of the other
    x = torch.randn(60, 5, generator=generator, dtype=torch.float64) + labels[:, None]*torch.arange(5.)
    within = sum((labels == k).double().mean()*x[labels == k].T.cov(correction=0) for k in (0, 1))
    expected = 1 - within.trace()/x.T.cov(correction=0).trace()
    assert abs(benchmark["bounded_share"](x, labels) - expected) < 1e-12


def test_a_contrast_is_paired_by_seed(benchmark):
    rows = dict(a=[dict(q=0.1), dict(q=0.4), dict(q=0.2)], b=[dict(q=0.2), dict(q=0.6), dict(q=0.5)])
    found = benchmark["contrast"](rows, "b", "a", "q")
    np.testing.assert_allclose(found["differences"], [0.1, 0.2, 0.3])
    low, high = found["interval"]
    assert abs(found["difference"] - 0.2) < 1e-12 and found["p"] == 0.25 and low < 0 < high


def test_nc1_is_the_formula_of_its_paper(monkeypatch):
    "Papyan et al. 2020, by the covariances of its definition and numpy's pseudo-inverse."
    monkeypatch.syspath_prepend(root/"benchmarks")
    nc1 = runpy.run_path(str(root/"benchmarks"/"nc1.py"))["nc1"]
    rng, y = np.random.default_rng(0), np.repeat([0, 1, 2], [20, 30, 40])
    x = rng.normal(size=(90, 6)) + rng.normal(size=(3, 6))[y]
    means = np.stack([x[y == c].mean(0) for c in range(3)])
    within, between = x - means[y], means - means.mean(0)
    inverse = np.linalg.pinv(between.T @ between/3, rcond=1e-10)
    expected = np.trace(within.T @ within/90 @ inverse)/3
    assert nc1(torch.from_numpy(x), torch.from_numpy(y)) == pytest.approx(expected, rel=1e-9)
