"The explorers of the site in headless Chromium: the numbers that Python computes, by keyboard and pointer, and no request to any host."
import re
import sys
from pathlib import Path

import pytest
from browser import browser_page, needs_chromium

from istar_nb import explore as ex

sys.path.insert(0, str(Path(__file__).resolve().parents[1]/"tools"))
import explore as tool

pytestmark = needs_chromium


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
    return page.run(f"JSON.parse(JSON.stringify(explore.maths.{call}, (key, value) => ArrayBuffer.isView(value) ? [...value] : value))")


def reading(page, name): return page.text(f"#{name} .reading")


def numbers(sentence): return [float(number.replace("−", "-")) for number in re.findall(r"−?\d+\.\d+", sentence)]


# ---- a spectrum

@pytest.mark.parametrize("variances, zeta", [([10, 6, 4, 4, 1, 1], 0), ([5, 5, 5, 0, 0, 0], 0), ([10, 0, 0, 0, 0, 0], 0.35), ([1e-3, 2, 3, 4, 5, 6], 1)])
@pytest.mark.parametrize("reference", ex.references)
def test_a_spectrum_has_the_same_numbers(page, variances, zeta, reference):
    theirs = maths(page, f"spectrumNumbers({variances}, {list(ex.references[reference])}, {zeta})")
    mine = ex.spectrum_numbers(variances, ex.references[reference], zeta)
    assert theirs["eigenvalues"] == pytest.approx(mine.eigenvalues, rel=1e-12)
    assert (theirs["ratio"], theirs["isoscore"]) == pytest.approx((mine.ratio, mine.isoscore), rel=1e-12, abs=1e-12)


def test_keys_on_a_slider_show_the_number_that_python_computes(page):
    values = ex.defaults_of("spectrum")
    assert reading(page, "spectrum") == ex.draw_spectrum(**values)[1]
    page.keys("#spectrum-v1", "ArrowLeft", 7)
    page.keys("#spectrum-zeta", "ArrowRight", 6)
    values |= dict(v1=9.3, zeta=0.5)
    assert page.text("#spectrum-v1 + output") == "9.3" and reading(page, "spectrum") == ex.draw_spectrum(**values)[1]


def test_a_preset_and_a_dragged_bar(page):
    page.run("[...document.querySelectorAll('#spectrum button')].find(b => b.textContent === 'three of six').click()")
    values = ex.defaults_of("spectrum") | ex.presets["spectrum"]["three of six"]
    assert reading(page, "spectrum") == ex.draw_spectrum(**values)[1]
    left, top, width, height = page.run("(r => [r.x, r.y, r.width, r.height])(document.querySelector('#spectrum svg').getBoundingClientRect())")
    page.drag((left + width/2, top + height*0.8), (left + width/2, top + height*0.3))
    dragged = page.run("['v3', 'v4'].map(name => Number(document.getElementById('spectrum-' + name).value))")
    assert dragged != [5, 0]
    assert reading(page, "spectrum") == ex.draw_spectrum(**values | dict(v3=dragged[0], v4=dragged[1]))[1]


def test_what_cannot_be_scored_is_said(page):
    page.run("for (let i = 1; i <= 6; i++) { const s = document.getElementById('spectrum-v' + i); s.value = 0; s.dispatchEvent(new Event('input')) }")
    page.keys("#spectrum-zeta", "Home")
    with pytest.raises(ValueError) as error: ex.spectrum_numbers([0]*6, [4]*6)
    assert reading(page, "spectrum") == str(error.value)


# ---- the page

def test_every_control_has_a_label(page):
    unlabelled = "[...document.querySelectorAll('.explorer :is(input, select)')].filter(e => !e.labels.length).map(e => e.outerHTML)"
    assert page.run(unlabelled) == []
    assert page.run("[...document.querySelectorAll('.explorer')].every(e => e.querySelector('[aria-live]') && e.querySelector('noscript'))")
    assert page.run("[...document.querySelectorAll('.explorer svg')].every(e => e.getAttribute('aria-label'))")


def test_a_phone_needs_no_sideways_scrolling(folder):
    with browser_page(width=360, height=740, dark=True) as page:
        page.open((folder/"index.html").as_uri())
        assert page.run("document.documentElement.scrollWidth") <= 360


def test_figures_for_readers_without_scripts(folder):
    page = (folder/"index.html").read_text(encoding="utf-8")
    images = re.findall(r'<noscript><img src="([^"]+)" alt="[^"]{30,}', page)
    assert len(images) == page.count('class="explorer"') and all((folder/name).read_bytes()[:4] == b"\x89PNG" for name in images)
