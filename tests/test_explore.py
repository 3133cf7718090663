"The explorers of the site in headless Chromium: Python's numbers, by keyboard and pointer, and no request to a host."
import ast
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from browser import browser_page, needs_chromium

from istar_nb.geometry.measures import outlier_dimensions, spectrum
from istar_nb.base.covariance import participation_ratio, shrink
from istar_nb.geometry.scores import isoscore, isoscore_from_cov, isoscore_star, isoscore_unbiased, isoscore_with_error
from istar_nb.penalties.topology import select_bars
from istar_nb.report.statistics import paired_differences
from istar_nb.sweeps.grids import load_records

root = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(root/"tools"))
import explore as tool

pytestmark = needs_chromium


def defined_on(page):
    "What a notebook defines and imports, without what it shows."
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    names, code = dict(__name__=page.stem), "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    definitions = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    kept = [part for part in ast.parse(code).body if isinstance(part, definitions)
            or isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) in ("paper_variances", "references")]
    exec(compile(ast.Module(kept, []), str(page), "exec"), names)
    return SimpleNamespace(**names)


ex = defined_on(root/"nbs"/"app"/"01_explorers.ipynb")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "The page with everything it reads."
    where = tmp_path_factory.mktemp("explore")
    for name, content in tool.files().items(): (where/name).write_bytes(content)
    return where


@pytest.fixture(scope="module")
def page(folder):
    with browser_page() as page:
        page.open((folder/"index.html").as_uri())
        yield page
        assert not page.errors
        assert page.requests and not page.elsewhere


def maths(page, call):
    "What a function of maths.js returns; typed arrays come as lists."
    return page.run(f"JSON.parse(JSON.stringify(explore.maths.{call}, "
                    "(key, value) => ArrayBuffer.isView(value) ? [...value] : value))")


def reading(page, name): return page.text(f"#{name} .reading")


def numbers(sentence): return [float(number.replace("−", "-")) for number in re.findall(r"−?\d+\.\d+", sentence)]


# ---- a spectrum

variances = {f"v{i}": value for i, value in enumerate(ex.paper_variances, 1)}


def mixture(variances, reference, zeta):
    batch, other = (torch.tensor(values, dtype=torch.float64).diag() for values in (variances, reference))
    return shrink(batch, other, zeta)


def spectrum_sentence(reference="equal", zeta=0.2, **variances):
    "What the page says, in Python's numbers."
    cov = mixture(list(variances.values()), ex.references[reference], zeta)
    return (f"Participation ratio {participation_ratio(cov):.3f} of {len(variances)} directions; "
            f"IsoScore* ι = {isoscore_from_cov(cov):.3f}.")


@pytest.mark.parametrize("variances, zeta", [([10, 6, 4, 4, 1, 1], 0), ([5, 5, 5, 0, 0, 0], 0),
                                             ([10, 0, 0, 0, 0, 0], 0.35), ([1e-3, 2, 3, 4, 5, 6], 1)])
@pytest.mark.parametrize("reference", ex.references)
def test_a_spectrum_has_the_same_numbers(page, variances, zeta, reference):
    assert page.run(f"explore.references[{json.dumps(reference)}]") == list(ex.references[reference])
    theirs = maths(page, f"spectrumNumbers({variances}, {list(ex.references[reference])}, {zeta})")
    cov = mixture(variances, ex.references[reference], zeta)
    assert theirs["eigenvalues"] == pytest.approx(cov.diagonal().tolist(), rel=1e-12)
    assert theirs["ratio"] == pytest.approx(participation_ratio(cov).item(), rel=1e-12)
    assert theirs["isoscore"] == pytest.approx(isoscore_from_cov(cov).item(), rel=1e-6, abs=1e-7)


def test_keys_on_a_slider_show_the_number_that_python_computes(page):
    assert reading(page, "spectrum") == spectrum_sentence(**variances)
    page.press("ArrowLeft", "#spectrum-v1", 7)
    page.press("ArrowRight", "#spectrum-zeta", 6)
    moved = variances | dict(v1=9.3)
    assert page.text("#spectrum-v1 + output") == "9.3"
    assert reading(page, "spectrum") == spectrum_sentence(zeta=0.5, **moved)


def test_a_preset_and_a_dragged_bar(page):
    page.run("[...document.querySelectorAll('#spectrum button')].find(b => b.textContent === 'three of six').click()")
    values = dict(zip(variances, [5, 5, 5, 0, 0, 0])) | dict(zeta=0)
    assert reading(page, "spectrum") == spectrum_sentence(**values)
    left, top, width, height = page.run("(r => [r.x, r.y, r.width, r.height])(document.querySelector('#spectrum "
                                        "svg').getBoundingClientRect())")
    page.drag((left + width/2, top + height*0.8), (left + width/2, top + height*0.3))
    dragged = page.run("['v3', 'v4'].map(name => Number(document.getElementById('spectrum-' + name).value))")
    assert dragged != [5, 0]
    assert reading(page, "spectrum") == spectrum_sentence(**values | dict(v3=dragged[0], v4=dragged[1]))


def test_what_cannot_be_scored_is_said(page):
    page.run("for (let i = 1; i <= 6; i++) { const s = document.getElementById('spectrum-v' + i); s.value = 0; "
             "s.dispatchEvent(new Event('input')) }")
    page.press("Home", "#spectrum-zeta")
    assert reading(page, "spectrum") == "All variances are zero: there is nothing to score."


# ---- small batches

batch = dict(n=32, d=64, exponent=1, zeta=0.2)

def batches_of(page, n, d, exponent, zeta, reference="true", seed=0, draws=100, rows=False):
    "The scores of the page's batches and the true one; before them the batches themselves, if `rows` are wanted."
    v, other = maths(page, f"powerSpectrum({d}, {exponent})"), f"explore.maths.referenceSpectrum(v, '{reference}')"
    call = (f"(v => Array.from({{length: {draws}}}, (_, i) => {{ "
            f"const parts = explore.maths.drawBatch({n}, v, {seed}, i); "
            f"return [{'[...parts.rows]' if rows else '[]'}, "
            f"explore.maths.batchScores(parts, {other}, {zeta})] }}))({v})")
    drawn, scores = zip(*page.run(call))
    truth = isoscore_from_cov(torch.tensor(v).double().diag()).item()
    return *([np.array(drawn).reshape(draws, n, d)] if rows else []), np.array(scores).T, truth


def batches_sentence(page, **values):
    scores, truth = batches_of(page, **values)
    means = ", ".join(f"{name} {each.mean():.3f} (sd {each.std(ddof=1):.3f})"
                      for name, each in zip(("plug-in", "shrunk", "unbiased"), scores))
    return f"True ι = {truth:.3f}. Means of 100 batches: {means}."


def test_random_numbers(page):
    "The published generator's first number for seed 0; normal numbers; and a stream that can be entered anywhere."
    assert maths(page, "uniforms(1, 0)") == [(1144304738 + 0.5)/2**32]
    z = np.array(maths(page, "normals(20000, 0)"))
    assert abs(z.mean()) < 0.02 and abs(z.std() - 1) < 0.02 and abs((z**4).mean() - 3) < 0.2
    assert maths(page, "normals(10, 0, 25)") == z[25:35].tolist()


@pytest.mark.parametrize("n, d", [(5, 2), (6, 9), (32, 64), (40, 7), (7, 7)])
@pytest.mark.parametrize("reference", ["true", "all equal"])
def test_batches_have_the_same_scores(page, n, d, reference):
    batches, theirs, _ = batches_of(page, n, d, 0.7, 0.3, reference, 5, draws=10, rows=True)
    variances = np.arange(1, d+1)**-0.7
    other = torch.tensor(variances if reference == "true" else np.full(d, variances.mean())).diag()
    mine = [(isoscore(x), isoscore_star(x, other, 0.3), isoscore_unbiased(x)) for x in map(torch.tensor, batches)]
    assert theirs.T == pytest.approx(np.array(mine, float), rel=1e-5, abs=1e-6)


def test_keys_on_the_number_of_points(page):
    page.wait("document.querySelector('#batches .reading').textContent.startsWith('True')")
    assert reading(page, "batches") == batches_sentence(page, **batch)
    page.press("ArrowLeft", "#batches-n", 12)
    page.wait("document.querySelector('#batches .reading').textContent.startsWith('True')")
    sentence = reading(page, "batches")
    assert sentence == batches_sentence(page, **batch | dict(n=20))
    rows = np.array(page.run("[...document.querySelectorAll('#batches tbody tr')].map(r => "
                             "[...r.querySelectorAll('td')].map(c => c.textContent.replace('−', '-')))"), float)
    truth = numbers(sentence)[0]
    assert rows[:, 1] == pytest.approx(rows[:, 0] - truth, abs=2e-3)


# ---- a barcode

def points_of(page, **places):
    return torch.tensor(page.run(f"explore.topology.clusteredPoints({json.dumps(places)})"), dtype=torch.float64)


def barcode_sentence(page, selection="atienza", rate=0.1, steps=0, **places):
    found = ex.barcode_under(ex.climbed(points_of(page, **places), selection, rate, steps), selection)
    count = len(found.features)
    return (f"{count} of {len(found.bars)} bars selected; persistent entropy H = {max(0., found.entropy):.3f} "
            f"of at most {np.log(count):.3f}.")


clouds = [dict(clusters=c, points=n, spread=s, seed=seed)
          for c, n, s, seed in [(4, 20, 0.1, 0), (1, 4, 0.5, 3), (2, 25, 0.04, 1), (5, 40, 0.06, 2), (8, 40, 0.3, 9)]]

@pytest.mark.parametrize("places", clouds, ids=lambda p: f"{p['clusters']} clusters")
@pytest.mark.parametrize("selection", ["atienza", "released", "none"])
def test_a_barcode_has_the_same_numbers(page, places, selection):
    mine = points_of(page, **places)
    x = mine.tolist()
    theirs, found = page.run(f"explore.topology.barcode({x}, '{selection}')"), ex.barcode_under(mine, selection)
    assert sorted(theirs["bars"]) == pytest.approx(sorted(found.bars.tolist()), rel=1e-12)
    assert {tuple(sorted(e)) for e in theirs["edges"]} == {tuple(sorted(e)) for e in found.edges.tolist()}
    assert ([theirs["bars"][k] for k in theirs["features"]]
            == pytest.approx(found.bars[found.features].tolist(), rel=1e-12))
    assert (theirs["entropy"] == pytest.approx(found.entropy, abs=1e-12)
            and np.array(theirs["gradient"]) == pytest.approx(found.gradient.numpy(), abs=1e-12))
    after = page.run(f"explore.topology.climbed({x}, '{selection}', 0.1, 5)")
    assert np.array(after) == pytest.approx(ex.climbed(mine, selection, 0.1, 5).numpy(), abs=1e-10)


def test_the_selection_agrees_on_random_barcodes(page):
    rng = np.random.default_rng(0)
    bars = [sorted(np.exp(rng.normal(0, rng.uniform(0.1, 2), rng.integers(1, 30))).tolist(), reverse=True)
            for _ in range(300)]
    for selection in ("atienza", "released"):
        theirs = page.run(f"{json.dumps(bars)}.map(s => explore.topology.countFeatures(s, '{selection}'))")
        assert theirs == [len(select_bars(torch.tensor(s, dtype=torch.float64), selection)) for s in bars]


def test_gradient_steps_and_a_dragged_point(page):
    values = dict(clusters=3, points=20, spread=0.06, seed=0)
    assert reading(page, "barcode") == barcode_sentence(page, **values)
    for _ in range(3): page.press("Enter", "#barcode button")
    page.press("ArrowRight", "#barcode-rate")
    assert reading(page, "barcode") == barcode_sentence(page, steps=3, rate=0.12, **values)
    x, y = page.run("(r => [r.x + r.width/2, r.y + r.height/2])(document.querySelector('#barcode "
                    "circle.point').getBoundingClientRect())")
    page.drag((x, y), (x, y - 30))
    moved = reading(page, "barcode")
    assert page.run("document.getElementById('barcode-steps').value") == "0"
    assert moved != barcode_sentence(page, **values)
    page.run("document.querySelector('#barcode details').open = true")
    page.press("ArrowDown", "#barcode-y", 20)
    assert reading(page, "barcode") != moved


def test_one_cluster_without_spread_has_no_bars_and_no_entropy(page):
    for control in ("clusters", "spread"): page.press("Home", f"#barcode-{control}")
    assert reading(page, "barcode") == "0 of 19 bars selected; persistent entropy H = 0.000 of at most 0.000."
    assert not page.run("/NaN|Infinity/.test(document.getElementById('barcode').outerHTML)")


# ---- the runs

@pytest.fixture(scope="module")
def runs(folder):
    "What the page is given of the runs."
    return json.loads((folder/"data.js").read_text(encoding="utf-8").removeprefix("explore.data = "))["runs"]


def run_points(runs, data, method="all", layer="pooled", seed="all"):
    "The page's runs on some data a second time: a run a row, with its difference from the plain run of the same seed."
    frame = pd.DataFrame({name: runs[name] for name in ("data", "setting", "seed", "plain", "collapsed")})
    frame["method"] = [runs["settings"][setting]["method"] for setting in frame.setting]
    k = int({"pooled": -1, "embeddings": 0}.get(layer, layer))
    scores = runs["isoscore"] if k < 0 else [row[k] if k < len(row) else None for row in runs["layers"]]
    frame = frame.assign(x=pd.Series(scores, dtype=float), y=pd.Series(runs["score"], dtype=float))
    chosen = frame[frame.data.isin([data] if isinstance(data, str) else data)
                   & frame.method.isin([method] if method != "all" else frame.method)
                   & frame.seed.isin([int(seed)] if seed != "all" else frame.seed)]
    shown = frame.loc[sorted({*chosen.index, *chosen.plain} - {-1})].dropna(subset="x")
    other = shown[["x", "y"]].reindex(shown.plain.where(shown.plain != shown.index, -1))
    return shown.assign(dx=shown.x - other.x.to_numpy(), dy=shown.y - other.y.to_numpy())


def run_table(points, by="setting"):
    "For each setting: runs, mean isotropy and score, pairs, their differences, runs with one answer for every row."
    return points.groupby(by).agg(runs=("x", "size"), isoscore=("x", "mean"), score=("y", "mean"),
                                  pairs=("dy", "count"), difference=("dy", "mean"), sd=("dy", "std"),
                                  collapsed=("collapsed", "sum"))


def table_of(points):
    "The table of settings as the page has it."
    table = run_table(points).reset_index().astype(object)
    return table.where(table.notna(), None).to_numpy().tolist()


def options(runs):
    depth = max(map(len, runs["layers"]))
    methods = dict.fromkeys(setting["method"] for setting in runs["settings"] if setting["method"] != "none")
    return dict(data=list(dict.fromkeys(runs["data"])), method=["all", *methods],
                layer=["pooled", "embeddings", *map(str, range(1, depth))],
                seed=["all", *map(str, sorted(set(runs["seed"])))], show=["scores", "differences"])


def runs_sentence(runs, show="scores", **choices):
    points = run_points(runs, **choices)
    return (f"{len(points)} runs in {points.setting.nunique()} settings; {points.dx.count()} of them have a plain "
            f"run of the same seed. Score: {runs['metric'][runs['data'].index(choices['data'])]}.")


def chosen(page, **choices):
    for key, value in choices.items():
        page.run(f"(s => {{ s.value = {json.dumps(value)}; s.dispatchEvent(new Event('input')) }})"
                 f"(document.getElementById('runs-{key}'))")
    return reading(page, "runs")


def test_every_choice_of_runs_has_the_same_table(page, runs):
    offered = options(runs)
    assert page.run("Object.entries(explore.controls.runs).map(([key, menu]) => [key, menu.options])") == [
        [key, values] for key, values in offered.items()]
    def rows_of(choice):
        return (f"{json.dumps(sorted(offered['data']))}.flatMap(data => explore.runs.runTable(explore.runs.runPoints("
                f"explore.data.runs, {{data, ...{json.dumps(choice)}}})).map(row => [data, ...row]))")
    for method in offered["method"]:
        for layer, seed in (("pooled", "all"), ("embeddings", "1"), ("3", "all")):
            theirs = page.run(rows_of(dict(method=method, layer=layer, seed=seed)))
            mine = run_table(run_points(runs, offered["data"], method, layer, seed), ["data", "setting"]).reset_index()
            assert mine.data.tolist() == [row[0] for row in theirs]
            values = np.array([row[1:] for row in theirs], float)
            assert np.allclose(mine.drop(columns="data"), values, rtol=0, atol=1e-12, equal_nan=True)


def test_differences_are_those_of_the_evidence(runs):
    frame = load_records(root/"results"/"runs")
    cola = frame[(frame.model == "minilm") & (frame.task == "cola") & frame.method.isin(["none", "cosreg"])]
    cola = cola[(cola["head"] == "own") & (cola.batch_size == 32) & cola.limit.isna()]
    expected = paired_differences(cola, dict(method="none")).groupby("lam").difference.mean()
    table = run_table(run_points(runs, "minilm on cola", "cosreg"))
    table.index = [runs["settings"][number]["label"] for number in table.index]
    assert np.allclose(table.difference[["CosReg, λ = −1", "CosReg, λ = +1"]], expected)


def test_choices_among_the_runs(page, runs):
    values = {key: choices[key == "method"] for key, choices in options(runs).items()}
    assert reading(page, "runs") == runs_sentence(runs, **values)
    assert chosen(page, method="cosreg",
                  show="differences") == runs_sentence(runs, **values | dict(method="cosreg", show="differences"))
    rows = table_of(run_points(runs, values["data"], "cosreg"))
    text = page.run("[...document.querySelectorAll('#runs tbody tr')].map(r => [...r.children].map(c => "
                    "c.textContent))")
    assert [(row[0], int(row[1])) for row in text] == [(runs["settings"][row[0]]["label"], row[1]) for row in rows]
    assert ([numbers(row[4])[:1] for row in text]
            == [[] if row[5] is None else [pytest.approx(row[5], abs=6e-5)] for row in rows])
    said = chosen(page, data="scratch on cola", method="all", layer="6", show="scores")
    assert said == "The encoder of scratch on cola has no layer 6."


def test_runs_without_an_isoscore_are_left_out(page, runs):
    data = runs["data"][0]
    first, second = [i for i, where in enumerate(runs["data"]) if where == data and runs["plain"][i] not in (-1, i)][:2]
    lacking = {runs["plain"][first], second}
    altered = runs | dict(isoscore=[None if i in lacking else x for i, x in enumerate(runs["isoscore"])],
                          layers=[[None]*len(row) if runs["data"][i] == data else row
                                  for i, row in enumerate(runs["layers"])])
    points = run_points(altered, data)
    assert len(points) == len(run_points(runs, data)) - len(lacking)
    choice = dict(data=data, method="all", layer="pooled", seed="all")
    theirs = page.run(f"explore.runs.runPoints({json.dumps(altered)}, {json.dumps(choice)})")
    assert [(each["x"], each["y"]) for each in theirs] == list(zip(points.x, points.y))
    assert [each["dx"] for each in theirs] == [None if dx != dx else pytest.approx(dx, abs=1e-12) for dx in points.dx]
    assert run_points(altered, data, layer="1").empty


def test_a_placebo_is_no_run_of_its_method(page, runs):
    "Its mark is hollow, in the figure and in the table, and the legend names it."
    data = next(data for data, setting in zip(runs["data"], runs["setting"]) if runs["settings"][setting]["placebo"])
    chosen(page, data=data, method="all", layer="pooled", seed="all", show="scores")
    points = run_points(runs, data)
    placebos = [setting for setting in points.setting if runs["settings"][setting]["placebo"]]
    assert 0 < len(placebos) < len(points)
    assert page.run("document.querySelectorAll('#runs circle.run').length") == len(points)
    assert page.run("document.querySelectorAll('#runs circle.run[fill=none]').length") == len(placebos)
    kinds = list(dict.fromkeys(runs["settings"][row[0]]["kind"] for row in table_of(points)))
    legend = page.run("[...document.querySelectorAll('#runs .key .entry')].map(e => e.textContent)")
    assert legend == [*kinds, "+ mean of a setting"] and any(kind.endswith("placebo") for kind in kinds)


# ---- the page

def test_the_first_score_is_seen_at_once_and_nothing_is_cut_in_any_window(folder):
    "No column of a table, and on the smallest phone the page needs no sideways scrolling."
    with browser_page(width=1280, height=800, dark=True) as page:
        for width in (1280, 390, 360):
            page.send("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1,
                      mobile=width < 600)
            page.open((folder/"index.html").as_uri())
            assert page.run("window.innerWidth") == width
            assert page.run("document.documentElement.scrollWidth") <= width
            if width == 360: continue
            assert page.run("document.querySelector('#spectrum .reading').getBoundingClientRect().bottom") < 560
            whole = "every(t => t.scrollWidth <= t.clientWidth)"
            assert page.run(f"[...document.querySelectorAll('.explorer .table')].{whole}")


def test_every_control_has_a_label(page):
    unlabelled = ("[...document.querySelectorAll('.explorer :is(input, select)')]"
                  ".filter(e => !e.labels.length).map(e => e.outerHTML)")
    assert page.run(unlabelled) == []
    assert page.run("[...document.querySelectorAll('.explorer')].every(e => e.querySelector('[aria-live]') && "
                    "e.querySelector('noscript'))")
    assert page.run("[...document.querySelectorAll('.explorer svg')].every(e => e.getAttribute('aria-label'))")


def test_figures_for_readers_without_scripts(folder):
    page = (folder/"index.html").read_text(encoding="utf-8")
    images = re.findall(r'<noscript><img src="([^"]+)" alt="[^"]{30,}', page)
    assert (len(images) == page.count('class="explorer"')
            and all((folder/name).read_bytes()[:4] == b"\x89PNG" for name in images))


# ---- a file of the reader's own

def saved(folder, x, name="points.npy"):
    np.save(folder/name, x)
    return folder/name


def measured(page, path):
    "What the page says about a file."
    page.run("document.querySelector('#own .reading').textContent = ''")
    page.choose_file("#own-file", path)
    page.wait("!['', 'Measuring …'].includes(document.querySelector('#own .reading').textContent)")
    return reading(page, "own")


def cell(page, i): return numbers(page.text(f"#own tr:nth-child({i}) td"))


points = np.random.default_rng(0).standard_normal((60, 12))*np.arange(1, 13)**-0.5 + 3
points[:, 5] = 9*points[:, 5] + 40
wide = np.random.default_rng(1).standard_normal((9, 70))


@pytest.mark.parametrize("x", [points, np.asfortranarray(points), points.astype("float32"), points.astype("float16"),
                               points.astype(">f8"), points*1e30, wide, np.asfortranarray(wide.astype("float16"))])
def test_a_file_has_the_numbers_of_python(page, tmp_path, x):
    sentence, rows = measured(page, saved(tmp_path, x)), torch.tensor(x.astype("float64"))
    score, error, _ = (float(value) for value in isoscore_with_error(rows))
    assert (sentence.startswith(f"{len(x)} points in {x.shape[1]} dimensions")
            and cell(page, 3) == pytest.approx([score, error], abs=6e-5))
    assert cell(page, 1) == pytest.approx([float(isoscore(rows))], abs=6e-5)
    shares, outliers = spectrum(rows), outlier_dimensions(rows)
    assert cell(page, 4) == pytest.approx([100*float(shares[0]), 100*float(shares[:10].sum())], abs=0.06)
    found = page.text("#own tr:nth-child(5) td")
    assert found.split(";")[0] == (", ".join(map(str, outliers.ids.tolist())) or "none")


def test_the_rows_that_are_measured(page, tmp_path):
    "A long file is thinned to what a few seconds allow, here a hundredth of them, and measured whole on request."
    assert 1200 < page.run("rowsInSeconds(1200)") < 3000
    page.run("allowed = rowsInSeconds; rowsInSeconds = eval(`(${allowed})`.replaceAll('4e9', '4e7')); 0")
    x = np.random.default_rng(2).standard_normal((1000, 240)).astype("float32")
    path, count = saved(tmp_path, x), page.run("rowsInSeconds(240)")
    assert 240 < count < 1000 and measured(page, path).startswith(f"{count} rows, evenly spaced, of 1000 in 240")
    used = torch.tensor(x[np.arange(count)*1000//count])
    assert cell(page, 1) == pytest.approx([float(isoscore(used))], abs=6e-5)
    whole = "(s => { s.value = 'all'; s.dispatchEvent(new Event('input')) })(document.getElementById('own-rows'))"
    page.run(whole)
    page.wait("document.querySelector('#own .reading').textContent != 'Measuring …'")
    assert reading(page, "own").startswith("1000 points in 240")
    assert cell(page, 1) == pytest.approx([float(isoscore(torch.tensor(x)))], abs=6e-5)
    page.run(whole.replace("s.value = 'all'", "s.selectedIndex = 0; rowsInSeconds = allowed"))


header = b"\x93NUMPY\x01\x00v\x00"

@pytest.mark.parametrize("name, content, message", [
    ("text", b"hello, this is no array", "This is not a .npy file"), ("empty", b"", "This is not a .npy file"),
    ("archive", b"PK\x03\x04" + bytes(50), "This is an archive (.npz)"),
    ("integers", np.ones((9, 3), int), "The array has dtype int64: save float16, float32 or float64"),
    ("complex", np.ones((9, 3), complex), "The array has dtype complex128"),
    ("bools", np.ones((9, 3), bool), "The array has dtype bool: save"),
    ("records", np.zeros(9, [("a", "f4")]), "The array is one of records or objects"),
    ("vector", np.ones(9), "The array has shape (9): it must be (n, d)"),
    ("tokens", np.ones((2, 3, 4)), "The array has shape (2, 3, 4)"),
    ("few", np.ones((4, 3)), "The array has 4 points (rows)"), ("line", np.ones((9, 1)), "The array has 1 dimension"),
    ("nan", np.full((9, 3), np.nan), "The array has values that are not finite"),
    ("infinite", np.full((9, 3), np.inf, "float16"), "The array has values that are not finite"),
    ("constant", np.ones((9, 3)), "The array has zero variance"),
    ("short", header + b"{'descr': '<f8', 'fortran_order': False, 'shape': (9, 3), }".ljust(117) + b"\n" + bytes(100),
     "The file is cut off: 216 bytes of numbers were announced and 100 are there."),
])
def test_a_bad_file_is_said_to_be_bad(page, tmp_path, name, content, message):
    if isinstance(content, bytes): (tmp_path/f"{name}.npy").write_bytes(content)
    else: saved(tmp_path, content, f"{name}.npy")
    assert measured(page, tmp_path/f"{name}.npy").startswith(message)
    assert page.run("document.querySelector('#own .reading').classList.contains('error')")


def test_the_example(page):
    page.run("document.querySelector('#own button').click()")
    page.wait("document.querySelector('#own .reading').textContent.startsWith('400 points in 64')")
    assert page.text("#own tr:nth-child(5) td").startswith("17;")


def test_points_on_a_line_have_axes(page, tmp_path):
    line = np.zeros((6, 2), "float32")
    line[:, 1] = np.arange(6)
    assert measured(page, saved(tmp_path, line)).startswith("6 points in 2 dimensions: unbiased IsoScore ι = 0.0000")
    assert not page.run("/NaN|Infinity/.test(document.getElementById('own').outerHTML)")


def test_an_error_that_one_point_decides_is_not_known(page, tmp_path):
    x = np.zeros((6, 3), "float32")
    x[:2] = [[0.3, 0.1, 0.7], [1.1, -0.3, 0.2]]
    sentence, found = measured(page, saved(tmp_path, x)), isoscore_with_error(torch.tensor(x))
    assert f"ι = {found.score:.4f} ± not known" in sentence and found.standard_error.isnan()


def test_a_bad_file_leaves_nothing_of_the_file_before(page, tmp_path):
    measured(page, saved(tmp_path, points))
    assert page.run("document.querySelectorAll('#own tbody tr').length") == 5
    (tmp_path/"bad.npy").write_bytes(b"hello, this is no array")
    measured(page, tmp_path/"bad.npy")
    assert page.run("document.querySelectorAll('#own tbody tr, #own svg > *').length") == 0
