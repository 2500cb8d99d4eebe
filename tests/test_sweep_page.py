"""The page of a sweep: places of marks, axes by the values, words for what is missing, colours."""

from __future__ import annotations

import itertools
import math
import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcflow.report import chart_axes, run_page
from hpcflow.report.page_charts import COLORS
from hpcflow.sweep.sweep_on_page import best_folders_first, sweep_in
from tests.sweep.made_sweeps import Made, made_sweep
from tests.test_page import HOSTILE, ROOT, checked

CSS = (Path(run_page.__file__).parent / "page.css").read_text(encoding="utf-8")


def page_of(folder: Path, redacted: bool = False) -> str:
    sweep = sweep_in(str(folder))
    folders = sorted(str(path) for path in (folder / "runs").iterdir())
    assert sweep is not None
    chosen = best_folders_first(folders, [sweep])
    text = run_page.page_of(chosen, redacted, sweeps=[sweep]).text
    checked(text)
    return text


def figure(page: str, caption: str) -> Any:
    """The figure with this caption, as XML."""
    for found in re.findall(r"<figure.*?</figure>", page):
        if f"<figcaption>{caption}</figcaption>" in found:
            return ET.fromstring(found)
    return None


def marks(drawn: Any) -> dict[str, tuple[str, float, float]]:
    """The class and the centre of each mark of a chart by its title."""
    found = {}
    for group in drawn.iter("g"):
        title, shape = group.find("title"), group.find("circle")
        if title is None:
            continue
        if shape is not None:
            at = float(shape.get("cx")), float(shape.get("cy"))
        else:
            shape = group.find("path")
            x, y = map(float, re.match(r"M([\d.-]+) ([\d.-]+)l", shape.get("d")).groups())
            at = (x, y + 9) if "best" in shape.get("class") else (x + 4, y + 4)
        found[title.text] = (shape.get("class"), *at)
    return found


def test_marks_are_where_the_values_are(tmp_path: Path) -> None:
    """On a logarithmic axis equal factors are equal distances; the metric is linear upwards."""
    rates = {"0.001": 3.0, "0.01": -1.0, "0.1": 1.0, "1": 2.0}
    page = page_of(made_sweep(tmp_path / "s", [Made({"rate": r}, m) for r, m in rates.items()]))
    found = marks(figure(page, "loss by rate"))
    assert len(found) == 4 and "rate (log axis)" in page
    at = {r: found[f"loss {m:g}: rate={r}"] for r, m in rates.items()}
    steps = [at[b][1] - at[a][1] for a, b in itertools.pairwise(rates)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2) and steps[0] > 100
    scale = (at["0.001"][2] - at["0.01"][2]) / 4.0  # pixels of one unit of the loss
    assert scale < 0
    for rate, metric in rates.items():
        assert at[rate][2] == pytest.approx(at["0.01"][2] + scale * (metric + 1.0), abs=0.2)
    assert [r for r in rates if "best" in at[r][0]] == ["0.01"]
    assert page.split("<h2>Curves")[0].count("<figure") == 1


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["0.1", "0.01", "0.001"], "log"),
        ([f"{10 ** (-4 + k / 5):.6g}" for k in range(20)], "log"),
        (["16", "32", "64", "256"], "log"),
        ([str(k) for k in range(1, 101)], "linear"),
        (["0", "0.1", "0.5"], "linear"),
        (["-1", "-100"], "linear"),
        (["2", "3", "4"], "linear"),
        (["0.1", "none"], "names"),
        (["nan", "0.1"], "names"),
        (["1e300", "1"], "names"),
        ([1.0, 1.0], "linear"),
    ],
)
def test_the_axis_is_chosen_from_the_values(values: list[Any], kind: str) -> None:
    axis = chart_axes.axis_of(values, marked=True)
    assert axis.kind == kind
    places = [axis.place(value) for value in values]
    assert all(0 < place < 1 for place in places)
    texts = [text for _, text in axis.marks(8)]
    assert texts and len(set(texts)) == len(texts) and len(texts) <= 20


def test_names_are_rows_in_the_order_of_the_sweep(tmp_path: Path) -> None:
    runs = [
        Made({"size": n, "flag": n == "small"}, k) for k, n in enumerate("large small x".split())
    ]
    page = page_of(made_sweep(tmp_path / "s", runs, mode="max"))
    found = marks(figure(page, "loss by size"))
    titles = [f"loss {k}: size={v}" for k, v in enumerate(("large, flag=no", "small, flag=yes"))]
    titles.append("loss 2: size=x, flag=no")
    heights = [found[title][2] for title in titles]
    assert heights == sorted(set(heights))
    assert "best" in found["loss 2: size=x, flag=no"][0]
    labels = [node.text for node in figure(page, "loss by flag").iter("text")]
    assert labels[:2] == ["no", "yes"]


def test_runs_without_a_value_are_told_in_words(tmp_path: Path) -> None:
    runs = [
        Made({"rate": "1"}, 1.0),
        Made({"rate": "2"}, None, "failed", "ValueError: too large"),
        Made({"rate": "3"}, None, "done", "the metric loss is nan"),
        Made({"rate": "4"}, None, "pending"),
        Made({"rate": "5"}, 2.0),
    ]
    folder = made_sweep(tmp_path / "s", runs)
    page = page_of(folder)
    assert "1 run is not drawn: failed (0001)" in page and "pending (0003)" in page
    assert "1 run is not drawn: done, without a value (0002)" in page
    assert "why: ValueError: too large" in page and "why: the metric loss is nan" in page
    kinds = [kind for kind, *_ in marks(figure(page, "loss by rate")).values()]
    assert sorted(kinds) == ["cross"] * 3 + ["point", "point best"]
    rows = page.split("runs of the sweep</caption>")[1].split("</table>")[0]
    assert rows.count("<tr>") == 1 + 5
    hidden = page_of(folder, redacted=True)
    assert "ValueError" not in hidden and "not drawn: failed (run 3)" in hidden  # best first


def test_a_redacted_page_has_numbers_but_no_texts(tmp_path: Path) -> None:
    runs = [Made({"data": f"/home/u/{k}", "rate": str(k)}, k) for k in range(3)]
    folder = made_sweep(tmp_path / "s", runs)
    assert "/home/u/1" in page_of(folder)
    page = page_of(folder, redacted=True)
    assert "/home/u" not in page and "value 2" in page
    assert "best (min): run 1, loss 0: data=value 1, rate=0" in page


def test_a_grid_of_two_is_a_heat_map_and_more_are_parallel_lines(tmp_path: Path) -> None:
    runs = [Made({"a": str(a), "b": b}, a * 10 + ord(b)) for a in (3, 1, 2) for b in "xy"]
    page = page_of(made_sweep(tmp_path / "two", runs))
    cells = {}
    for group in figure(page, "loss by a and b").iter("g"):
        box = group.find("rect")
        cells[group.find("title").text] = (
            float(box.get("x")),
            float(box.get("y")),
            box.get("class"),
        )
    assert len(cells) == 6
    for (a, b), (c, d) in itertools.combinations(itertools.product((1, 2, 3), "xy"), 2):
        one, other = (cells[f"loss {p * 10 + ord(q)}: a={p}, b={q}"] for p, q in ((a, b), (c, d)))
        assert (one[0] < other[0]) == (a < c) and (one[1] == other[1]) == (b == d)
    ranks = {title: int(re.findall(r"q(\d)", c[2])[0]) for title, c in cells.items()}
    order = sorted(ranks, key=lambda title: float(re.findall(r"loss (\d+)", title)[0]))
    assert [ranks[t] for t in order] == sorted(ranks.values()) and set(ranks.values()) == {
        *range(5)
    }
    assert "best" in cells[order[0]][2] and figure(page, "loss by all 2 parameters") is None

    page = page_of(made_sweep(tmp_path / "part", runs[:-1]))  # a combination is missing
    lines = [p for p in figure(page, "loss by all 2 parameters").iter("path")]
    assert len(lines) == 5 and figure(page, "loss by a and b") is None


def test_parallel_lines_meet_their_axes_at_the_values(tmp_path: Path) -> None:
    draw = random.Random(3)
    runs = [
        Made({n: f"{draw.uniform(1, 2):.4f}" for n in "abcde"}, draw.uniform(-5, 5))
        for _ in range(100)
    ]
    page = page_of(made_sweep(tmp_path / "s", runs, "random", "max"))
    drawn = figure(page, "loss by all 5 parameters")
    paths = {g.find("title").text: g.find("path").get("d") for g in drawn.iter("g")
             if g.find("title") is not None}  # fmt: skip
    assert len(paths) == 100
    columns: list[list[tuple[float, float]]] = [[] for _ in range(6)]
    for title, path in paths.items():
        values = [float(v) for v in re.findall(r"=([\d.]+)", title)]
        values.append(float(re.findall(r"loss ([-\d.e]+)", title)[0]))
        points = [tuple(map(float, p.split())) for p in path[1:].split("L")]
        for k, ((_, y), value) in enumerate(zip(points, values, strict=True)):
            columns[k].append((value, y))
    for column in columns:
        column.sort()
        (low, bottom), (high, top) = column[0], column[-1]
        for value, y in column:
            share = (value - low) / (high - low)
            assert y == pytest.approx(bottom + share * (top - bottom), abs=0.2)
    for name in "abcde":
        assert len(marks(figure(page, f"loss by {name}"))) == 100


def test_successive_halving_shows_what_ended_early(tmp_path: Path) -> None:
    """The best is the one of the last rung, though a value of a smaller budget is lower."""
    first = [Made({"rate": str(k), "epochs": "1"}, 5.0 - k, rung=0) for k in range(9)]
    first[8] = Made({"rate": "8", "epochs": "1"}, None, "failed", "it broke")
    second = [Made({"rate": str(k), "epochs": "3"}, 1.0 + k, rung=1) for k in (5, 6, 7)]
    third = [Made({"rate": "5", "epochs": "9"}, 2.5, rung=2)]
    page = page_of(made_sweep(tmp_path / "s", first + second + third, "halving", budget="epochs"))
    found = marks(figure(page, "loss by rate"))
    kinds = {title: kind for title, (kind, *_) in found.items()}
    assert len(kinds) == 9 and figure(page, "loss by epochs") is None
    assert kinds["loss 2.5: rate=5"] == "point best"
    assert kinds["loss 7: rate=6; ended early, at epochs=3"] == "point early"
    assert kinds["loss 1: rate=4; ended early, at epochs=1"] == "point early"
    assert kinds["loss no value: rate=8"] == "cross"
    assert "7 of 9 configurations ended early, at epochs=1, 3" in page


@pytest.mark.parametrize("metrics", [
    (-3.0, -2.0, -1.0), (1e-9, 1.0, 1e9), (2.0, 2.0, 2.0), (0.0, None, 1e200), (None, None, None),
    (math.inf, math.nan, 1.0),
])  # fmt: skip
def test_metrics_of_every_kind_are_drawn_or_told(
    tmp_path: Path, metrics: Sequence[float | None]
) -> None:
    from hpcflow.report.page_sweep import sweep_section
    from hpcflow.report.sweep_facts import Sweep, SweepRun

    runs = [SweepRun(str(k), "", {"rate": str(k)}, "done", m) for k, m in enumerate(metrics)]
    text = sweep_section(Sweep("loss", "min", runs), {}, False)
    good = [m for m in metrics if m is not None and abs(m) < 1e100]
    drawn = figure(text, "loss by rate")
    assert (drawn is not None) == bool(good)
    if drawn is not None:
        kinds = [kind for kind, *_ in marks(drawn).values()]
        assert kinds.count("cross") == 3 - len(good)
        assert all(0 <= y <= 266 and 84 <= x <= 640 for _, x, y in marks(drawn).values())
    told = re.findall(r"(\d) runs? (?:is|are) not drawn", text)
    assert sum(map(int, told)) == 3 - len(good)


def test_a_parameter_of_many_names_is_told(tmp_path: Path) -> None:
    runs = [Made({"data": f"file{k}", "rate": str(k)}, k) for k in range(41)]
    page = page_of(made_sweep(tmp_path / "s", runs))
    assert "without a chart, but in the table: data" in page and figure(page, "loss by rate")
    assert figure(page, "loss by data") is None and "<td>file40</td>" in page


def test_hostile_texts_are_escaped(tmp_path: Path) -> None:
    runs = [Made({HOSTILE: HOSTILE + str(k), "b": str(k)}, k) for k in range(3)]
    runs[2] = Made(runs[2].values, None, "failed", HOSTILE)
    page = page_of(made_sweep(tmp_path / "s", runs))
    assert "<script>alert" not in page and "<img" not in page and "alert(1)" in page


def hpcflow(*words: str) -> None:
    command = [sys.executable, "-m", "hpcflow", *words]
    subprocess.run(command, cwd=ROOT, check=True, timeout=200, capture_output=True)


def test_the_commands_write_the_charts(tmp_path: Path) -> None:
    folder = made_sweep(tmp_path / "s", [Made({"rate": str(k)}, k) for k in range(1, 4)])
    hpcflow("report", str(folder), "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert len(marks(figure(page, "loss by rate"))) == 3
    hpcflow("sweep", str(folder))  # all runs have ended: it writes the results and the page
    page = (folder / "report.html").read_text()
    assert len(marks(figure(page, "loss by rate"))) == 3


# -- colours


def colors(css: str) -> list[dict[str, str]]:
    """The colours of the light and of the dark scheme."""
    light, dark = css.split("@media (prefers-color-scheme: dark)", 1)
    found = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", part)) for part in (light, dark)]
    return [found[0], {**found[0], **found[1]}]


def channels(color: str) -> list[float]:
    """Linear red, green and blue (sRGB, IEC 61966-2-1)."""
    digits = color[1:] if len(color) == 7 else "".join(c * 2 for c in color[1:])
    values = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    weights = (0.2126, 0.7152, 0.0722)
    lights = sorted(
        sum(w * v for w, v in zip(weights, channels(c), strict=True)) for c in (one, other)
    )
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def distance(one: str, other: str) -> float:
    """The distance in CIELAB (D65)."""

    def lab(color: str) -> tuple[float, float, float]:
        r, g, b = channels(color)
        xyz = (
            (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
            0.2126 * r + 0.7152 * g + 0.0722 * b,
            (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
        )
        x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
        return 116 * y - 16, 500 * (x - y), 200 * (y - z)

    return math.dist(lab(one), lab(other))


def test_the_contrast_of_black_and_white_is_21() -> None:
    assert contrast("#fff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)  # WebAIM's checker


def test_colours_of_curves_are_seen_and_differ() -> None:
    for scheme in colors(CSS):
        curves = [scheme[f"c{k}"] for k in range(COLORS)] + [scheme["other"]]
        ranks = [scheme[f"q{k}"] for k in range(5)]
        for color in curves + ranks:
            for ground in ("paper", "card"):
                assert contrast(color, scheme[ground]) >= 3, color
        for color in ranks:  # a text in the colour of the paper is on it
            assert contrast(color, scheme["paper"]) >= 4.5, color
        for one, other in itertools.combinations(curves, 2):
            assert distance(one, other) > 25, (one, other)


def test_a_run_has_one_colour_in_all_charts_and_many_are_grey(tmp_path: Path) -> None:
    folder = made_sweep(tmp_path / "s", [Made({"rate": str(k)}, k) for k in range(12)])
    page = page_of(folder).split("<h2>Curves")[1].split("</details>")[0].split("<details>")[0]
    for caption in ("loss", "samples per second"):
        looks = {}
        for group in figure(page, caption).iter("g"):
            if group.get("data-group") is not None:
                name = (group.find("title").text or "").partition(":")[0]
                looks[name] = group.find("path").get("class")
        expected = {f"{k:04}": f"curve c{k}" if k < 8 else "curve other" for k in range(12)}
        assert looks == expected
