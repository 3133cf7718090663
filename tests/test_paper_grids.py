"The grids of the papers' tables: each can be planned, has the runs it should have, and says where it departs."
from functools import cache
from itertools import product
from pathlib import Path

import pytest

import istar_nb as inb
from istar_nb.sweeps.sweeps import grouped, select
from istar_nb.training.runs import RunConfig

folder = Path(__file__).resolve().parents[1]/"nbs"/"experiments"/"grids"
glue = {"cola", "sst2", "mrpc", "rte", "qnli", "qqp", "stsb", "sst5", "squad"}
three = {"bert-base-cased", "albert-base-v2", "distilbert-base-cased"}
COUNTS = {    # models x tasks x methods and their options x five seeds
    "paper-isolayer": 2*3*4*5, "paper-istar": 3*9*(1 + 2 + 6*4 + 1)*5, "paper-istar-figure7": 3*6*5,
    "paper-istar-figure8": (12 + 12 + 6 + 3 + 3)*5, "paper-istar-tuning": 3*9*27*5, "paper-shrink": 2*2*(1 + 3)*5}
ROWS = {    # what the rows of the tables need: the models, the tasks, and methods with an option that tells rows apart
    "paper-istar": (three, glue, {("none", 0.), ("cosreg", 1.), *(("istar", float(lam)) for lam in range(-5, 6, 2))}),
    "paper-isolayer": ({"bert-base-cased", "roberta-large"}, {"rte", "mrpc", "cola"},
                       {("none", 0.), ("isolayer", 0.), ("isobn", 0.)}),
    "paper-shrink": ({"bert-base-uncased", "roberta-base"}, {"mrpc", "cola"}, {("none", 0.), ("entropy", 1.)})}


@cache
def configs_of(name): return inb.grid(folder/f"{name}.yaml")


def test_every_grid_of_a_paper_is_counted(): assert COUNTS.keys() == {path.stem for path in folder.glob("paper-*.yaml")}


@pytest.mark.parametrize("name", COUNTS)
def test_a_dry_run_lists_every_run(name, tmp_path, capsys):
    path, configs = folder/f"{name}.yaml", configs_of(name)
    assert inb.sweep(path, root=tmp_path, dry_run=True) == []
    assert f"{COUNTS[name]} runs: 0 done, {COUNTS[name]} to do" in capsys.readouterr().out
    assert len(configs) == COUNTS[name] and {c.seed for c in configs} == set(range(5)) and not list(tmp_path.iterdir())
    comment = path.read_text(encoding="utf-8").split("\nbase:")[0].split("\nseeds:")[0]
    assert comment.startswith("# ") and "# Departs from the paper: " in comment


@pytest.mark.parametrize("name", ROWS)
def test_a_grid_holds_every_row_of_its_tables(name):
    models, tasks, methods = ROWS[name]
    found = {(c.model, c.task, c.method, c.complete.lam) for c in configs_of(name)}
    lacking = {(*place, *method) for place in product(models, tasks) for method in methods} - found
    assert not lacking, sorted(lacking)[:3]


def test_the_tuning_of_istar_compares_27_settings(capsys, tmp_path):
    path, settings = folder/"paper-istar-tuning.yaml", set(product((8, 16, 32), (3, 4, 5), (1e-5, 3e-5, 5e-5)))
    groups = grouped(configs_of(path.stem), ("task", "model", "method"))
    assert groups.keys() == set(product(glue, three, ["none"]))
    for points in groups.values(): assert {(c.batch_size, c.epochs, c.lr) for c in points} == settings
    select(path, hold_out=0.1, dry_run=True, root=tmp_path)
    out = capsys.readouterr().out
    assert f"{27*27} runs: 0 done" in out and "then 27 chosen points with 5 seeds each" in out


def test_a_selection_chooses_batch_size_and_epochs(tmp_path):
    options = dict(batch_size=[8, 16], epochs=[1, 2], lr=3e-3)
    spec = dict(base=dict(model="tiny-bert", limit=80, max_length=16, **options), seeds=[1])
    found = select(spec, hold_out=0.25, root=tmp_path/"runs", checkpoints=tmp_path/"checkpoints", progress=False)
    [group], [record] = found.record["groups"], found.records
    usual = vars(RunConfig().complete)
    def setting(candidate): return tuple((usual | candidate["options"])[name] for name in ("batch_size", "epochs"))
    tried = {setting(candidate): candidate["mean"] for candidate in group["candidates"]}
    assert tried.keys() == set(product((8, 16), (1, 2)))
    chosen = record.config["batch_size"], record.config["epochs"]
    assert tried[chosen] == max(tried.values()) and len(record.epochs) == chosen[1] + 1
    made = inb.load_sweep(spec, root=tmp_path/"runs")
    assert made.id.tolist() == [record.id] and made.seed.tolist() == [1]


@pytest.mark.parametrize("name", COUNTS)
def test_a_grid_says_which_settings_are_ours(name):
    "What no paper states and no grid sets is named in the comment of the grid, with its value."
    comment = (folder/f"{name}.yaml").read_text(encoding="utf-8").split("\nruns:")[0].replace("\n# ", " ")
    said = dict(warmup=(0.1, "a warm-up over a tenth of the updates"), batches=("length", "texts of similar length"),
                schedule=("linear", "linear decay"), max_grad_norm=(1., "clipped at norm 1"),
                optimizer=("adamw", "AdamW"), weight_decay=(0.01, "weight decay 0.01"))
    for option, (value, words) in said.items():
        if (name, option) in (("paper-shrink", "weight_decay"), ("paper-isolayer", "optimizer")): continue
        assert {getattr(c, option) for c in configs_of(name)} == {value} and words in comment, option
    if "istar" in name: assert "4 epochs, batch 32, lr 1e-5" in comment
