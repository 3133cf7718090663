"The stored pages agree with the claims that the records give, and every claim is on its page and among the findings."
import ast
import json
import re
import shutil
import sys
from collections import Counter
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

import istar_nb.study.claims
import istar_nb.sweeps.grids
from istar_nb.study.answers import answers, basis_table, best_of_settings, beside, sentences
from istar_nb.study.claims import (claim_cells, claims_table, every_claim, in_points, main_claims, one, page_claims,
                                   pages, plot_main, statement, statements)
from istar_nb.study.control_claims import (Declared, arm_of, at_papers_strength, comparison_name, contrasts, declared,
                                           declared_arms, sentence_comparisons)
from istar_nb.study.evidence import Evidence, dose_of, opened, updates_of
from istar_nb.study.findings import appendix
from istar_nb.study.verdicts import correct, meanings
from istar_nb.sweeps.grids import grid as read_grid
from istar_nb.text.tasks import task_title
from istar_nb.training.records import record_json, record_texts
from istar_nb.training.runs import defaults

root = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(root/"tools"))
import records

folder = root/"nbs"/"experiments"
names = [page.__name__ for page in pages]


grid = cache(read_grid)


@pytest.fixture(scope="module", autouse=True)
def read_once():
    "Every grid is read once: each of the stores here asks for all of them anew."
    with pytest.MonkeyPatch.context() as patch:
        for module in (istar_nb.sweeps.grids, istar_nb.study.evidence, istar_nb.study.control_claims):
            patch.setattr(module, "grid", grid)
        yield


class Noting(Evidence):
    "The records of the checkout; `asked` has the grids whose runs are asked for."
    def __init__(self):
        super().__init__()
        whole, self.asked = opened(), set()
        for name in ("every_record", "every_epoch", "collapsed", "selected", "majority", "pretrained"):
            setattr(self, name, getattr(whole, name))

    def ids(self, *grids):
        self.asked.update(grids)
        return super().ids(*grids)


asked_by = {}    # name of a page -> the grids that its claims read, once they have been computed


def noted(page):
    "A page whose grids are noted."
    def computed(evidence):
        evidence.asked = asked_by[page.__name__] = set()
        try: return page(evidence)
        finally: evidence.asked = set()
    return computed


@pytest.fixture(scope="module")
def claims():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(istar_nb.study.claims, "pages", tuple(map(noted, pages)))
        return every_claim(Noting())


def cells_of(name): return json.loads((folder/f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def texts(name):
    "All stored Markdown of a page."
    outputs = [output for cell in cells_of(name) for output in cell.get("outputs", [])]
    return "\n".join("".join(o["data"]["text/markdown"]) for o in outputs if "text/markdown" in o.get("data", {}))


@pytest.mark.parametrize("page", names)
def test_a_page_shows_its_claims(page, claims):
    stored, here = texts(page), [c for c in claims if c.page == page]
    assert here
    for c in here:
        for part in (claims_table([c]).splitlines()[2], f"*{c.word}*: {meanings[c.word]}"):
            assert part in stored, f"run the notebook {page} again: {statement(c)}"


def test_the_findings_show_every_claim_and_the_sentences(claims):
    stored = texts("findings")
    for c in claims:
        row = claims_table([c], linked=True).splitlines()[2]
        assert row in stored, f"run the notebook findings again: {statement(c)}"
    for text in [*sentences(claims), *beside(claims), basis_table(answers(claims)), appendix(claims)]:
        assert text in stored, "run the notebook findings again"


def test_the_declared_page_shows_every_arm_and_what_is_known_beside_each_reading(claims):
    stored = texts("declared")
    for c in (c for c in claims if c.topic in ("arm", "paper's λ")):
        assert claims_table([c]).splitlines()[2] in stored, f"run the notebook declared again: {statement(c)}"
    for name in contrasts:
        known = next(line for line in stored.splitlines() if line.startswith(f"- **{name}, ")).partition("”. ")[2]
        assert "Declared for this outcome: “" in stored and len(known.split()) > 20, name
    assert "without it the penalty reaches the text”. This does not hold" in stored


def test_the_readme_repeats_the_sentences(claims):
    readme = (root/"README.md").read_text(encoding="utf-8")
    for sentence in sentences(claims): assert sentence in readme, "run the notebook index again"


@pytest.mark.parametrize("page", [*names, "findings"])
def test_a_page_answers_first(page):
    cells = cells_of(page)
    title = "".join(cells[0]["source"])
    assert re.match(r"# [^\n]+\?\n\n> ", title), "the title is the question"
    train, stored = (next((i for i, cell in enumerate(cells) if "".join(cell["source"]).startswith(f"## {words}")), 3)
                     for words in ("Train it here", "From the stored records"))
    kinds = [kind for cell in [*cells[:train], *cells[stored:]] for o in cell.get("outputs", [])
             for kind in ("text/markdown", "image/png") if kind in o.get("data", {})]
    assert kinds[:3] == ["text/markdown", "image/png", "text/markdown"], "the answer, one figure, one table"
    second = next("".join(cell["source"]) for cell in cells[1:] if cell["cell_type"] == "markdown"
                  and "\n## " in "\n" + "".join(cell["source"]))
    assert second and all("exec(" not in "".join(cell["source"]) for cell in cells)


@pytest.mark.parametrize("page", [*names, "findings"])
def test_a_page_has_no_telegraphic_words(page):
    prose = "\n".join("".join(cell["source"]) for cell in cells_of(page) if cell["cell_type"] == "markdown")
    for word in (" stands ", " lies ", "made again", "holds zero", " stand in", " lie "): assert word not in prose, word


def test_only_declared_contrasts_carry_a_corrected_p(claims):
    "All else is an effect with an interval; no other page has a column of p-values."
    assert {c.contrast for c in claims} == {"", *contrasts}
    assert all(c.contrast or c.adjusted != c.adjusted for c in claims)
    for page in [*names, "findings"]:
        prose = texts(page) + "".join("".join(c["source"]) for c in cells_of(page) if c["cell_type"] == "markdown")
        for word in ("survive", "after correction", "uncorrected", "Holm)"):
            assert word not in prose or (page, word) == ("findings", "Holm)"), (page, word)


@pytest.mark.parametrize("last_run", ["done", "failed", "missing"])
def test_declared_contrasts_get_exact_tests_and_holm_over_all_four(last_run, tmp_path):
    "Invented records. A failed run leaves its seed out; a contrast whose runs are not all there counts as if p were 1."
    whole = opened()
    configs, runs = grid(*whole.specs("padding-base")), tmp_path/"results"/"runs"
    runs.mkdir(parents=True)
    model = json.loads(record_json(whole.root/"runs", configs[0].id))
    half = min(c.target for c in configs if c.target is not None)
    worth = {"no penalty": 5, "all positions": 4, "text alone": 1, "own means": 2, "half": 3, "double": 6}
    for c in configs:
        arm = arm_of(c, half)
        status = last_run if arm == "half" and c.seed == 7 else "done"
        if status == "missing": continue
        value = worth[arm]/10 + c.seed/1000*worth[arm]
        last = model["epochs"][-1] | dict(isoscore=value)
        made = model | dict(id=c.id, config=asdict(c), score=value, status=status, epochs=[*model["epochs"][:-1], last])
        (runs/f"{c.id}.json").write_text(json.dumps(made), encoding="utf-8")
    found = correct(declared(Evidence(tmp_path/"results")))
    assert [c.contrast for c in found] == list(contrasts)
    assert [c.found.seeds for c in found] == [8, 8, 8, 8 if last_run == "done" else 7]
    expected = [4*2/256]*3 + [float("nan") if last_run == "missing" else 4*2/256]    # alone, 7 seeds have 2/128
    assert [c.adjusted for c in found] == pytest.approx(expected, nan_ok=True)
    assert [c.found.effect > 0 for c in found] == [False, True, True, False]
    assert [bool(c.ours) for c in found] == [True]*3 + [last_run != "missing"], "nobody looks at what is not whole"


def visible_words(name):
    "The words of a page that a reader sees: prose and Markdown outputs, without what is closed at first."
    prose = "\n".join("".join(cell["source"]) for cell in cells_of(name) if cell["cell_type"] == "markdown")
    seen = re.sub(r"<details.*?</details>", " ", f"{prose}\n{texts(name)}", flags=re.S)
    seen = re.sub(r"```.*?```|\]\([^)]*\)|<[^>]+>", " ", seen, flags=re.S)
    return len(re.findall(r"\w[\w'’.+−-]*", seen))


@pytest.mark.parametrize("page", sorted(path.stem for path in folder.glob("*.ipynb")))
def test_a_page_of_evidence_can_be_read(page): assert visible_words(page) <= 2500


def test_the_findings_are_one_figure_one_short_table_and_three_limits(claims):
    assert visible_words("findings") <= 1000 and len(main_claims(claims)) <= 10
    assert sum("image/png" in o.get("data", {}) for cell in cells_of("findings") for o in cell.get("outputs", [])) == 1
    limits = next(text for cell in cells_of("findings") if "## Three limits" in (text := "".join(cell["source"])))
    assert limits.count("\n- ") == 3


def printed(value, forms=("+.1f", "+.2f")): return {f"{100*value:{form}}".replace("-", "−") for form in forms}


def numbers_of(claim):
    "All that a sentence may say of a claim in digits."
    e = claim.found
    said = set().union(*map(printed, (e.effect, e.low, e.high)), map(str, claim.updates))
    return said | {f"{lam:g}".replace("-", "−") for lam in claim.lams} | {f"+{lam:g}" for lam in claim.lams if lam > 0}


def test_no_sentence_says_more_than_its_claims(claims):
    "At most 30 words; every number is one of its claims', whose encoder, tasks and points it names."
    found = answers(claims)
    for i, answer in enumerate(found):
        names = re.sub(r"(?:SST|STS|I|BERT)-\w+", " ", answer.text)
        numbers = re.findall(r"[+−]?\d+(?:\.\d+)?", names)
        assert len(answer.text.split()) <= 30 and numbers, answer.text
        if not answer.claims:    # the third is about the paper's own table
            luck = set().union(*(printed(best_of_settings(rho), ("+.2f",)) for rho in (0., 0.8)), printed(0.0035))
            assert i == 2 and set(numbers) <= luck | {"12", "0.8"}, numbers
            assert all(model in answer.text for model in ("ALBERT", "BERT", "DistilBERT")) and "at most" in answer.text
            continue
        assert set(numbers) <= set().union(*map(numbers_of, answer.claims)), (answer.text, numbers)
        for c in answer.claims:
            assert c.encoder in answer.text and c.found.seeds > 2 and c.kind == "score"
            assert all(task_title(task) in answer.text for task in c.tasks), answer.text
            assert c.points.lower() in answer.text.lower() and (not c.points or c.updates), answer.text
            if len(answer.claims) < 3: assert in_points(c.found).partition(" [")[2] in answer.text, answer.text
        assert any(task in answer.text for task in ("CoLA", "SST-2"))


def test_what_a_sentence_calls_a_setting_is_that_of_its_runs(claims):
    "Updates, points and dose of the claims are those that the records of exactly these runs have."
    evidence = opened()
    counted, alone = (one(claims, topic="arm", variant=name) for name in ("all positions", "text alone"))
    assert counted.updates == alone.updates == (62,) and counted.points == "padding counted"
    assert counted.dose < 0.1 < 0.9 < alone.dose and alone.points == "text alone"
    assert [c.updates for c in at_papers_strength(evidence)] == [(375,)]*4
    long = evidence.records("table1-mpnet")[0]
    part = replace(long, epochs=[*long.epochs[:-1], long.epochs[-1] | dict(epoch=1)])
    assert updates_of(part)*3 == updates_of(long) == 375
    assert updates_of(replace(long, config=long.config | dict(accumulate=4))) == 3*32
    assert updates_of(replace(long, data={})) is None
    penalised = replace(long, config=long.config | dict(method="istar", lam=-5., tokens="real"))
    assert dose_of(penalised) == 5*long.epochs[0]["isoscore"]
    for change in (dict(target=0.1), dict(relative=0.1), dict(layers=[1]), dict(method="none")):
        assert dose_of(replace(penalised, config=penalised.config | change)) != dose_of(penalised)


def copy_runs(store, folder, ids):
    "Some runs of a store as files of a folder."
    for run, text in record_texts(store.root/"runs", ids): (folder/f"{run}.json").write_text(text, encoding="utf-8")


def test_an_arm_that_has_not_ended_is_not_looked_at(tmp_path):
    whole = opened()
    (own := tmp_path/"results"/"runs").mkdir(parents=True)
    copy_runs(whole, own, whole.ids("padding-base"))
    assert len(declared_arms(Evidence(own.parent))) == 5
    half = next(c for c in grid(*whole.specs("padding-base")) if c.target is not None)
    (own/f"{half.id}.json").unlink()
    left = {c.variant for c in declared_arms(Evidence(own.parent))}
    assert left == {"all positions", "text alone", "own means", "double"}
    plain = next(c for c in grid(*whole.specs("padding-base")) if c.method == "none")
    (own/f"{plain.id}.json").unlink()
    assert declared_arms(Evidence(own.parent)) == []


def test_the_readme_is_short():
    readme = (root/"README.md").read_text(encoding="utf-8")
    words = len(re.findall(r"\w[\w'’.+−-]*", re.sub(r"\]\([^)]*\)|<[^>]+>", " ", readme)))
    assert words <= 800 and readme.index("<img") < readme.index("## ")


def test_no_verdict_rests_on_an_invented_threshold(claims):
    for c in claims:
        if c.word in ("holds", "opposite"): assert (c.found.low > 0) != (c.found.high < 0) and c.claimed
        if c.word in ("inside", "excluded", "too wide"): assert c.effect is not None
        if c.word in ("not complete", "cannot be tested"): assert c.reason and claim_cells(c)[-1] == c.reason


def test_an_unknown_page_and_a_folder_without_records_are_errors_that_say_so(tmp_path):
    with pytest.raises(ValueError, match="`page` must be one of istar_table1"): page_claims("table1")
    with pytest.raises(ValueError, match="`root` must hold a folder `runs`"): every_claim(tmp_path)


def own_store(path, kept):
    "A store of one's own with the runs of one grid, or with none."
    own, whole = path/"results", opened()
    for folder in ("runs", "pretrained", "stability"): (own/folder).mkdir(parents=True)
    shutil.copytree(whole.root/"stability", own/"stability", dirs_exist_ok=True)
    shutil.copy(whole.root/"majority.json", own)
    copy_runs(whole, own/"runs", whole.ids(kept) if kept else ())
    return own


@pytest.fixture(scope="module")
def claims_of_one_grid(tmp_path_factory): return every_claim(own_store(tmp_path_factory.mktemp("one"), "cola"))


@pytest.mark.system
@pytest.mark.parametrize("kept", ["", "cola", "scratch-figure8", "pretrained-downstream", "dose"])
def test_every_page_can_be_computed_from_a_store_of_ones_own(kept, tmp_path, claims, claims_of_one_grid):
    """A store with the runs of one grid, or with none: claims that lack runs say so, and no sentence has a gap.

    Pages that read none of these runs find as little as with another grid's.
    """
    if kept == "cola": found = claims_of_one_grid
    elif not kept: found = every_claim(own_store(tmp_path, kept))
    else:
        runs = {*opened().ids(kept)}
        reading = {page for page, grids in asked_by.items() if runs & {*opened().ids(*grids)}}
        assert reading
        found = claims_with(own_store(tmp_path, kept), reading, claims_of_one_grid)
    said = [*sentences(found), *beside(found), basis_table(answers(found)), appendix(found), *map(statement, found),
            *(c.ours for c in found)]
    assert not [text for text in said if "nan" in text.split() or "+nan" in text or "None" in text]
    assert any(c.word == "not run" for c in found)
    plt.close(plot_main(found))


def is_istar(config, lam): return config["method"] == "istar" and config["lam"] == lam


ALTERED = {    # sentence -> which runs, and what is added to their scores or their IsoScores
    0: (lambda c: is_istar(c, -0.01) and c["model"] == "minilm", 0.05, 0.),
    1: (lambda c: is_istar(c, -5) and c["tokens"] == "all" and c["model"] == "mpnet", 0.05, 0.),
    3: (lambda c: c["method"] == "entropy" and c.get("selection") == "none" and c["task"] == "mrpc", 0.05, 0.),
    4: (lambda c: c["method"] == "isolayer" and c.get("stage_loss", "joint") == "task", -0.1, 0.)}


def claims_with(evidence, touched, others):
    "All claims, those of some pages computed from the evidence, and the others as they were."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(istar_nb.study.claims, "pages", tuple(page for page in pages if page.__name__ in touched))
        return [*(c for c in others if c.page not in {*touched, "declared"}), *every_claim(evidence)]


def altered(claims):
    "The claims, those on the pages of the sentences from records where those runs have other scores or IsoScores."
    evidence, changed = Noting(), Counter()
    records = evidence.every_record = dict(evidence.every_record)
    del evidence.every_epoch, evidence.collapsed    # which follow from them
    for run, record in records.items():
        for number, (chosen, score, isoscore) in ALTERED.items():
            if record.status != "done" or not chosen(record.config): continue
            epochs = [epoch | dict(isoscore=epoch["isoscore"] + isoscore) for epoch in record.epochs]
            epochs[-1][record.metric] += score
            records[run] = replace(record, score=record.score + score, epochs=epochs)
            changed[number] += 1
    assert len(changed) == len(ALTERED) and min(changed.values()) > 2
    return claims_with(evidence, {c.page for answer in answers(claims) for c in answer.claims}, claims)


@pytest.mark.system
def test_sentences_change_when_their_records_do(claims):
    before, after = sentences(claims), sentences(altered(claims))
    assert [number for number in ALTERED if after[number] == before[number]] == []
    assert after[2] == before[2]    # the third is about the paper's own table


def test_the_sentence_on_luck_changes_with_the_papers_table(claims, monkeypatch):
    cells = {key: " ".join(cell.replace("±", "9±") if key[1] == "I-STAR" else cell for cell in row.split())
             for key, row in istar_nb.study.istar_claims.table1_cells.items()}
    before = sentences(claims)[2]
    monkeypatch.setattr(istar_nb.study.istar_claims, "table1_cells", cells)
    assert sentences(claims)[2] != before


def test_intervals_over_sentences_are_those_of_the_records_at_hand():
    "Every comparison that the records allow has one, of as many seeds, around the mean difference of the scores."
    # which differs in the sixth digit: answers are stored rounded
    evidence = opened()
    stored, here = (json.loads((root/"results"/"crossed.json").read_text(encoding="utf-8")),
                    {comparison_name(*key): pair for key, pair in sentence_comparisons(evidence).items()})
    assert stored.keys() == here.keys(), "run nbs/experiments/crossed.py again"
    for name, (runs, baselines) in here.items():
        kept, mean = stored[name], (runs.score - baselines.score).mean()
        assert (kept["seeds"] == len(runs)
                and kept["mean"] == pytest.approx(mean, abs=1e-5)), f"run nbs/experiments/crossed.py again: {name}"
        assert kept["low"] <= kept["mean"] <= kept["high"]    # equal where both collapse in every seed


def test_no_two_claims_are_the_same_and_words_carry_no_facts(claims, monkeypatch):
    "Where every template says the same, each claim is still found, and the answers that quote none stay as they are."
    assert len(set(claims)) == len(claims) == len(set(map(statement, claims)))
    before, rows = sentences(claims), main_claims(claims)
    monkeypatch.setattr(istar_nb.study.claims, "statements", dict.fromkeys(statements, "a claim"))
    assert statement(rows[0]).startswith("a claim, MPNet") and main_claims(claims) == rows
    assert sentences(claims) == before
    figure = plot_main(claims)
    assert "I-STAR, λ = −0.01, MiniLM" in figure.axes[1].get_yticklabels()[0].get_text()
    plt.close(figure)


def test_the_runs_that_a_claim_counts_are_those_behind_it(claims):
    counted = [c for c in claims if c.collapsed is not None]
    assert len(counted) > 100 and any(c.all_collapsed for c in counted)
    for c in counted:
        dead, runs = c.collapsed
        assert 0 <= dead <= runs and (c.reason or c.found.seeds <= runs), statement(c)


def test_two_claims_with_the_same_fields_are_an_error(monkeypatch):
    twice = istar_nb.study.claims.istar_figure8
    monkeypatch.setattr(istar_nb.study.claims, "pages", (twice, twice))
    with pytest.raises(ValueError, match="no two claims may have the same fields, and these have: .*single layer"):
        every_claim()
    with pytest.raises(ValueError, match="`fields` must fit one claim, and .* fits 0"): one([], topic="gain")


def invented(path, *names):
    "A store in which every run of some grids has ended, with scores, isotropy and sketches that follow from its arm."
    whole, runs = opened(), path/"results"/"runs"
    runs.mkdir(parents=True)
    model = json.loads(record_json(whole.root/"runs", whole.ids("padding-base")[0]))
    shutil.copy(whole.root/"majority.json", path/"results")
    for c in (c for name in names for c in grid(*whole.specs(name))):
        factor = c.multiple or 1.
        iota, share = 0.1*(1 if c.placebo else factor)*(1 + c.seed % 8/100), 0.01 + c.seed % 8/3000
        score = 0.7 + share*factor*(not c.placebo)
        last = model["epochs"][-1] | dict(isoscore=iota, padding_isoscore=0.01)
        steps = [dict(update=u, batch_isoscore=iota, sketch=[1., factor*u/100, c.seed + bool(c.placebo)*0.1])
                 for u in range(10, 380, 10)]
        made = model | dict(id=c.id, config=asdict(c.complete), score=score, status="done", metric="accuracy",
                            steps=steps, epochs=[*model["epochs"][:-1], last | dict(accuracy=score)])
        (runs/f"{c.id}.json").write_text(json.dumps(made), encoding="utf-8")
    copy_runs(whole, runs, [run for run in whole.ids("padding-base", "padding", "padding-pairs")
                            if not (runs/f"{run}.json").exists()])
    return Evidence(path/"results")


@pytest.mark.parametrize("page, grids", [("held", ["held", "held-pairs", "held-pilot"]),
                                         ("direction", ["direction", "direction-cola"]),
                                         ("few_rows", ["few-rows", "few-rows-1000", "few-rows-4000"])])
def test_a_declared_page_computes_its_results_once_all_runs_have_ended(page, grids, tmp_path, monkeypatch):
    "Invented records, and p-values that are computed a second time by going through all signs."
    evidence, names, shown = invented(tmp_path, *grids), {}, []
    monkeypatch.setattr("istar_nb.study.evidence.opened", lambda: evidence)
    for cell in cells_of(page):
        if cell["cell_type"] != "code": continue
        *start, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(start, []), page, "exec"), names)
        if not isinstance(last, ast.Expr): exec(compile(ast.Module([last], []), page, "exec"), names)
        else: shown.append(eval(compile(ast.Expression(last.value), page, "eval"), names))
    plt.close("all")
    text = "\n".join(each.data for each in shown if hasattr(each, "data"))
    assert "runs have ended, none of them with an error" in text and "computed before" not in text and "nan" not in text
    declared = next(value for value in names.values() if isinstance(value, Declared))
    found = list(names["tests"].values())
    for estimate, exact, _ in found:
        sums = [abs(sum(s*d for s, d in zip(signs, estimate.values))) for signs in product((1, -1), repeat=8)]
        if estimate.seeds == 8: assert exact == pytest.approx(np.mean([s >= sums[0] - 1e-12 for s in sums]))
    smallest = min(exact for _, exact, _ in found)
    assert min(adjusted for *_, adjusted in found) == pytest.approx(min(1, smallest*len(found)))
    assert declared.whole and len(found) == dict(held=4, direction=4, few_rows=9)[page]


def test_one_command_does_the_declared_runs_seed_by_seed(monkeypatch):
    monkeypatch.syspath_prepend(folder)
    import declared as command
    for names in command.ORDER:
        seeds = command.planned(names)
        assert [{c.seed for c in configs} for configs in seeds] == [{configs[0].seed} for configs in seeds]
        assert sum(map(len, seeds)) == sum(len(grid(folder/"grids"/f"{name}.yaml")) for name in names)
        assert {command.tiny(c).model for c in seeds[0]} == {"tiny-bert"}


def test_a_page_is_stale_when_a_record_is_new_or_changed(tmp_path, monkeypatch):
    "The check compares the stored hash with the records that the page names, and with no others."
    path = folder/"shrink_figure1.ipynb"
    nb, copy = json.loads(path.read_text(encoding="utf-8")), tmp_path/"results"
    shutil.copytree(root/"results"/"runs"/"selection", copy/"runs"/"selection")
    names = records.names_of(nb, root/"results")
    copy_runs(opened(), copy/"runs", [Path(name).stem for name in names])
    stored = nb["metadata"]["records"]
    monkeypatch.setattr(records, "pages", lambda: [path])    # `make check` goes through all
    assert records.hash_of(nb, copy) == stored and records.stale() == records.stale(copy) == []
    kept = copy/min(names)
    whole = kept.read_bytes()
    (kept.parent/"0123456789abcdef.json").write_bytes(whole)
    assert records.hash_of(nb, copy) == stored, "a run of another grid"
    kept.write_bytes(whole + b" ")
    assert records.hash_of(nb, copy) != stored
    kept.unlink()    # as it was before the run was made
    assert records.hash_of(nb, copy) != stored and records.stale(copy) == [path.relative_to(root)]


@pytest.mark.parametrize("page", names)
def test_a_page_names_the_grids_that_its_claims_read(page, claims, monkeypatch):
    evidence, ids_of = opened(), records.ids_of
    # without the thousands of runs at the papers' size
    monkeypatch.setattr(records, "ids_of", lambda path: [] if path.stem.startswith("paper-") else ids_of(path))
    nb = json.loads((folder/f"{page}.ipynb").read_text(encoding="utf-8"))
    read = {Path(name).stem for name in records.names_of(nb, evidence.root)}
    assert asked_by[page] or page == "istar_figure2", "all others are about runs"
    for name in asked_by[page]: assert {*evidence.ids(name)} & {*evidence.every_record} <= read, name


COUNTED = r"\b(\d[\d,]*\d|\d|[a-z]+) (?:training |validation )?(rows|updates|epochs|seeds)\b"
WORDS = dict(zip("two three four five six seven eight nine ten".split(), range(2, 11)))
ELSEWHERE = {    # numbers that are not of a page's own runs: of a batch, a pre-training, other pages, rows of a table
    "all_tasks": {5}, "more_seeds": {5}, "arena": {10}, "every_method": {32}, "masked": {1784}, "placebo": {1000},
    "shrink_table3": {3}, "from_scratch": {4000}}


def said_of_runs(name):
    "The numbers of rows, updates, epochs and seeds in a page's prose, answers and tables, without its live part."
    cells = cells_of(name)
    heads = ["".join(cell["source"]).split("\n")[0] for cell in cells]
    live = next((i for i, head in enumerate(heads) if re.match("## (Train|Draw) it here", head)), len(cells))
    stored = heads.index("## From the stored records") if live < len(cells) else live
    for cell in [*cells[:live], *cells[stored:]]:
        parts = ["".join(cell["source"])] if cell["cell_type"] == "markdown" else [
            "".join(o["data"]["text/markdown"]) for o in cell["outputs"] if "text/markdown" in o.get("data", {})]
        for line in "\n".join(parts).splitlines():
            if line.startswith("|"): continue
            for number, what in re.findall(COUNTED, line):
                value = WORDS.get(number) or (int(number.replace(",", "")) if number[0].isdigit() else None)
                if value is not None: yield value, what, line
    html = "".join("".join(o["data"]["text/html"]) for cell in cells for o in cell.get("outputs", [])
                   if "text/html" in o.get("data", {}))
    for table in re.findall(r"<table.*?</table>", html, re.S):
        rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in re.findall(r"<tr.*?</tr>", table, re.S)]
        for row in rows:
            if "seeds" not in rows[0][1:] or len(row) < len(rows[0]) - rows[0].index("seeds"): continue
            cell = row[rows[0].index("seeds") - len(rows[0])]
            if re.fullmatch(r"[\d.]+", cell): yield float(cell), "seeds", str(row)


def arm_without_seed(record):
    "All of a run's configuration but its seed, with the options that are younger than its record."
    return json.dumps(defaults | record.config | dict(seed=None), sort_keys=True)


@pytest.mark.parametrize("page", sorted(path.stem for path in folder.glob("*.ipynb")))
def test_the_numbers_of_rows_updates_epochs_and_seeds_are_those_of_the_records(page):
    evidence, text = opened(), "\n".join("".join(cell["source"]) for cell in cells_of(page))
    named = [name for name in dict.fromkeys(re.findall(r"grids/([\w-]+)\.yaml", text))
             if not name.startswith("paper-") and name not in ("pretrain", "pretrain-masked", "pretrain-positions")]
    if page == "findings" or not named: return    # whose claims are those of the other pages; pages without runs
    runs, arms = evidence.records(*named), {}
    if {*evidence.ids(*named)} - {*evidence.every_record}: return    # of declared grids, until their last run
    for r in evidence.every_record.values():
        arms.setdefault(arm_without_seed(r), set()).add(r.config["seed"])
    here = set(map(arm_without_seed, runs))
    known = dict(rows={value for r in runs for value in (r.config.get("limit"), r.config.get("validation_limit"),
                                                         r.data["train"], r.data["validation"])},
                 updates={r.steps[-1]["update"] for r in runs if r.steps}, epochs={r.config["epochs"] for r in runs},
                 seeds={len(seeds) for arm, seeds in arms.items() if arm in here})
    for value, what, line in said_of_runs(page):
        assert value in known[what] | ELSEWHERE.get(page, set()), f"{value} {what}: {line}"
