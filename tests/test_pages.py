"""Pages that train or draw: the live cell comes before stored records, and the cell of full size can be carried out.

That cell is run with two tiny encoders, few rows and one step in place of the paper's; one page of each paper is run on
the simulated accelerator.
"""
import ast
import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import torch.multiprocessing as mp
from processes import serve
from simulated import Accelerator

import istar_nb as inb
from istar_nb.study.hours import at_least, gpu_hours
from istar_nb.sweeps import sweeps
from istar_nb.sweeps.grids import grid, load_sweep
from istar_nb.sweeps.sweeps import sweep
from istar_nb.training.records import find_record

root = Path(__file__).resolve().parents[1]
folder = root/"nbs"/"experiments"
CALL = re.compile(r"\b(inb\.sweep|sweeps\.select|run_stability)\(")


def cells_of(page): return json.loads(page.read_text(encoding="utf-8"))["cells"]


def text(cell): return "".join(cell["source"])


def of_full_size(cell):
    "Whether a cell is the paper's setting, which running all cells must not start."
    return cell["cell_type"] == "code" and bool(re.match(r"(#\| cuda\n)?full_size = False ", text(cell)))


pages = {path.stem: cells_of(path) for path in sorted(folder.glob("*.ipynb"))}
pages = {name: cells for name, cells in pages.items() if any(text(c) == "## From the stored records" or
         text(c).startswith("## From the stored records\n") for c in cells)}
shares_gpus = ("istar_table1", "isolayer_table2", "shrink_table2")    # one page of each paper
# All but the page that draws samples. Those that train on the simulated accelerator come first: pages share their runs.
training = [*shares_gpus, *(name for name in pages if name not in (*shares_gpus, "istar_figure2"))]


def places(cells):
    "Where a page's parts are: heading of the live part, live call, cell of full size, heading of the stored part."
    def first(fits): return next(i for i, cell in enumerate(cells) if fits(cell))
    return (first(lambda c: re.match("## (Train|Draw) it here\n", text(c))),
            first(lambda c: c["cell_type"] == "code" and CALL.search(text(c)) and not of_full_size(c)),
            first(of_full_size), first(lambda c: text(c).startswith("## From the stored records")))


def test_every_figure_and_table_of_a_paper_is_made_on_its_page():
    papers = [path.stem for paper in ("istar", "isolayer", "shrink") for path in folder.glob(f"{paper}_*.ipynb")]
    assert set(papers) <= set(pages)


@pytest.mark.parametrize("name", pages)
def test_a_page_trains_or_draws_before_it_shows_stored_records(name):
    cells = pages[name]
    assert sum(map(of_full_size, cells)) == 1
    heading, live, paper, stored = places(cells)
    assert heading < live < paper < stored
    open_code = [i for i, cell in enumerate(cells) if cell["cell_type"] == "code"
                 and not re.match(r"#\| (hide|echo: false|code-fold: true)", text(cell))]
    assert live == open_code[0], "the first code that a reader sees is the grid, and the call that runs it"
    lines = [line for line in text(cells[live]).splitlines() if not line.startswith("#|")]
    assert len(lines) <= 10 and cells[live]["outputs"] == [], "what shows how far it is must not be stored"
    drawn = [kind for cell in cells[live:paper] for o in cell.get("outputs", []) for kind in o.get("data", {})]
    assert "image/png" in drawn or "text/html" in drawn or "text/markdown" in drawn
    assert any("assert " in text(cell) for cell in cells[live:paper])
    for cell in cells[heading:stored]: assert "evidence" not in text(cell), "stored records come below"


def definitions(cells):
    "The imports and the functions of a page, and the looks of what it draws, without what it computes."
    live, _, paper, _ = places(cells)
    parts = [(i, part) for i, cell in enumerate(cells[:paper]) if cell["cell_type"] == "code"
             for part in ast.parse(text(cell)).body]
    kept = [part for i, part in parts if isinstance(part, ast.Import | ast.ImportFrom | ast.FunctionDef)
            or i > live and isinstance(part, ast.Assign) and isinstance(part.value, ast.Dict | ast.DictComp)]
    names = {}
    exec(compile(ast.Module(kept, []), "page", "exec"), names)
    return names


def cut(config):
    "The same method for one step, or for ten in two epochs where these are drawn, with a tiny encoder of its kind."
    kind = next(kind for kind in ("albert", "distilbert", "roberta", "bert") if kind in config.model)
    own = dict(layers=None if config.layers is None else (1,))
    if config.method == "isolayer": own["stage_epochs"] = 1
    rows, epochs = (80, 2) if config.batch_size == 64 else (16, 1)    # Shrink's, of which every tenth step is logged
    return replace(config, task="stdlib-docs", model=f"tiny-{kind}", epochs=epochs, batch_size=16, accumulate=1,
                   limit=rows, validation_limit=16, max_length=8, precision="fp32", seed=0, **own)


def shortened(configs):
    "One run of each method, kind of bars and sign of λ with the first two encoders, cut."
    first = list(dict.fromkeys(c.model for c in configs))[:2]
    kinds = {(c.model, c.method, c.selection, (c.lam or 0) > 0): c for c in reversed(configs) if c.model in first}
    return list({c.id: c for c in map(cut, kinds.values())}.values())


@cache
def made_once(spec): return grid(json.loads(spec))


def configs_of(spec):
    "What `grid` makes of a page's thousands of runs, once for all calls of its cell."
    return made_once(json.dumps(spec))


@pytest.fixture(scope="module")
def known():
    "The ids of the runs of all grids of the papers."
    return {c.id for path in (folder/"grids").glob("paper-*.yaml") for c in grid(path)}


def test_running_all_cells_of_a_notebook_starts_nothing_that_needs_a_gpu_or_the_network():
    "Flags mean something to nbdev, and nothing to JupyterLab."
    guards = re.compile(r"#\| (cuda|net)\n(full_size = False |online = False |if torch\.cuda\.is_available\(\):)")
    found = [text(cell) for path in (root/"nbs").rglob("*.ipynb") if "_proc" not in path.parts
             for cell in cells_of(path) if re.match(r"#\| (cuda|net)\n", text(cell))]
    assert len(found) > len(training) and [cell for cell in found if not guards.match(cell)] == []


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    "A store that all cells share, as they do in a folder of one's own, with a run that belongs to none of them."
    folder = tmp_path_factory.mktemp("store")
    foreign = dict(task="stdlib-docs", model="tiny-bert", method="entropy", lam=3., limit=16, validation_limit=16,
                   epochs=1, max_length=8)
    [record] = sweep([foreign], root=folder/"runs", progress=False)
    assert record.status == "done"
    return folder


def drawn():
    "What the open figures show: the words, and the points of every line."
    words, points = [], []
    for ax in (ax for number in plt.get_fignums() for ax in plt.figure(number).axes):
        words += [ax.get_title("left"), ax.get_xlabel(), ax.get_ylabel(), *(t.get_text() for t in ax.get_yticklabels())]
        points += [(str(line.get_xdata()), str(line.get_ydata())) for line in ax.lines]
    plt.close("all")
    return words, points


@pytest.mark.parametrize("name", training)
def test_the_cell_for_gpus_can_be_carried_out(name, monkeypatch, tmp_path, store, known):
    "With two encoders, in a store that other cells use as well, of which it shows its own runs alone."
    plt.close("all")    # what other tests left open
    cells, asked, made, shared, shown = pages[name], [], [], [], []
    paper = places(cells)[2]
    chosen = "sweeps.select(" in text(cells[paper])
    def asked_for(spec):
        asked[:] = configs_of(spec)
        return shortened(asked)
    def small(spec, root, **options):
        found = sweep(spec, root=root, progress=False)
        made.extend(found)
        return found
    def together(config, root, hub, processes): shared.append((config.id, hub, processes))
    monkeypatch.setattr(inb, "train", together)
    monkeypatch.setattr(inb, "grid", configs_of)
    monkeypatch.setattr(inb, "sweep", lambda spec, **options: small(asked_for(spec), **options))
    monkeypatch.setattr(inb, "load_sweep", lambda spec, root: load_sweep(asked_for(spec), root=root))
    select = sweeps.select
    monkeypatch.setattr(sweeps, "select", lambda spec, **options: select(asked_for(spec), **options))
    monkeypatch.setattr(sweeps, "sweep", small)
    awake = text(cells[paper]).replace("full_size = False", "full_size = True")
    def carried_out(folder):
        monkeypatch.chdir(folder)
        names = definitions(cells)
        names["display"], names["torch"] = shown.append, SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 8))
        with Accelerator() if name in shares_gpus else nullcontext(): exec(compile(awake, name, "exec"), names)
        tables = [str(table) for table in shown]
        shown.clear()
        return (*drawn(), tables)
    words, points, tables = carried_out(store)
    assert {r.status for r in made} == {"done"} and {r.config["method"] for r in made} == {c.method for c in asked}
    encoders = {r.config["model"] for r in made}
    assert len(encoders) == 2 and points or tables
    for encoder in encoders: assert encoder in "\n".join([*words, *tables]), "every encoder is shown"
    (tmp_path/"runs").mkdir()
    for run in {r.id for r in made}: shutil.copy(store/"runs"/f"{run}.json", tmp_path/"runs")
    if chosen: shutil.copytree(store/"runs"/"selection", tmp_path/"runs"/"selection")
    assert carried_out(tmp_path) == (words, points, tables), "only runs of its own are shown"
    assert {c.id for c in asked} <= known, "the grids of `full_size_grids` have these runs"
    assert shared == ([(asked[-1].id, True, 8)]*2 if name in shares_gpus else []), "one run takes all GPUs"
    count = f"{len({replace(c, seed=0) for c in asked}):,} candidates" if chosen else f"{len(asked):,} runs"
    assert re.search(rf"\b{count}\b", text(cells[paper - 1])), f"{count} are asked for"
    hours = gpu_hours(asked)
    if chosen:    # every candidate once, and the one chosen in each place with every seed
        tuned, seeds = {(c.task, c.model) for c in asked}, {c.seed for c in asked}
        hours = hours/len(seeds) + hours*len(tuned)*len(seeds)/len(asked)
    assert f"[at least {at_least(hours)} hours](../study/10_hours.ipynb) on one H100" in text(cells[paper - 1])


def test_the_run_that_all_gpus_share_is_one_of_the_sweep(monkeypatch, tmp_path):
    "The call of a page, on two processes of the CPU; the sweep after it finds its record."
    name = "isolayer_table2"
    cell = text(pages[name][places(pages[name])[2]]).replace("full_size = False", "full_size = True")
    [block] = [part for part in ast.parse(cell).body if isinstance(part, ast.If)]
    last = next(i for i, part in enumerate(block.body) if "inb.train(" in ast.unparse(part))
    of_page = ast.Module(block.body[:last + 1], [])
    monkeypatch.chdir(tmp_path)
    serve()
    # `test_launchers` starts new interpreters
    monkeypatch.setattr(mp, "spawn", partial(mp.start_processes, start_method="forkserver"))
    names = dict(inb=SimpleNamespace(grid=lambda spec: [cut(c) for c in grid(spec)], train=inb.train),
                 torch=SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 2)))
    exec(compile(of_page, name, "exec"), names)
    small = names["inb"].grid(names["paper"])
    [record] = inb.load_records("runs").itertuples()
    assert record.id == small[-1].id and record.status == "done"
    assert find_record("runs", record.id).environment["processes"] == 2
    [found] = sweep(small[-1:], root="runs", hub=True, progress=False)
    assert found.environment["processes"] == 2, "it is not made again"


def test_a_how_to_of_full_size_may_download_its_model_and_task(monkeypatch):
    asked = []
    monkeypatch.setattr(inb, "sweep", lambda spec, **options: asked.append((grid(spec), options)))
    for path in (root/"nbs"/"howto").glob("*.ipynb"):
        for cell in filter(of_full_size, cells_of(path)):
            exec(text(cell).replace("full_size = False", "full_size = True"), dict(inb=inb))
    assert asked and all(options.get("hub") for _, options in asked)
