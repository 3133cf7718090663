"A penalty of one's own as a method, without a change to the package."
import sys
import warnings

import pytest
import torch

from istar_nb.app.cli import main
from istar_nb.penalties.baselines import GOR
from istar_nb.base.states import HiddenStates
from istar_nb.penalties.regularizers import Regularizer
from istar_nb.report.figures import run_label
from istar_nb.sweeps.grids import load_records
from istar_nb.training.records import iterate_records
from istar_nb.training.runs import RunConfig
from istar_nb.training.training import train
from processes import Process

MODULE = '''
from istar_nb import Regularizer

class VarianceShare(Regularizer):
    "The sum of the squared variances of the dimensions, divided by the square of their sum."
    def __init__(self, tokens="real", power:float=2.):
        super().__init__()
        self.tokens, self.power = tokens, power

    def forward(self, states, labels=None):
        variances = states.points(-1, self.tokens).float().var(0)
        return (variances**self.power).sum()/variances.sum()**self.power
'''


def command(words, *paths):
    "What the program `istar` does that also looks for modules in some folders, but not in its own by itself."
    sys.path = [*map(str, paths), *filter(None, sys.path)]
    main(words)


def istar(folder, words, *paths):
    "`istar` in a folder, after its end."
    process = Process(command, words, *paths, folder=folder)
    process.wait()
    return process


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    "A store with a run of a method of one's own."
    folder = tmp_path_factory.mktemp("own")
    (folder/"my_variance.py").write_text(MODULE, encoding="utf-8")
    run = istar(folder, "train stdlib-docs --model tiny-bert --limit 64 --epochs 1 --max-length 16 --batch-size 32 "
                        "--method my_variance:VarianceShare --tokens cls --root runs --no-progress".split())
    assert not run.code, run.said
    return folder


def test_a_class_of_ones_own_is_a_method(store):
    record, = iterate_records(store/"runs")
    assert (record.status, record.config["method"], record.config["lam"]) == ("done", "my_variance:VarianceShare", 1.)
    assert record.steps == [] or all(0 < step["penalty"] <= 1 for step in record.steps)


def test_an_option_of_a_class_of_ones_own_is_a_parameter_of_it(store, tmp_path):
    "It is given by its name, checked before training without importing the module, and part of the run's id."
    words = "train stdlib-docs --model tiny-bert --limit 64 --epochs 1 --max-length 16 --no-progress".split()
    words += ["--method", "my_variance:VarianceShare", "--root", str(tmp_path/"runs"), "--options"]
    run = istar(store, [*words, '{"power": 3.0}'])
    assert not run.code, run.said
    record, = iterate_records(tmp_path/"runs")
    assert record.config["options"] == dict(power=3.) and record.id not in {r.id for r in iterate_records(store/"runs")}
    for given, said in (('{"pover": 3.0}', "did you mean power"), ('{"power": "high"}', "must be float"),
                        ("power", "an object of JSON")):
        run = istar(store, [*words, given])
        assert run.code and said in run.said, run.said


def test_a_parameter_that_says_no_type_takes_any_value(tmp_path, monkeypatch):
    "One without annotation and default, or with the default None."
    (tmp_path/"my_weights.py").write_text("class Weighed:\n    def __init__(self, weight, power=None, sharp=1.): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    given = dict(weight=2, power="high", sharp=3)
    assert RunConfig(method="my_weights:Weighed", options=given).options == given
    with pytest.raises(TypeError, match="sharp must be float"):
        RunConfig(method="my_weights:Weighed", options=dict(given, sharp="high"))


def test_records_are_read_without_the_module(store, tmp_path):
    path, = (store/"runs").glob("*.json")
    (tmp_path/path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record, = iterate_records(tmp_path)
        table = load_records(tmp_path)
    assert set(table.method) == {"my_variance:VarianceShare"} and run_label(record.config) == "VarianceShare, λ = +1"
    run = istar(tmp_path, ["runs", "."])
    assert not run.code and "VarianceShare" in run.said and "skipped" not in run.said, run.said


def test_a_method_that_cannot_be_made_is_an_error_before_training(tmp_path):
    for method, words in (("./mine.py:P", "'./mine.py:P' cannot be imported"), ("cosreq", "did you mean cosreg"),
                          ("istar_nb.base.states:HiddenStates", "")):
        run = istar(tmp_path, ["train", "stdlib-docs", "--model", "tiny-bert", "--method", method, "--root", "runs",
                               "--limit", "64", "--no-progress"])
        assert run.code and words in run.said and not list((tmp_path/"runs").glob("*.json")), run.said


@pytest.mark.parametrize("returned, told", [("None", "not None"), ("0.5", "not 0.5"), ("dict(a=x)", "not {'a'"),
                                            ("x.flatten()", "not a tensor of"), ("x.detach().mean()", "no gradient")])
def test_a_penalty_that_returns_no_number_with_a_gradient_is_an_error(tmp_path, monkeypatch, returned, told):
    "One that forgets to return its value was trained without, and recorded as if it had been with it."
    class Mistaken(Regularizer):
        def forward(self, states, labels=None): return eval(returned, dict(x=states.layers[-1]))
    monkeypatch.setattr("istar_nb.training.updates.make_penalty", lambda *args: Mistaken())
    config = RunConfig(model="tiny-bert", limit=16, epochs=1, method="cosreg", max_length=16)
    with pytest.raises((TypeError, ValueError), match=told): train(config, tmp_path, progress=False)


def test_gor_is_that_of_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    if not hasattr(losses, "GlobalOrthogonalRegularizationLoss"): pytest.skip("an older version")
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(0)) + 0.5
    other = losses.GlobalOrthogonalRegularizationLoss(torch.nn.Identity())
    ours = GOR()(HiddenStates([x[:, None]], torch.ones(12, 1)))
    torch.testing.assert_close(ours, sum(other.compute_gor(x)))
