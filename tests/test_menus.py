"The menus of the pages of evidence: every choice is carried out, and shows all claims that belong to it."
import json
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from istar_nb.study.claims import by_place, clause, explore_claims, page_claims

pages = sorted(path.stem for path in (Path(__file__).parents[1]/"nbs"/"experiments").glob("*.ipynb")
               if "explore_claims(claims)" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", pages)
def test_every_choice_shows_its_claims(page):
    claims = page_claims(page)
    menu, _ = explore_claims(claims).children
    assert len(menu.options) > 1 and sum(map(len, by_place(claims).values())) > len(menu.options)
    for place in [*menu.options[1:], menu.options[0]]:
        plt.close("all")
        menu.value = place
        labels = [label.get_text() for label in plt.gca().get_yticklabels()]
        assert labels == list(map(clause, by_place(claims)[place])), place
    plt.close("all")


def test_no_state_of_a_menu_is_stored():
    root = Path(__file__).parents[1]/"nbs"/"experiments"
    for page in pages:
        nb = json.loads((root/f"{page}.ipynb").read_text(encoding="utf-8"))
        said = [output["data"] for cell in nb["cells"] if "explore_claims(claims)" in cell["source"]
                for output in cell["outputs"]]
        assert "widgets" not in nb["metadata"] and [list(data) for data in said] == [["text/plain"]]
        assert "run this cell" in "".join(said[0]["text/plain"])
