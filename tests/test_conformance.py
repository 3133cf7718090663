"The conformance suite on the package itself, without other environments, and a record that has the suite's names."
import ast
import json
import math
import runpy
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

root = Path(__file__).resolve().parents[1]
benchmarks = root/"benchmarks"


@pytest.fixture(scope="module")
def suite():
    "The names of `conformance.py`; its imports come from its own folder."
    sys.path.insert(0, str(benchmarks))
    try: return runpy.run_path(str(benchmarks/"conformance.py"))
    finally: sys.path.remove(str(benchmarks))


def test_every_benchmark_finds_what_it_imports(monkeypatch):
    monkeypatch.syspath_prepend(benchmarks)
    for path in sorted(benchmarks.glob("*.py")): import_module(path.stem)


@pytest.fixture(scope="module")
def serve(): return runpy.run_path(str(benchmarks/"adapters"/"serve.py"))


@pytest.fixture(scope="module")
def own(): return runpy.run_path(str(benchmarks/"adapters"/"istar_nb.py"))


@pytest.fixture
def answers(suite, serve, own, tmp_path):
    def peer(measure, path, parts): return serve["answered"](own, measure, serve["read"](path), parts)
    return suite["Answers"](peer, tmp_path)


measures = {"IsoScore", "unbiased IsoScore", "participation ratio", "RankMe", "mean cosine", "TwoNN", "plain CKA",
            "debiased CKA", "total H0 persistence", "persistent entropy", "KoLeo"}


@pytest.mark.parametrize("measure", sorted(measures))
def test_the_package_passes_every_check_of_the_suite(measure, suite, serve, own, answers):
    rows = suite["examined"](answers, serve["described"](own), measure)
    assert {check: row for check, row in rows.items() if row["verdict"] != "pass"} == {}
    assert {"formula", "NaN", "one point"} <= set(rows)


def test_every_measure_of_the_adapter_is_checked(own, suite):
    assert set(own["measures"]) == measures <= set(suite["definitions"])


def test_the_known_values_are_those_of_the_points(suite):
    "What the suite knows in closed form, computed once more from the points themselves."
    base, definitions = suite["base"], suite["definitions"]
    c = base["axes"]()
    values = np.linalg.eigvalsh(np.cov(c.x.T))
    assert definitions["participation ratio"].of(c) == pytest.approx(values.sum()**2/(values**2).sum())
    p = np.linalg.svd(c.x, compute_uv=False)
    p = p/p.sum() + 1e-7
    assert definitions["RankMe"].of(c) == pytest.approx(math.exp(-(p*np.log(p)).sum()))
    unit = c.x/np.linalg.norm(c.x, axis=1, keepdims=True)
    cosines = unit @ unit.T
    assert definitions["mean cosine"].of(c) == pytest.approx((cosines.sum() - len(c.x))/(len(c.x)*(len(c.x) - 1)))
    x, y = c.x - c.x.mean(0), c.y - c.y.mean(0)
    plain = ((x.T @ y)**2).sum()/(np.linalg.norm(x.T @ x)*np.linalg.norm(y.T @ y))
    assert definitions["plain CKA"].of(c) == pytest.approx(plain)
    t = base["triangles"]()
    assert np.sort(t.ratios) == pytest.approx(np.sort(suite["neighbour_ratios"](t.x)), rel=1e-9)


def test_a_wrong_value_and_a_number_where_there_is_none_fail(suite):
    judged = suite["verdict"]
    def passes(check, answer, known={}): return judged(check, answer, 2., (2., 2.), "RankMe", known)[0]    # noqa: B006
    assert passes("formula", dict(value=2.001)) and not passes("formula", dict(value=2.01))
    assert not passes("formula", dict(error="ValueError")) and not passes("formula", dict(value="nan"))
    assert passes("NaN", dict(error="ValueError")) and passes("NaN", dict(value="nan"))
    assert not passes("NaN", dict(value=2.)) and passes("integers", dict(error="TypeError"))
    assert passes("constant points", dict(value=1.)) and not passes("constant points", dict(value=7.))
    assert passes("constant points", dict(value=7.), dict(constant=7.))
    assert judged("rotation", dict(value=6.), 2., (6., 2.), "RankMe", {})[0]    # wrong, but not changed by a rotation


def test_the_record_has_the_names_of_the_suite(suite):
    stored = json.loads((root/"results"/"benchmarks"/"conformance.json").read_text(encoding="utf-8"))
    assert list(stored["packages"]) == list(suite["packages"])
    told = json.loads(json.dumps(suite["told"]()))
    assert {name: stored[name] for name in told} == told
    for name, found in stored["packages"].items():
        if "unavailable" in found: continue
        calls = calls_of(benchmarks/"adapters"/f"{name}.py")
        assert {measure: row["call"] for measure, row in found["measures"].items()} == calls
        assert all(set(row["checks"]) <= set(suite["checks"]) for row in found["measures"].values())


def calls_of(path):
    "The calls that an adapter names, read without importing it."
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = {node.name: ast.get_docstring(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    table = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "measures")
    return {key.value: said[value.id] for key, value in zip(table.keys, table.values)}
