"""The page of a sweep in a real browser: labels apart, legends by mouse and keys, accessibility.

`make test-page` runs it. `PAGE_SCREENSHOTS=DIR` keeps pictures.
"""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from typing import Any

import pytest

from hpcflow.report import run_page
from hpcflow.sweep.sweep_on_page import best_folders_first, sweep_in
from tests.browser.test_page_in_browser import LONGEST_LOAD_MS, errors, violations
from tests.sweep.made_sweeps import Made, made_sweep

pytestmark = pytest.mark.browser
BOXES = """
return [...document.querySelectorAll(arguments[0])].filter(n => n.checkVisibility()).map((n) => {
  const f = n.getBoundingClientRect();
  return [n.textContent, f.left, f.top, f.right, f.bottom];
});
"""


def runs_of(count: int) -> list[Made]:
    """Configurations of five parameters: numbers, names, an option that is given or not."""
    draw, runs = random.Random(5), []
    for _ in range(count):
        values = {"rate": f"{10 ** draw.uniform(-4, 0):.6g}", "drop": f"{draw.uniform(0, 0.5):.3f}"}
        values |= {"width": str(2 ** draw.randint(4, 8)), "bias": draw.choice([True, False])}
        values["optimizer"] = draw.choice(["adam", "sgd", "momentum-with-a-long-name"])
        runs.append(Made(values, draw.uniform(-2, 2)))
    runs[1] = Made(runs[1].values, None, "failed", "ValueError: too large")
    return runs


def write_page(folder: Path) -> Path:
    sweep, page = sweep_in(str(folder)), folder / "page.html"
    assert sweep is not None
    folders = best_folders_first([str(path) for path in (folder / "runs").iterdir()], [sweep])
    page.write_text(run_page.page_of(folders, sweeps=[sweep]).text)
    return page


def overlaps(browser: Any, selector: str) -> list[tuple[str, str]]:
    """The pairs of texts whose boxes overlap by more than a pixel."""
    boxes = browser.execute_script(BOXES, selector)
    assert boxes
    return [
        (a, b)
        for (a, *one), (b, *other) in itertools.combinations(boxes, 2)
        if one[0] < other[2] - 1 and other[0] < one[2] - 1
        and one[1] < other[3] - 1 and other[1] < one[3] - 1
    ]  # fmt: skip


@pytest.fixture
def opened(schemed: Any, tmp_path: Path) -> Any:
    """The page of a random search of 100 runs, in the light and in the dark scheme."""
    from selenium.webdriver.support.ui import WebDriverWait

    schemed.get(write_page(made_sweep(tmp_path / "s", runs_of(100), "random")).as_uri())
    legend = ".chart .legend button"  # its script may end after the page has loaded
    WebDriverWait(schemed, 10).until(lambda page: page.find_elements("css selector", legend))
    return schemed


def test_labels_do_not_overlap_and_axe_finds_nothing(opened: Any) -> None:
    assert errors(opened) == [] and violations(opened) == []
    assert len(opened.find_elements("css selector", "figure.sweep")) == 6
    assert overlaps(opened, "figure.sweep svg text") == []
    outside = opened.execute_script(
        "return [...document.querySelectorAll('figure.sweep')].flatMap((figure) => {"
        " const f = figure.querySelector('svg').getBoundingClientRect();"
        " return [...figure.querySelectorAll('svg text, .point')].filter((n) => {"
        "  const b = n.getBoundingClientRect();"
        "  return b.left < f.left - 1 || b.right > f.right + 1 || b.top < f.top - 1"
        "   || b.bottom > f.bottom + 1; }).map((n) => n.outerHTML); })"
    )
    assert outside == []
    folder = os.environ.get("PAGE_SCREENSHOTS")
    if folder:
        opened.save_screenshot(str(Path(folder) / "sweep.png"))


@pytest.mark.parametrize("kind", ["grid", "names", "halving"])
def test_other_sweeps(schemed: Any, tmp_path: Path, kind: str) -> None:
    if kind == "grid":
        cells = itertools.product(("0.1", "0.01", "0.001"), ("16", "64", "512"))
        runs = [Made({"rate": r, "width": w}, float(r) * int(w)) for r, w in cells]
    elif kind == "names":
        runs = [Made({"data": f"set/of/files/number-{k}"}, k % 5) for k in range(20)]
    else:
        runs = [Made({"rate": str(k), "epochs": "1"}, k, rung=0) for k in range(9)]
        runs += [Made({"rate": str(k), "epochs": "3"}, k / 2, rung=1) for k in range(3)]
    budget = "epochs" if kind == "halving" else ""
    folder = made_sweep(tmp_path / "s", runs, "halving" if budget else "grid", budget=budget)
    schemed.get(write_page(folder).as_uri())
    assert errors(schemed) == [] and violations(schemed) == []
    assert overlaps(schemed, "figure.sweep svg text") == []


def looks(browser: Any, name: str) -> tuple[set[str], set[str]]:
    """The classes and the colours of the curves of a run in all charts."""
    found = browser.execute_script(
        "return [...document.querySelectorAll('.grid > .chart .plot g')].filter((g) =>"
        " !g.closest('details') && g.firstChild.textContent.startsWith(arguments[0]))"
        ".map((g) => { const c = g.querySelector('.curve');"
        " return [c.getAttribute('class'), getComputedStyle(c).stroke]; })",
        name,
    )
    assert len(found) == 2  # the loss and the samples per second
    return {one for one, _ in found}, {color for _, color in found}


def test_a_legend_shows_one_run_among_a_hundred(opened: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    buttons = opened.find_elements("css selector", ".chart .legend button")
    first, last = buttons[0], buttons[60]
    name = last.text.partition(":")[0]
    grey = looks(opened, name)
    assert grey[0] == {"curve other"} and last.get_attribute("aria-pressed") == "false"
    colors = [looks(opened, one.text.partition(":")[0])[1] for one in buttons[:8]]
    assert all(len(color) == 1 for color in colors) and len(set.union(*colors, grey[1])) == 9
    ActionChains(opened).move_to_element(last).perform()
    assert looks(opened, name)[0] == {"curve other lit"} and looks(opened, name)[1] != grey[1]
    assert looks(opened, first.text.partition(":")[0])[1] == grey[1]
    title = opened.find_element("css selector", "h2")
    ActionChains(opened).move_to_element(title).perform()
    last.send_keys(Keys.ENTER)  # it gets the colour of the eighth
    assert last.get_attribute("aria-pressed") == "true"
    assert buttons[7].get_attribute("aria-pressed") == "false"
    opened.execute_script("document.activeElement.blur()")
    assert looks(opened, name)[1] == colors[7]
    first.click()
    assert first.get_attribute("aria-pressed") == "false" and errors(opened) == []


def test_curves_stay_with_their_runs_when_they_are_smoothed(opened: Any) -> None:
    """The curve of each run is redrawn from its own points, whatever lies on top."""
    script = (
        "return [...document.querySelectorAll('.grid > .chart')[0].querySelectorAll('.plot g')]"
    )
    script += ".map((g) => [g.firstChild.textContent, g.querySelector('.curve').getAttribute('d')])"

    def paths() -> dict[str, list[float]]:
        found = dict(opened.execute_script(script))
        return {
            name: [float(point.split()[1]) for point in path[1:].split("L")]
            for name, path in found.items()
        }

    before = paths()
    opened.find_elements("css selector", ".chart .legend button")[60].click()
    slider = "const s = document.querySelector('.smooth'); s.value = 1; "
    opened.execute_script(slider + "s.dispatchEvent(new Event('input'))")
    after = paths()
    assert len(before) == 100 and set(before) == set(after)
    for name, points in before.items():
        assert after[name][0] == pytest.approx(points[0], abs=0.2)
        assert after[name][-1] == pytest.approx(points[-1], abs=1)


def test_a_hundred_runs_open_in_a_second(browser: Any, tmp_path: Path) -> None:
    browser.get(write_page(made_sweep(tmp_path / "s", runs_of(100), "random")).as_uri())
    timing = browser.execute_script("return performance.getEntriesByType('navigation')[0].duration")
    assert timing < LONGEST_LOAD_MS and errors(browser) == []
