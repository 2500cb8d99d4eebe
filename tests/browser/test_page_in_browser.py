"""The page of runs in a real browser without a network: no error, zoom, smoothing, accessibility.

`make test-page` runs it: it needs Debian's chromium and chromium-driver, selenium, and axe-core.
`PAGE_SCREENSHOTS=DIR` keeps pictures.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpcflow.plan.ir.program import Cluster
from hpcflow.report import run_page
from hpcflow.report.plan_file import write_plan
from tests.plan.transformer import transformer_plan
from tests.test_page import large_run, paces
from tests.test_report import write

AXE = os.environ.get("AXE", "build/axe-core/package/axe.min.js")
LONGEST_LOAD_MS = 1000.0

pytestmark = pytest.mark.browser


@pytest.fixture
def opened(schemed: Any, tmp_path: Path) -> Any:
    """A page of a run with a slow worker, in the light and in the dark scheme."""
    saves = {"written": 3, "failed": 0, "held_seconds": 0.4}
    said = {"hosts": ["n0", "n1", "n2", "n3"], "work_seconds": [3.0, 3.1, 11.0, 3.0]}
    said |= {"wait_seconds": [9.0, 8.9, 0.2, 9.0], "saves": saves, "accuracy": 0.97}
    folder = Path(write(tmp_path / "run", 4, 64, 1000.0, said=said, rows=range(1, 400)))
    paces(folder, [0.1, 0.1, 0.3, 0.1], [0.2, 0.2, 0.0, 0.2])
    profiled(folder)
    write_plan(folder, transformer_plan(2, Cluster(3, 1)))
    page = tmp_path / "report.html"
    page.write_text(run_page.page_of([folder]).text)
    schemed.get(page.as_uri())
    return schemed


def profiled(folder: Path) -> None:
    """Add a profile, events, memory and bytes: a page with all its pictures."""
    kernels = [
        {"kind": "kernels", "name": f"MatMul_{k}", "flops": 400 << k, "bytes": 100, "calls": 1,
         "gflops": 2.0**k, "seconds": 0.1} for k in range(10)
    ]  # fmt: skip
    peaks = {"cpu:0": {"flops": {"float32": 1e12}, "nbytes": 1e10}}
    ranks = [
        {"ops": kernels, "peaks": peaks, "steps": 1, "seconds": {"kernels": 2.0, "python": 1.0}}
    ]
    (folder / "profile.json").write_text(json.dumps({"ranks": ranks}))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= {"start": "2026-11-29T12:00:00+00:00", "end": "2026-11-29T13:00:00+00:00"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    noon = 1795953600
    rows = [f"{noon + 9 * k},{k},{('save', 'warning')[k % 2]},what happened" for k in range(200)]
    (folder / "events.csv").write_text("time,step,event,text\n" + "\n".join(rows) + "\n")
    result = json.loads((folder / "result.json").read_text())
    result |= {"memory": [{"predicted": 1000, "peak": 1100}] * 4, "bytes_sent": [1 << 30] * 4}
    (folder / "result.json").write_text(json.dumps(result))


def errors(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def path_of(browser: Any) -> str:
    return str(browser.find_element("css selector", "figure.chart .curve").get_attribute("d"))


def ticks_of(browser: Any) -> list[str]:
    return [one.text for one in browser.find_elements("css selector", "figure.chart .x-tick")][:5]


def test_it_opens_and_zooms_and_smooths(opened: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    assert errors(opened) == []
    assert "worker 2" in opened.find_element("css selector", ".limits").text
    whole, ticks = path_of(opened), ticks_of(opened)
    chart = opened.find_element("css selector", "figure.chart svg")
    drag = ActionChains(opened).move_to_element_with_offset(chart, -80, 0).click_and_hold()
    drag.move_by_offset(120, 0).release().perform()
    assert path_of(opened) != whole and ticks_of(opened) != ticks
    ActionChains(opened).double_click(chart).perform()
    assert ticks_of(opened) == ticks
    before = path_of(opened)
    script = "const s = document.querySelector('.smooth'); s.value = 90; "
    opened.execute_script(script + "s.dispatchEvent(new Event('input'))")
    assert path_of(opened) != before and path_of(opened).count("L") == before.count("L")
    assert errors(opened) == []
    folder = os.environ.get("PAGE_SCREENSHOTS")
    if folder:
        opened.save_screenshot(str(Path(folder) / "page.png"))


def test_the_plan_has_its_layers_and_fits_the_page(opened: Any) -> None:
    """Its boxes are drawn in their size; a wide picture scrolls inside of its figure."""
    names = opened.find_elements("css selector", "figure.plan svg .name")
    assert {"layer_0", "layer_1", "head"} <= {name.text for name in names}
    box = next(name for name in names if name.text == "layer_1")
    title = box.find_element("xpath", "./..").find_element("css selector", "title")
    assert "ms predicted" in title.get_attribute("textContent")
    script = "const r = document.querySelector('figure.plan svg .card').getBoundingClientRect(); "
    assert opened.execute_script(script + "return [r.width, r.height]") == [190, 48]
    wide = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert opened.execute_script(wide)
    folder = os.environ.get("PAGE_SCREENSHOTS")
    if folder:
        figure = opened.find_element("css selector", "figure.plan")
        opened.execute_script("arguments[0].scrollIntoView()", figure)
        opened.save_screenshot(str(Path(folder) / "page-plan.png"))


def violations(browser: Any) -> list[str]:
    browser.execute_script(Path(AXE).read_text(encoding="utf-8"))
    result = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in result["violations"]]


def test_axe_finds_nothing(opened: Any) -> None:
    assert violations(opened) == []
    for picture in ("roofline", "timeline", "bytes that each rank", "a step of each rank"):
        assert opened.find_elements("css selector", f'svg[aria-label^="{picture}"]')


def test_a_page_of_several_runs(browser: Any, tmp_path: Path) -> None:
    """Scaling with whiskers, servers, and details that open; every slider smooths every chart."""
    way = {"received": 1000, "sent": 2000}
    server = {"task": "/job:ps/task:0", "predicted": way, "measured": way}
    rates = ((1, 900.0), (2, 1500.0), (2, 1700.0))
    folders = [write(tmp_path / f"n{k}", n, 64, rate) for k, (n, rate) in enumerate(rates)]
    said = {"traffic": {"servers": [server]}}
    folders.append(write(tmp_path / "ps", 3, 64, 1200.0, mode="ps", servers=1, said=said))
    for folder in folders:
        profiled(Path(folder))
    page = tmp_path / "report.html"
    page.write_text(run_page.page_of(folders).text)
    browser.get(page.as_uri())
    browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    assert violations(browser) == []
    last = "const s = [...document.querySelectorAll('.smooth')].at(-1); s.value = 90; "
    before = path_of(browser)
    browser.execute_script(last + "s.dispatchEvent(new Event('input'))")
    assert path_of(browser) != before and errors(browser) == []


def test_a_large_run_opens_in_a_second(browser: Any, tmp_path: Path) -> None:
    folder = large_run(tmp_path / "run")
    page = tmp_path / "report.html"
    page.write_text(run_page.page_of([folder]).text)
    browser.get(page.as_uri())
    timing = browser.execute_script("return performance.getEntriesByType('navigation')[0].duration")
    assert timing < LONGEST_LOAD_MS and errors(browser) == []
    assert browser.find_elements("css selector", "figure.plan svg .name")
