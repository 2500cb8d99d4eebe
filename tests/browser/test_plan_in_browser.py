"""The page of a plan in a real browser: groups open by mouse and keyboard, accessibility, speed.

`make test-page` runs it. `PAGE_SCREENSHOTS=DIR` keeps pictures.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.listing.picture_groups import picture_of
from hpcflow.report.plan_layout import Layout
from hpcflow.report.plan_picture import plan_page, plan_svg
from tests.browser.test_page_in_browser import AXE, LONGEST_LOAD_MS, errors
from tests.plan.transformer import transformer_plan

pytestmark = pytest.mark.browser


@pytest.fixture
def opened(schemed: Any, tmp_path: Path) -> Any:
    """The page of a small transformer with a server, in the light and in the dark scheme."""
    page = tmp_path / "plan.html"
    page.write_text(plan_page(transformer_plan(2, Cluster(3, 1)), "train.py"))
    schemed.get(page.as_uri())
    return schemed


def box(browser: Any, name: str) -> Any:
    """The first box of this name."""
    boxes = browser.find_elements("css selector", "button.box")
    return next(b for b in boxes if b.find_element("css selector", ".name").text == name)


def names(browser: Any) -> list[str]:
    return [one.text for one in browser.find_elements("css selector", "button.box .name")]


def facts(browser: Any) -> str:
    return str(browser.find_element("css selector", ".facts").text)


def test_groups_open_and_close_by_mouse_and_keyboard(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    assert errors(opened) == []
    before = names(opened)
    assert "layer_1" in before and "attention" not in before
    box(opened, "layer_1").click()
    assert "attention" in names(opened) and "backward" in names(opened)
    assert box(opened, "layer_1").get_attribute("aria-expanded") == "true"
    box(opened, "attention").send_keys(Keys.ENTER)
    assert "query" in names(opened)
    assert "28 operations; " in facts(opened) and "ms predicted" in facts(opened)
    assert opened.switch_to.active_element == box(opened, "attention")
    box(opened, "layer_1").send_keys(Keys.ENTER)
    assert names(opened) == before and errors(opened) == []


def test_edges_have_their_bytes_and_join_boxes(opened: Any) -> None:
    links = opened.find_elements("css selector", ".link")
    titles = {
        link.find_element("css selector", "title").get_attribute("textContent") for link in links
    }
    assert "layer_0 to layer_1: 1 values, 4096 B" in titles  # [2, 8, 64] floats
    assert any("sent to another task" in title for title in titles)
    folder = os.environ.get("PAGE_SCREENSHOTS")
    if folder:
        opened.save_screenshot(str(Path(folder) / "plan.png"))


def test_axe_finds_nothing(opened: Any) -> None:
    box(opened, "layer_1").click()
    opened.execute_script(Path(AXE).read_text(encoding="utf-8"))
    result = opened.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    found = [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in result["violations"]]
    assert found == []


def test_a_transformer_of_5000_operations_opens_in_a_second(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    page.write_text(plan_page(transformer_plan(21), "train.py"))
    browser.get(page.as_uri())
    timing = browser.execute_script("return performance.getEntriesByType('navigation')[0].duration")
    assert timing < LONGEST_LOAD_MS and errors(browser) == []
    assert 20 < len(browser.find_elements("css selector", "button.box")) <= 60
    assert page.stat().st_size < 2_000_000


FRAMES = """
return [...document.querySelectorAll(arguments[0])].map((n) => {
  const f = n.getBoundingClientRect();
  return [n.textContent, f.left, f.top, f.right, f.bottom];
});
"""
LABELS = ".amount:not(.crowded)"


def meeting(one: list[list[Any]], others: list[list[Any]]) -> list[tuple[str, str]]:
    """The pairs of rectangles that overlap by more than a pixel."""
    return [
        (a, b)
        for (a, *f) in one
        for (b, *g) in others
        if f is not g and f[0] < g[2] - 1 and g[0] < f[2] - 1 and f[1] < g[3] - 1
        and g[1] < f[3] - 1 and (a, f) != (b, g)
    ]  # fmt: skip


def check_labels(browser: Any, cards: str) -> int:
    """Labels meet neither each other nor a box; returns how many there are."""
    labels = browser.execute_script(FRAMES, LABELS)
    assert meeting(labels, labels) == []
    assert meeting(labels, browser.execute_script(FRAMES, cards)) == []
    return len(labels)


def test_labels_do_not_overlap_also_when_groups_open(opened: Any) -> None:
    counts = []
    for name in ("layer_1", "attention", "layer_0", "/job:ps/task:0"):
        counts.append(check_labels(opened, "button.box"))
        opened.execute_script("arguments[0].click()", box(opened, name))
    counts.append(check_labels(opened, "button.box"))
    edges = len(opened.find_elements("css selector", ".link"))
    crowded = opened.find_elements("css selector", ".amount.crowded")
    assert min(counts) > 10 and counts[-1] + len(crowded) <= edges
    assert not any(label.is_displayed() for label in crowded)


def test_labels_of_the_svg_do_not_overlap(schemed: Any, tmp_path: Path) -> None:
    for layers, cluster in ((2, Cluster(3, 1)), (6, Cluster(3, 2)), (6, Cluster(1, 0))):
        path = tmp_path / f"{layers}-{cluster.workers}.svg"
        path.write_text(plan_svg(transformer_plan(layers, cluster)))
        schemed.get(path.as_uri())
        assert check_labels(schemed, ".card") > 10
        texts = schemed.execute_script(FRAMES, "text.fact, text.name")
        assert meeting(schemed.execute_script(FRAMES, LABELS), texts) == []


def test_the_legend_has_the_colours_of_the_bars(opened: Any) -> None:
    """Each piece of a bar, a device in a phase, is drawn in the legend as it is in the box."""
    script = """
    return [...document.querySelectorAll(arguments[0])].map((n) => {
      const s = getComputedStyle(n);
      return [s.backgroundColor, s.opacity].join(" ");
    });
    """
    bars = set(opened.execute_script(script, ".box .bar span"))
    legend = set(opened.execute_script(script, ".legend .swatch"))
    assert bars <= legend and len(bars) > 3
    rows = [row.text for row in opened.find_elements("css selector", ".legend li")]
    assert "predicted time, backward" in rows


def test_the_page_and_the_svg_choose_the_same_lanes(browser: Any, tmp_path: Path) -> None:
    for layers, cluster in ((2, Cluster(3, 1)), (6, Cluster(3, 2))):
        plan = transformer_plan(layers, cluster)
        picture = picture_of(plan)
        sides = Layout(picture, list(picture.edges(picture.opened))).sides
        page = tmp_path / "plan.html"
        page.write_text(plan_page(plan, "train.py"))
        browser.get(page.as_uri())
        drawn = browser.execute_script(
            "return edges.filter((e) => !e.straight)"
            ".map((e) => [e.a, e.b, e.group, e.side, e.lane]);"
        )
        found = {(a, b): (None if group < 0 else group, *rest) for a, b, group, *rest in drawn}
        assert len(found) > 5 and found == sides
