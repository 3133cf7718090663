"The rule by which conftest.py finds the tier of a test."
from pathlib import Path

import pytest
from processes import on_two

root = Path(__file__).resolve().parents[1]


def plain(rank): return rank + 2
def shared(job, folder): return on_two(job, folder=folder)
def nested(): return plain(1), [lambda: shared(plain, ".")]


@pytest.fixture
def results(tmp_path): return shared(plain, tmp_path)


@pytest.fixture
def rule(request): return request.config.pluginmanager.get_plugin(str(root/"conftest.py"))


def test_a_process_is_found_behind_helpers(rule):
    assert [rule.starts_something(f, set()) for f in (plain, shared, nested)] == [False, True, True]


def test_a_process_is_found_behind_fixtures(rule, results, request):
    assert rule.tier_of(request.node) == "system" and results == [2, 3]


def test_other_tests_are_fast(rule, request): assert rule.tier_of(request.node) == "fast"
