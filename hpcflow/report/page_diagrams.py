"""Diagrams of a page as SVG: the timeline of a run and the roofline of its operations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcflow.report.html_elements import Html, element
from hpcflow.report.page_charts import WIDTH, legend_of, number, ticks

LANE, LABEL = 24, 96  # height of a lane of the timeline, width of its labels
LANES = {  # kinds of events -> the lane and its colour
    "resume": ("resumes", 0), "save": ("saves", 2), "save failed": ("failed saves", 1),
    "warning": ("warnings", 5), "stall": ("stalls", 3), "failure": ("failure", 1),
}  # fmt: skip
UNITS = ((172800, 86400, "days"), (7200, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))
ROOF_HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 320, 64, 16, 14, 40
CLOSE = 16.0  # dots of the roofline, in units of the view box


class Mark(NamedTuple):
    """A point of a roofline: its number in the table, FLOP per byte, GFLOP/s."""

    number: int
    name: str
    intensity: float
    gflops: float


def timeline(
    spans: Sequence[tuple[float, float]], marks: Mapping[str, Sequence[tuple[float, str]]]
) -> Html:
    """Bars of the times when a run ran, and a lane of marks (time, text) for each kind of event."""
    times = [t for span in spans for t in span] + [t for lane in marks.values() for t, _ in lane]
    if not times:
        return Html("")
    low, high = min(times), max(max(times), min(times) + 1e-3)
    lanes = [kind for kind in LANES if marks.get(kind)]
    bottom = (1 + len(lanes)) * LANE + 4

    def place(time: float) -> float:
        return LABEL + (time - low) / (high - low) * (WIDTH - LABEL - 12)

    parts: list[Html] = []
    unit, unit_name = next((unit, name) for least, unit, name in UNITS if high - low >= least)
    for value in ticks(0.0, (high - low) / unit):
        at = f"{place(low + value * unit):.1f}"
        parts.append(element("line", x1=at, x2=at, y1=4, y2=bottom, class_="tick-line"))
        parts.append(element("text", number(value), x=at, y=bottom + 16, class_="x-tick"))
    parts.append(_lane_name("running", 0))
    for start, end in spans:
        wide = max(place(end) - place(start), 2.0)
        parts.append(
            element("rect", x=f"{place(start):.1f}", y=8, width=f"{wide:.1f}", height=12,
                    class_="bar c0")
        )  # fmt: skip
    for line, kind in enumerate(lanes, 1):
        name, color = LANES[kind]
        parts.append(_lane_name(name, line))
        drawn: dict[int, list[str]] = {}
        for time, text in marks[kind]:
            drawn.setdefault(round(place(time)), []).append(text)
        for x, texts in drawn.items():
            said = texts[0] + (f" and {len(texts) - 1} more" if len(texts) > 1 else "")
            mark = element("rect", x=x - 2, y=line * LANE + 7, width=4, height=14,
                           class_=f"bar c{color}")  # fmt: skip
            parts.append(element("g", element("title", said), mark))
    said = "; ".join(f"{LANES[kind][0]}: {len(marks[kind])}" for kind in lanes) or "no events"
    picture = element("svg", *parts, viewBox=f"0 0 {WIDTH} {bottom + 24}", role="img",
                      class_="bars", aria_label=f"timeline of the run; {said}")  # fmt: skip
    return element("figure", element("figcaption", f"{unit_name} since the first start"), picture)


def _lane_name(name: str, line: int) -> Html:
    return element("text", name, x=LABEL - 8, y=line * LANE + 18, class_="bar-name")


def roofline(
    marks: Sequence[Mark], roofs: Mapping[str, float], slopes: Mapping[str, float]
) -> Html:
    """Operations by FLOP per byte and GFLOP/s, on logarithmic axes, below the peaks.

    `roofs` are peaks in GFLOP/s by name, `slopes` in GB/s by name.
    """
    marks = [m for m in marks if 0 < m.intensity < math.inf and 0 < m.gflops < math.inf]
    roofs, slopes = ({n: v for n, v in peaks.items() if 0 < v < 1e12} for peaks in (roofs, slopes))
    if not marks or not roofs or not slopes:
        return Html("")
    knees = [roof / slope for roof in roofs.values() for slope in slopes.values()]
    xs = _decades([m.intensity for m in marks] + knees + [max(knees) * 4])
    ys = _decades([m.gflops for m in marks] + list(roofs.values()))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - xs[0]) / (xs[1] - xs[0]) * (WIDTH - LEFT - RIGHT)
        up = (math.log10(y) - ys[0]) / (ys[1] - ys[0]) * (ROOF_HEIGHT - TOP - BOTTOM)
        return LEFT + across, ROOF_HEIGHT - BOTTOM - up

    parts = _log_axes(xs, ys, place)
    names, top_roof = [], max(roofs.values())
    for color, (name, roof) in enumerate(roofs.items(), 1):
        names.append(f"{name}: {number(roof)} GFLOP/s")
        ends = place(roof / max(slopes.values()), roof), place(10 ** xs[1], roof)
        parts.append(_segment(*ends, f"curve c{color}"))
    for color, (name, slope) in enumerate(slopes.items(), 1 + len(roofs)):
        names.append(f"{name}: {number(slope)} GB/s")
        low = max(10 ** xs[0], 10 ** ys[0] / slope)  # where the line enters the picture
        parts.append(_segment(place(low, low * slope), place(top_roof / slope, top_roof),
                              f"curve c{color}"))  # fmt: skip
    parts += _points(marks, [place(mark.intensity, mark.gflops) for mark in marks])
    said = "; ".join(f"{m.number} {m.name}: {number(m.gflops)} GFLOP/s" for m in marks)
    picture = element("svg", *parts, viewBox=f"0 0 {WIDTH} {ROOF_HEIGHT}", role="img",
                      class_="bars", aria_label=f"roofline: {said}")  # fmt: skip
    caption = (
        "roofline: numbers as in the table; lines: measured peaks (a dot above: data in caches)"
    )
    return element(
        "figure", element("figcaption", caption), picture, legend_of(["operations", *names])
    )


def _points(marks: Sequence[Mark], places: Sequence[tuple[float, float]]) -> list[Html]:
    """The operations as dots; dots that are close together share a label."""
    parts, labels = [], list[tuple[float, float, list[str]]]()
    for mark, (x, y) in zip(marks, places, strict=True):
        title = f"{mark.name}: {number(mark.gflops)} GFLOP/s, {number(mark.intensity)} FLOP/byte"
        dot = element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=4, class_="bar c0")
        parts.append(element("g", element("title", title), dot))
        near = next((names for a, b, names in labels if math.dist((a, b), (x, y)) < CLOSE), None)
        if near is None:
            labels.append((x, y, [str(mark.number)]))
        else:
            near.append(str(mark.number))
    parts += [
        element("text", ", ".join(names), x=f"{x + 8:.1f}", y=f"{y + 4:.1f}")
        for x, y, names in labels
    ]
    return parts


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Exponents of ten around some positive numbers."""
    logs = [math.log10(value) for value in values]
    return math.floor(min(logs) - 1e-9), math.ceil(max(logs) + 1e-9)


def _log_axes(xs: tuple[int, int], ys: tuple[int, int], place: Any) -> list[Html]:
    parts = []
    bottom, right = ROOF_HEIGHT - BOTTOM, WIDTH - RIGHT
    for power in range(xs[0], xs[1] + 1):
        x = f"{place(10.0**power, 10.0 ** ys[0])[0]:.1f}"
        parts.append(element("line", x1=x, x2=x, y1=TOP, y2=bottom, class_="tick-line"))
        parts.append(element("text", number(10.0**power), x=x, y=bottom + 16, class_="x-tick"))
    for power in range(ys[0], ys[1] + 1):
        y = place(10.0 ** xs[0], 10.0**power)[1]
        line = {"x1": LEFT, "x2": right, "y1": f"{y:.1f}", "y2": f"{y:.1f}"}
        parts.append(element("line", class_="tick-line", **line))
        label = number(10.0**power)
        parts.append(element("text", label, x=LEFT - 6, y=f"{y + 4:.1f}", class_="y-tick"))
    middle = bottom // 2
    parts.append(element("text", "FLOP/byte", x=(LEFT + right) // 2, y=ROOF_HEIGHT - 4,
                         class_="x-name"))  # fmt: skip
    parts.append(element("text", "GFLOP/s", x=12, y=middle, class_="y-name",
                         transform=f"rotate(-90 12 {middle})"))  # fmt: skip
    return parts


def _segment(start: tuple[float, float], end: tuple[float, float], class_: str) -> Html:
    path = f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"
    return element("path", d=path, class_=class_)
