"The stored pages agree: every verdict of a page is on the findings page, and the README repeats what that page says."
import json
import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

root = Path(__file__).resolve().parents[1]
folder = root/"nbs"/"experiments"
pages = sorted(p.stem for p in folder.glob("*.ipynb") if p.stem not in ("findings", "every_method", "full_size_grids"))


def outputs(name, kind):
    "All stored outputs of a page that are of one kind."
    cells = json.loads((folder/f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return ["".join(output["data"][kind]) for cell in cells for output in cell.get("outputs", []) if kind in output.get("data", {})]


def rows(html):
    "The rows of a table, as dictionaries of text."
    table = BeautifulSoup(html, "html.parser").find("table")
    names = [cell.get_text() for cell in table.find("thead").find_all("th")]
    return [dict(zip(names, (cell.get_text() for cell in row.find_all(["th", "td"])))) for row in table.find("tbody").find_all("tr")]


@pytest.mark.parametrize("page", pages)
def test_verdicts_are_on_the_findings_page(page):
    gathered = "\n".join(outputs("findings", "text/markdown"))
    last = rows(outputs(page, "text/html")[-1])
    assert last and {r["page"] for r in last} == {page}
    for r in last:
        row = re.escape(r["claim"].removesuffix("...")) + r"[^|]* \| " + r["verdict"] + r" \|"    # pandas cuts long texts
        assert r["verdict"] == "not run" or re.search(row, gathered), f"run the notebook findings again: {r['claim']} is {r['verdict']} on {page}"


def test_readme_repeats_the_findings_page():
    [sentence] = [text for text in outputs("findings", "text/markdown") if text.startswith("MiniLM on CoLA")]
    assert sentence in (root/"README.md").read_text(encoding="utf-8"), "run the notebook index again"
