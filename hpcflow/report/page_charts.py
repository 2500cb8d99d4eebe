"""Charts of a page as SVG: curves that the page's script zooms and smooths, and bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.platform.quantity_text import format_seconds
from hpcflow.report.html_elements import Html, data_script, element

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 84, 12, 10, 34  # margins, in the units of the view box
MOST_POINTS = 600  # of a curve in the page; more are thinned out to minima and maxima
COLORS = 8  # colours of curves and bars in page.css
BAR_WIDTH, LONGEST_NAME = 260, 60  # pixels of the longest bar, characters of its name
NAME_PIXELS, SUM_PIXELS = 8, 7  # of a character of a name and of figures, at most about
MOST_SAID = 12  # curves in the description of a chart


class Series(NamedTuple):
    """A curve: its name, its points, whether they are marked, and intervals (x, low, high).

    Curves of the same `group`, such as those of a run in several charts, have the same colour; by
    default a curve is a group of its own. The first COLORS groups have a colour, the others are
    grey, until the reader chooses them in the legend.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    marked: bool = False
    dashed: bool = False
    whiskers: Sequence[tuple[float, float, float]] = ()
    group: int | None = None


def line_chart(title: str, series: Sequence[Series], x_label: str, y_label: str) -> Html:
    """A chart of curves; its script data let the reader zoom in and smooth."""
    found = [_finite(one._replace(group=one.group if one.group is not None else i))
             for i, one in enumerate(series)]  # fmt: skip
    drawn = [one for one in found if one.xs]
    if not drawn:
        return Html("")
    box = _bounds(drawn)
    thin = [_thinned(one) for one in reversed(drawn)]  # the first are drawn last, on top
    data = {
        "box": box,
        "series": [[[_short(v) for v in one.xs], [_short(v) for v in one.ys]] for one in thin],
    }
    picture = element(
        "svg",
        element("g", *_axes(box, x_label, y_label), class_="axes"),
        element("g", *(_curve(one, box) for one in thin), class_="plot"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}: {_said(drawn)}",
    )
    items = [
        element(
            "li", element("span", class_=f"swatch {_look(one)}"), one.name, data_group=one.group
        )
        for one in drawn
    ]  # fmt: skip
    legend = element("ul", *items, class_="legend")
    return element(
        "figure", element("figcaption", title), picture, legend, data_script(data), class_="chart"
    )


def color_class(group: int | None) -> str:
    """The colour of a group of curves: one of COLORS, or grey for those behind them."""
    return f"c{group}" if group is not None and group < COLORS else "other"


def _look(one: Series) -> str:
    """The classes of a curve and of its place in the legend."""
    return color_class(one.group) + (" dashed" if one.dashed else "")


def _curve(one: Series, box: Sequence[float]) -> Html:
    """A curve with its name, its marks and its intervals."""
    color = color_class(one.group)
    dots = [
        element("circle", cx=f"{_x(x, box):.1f}", cy=f"{_y(y, box):.1f}", r="3.5",
                class_=f"dot {color}")
        for x, y in zip(one.xs, one.ys, strict=True)
        if one.marked
    ]  # fmt: skip
    whiskers = element("path", d=_whisker(one.whiskers, box), class_=f"dot whisker {color}")
    return element(
        "g",
        element("title", one.name),
        element("path", d=_path(one, box), class_=f"curve {_look(one)}"),
        whiskers if one.whiskers else None,
        *dots,
        data_group=one.group,
    )


def _said(drawn: Sequence[Series]) -> str:
    """The ends of the first curves in words."""
    said = [f"{one.name} from {number(one.ys[0])} to {number(one.ys[-1])}" for one in drawn]
    more = [f"and {len(said) - MOST_SAID} more"] if len(said) > MOST_SAID else []
    return "; ".join([*said[:MOST_SAID], *more])


def bar_chart(
    title: str,
    rows: Sequence[tuple[str, Sequence[float]]],
    kinds: Sequence[str],
    words: Sequence[str] = (),
) -> Html:
    """Stacked bars in seconds: a row for each name, a part for each kind; "idle" is grey.

    The seconds of the parts are told after a bar by `words`, one for each kind; without them the
    sum.
    """
    most = max((sum(values) for _, values in rows), default=0.0)
    if not most:
        return Html("")
    ends = [_seconds_said(values, words) for _, values in rows]
    height, width = 22, BAR_WIDTH
    label = 16 + NAME_PIXELS * max(len(_cut(name, LONGEST_NAME)) for name, _ in rows)
    figures = 12 + SUM_PIXELS * max(map(len, ends))
    parts: list[Html] = []
    for line, (name, values) in enumerate(rows):
        y, x = line * height + 4, float(label)
        parts.append(
            element(
                "g",
                element("title", name),
                element("text", _cut(name, LONGEST_NAME), x=label - 8, y=y + 12, class_="bar-name"),
            )
        )
        for kind, value in enumerate(values):
            length = width * value / most
            shown = element("title", f"{name}: {kinds[kind]} {number(value)} s")
            parts.append(
                element("g", shown, element(
                    "rect", x=f"{x:.1f}", y=y, width=f"{max(length, 0):.1f}", height=height - 7,
                    class_=f"bar {kind_class(kinds, kind)}"))
            )  # fmt: skip
            x += length
        parts.append(element("text", ends[line], x=f"{x + 6:.1f}", y=y + 12, class_="bar-sum"))
    picture = element(
        "svg",
        *parts,
        class_="bars",
        viewBox=f"0 0 {label + width + figures} {len(rows) * height + 6}",
        style=f"max-width: {label + width + figures}px",
        role="img",
        aria_label=f"{title}: {_bars_said(rows, kinds)}",
    )
    return element("figure", element("figcaption", title), picture, legend_of(kinds))


def _bars_said(rows: Sequence[tuple[str, Sequence[float]]], kinds: Sequence[str]) -> str:
    return "; ".join(
        f"{name}: " + ", ".join(f"{k} {number(v)} s" for k, v in zip(kinds, values, strict=True))
        for name, values in rows
    )


def kind_class(kinds: Sequence[str], kind: int) -> str:
    """The colour of a kind of seconds: idle time is grey."""
    return "other" if kinds[kind] == "idle" else f"c{kind % COLORS}"


def _seconds_said(values: Sequence[float], words: Sequence[str]) -> str:
    """The times of a bar as `work 589 ms, input 18.3 s`; without words their sum."""
    if not words:
        return f"{format_seconds(sum(values))}"
    pairs = zip(words, values, strict=False)
    return ", ".join(f"{word} {format_seconds(value)}" for word, value in pairs if value > 0)


def _cut(name: str, most: int) -> str:
    """A name of at most `most` characters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def legend_of(names: Sequence[str]) -> Html:
    """The names beside the colours of the chart."""
    items = (
        element("li", element("span", class_=f"swatch {kind_class(names, i)}"), name)
        for i, name in enumerate(names)
    )
    return element("ul", *items, class_="legend")


def number(value: float) -> str:
    """A number in a few digits."""
    if not math.isfinite(value):
        return str(value)
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two others."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    step = 10 ** math.floor(math.log10(span / count))
    step *= next((m for m in (1, 2, 5) if span / (step * m) <= count), 10)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _finite(one: Series) -> Series:
    pairs = [
        (x, y)
        for x, y in zip(one.xs, one.ys, strict=True)
        if math.isfinite(x) and math.isfinite(y) and abs(y) < 1e100
    ]
    whiskers = [row for row in one.whiskers if all(math.isfinite(v) for v in row)]
    return one._replace(xs=[x for x, _ in pairs], ys=[y for _, y in pairs], whiskers=whiskers)


def _bounds(series: Sequence[Series]) -> list[float]:
    """[least x, largest x, least y, largest y], with a margin above and below."""
    xs = [x for one in series for x in (min(one.xs), max(one.xs))]
    ys = [y for one in series for y in (min(one.ys), max(one.ys))]
    ys += [y for one in series for _, *ends in one.whiskers for y in ends]
    low, high = min(ys), max(ys)
    pad = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    left, right = min(xs), max(xs)
    return [left, right if right > left else left + max(1.0, abs(left)), low - pad, high + pad]


def _thinned(one: Series) -> Series:
    """At most about MOST_POINTS points, with the extremes of each stretch."""
    if len(one.xs) <= MOST_POINTS:
        return one
    chosen: list[int] = [0]
    size = len(one.xs) * 2 / MOST_POINTS
    for k in range(MOST_POINTS // 2):
        stretch = range(int(k * size), min(int((k + 1) * size), len(one.xs)))
        if stretch:
            values = [one.ys[i] for i in stretch]
            chosen += sorted(
                {stretch[values.index(min(values))], stretch[values.index(max(values))]}
            )
    chosen = sorted({*chosen, len(one.xs) - 1})
    return one._replace(xs=[one.xs[i] for i in chosen], ys=[one.ys[i] for i in chosen])


def _short(value: float) -> float:
    """A number with the digits that a chart shows."""
    return float(f"{value:.6g}")


def _x(x: float, box: Sequence[float]) -> float:
    return LEFT + (x - box[0]) / (box[1] - box[0]) * (WIDTH - LEFT - RIGHT)


def _y(y: float, box: Sequence[float]) -> float:
    return HEIGHT - BOTTOM - (y - box[2]) / (box[3] - box[2]) * (HEIGHT - TOP - BOTTOM)


def _path(one: Series, box: Sequence[float]) -> str:
    points = [f"{_x(x, box):.1f} {_y(y, box):.1f}" for x, y in zip(one.xs, one.ys, strict=True)]
    return "M" + "L".join(points)


def _whisker(rows: Sequence[tuple[float, float, float]], box: Sequence[float]) -> str:
    """Vertical bars from low to high, with caps."""
    parts = []
    for x, low, high in rows:
        at, bottom, top = _x(x, box), _y(low, box), _y(high, box)
        parts.append(f"M{at:.1f} {bottom:.1f}V{top:.1f}")
        parts += [f"M{at - 5:.1f} {y:.1f}h10" for y in (bottom, top)]
    return "".join(parts)


def _axes(box: Sequence[float], x_label: str, y_label: str) -> list[Html]:
    parts = []
    for value in ticks(box[0], box[1]):
        x = f"{_x(value, box):.1f}"
        parts.append(element("text", number(value), x=x, y=HEIGHT - BOTTOM + 16, class_="x-tick"))
    for value in ticks(box[2], box[3]):
        y = _y(value, box)
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}"))
        parts.append(element("text", number(value), x=LEFT - 6, y=f"{y + 4:.1f}", class_="y-tick"))
    parts.append(element("text", x_label, x=(LEFT + WIDTH) // 2, y=HEIGHT - 3, class_="x-name"))
    middle = (HEIGHT - BOTTOM) // 2
    parts.append(
        element("text", y_label, x=12, y=middle, class_="y-name",
                transform=f"rotate(-90 12 {middle})")
    )  # fmt: skip
    return parts
