"The stored pages agree with the claims that the records give, and every claim is on its page and among the findings."
import json
import re
import shutil
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import istar_nb.study.claims
from istar_nb.study.answers import sentences
from istar_nb.study.claims import (claim_cells, claims_table, every_claim, main_claims, one, page_claims, pages,
                                   plot_main, statement, statements)
from istar_nb.study.control_claims import comparison_name, sentence_comparisons
from istar_nb.study.evidence import opened
from istar_nb.study.findings import sections

root = Path(__file__).resolve().parents[1]
folder = root/"nbs"/"experiments"
names = [page.__name__ for page in pages]


@pytest.fixture(scope="module")
def claims(): return every_claim()


def cells_of(name): return json.loads((folder/f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def texts(name):
    "All stored Markdown of a page."
    outputs = [output for cell in cells_of(name) for output in cell.get("outputs", [])]
    return "\n".join("".join(o["data"]["text/markdown"]) for o in outputs if "text/markdown" in o.get("data", {}))


@pytest.mark.parametrize("page", names)
def test_a_page_shows_its_claims(page, claims):
    stored, here = texts(page), [c for c in claims if c.page == page]
    assert here
    for c in here: assert claims_table([c]).splitlines()[-1] in stored, f"run the notebook {page} again: {statement(c)}"


def test_the_findings_show_every_claim_and_the_sentences(claims):
    stored = texts("findings")
    for c in claims:
        row = claims_table([c], linked=True).splitlines()[-1]
        assert row in stored, f"run the notebook findings again: {statement(c)}"
    for text in [*sentences(claims), *sections(claims)]: assert text in stored, "run the notebook findings again"


def test_the_readme_repeats_the_sentences(claims):
    readme = (root/"README.md").read_text(encoding="utf-8")
    for sentence in sentences(claims): assert sentence in readme, "run the notebook index again"


@pytest.mark.parametrize("page", [*names, "findings"])
def test_a_page_answers_first(page):
    cells = cells_of(page)
    title = "".join(cells[0]["source"])
    assert re.match(r"# [^\n]+\?\n\n> ", title), "the title is the question"
    kinds = [kind for cell in cells for o in cell.get("outputs", [])
             for kind in ("text/markdown", "image/png") if kind in o.get("data", {})]
    assert kinds[:3] == ["text/markdown", "image/png", "text/markdown"], "the answer, one figure, one table"
    second = next("".join(cell["source"]) for cell in cells[1:] if cell["cell_type"] == "markdown"
                  and "\n## " in "\n" + "".join(cell["source"]))
    assert second and all("exec(" not in "".join(cell["source"]) for cell in cells)


@pytest.mark.parametrize("page", [*names, "findings"])
def test_a_page_has_no_telegraphic_words(page):
    prose = "\n".join("".join(cell["source"]) for cell in cells_of(page) if cell["cell_type"] == "markdown")
    for word in (" stands ", " lies ", "made again", "holds zero", " stand in", " lie "): assert word not in prose, word


def test_corrected_p_values_are_holms(claims):
    for family in {c.family for c in claims}:
        tested = sorted((c for c in claims if c.family == family and c.adjusted == c.adjusted), key=lambda c: c.found.p)
        highest = 0.
        for i, c in enumerate(tested):
            highest = min(1., max(highest, c.found.p*(len(tested) - i)))
            assert c.adjusted == pytest.approx(highest)


def test_no_verdict_rests_on_an_invented_threshold(claims):
    for c in claims:
        if c.word in ("holds", "opposite"): assert (c.found.low > 0) != (c.found.high < 0) and c.claimed
        if c.word in ("inside", "excluded", "too wide"): assert c.effect is not None
        if c.word == "cannot be tested": assert c.reason and claim_cells(c)[-1] == c.reason


def test_an_unknown_page_and_a_folder_without_records_are_errors_that_say_so(tmp_path):
    with pytest.raises(ValueError, match="`page` must be one of istar_table1"): page_claims("table1")
    with pytest.raises(ValueError, match="`root` must hold a folder `runs`"): every_claim(tmp_path)


@pytest.mark.parametrize("kept", ["", "cola", "scratch-figure8", "pretrained-downstream", "dose"])
def test_every_page_can_be_computed_from_a_store_of_ones_own(kept, tmp_path):
    "A store with the runs of one grid, or with none: claims that lack runs say so, and no sentence has a gap."
    own, whole = tmp_path/"results", opened()
    for folder in ("runs", "pretrained", "stability"): (own/folder).mkdir(parents=True)
    shutil.copytree(whole.root/"stability", own/"stability", dirs_exist_ok=True)
    shutil.copy(whole.root/"majority.json", own)
    for run in whole.ids(kept) if kept else ():
        if (path := whole.root/"runs"/f"{run}.json").exists(): shutil.copy(path, own/"runs")
    found = every_claim(own)
    said = [*sentences(found), *sections(found), *map(statement, found), *(c.ours for c in found)]
    assert not [text for text in said if "nan" in text.split() or "+nan" in text or "None" in text]
    assert any(c.word == "not run" for c in found)
    plt.close(plot_main(found))


def is_istar(config, lam): return config["method"] == "istar" and config["lam"] == lam


def altered(path, chosen, score=0., isoscore=0.):
    "The claims of a copy of the records in which some runs have other scores or IsoScores."
    copy, changed = path/"results", 0
    shutil.copytree(root/"results", copy, ignore=shutil.ignore_patterns("rerun", "demo", "benchmarks"))
    for file in (copy/"runs").glob("*.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        if record["status"] != "done" or not chosen(record["config"]): continue
        record["score"] += score
        record["epochs"][-1][record["metric"]] += score
        for epoch in record["epochs"]: epoch["isoscore"] += isoscore
        file.write_text(json.dumps(record), encoding="utf-8")
        changed += 1
    assert changed > 2
    found = every_claim(copy)
    shutil.rmtree(copy)
    return found


ALTERED = {    # sentence -> which runs, and what is added to their scores or their IsoScores
    0: (lambda c: is_istar(c, -0.01) and c["model"] == "minilm", 0.05, 0.),
    1: (lambda c: is_istar(c, 1.) and c["tokens"] == "real", 0.3, 0.),
    2: (lambda c: is_istar(c, -0.01) and c["model"] != "minilm", 0.05, 0.),
    3: (lambda c: c["method"] == "isolayer" and c.get("stage_loss", "joint") == "joint", 0.05, 0.),
    4: (lambda c: is_istar(c, -0.01) and c["task"] == "sst2", 0., 0.5)}


@pytest.mark.parametrize("number", ALTERED)
def test_a_sentence_changes_when_its_records_do(number, claims, tmp_path):
    found = altered(tmp_path, *ALTERED[number])
    for said in (sentences, sections): assert said(found)[number] != said(claims)[number]


def test_what_is_said_of_padding_changes_with_its_records(claims, tmp_path):
    found = altered(tmp_path, lambda c: is_istar(c, -0.3) and c["tokens"] == "all", -0.2)
    before, after = sections(claims), sections(found)
    assert after[1] != before[1] and after[3:] == before[3:]


def test_intervals_over_sentences_are_those_of_the_records_at_hand():
    "Every comparison that the records allow has one, of as many seeds, around the mean difference of the scores."
    # which differs in the sixth digit: answers are stored rounded
    evidence = opened()
    stored, here = (json.loads((root/"results"/"crossed.json").read_text(encoding="utf-8")),
                    {comparison_name(*key): pair for key, pair in sentence_comparisons(evidence).items()})
    assert stored.keys() == here.keys(), "run tools/crossed.py again"
    for name, (runs, baselines) in here.items():
        kept, mean = stored[name], (runs.score - baselines.score).mean()
        assert (kept["seeds"] == len(runs)
                and kept["mean"] == pytest.approx(mean, abs=1e-5)), f"run tools/crossed.py again: {name}"
        assert kept["low"] <= kept["mean"] <= kept["high"]    # equal where both collapse in every seed


def test_no_two_claims_are_the_same_and_words_carry_no_facts(claims, monkeypatch):
    "Where every template says the same, each claim is still found, and the answers that quote none stay as they are."
    assert len(set(claims)) == len(claims) == len(set(map(statement, claims)))
    before, rows = sentences(claims), main_claims(claims)
    monkeypatch.setattr(istar_nb.study.claims, "statements", dict.fromkeys(statements, "a claim"))
    assert statement(rows[0]).startswith("a claim, MiniLM") and main_claims(claims) == rows
    assert sentences(claims)[1:] == before[1:] and sentences(claims)[0] != before[0]
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
        istar_nb.study.claims._claims_of.__wrapped__(opened())
    with pytest.raises(ValueError, match="`fields` must fit one claim, and .* fits 0"): one([], topic="gain")
