"""Pictures of a page: the roofline, tasks with their bytes, curves beside a baseline."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from hpcflow.cli import main as cli
from hpcflow.report import page_diagrams, page_task_diagram, run_page
from hpcflow.report.page_diagrams import Mark
from hpcflow.report.page_task_diagram import ServerBytes
from tests.test_page import checked
from tests.test_report import write


def dots(text: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', text)]


def test_a_kernel_at_a_peak_is_on_its_line() -> None:
    """Two dots at the peaks of 100 GFLOP/s and 10 GB/s, and one a decade below."""
    marks = [Mark(1, "roof", 100.0, 100.0), Mark(2, "slope", 1.0, 10.0), Mark(3, "low", 1.0, 1.0)]
    text = page_diagrams.roofline(marks, {"cpu": 100.0}, {"cpu": 10.0})
    roof, slope = re.findall(r'd="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)" class="curve', text)
    (x, y), (a, b), (_, low) = dots(text)
    assert float(roof[1]) == float(roof[3]) == y  # horizontal, through the dot
    x0, y0, x1, y1 = map(float, slope)
    assert b == pytest.approx(y0 + (a - x0) * (y1 - y0) / (x1 - x0), abs=0.2)
    assert (x1, y1) == pytest.approx((float(roof[0]), float(roof[1])))  # they meet at the knee
    assert low - b == pytest.approx(b - y)  # decades have one height
    assert x - a == pytest.approx(2 * (x1 - a), abs=0.2)  # and one width


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_roofline_of_no_numbers_is_left_out(value: float) -> None:
    good = [Mark(1, "a", 1.0, 1.0)]
    assert page_diagrams.roofline([Mark(1, "a", value, 1.0)], {"c": 1.0}, {"c": 1.0}) == ""
    assert page_diagrams.roofline([Mark(1, "a", 1.0, value)], {"c": 1.0}, {"c": 1.0}) == ""
    assert page_diagrams.roofline(good, {"c": value}, {"c": 1.0}) == ""
    assert page_diagrams.roofline(good, {"c": 1.0}, {"c": value}) == ""


def test_the_page_of_a_profile_has_its_roofline(tmp_path: Path) -> None:
    folder = Path(write(tmp_path / "run", 2, 64, 1.0))
    kernel = {"kind": "kernels", "name": "<b>MatMul", "type": "MatMul", "calls": 2, "seconds": 1.0,
              "share": 0.5, "flops": 200, "bytes": 100, "gflops": 4.0, "gbs": 2.0,
              "peak_share": 0.1}  # fmt: skip
    peaks = {"cpu:0": {"flops": {"float32": 1e11}, "nbytes": 1e10}}
    seconds = {"kernels": 3.0, "python": 1.0}
    ranks = [
        {"ops": [kernel, {"kind": "messages"}], "peaks": peaks, "steps": 2, "seconds": seconds}
    ]
    (folder / "profile.json").write_text(json.dumps({"ranks": ranks}))
    text = run_page.page_of([folder]).text
    checked(text)
    assert "1 &lt;b&gt;MatMul: 4 GFLOP/s" in text and "cpu:0 float32: 100 GFLOP/s" in text
    assert "rank 0: operations 1.5 s" in text and "Python 0.5 s" in text
    for bad in ({"cpu:0": 5}, {"cpu:0": {"flops": 3, "nbytes": "x"}}, [1], None):
        ranks[0]["peaks"] = bad
        (folder / "profile.json").write_text(json.dumps({"ranks": ranks}))
        text = run_page.page_of([folder]).text
        checked(text)
        assert "roofline" not in text


def test_predicted_and_measured_bytes_are_at_each_server(tmp_path: Path) -> None:
    way = {"received": 1000, "sent": 2000}
    more = {"received": 1000, "sent": 2600}
    rows = [
        {"task": "/job:ps/task:0", "predicted": way, "measured": way},
        {"task": "/job:ps/task:1", "predicted": way, "measured": more},
    ]
    folder = write(
        tmp_path / "r", 4, 64, 1.0, mode="ps", servers=2, said={"traffic": {"servers": rows}}
    )
    text = run_page.page_of([folder]).text
    checked(text)
    labels = re.findall(r'class="x-tick( differs)?">((?:in|out): [^<]*)<', text)
    assert labels == [("", "in: 1 kB (1 kB)"), ("", "out: 2 kB (2 kB)"), ("", "in: 1 kB (1 kB)"),
                      (" differs", "out: 2.6 kB (2 kB)")]  # fmt: skip
    assert text.count('class="edge"') == 4  # two workers, two servers


def test_many_tasks_are_drawn_as_groups() -> None:
    servers = [ServerBytes(f"s{k}", (1e3, 1e3), (0.0, 0.0)) for k in range(64)]
    text = page_task_diagram.servers_diagram(1000, servers)
    assert text.count('class="task"') == 32 and "workers 0-62" in text and "servers 60-63" in text
    assert "in: 4 kB (4 kB)" in text
    ring = page_task_diagram.ring_diagram([float(k) for k in range(1024)])
    assert ring.count('class="task"') == 16 and "ranks 960-1023: 992 B" in ring
    assert page_task_diagram.ring_diagram([1.0]) == ""


def test_a_ring_has_what_each_rank_sent_in_a_step(tmp_path: Path) -> None:
    said = {"bytes_sent": [5000, 6000, 7000], "tasks_per_replica": 1}
    text = run_page.page_of([write(tmp_path / "run", 3, 64, 1.0, said=said)]).text
    assert "rank 0: 50 B; rank 1: 60 B; rank 2: 70 B" in text  # of 100 steps
    for bad in ([5000], ["x"] * 3, [-1] * 3):
        folder = write(tmp_path / str(bad), 3, 64, 1.0, said={**said, "bytes_sent": bad})
        assert "rank sent a step" not in run_page.page_of([folder]).text


def curve(text: str, label: str) -> list[tuple[float, float]]:
    """The points of a curve, by the name in the legend of its chart."""
    for figure in re.findall(r"<figure[^>]*>.*?</figure>", text):
        names = re.findall(r"</span>([^<]*)</li>", figure)
        if label in names:
            data = json.loads(re.search(r'json">(.*?)</script>', figure)[1])  # type: ignore[index]
            series = data["series"][::-1]  # the first of the legend is drawn last, above the others
            return list(zip(*series[names.index(label)], strict=True))
    raise AssertionError(label)


def test_a_baseline_is_drawn_beside_the_runs(tmp_path: Path, capsys: Any) -> None:
    run = write(tmp_path / "run", 2, 64, 900.0, said={"accuracy": 0.5})
    old = write(tmp_path / "old", 2, 64, 800.0, rows=range(1, 4))
    page, figures = tmp_path / "p.html", tmp_path / "p.json"
    words = ["--baseline", "loss=0.25", "--baseline", "accuracy=0.75", "--baseline", old]
    out = ["--html", str(page), "--json", str(figures)]
    assert cli.main(["report", run, *words, *out]) == 0
    text = page.read_text()
    checked(text)
    assert curve(text, "baseline: loss 0.25") == [(1.0, 0.25), (10.0, 0.25)]
    assert curve(text, "baseline old: loss") == [(1.0, 1.0), (2.0, 0.5), (3.0, 0.333333)]
    assert [y for _, y in curve(text, "baseline old")] == [800.0] * 3
    assert "0.5 (baseline 0.75)" in text
    assert json.loads(figures.read_text())["baseline"] == {"loss": 0.25, "accuracy": 0.75}
    assert cli.main(["report", run, "--redact", *words, *out]) == 0
    assert "baseline 1: loss" in page.read_text() and "baseline old" not in page.read_text()
    for wrong in ("acuracy=1", "loss", "loss=nan", "=1", str(tmp_path / "none")):
        assert cli.main(["report", run, "--baseline", wrong, "--html", str(page)]) == 2
        assert "--baseline" in capsys.readouterr().err
    assert cli.main(["report", run, "--baseline", "loss=1"]) == 2  # it is for a page
