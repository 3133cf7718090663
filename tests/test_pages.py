"""Pages that train or draw: the live cell comes before stored records, and the cell of full size can be carried out.

That cell is run on the simulated accelerator with a tiny encoder, few rows and one step in place of the paper's.
"""
import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from simulated import Accelerator

import istar_nb as inb
from istar_nb.study.hours import at_least, gpu_hours
from istar_nb.sweeps import selection
from istar_nb.sweeps.grids import grid
from istar_nb.sweeps.sweeps import sweep

root = Path(__file__).resolve().parents[1]
folder = root/"nbs"/"experiments"
CALL = re.compile(r"\b(inb\.sweep|selection\.select|run_stability)\(")


def cells_of(page): return json.loads(page.read_text(encoding="utf-8"))["cells"]


def text(cell): return "".join(cell["source"])


def of_full_size(cell):
    "Whether a cell is the paper's setting, which running all cells must not start."
    return cell["cell_type"] == "code" and bool(re.match(r"(#\| cuda\n)?full_size = False ", text(cell)))


pages = {path.stem: cells_of(path) for path in sorted(folder.glob("*.ipynb"))}
pages = {name: cells for name, cells in pages.items() if any(text(c) == "## From the stored records" or
         text(c).startswith("## From the stored records\n") for c in cells)}
training = [name for name in pages if name != "istar_figure2"]    # which draws samples


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


def definitions(cells, before):
    "The imports and the functions of a page, without what it computes."
    parts = [part for cell in cells[:before] if cell["cell_type"] == "code" for part in ast.parse(text(cell)).body]
    kept = [part for part in parts if isinstance(part, ast.Import | ast.ImportFrom | ast.FunctionDef)]
    names = {}
    exec(compile(ast.Module(kept, []), "page", "exec"), names)
    return names


def cut(config):
    "The same method for one step, with a tiny encoder of the same architecture."
    kind = next(kind for kind in ("albert", "distilbert", "roberta", "bert") if kind in config.model)
    own = dict(layers=None if config.layers is None else (1,))
    if config.method == "isolayer": own["stage_epochs"] = 2
    return replace(config, task="stdlib-docs", model=f"tiny-{kind}", epochs=1, batch_size=16, accumulate=1, limit=16,
                   validation_limit=16, max_length=8, precision="fp32", seed=0, **own)


def test_running_all_cells_of_a_notebook_starts_nothing_that_needs_a_gpu_or_the_network():
    "Flags mean something to nbdev, and nothing to JupyterLab."
    guards = re.compile(r"#\| (cuda|net)\n(full_size = False |online = False |if torch\.cuda\.is_available\(\):)")
    found = [text(cell) for path in (root/"nbs").rglob("*.ipynb") if "_proc" not in path.parts
             for cell in cells_of(path) if re.match(r"#\| (cuda|net)\n", text(cell))]
    assert len(found) > len(training) and [cell for cell in found if not guards.match(cell)] == []


@pytest.mark.parametrize("name", training)
def test_the_cell_for_gpus_can_be_carried_out(name, monkeypatch, tmp_path):
    cells, asked = pages[name], []
    paper = places(cells)[2]
    def shortened(spec):
        "One run of each method and sign of λ, cut."
        asked.extend(grid(spec))
        kinds = {(c.method, (c.lam or 0) > 0): cut(c) for c in reversed(asked)}
        return list({c.id: c for c in kinds.values()}.values())
    def small(spec, root, **options): return sweep(spec, root=root, progress=False)
    monkeypatch.setattr(inb, "sweep", lambda spec, **options: small(shortened(spec), **options))
    monkeypatch.setattr(selection, "grid", shortened)
    monkeypatch.setattr(selection, "sweep", small)
    monkeypatch.chdir(tmp_path)
    names = definitions(cells, paper)
    chosen = "selection.select(" in text(cells[paper])
    awake = text(cells[paper]).replace("full_size = False", "full_size = True")
    with Accelerator(): exec(compile(awake, name, "exec"), names)
    plt.close("all")
    records = inb.load_records("runs")
    assert len(records) and set(records.status) == {"done"} and set(records.method) == {c.method for c in asked}
    known = {c.id for path in (folder/"grids").glob("paper-*.yaml") for c in grid(path)}
    assert {c.id for c in asked} <= known, "the grids of `full_size_grids` have these runs"
    count = f"{len({replace(c, seed=0) for c in asked}):,} candidates" if chosen else f"{len(asked):,} runs"
    assert re.search(rf"\b{count}\b", text(cells[paper - 1])), f"{count} are asked for"
    hours = gpu_hours(asked)
    if chosen:    # every candidate once, and the one chosen in each place with every seed
        tuned, seeds = {(c.task, c.model) for c in asked}, {c.seed for c in asked}
        hours = hours/len(seeds) + hours*len(tuned)*len(seeds)/len(asked)
    assert f"[at least {at_least(hours)} hours](../study/10_hours.ipynb) on one H100" in text(cells[paper - 1])
