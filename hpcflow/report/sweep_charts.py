"""Charts of a sweep as SVG: the metric by one parameter, by two (heat map), by all (parallel
coordinates)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcflow.report.chart_axes import LOG, NAMES, Axis, axis_of, number_of
from hpcflow.report.html_elements import Html, element
from hpcflow.report.page_charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, number
from hpcflow.report.sweep_facts import Point, Sweep, levels

NAME, ROW, MOST_LETTERS = 176, 26, 16  # of a row: place of its line, height, letters of its name
LETTER = 8.0  # width of a letter at the size of the charts
LEVELS = 5  # colours of the metric in page.css, the best first
MISSING = 12  # width of the strip of runs without a value
SIDE, TALL = 90, 300  # of parallel coordinates: left and right margin, height
MOST_CELLS = 24  # of a heat map, on each side
LEAST_TEXT = 46  # width of a cell that shows its value
CELL = 34  # height of a cell


def scatter(sweep: Sweep, points: Sequence[Point], name: str, texts: Sequence[str]) -> Html:
    """The metric by a parameter with values `texts`: each configuration a mark.

    The first of `points` is the best. Names are rows, numbers a horizontal axis.
    """
    drawn = [p for p in points if p.metric is not None]
    axis = axis_of(texts, marked=True)
    metric = axis_of([p.metric for p in drawn if p.metric is not None])
    draw = _rows if axis.kind == NAMES else _columns
    parts, height = draw(sweep, points, name, axis, metric)
    said = f"{sweep.metric} by {name}"
    picture = element(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label=f"{said}: {len(drawn)} of {len(points)} configurations; "
        f"best: {told(sweep, points[0])}",
    )
    return element("figure", element("figcaption", said), picture, class_="sweep")


def _columns(
    sweep: Sweep, points: Sequence[Point], name: str, axis: Axis, metric: Axis
) -> tuple[list[Html], int]:
    """The parts and the height of a chart of numbers: the metric upwards."""
    height = HEIGHT + 6
    base = HEIGHT - BOTTOM
    bottom = base - MISSING
    texts = []
    for at, text in axis.marks(8):
        across = f"{LEFT + at * (WIDTH - LEFT - RIGHT):.1f}"
        texts.append(element("line", x1=across, x2=across, y1=TOP, y2=base))
        texts.append(element("text", text, x=across, y=base + 16, class_="x-tick"))
    for at, text in metric.marks(5):
        y = bottom - at * (bottom - TOP)
        texts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}"))
        texts.append(element("text", text, x=LEFT - 6, y=f"{y + 4:.1f}", class_="y-tick"))
    middle = bottom // 2
    texts += [
        element("text", _title(name, axis), x=(LEFT + WIDTH) // 2, y=height - 5, class_="x-name"),
        element("text", cut(_title(sweep.metric, metric), 28), x=16, y=middle, class_="y-name",
                transform=f"rotate(-90 16 {middle})"),
    ]  # fmt: skip
    marks = []
    for p in reversed(points):
        x = LEFT + axis.place(p.values[name]) * (WIDTH - LEFT - RIGHT)
        y = base - 7 if p.metric is None else bottom - metric.place(p.metric) * (bottom - TOP)
        marks.append(_mark(sweep, p, x, y, p is points[0]))
    return [element("g", *texts, class_="axes"), *marks], height


def _rows(
    sweep: Sweep, points: Sequence[Point], name: str, axis: Axis, metric: Axis
) -> tuple[list[Html], int]:
    """The parts and the height of a chart of names: a row for each, the metric to the right."""
    base = TOP + ROW * len(axis.names)
    right = WIDTH - RIGHT - 2 * MISSING
    texts = []
    for at, text in axis.marks(0):
        y = TOP + at * ROW * len(axis.names)
        texts.append(element("line", x1=NAME, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}"))
        texts.append(element("text", cut(text, MOST_LETTERS), x=NAME - 8, y=f"{y + 5:.1f}",
                             class_="y-tick"))  # fmt: skip
    for at, text in metric.marks(5):
        across = f"{NAME + at * (right - NAME):.1f}"
        texts.append(element("line", x1=across, x2=across, y1=TOP, y2=base))
        texts.append(element("text", text, x=across, y=base + 17, class_="x-tick"))
    texts.append(element("text", _title(sweep.metric, metric), x=(NAME + WIDTH) // 2,
                         y=base + 36, class_="x-name"))  # fmt: skip
    marks = []
    for p in reversed(points):
        x = (
            WIDTH - RIGHT - 7
            if p.metric is None
            else NAME + metric.place(p.metric) * (right - NAME)
        )
        y = TOP + axis.place(p.values[name]) * ROW * len(axis.names)
        marks.append(_mark(sweep, p, x, y, p is points[0]))
    return [element("g", *texts, class_="axes"), *marks], base + 42


def _title(name: str, axis: Axis) -> str:
    """The title of an axis."""
    return cut(name, 50) + (" (log axis)" if axis.kind == LOG else "")


def told(sweep: Sweep, point: Point) -> str:
    """A configuration in words."""
    value = f"{point.metric:.6g}" if point.metric is not None else "no value"
    chosen = ", ".join(f"{name}={text}" for name, text in point.values.items())
    early = f"; ended early, at {_budget(sweep, point)}" if point.is_early else ""
    return f"{sweep.metric} {value}: {chosen}{early}"


def _budget(sweep: Sweep, point: Point) -> str:
    return f"{sweep.budget}={point.run.values.get(sweep.budget, '-')}"


def _mark(sweep: Sweep, point: Point, x: float, y: float, is_best: bool) -> Html:
    """A circle, hollow if the configuration ended early; the best, and none, have other shapes."""
    title = element("title", told(sweep, point))
    if point.metric is None:
        shape = element("path", class_="cross", d=f"M{x - 4:.1f} {y - 4:.1f}l8 8m-8 0l8-8")
    elif is_best:
        shape = element("path", class_="point best", d=f"M{x:.1f} {y - 9:.1f}l9 9l-9 9l-9-9z")
    else:
        shape = element("circle", class_="point early" if point.is_early else "point",
                        cx=f"{x:.1f}", cy=f"{y:.1f}", r="5")  # fmt: skip
    return element("g", title, shape)


def cut(text: str, most: int) -> str:
    """A text of at most `most` characters; its middle is left out."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[most // 2 + 1 - most :]}"


def _level(groups: Sequence[tuple[int, float, float]], value: float) -> str:
    """The class of the colour of a value."""
    return next(f"q{n}" for n, low, high in groups if low <= value <= high)


def level_legend(groups: Sequence[tuple[int, float, float]], more: Sequence[str]) -> Html:
    """The colours of the metric, and other words."""
    items = []
    for k, (level, low, high) in enumerate(groups):
        words = number(low) if low == high else f"{number(low)} to {number(high)}"
        words += " (best)" if k == 0 else ""
        items.append(element("li", element("span", class_=f"swatch q{level}"), words))
    return element("ul", *items, *(element("li", text) for text in more), class_="legend")


def is_grid(points: Sequence[Point], names: Sequence[str]) -> bool:
    """Whether two parameters have each combination of their values once."""
    if len(names) != 2:
        return False
    cells = {tuple(p.values.values()) for p in points}
    sides = [len({p.values[name] for p in points}) for name in names]
    return len(points) == len(cells) == sides[0] * sides[1] and 1 < max(sides) <= MOST_CELLS


def heat_map(sweep: Sweep, points: Sequence[Point], texts: Mapping[str, Sequence[str]]) -> Html:
    """The metric by two parameters with values `texts`: a cell for each combination of them."""
    groups, names = levels(points, sweep.mode, LEVELS), list(texts)
    across, up = (_ordered(texts[name]) for name in names)
    wide = (WIDTH - LEFT - RIGHT) / len(across.names)
    height = TOP + CELL * len(up.names) + 44
    cells = []
    for p in points:
        x = LEFT + across.place(p.values[names[0]]) * (WIDTH - LEFT - RIGHT) - wide / 2
        y = TOP + (1 - up.place(p.values[names[1]])) * CELL * len(up.names) - CELL / 2
        kind = "none" if p.metric is None else _level(groups, p.metric)
        kind += (" best" if p is points[0] else "") + (" early" if p.is_early else "")
        text = number(p.metric) if p.metric is not None else "none"
        text += " (best)" if p is points[0] and wide > 2 * LEAST_TEXT else ""
        cells.append(
            element("g", element("title", told(sweep, p)),
                    element("rect", x=f"{x + 1:.1f}", y=f"{y + 1:.1f}", width=f"{wide - 2:.1f}",
                            height=CELL - 2, class_=f"cell {kind}"),
                    element("text", text, x=f"{x + wide / 2:.1f}", y=f"{y + CELL / 2 + 5:.1f}",
                            class_=f"in-cell {kind}") if wide >= LEAST_TEXT else None)
        )  # fmt: skip
    labels, most = [], max(3, int(wide / LETTER))
    for at, text in across.marks(0):
        labels.append(element("text", cut(text, most), y=height - 26, class_="x-tick",
                              x=f"{LEFT + at * (WIDTH - LEFT - RIGHT):.1f}"))  # fmt: skip
    for at, text in up.marks(0):
        y = TOP + (1 - at) * CELL * len(up.names) + 5
        labels.append(element("text", cut(text, 8), x=LEFT - 6, y=f"{y:.1f}", class_="y-tick"))
    middle = (height - 44) // 2
    labels.append(element("text", cut(names[0], 60), x=(LEFT + WIDTH) // 2, y=height - 6,
                          class_="x-name"))  # fmt: skip
    labels.append(element("text", cut(names[1], 20), x=16, y=middle, class_="y-name",
                          transform=f"rotate(-90 16 {middle})"))  # fmt: skip
    caption = f"{sweep.metric} by {names[0]} and {names[1]}"
    said = f"{caption}; best: {told(sweep, points[0])}"
    picture = element("svg", *labels, *cells, viewBox=f"0 0 {WIDTH} {height}", role="img",
                      aria_label=said)  # fmt: skip
    legend = level_legend(groups, ["thick frame: the best"])
    return element("figure", element("figcaption", caption), picture, legend, class_="sweep map")


def _ordered(values: Sequence[str]) -> Axis:
    """An axis of the names of values; numbers in their order."""
    if all(number_of(value) is not None for value in values):
        values = sorted(values, key=float)
    return Axis(NAMES, names=tuple(values))


def parallel(sweep: Sweep, points: Sequence[Point], texts: Mapping[str, Sequence[str]]) -> Html:
    """All parameters and the metric as vertical axes; a line for each configuration."""
    drawn = [p for p in points if p.metric is not None]
    groups, names = levels(drawn, sweep.mode, LEVELS), list(texts)
    axes = [axis_of(texts[name], marked=True) for name in names]
    axes.append(axis_of([p.metric for p in drawn if p.metric is not None]))
    titles = [*names, sweep.metric]
    wide = 2 * WIDTH
    xs = [SIDE + k * (wide - 2 * SIDE) / len(names) for k in range(len(titles))]
    top, bottom = 40, TALL - 12
    lines = []
    for p in reversed(drawn):
        values: list[str | float] = [*p.values.values(), p.metric or 0.0]
        places = [bottom - axis.place(v) * (bottom - top)
                  for axis, v in zip(axes, values, strict=True)]  # fmt: skip
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, places, strict=True))
        kind = _level(groups, p.metric or 0.0) + (" best" if p is points[0] else "")
        kind += " early" if p.is_early else ""
        lines.append(element("g", element("title", told(sweep, p)),
                             element("path", d=path, class_=f"run {kind}")))  # fmt: skip
    most = min(16, max(6, int((wide - 2 * SIDE) / len(names) / LETTER) - 2))
    labels: list[Html] = []
    for x, axis, title in zip(xs, axes, titles, strict=True):
        labels.append(element("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=top, y2=bottom))
        words = f"{title} ({LOG})" if axis.kind == LOG else title
        labels.append(element("text", cut(words, most), x=f"{x:.1f}", y=top - 16, class_="x-tick"))
        for at, text in axis.marks(8):
            y = bottom - at * (bottom - top) + 5
            labels.append(element("text", cut(text, most), x=f"{x - 7:.1f}", y=f"{y:.1f}",
                                  class_="y-tick halo"))  # fmt: skip
    caption = f"{sweep.metric} by all {len(names)} parameters"
    said = f"{caption}: {len(drawn)} configurations; best: {told(sweep, points[0])}"
    picture = element("svg", *lines, element("g", *labels, class_="axes"), role="img",
                      viewBox=f"0 0 {wide} {TALL}", aria_label=said)  # fmt: skip
    more = ["thick: the best"] + ["dashed: ended early"] * any(p.is_early for p in drawn)
    legend = level_legend(groups, more)
    return element("figure", element("figcaption", caption), picture, legend, class_="sweep lines")
