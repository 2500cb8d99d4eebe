"""Sweep as sections of a page: the metric by each parameter and by all, and a table behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcflow.report.chart_axes import NAMES, axis_of
from hpcflow.report.html_elements import Html, element, joined, table
from hpcflow.report.sweep_charts import heat_map, is_grid, parallel, scatter, told
from hpcflow.report.sweep_facts import (
    Point,
    Sweep,
    best_first,
    missing_words,
    points_of,
    shown,
    varied,
)

MOST_DRAWN = 1000  # configurations in the charts, and rows of the table
MOST_NAMES = 40  # of a parameter; one with more has no chart
MOST_PARAMETERS = 12  # with a chart each, and in the parallel coordinates


def sweep_section(sweep: Sweep, names: Mapping[str, str], redacted: bool) -> Html:
    """The charts of a sweep; `names` are those of the runs on the page, by their folders."""
    parameters = varied(sweep, redacted)
    points = points_of(sweep, parameters)
    title = f"{sweep.metric} by parameter"
    parts: list[Html | None] = [element("h2", title), _words(sweep, points, names, redacted)]
    texts = {name: list(parameters[name].values()) for name in _drawable(parameters)}
    if any(p.metric is not None for p in points) and texts:
        left_out = [name for name in parameters if name not in texts]
        if left_out:
            words = f"without a chart, but in the table: {', '.join(left_out)}"
            parts.append(element("p", words, class_="remedy"))
        drawn = [
            p._replace(values={name: p.values[name] for name in texts}) for p in points[:MOST_DRAWN]
        ]
        charts = [scatter(sweep, drawn, name, values) for name, values in texts.items()]
        parts += [_key(drawn), element("div", *charts, class_="grid")]
        if is_grid(drawn, list(texts)):
            parts.append(heat_map(sweep, drawn, texts))
        elif len(texts) > 1:
            parts.append(parallel(sweep, drawn, texts))
    parts.append(_table(sweep, parameters, names))
    return joined(parts)


def _drawable(parameters: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The parameters that have a chart: numbers, or at most MOST_NAMES names."""
    names = [
        name
        for name, texts in parameters.items()
        if len(texts) <= MOST_NAMES or axis_of(list(texts.values())).kind != NAMES
    ]
    return names[:MOST_PARAMETERS]


def _words(sweep: Sweep, points: Sequence[Point], names: Mapping[str, str], redacted: bool) -> Html:
    """The best, what ended early, what is not drawn and why, and what is left out."""
    lines = []
    if points and points[0].metric is not None:
        run = points[0].run
        lines.append(f"best ({sweep.mode}): {names.get(run.folder, run.name)}, "
                     f"{told(sweep, points[0])}")  # fmt: skip
    early = [p for p in points if p.is_early]
    if early:
        budgets = list(dict.fromkeys(str(p.run.values.get(sweep.budget, "-")) for p in early))
        lines.append(f"{len(early)} of {len(points)} configurations ended early, at "
                     f"{sweep.budget}={', '.join(reversed(budgets))}; their values are of "
                     "smaller budgets")  # fmt: skip
    lines += missing_words(sweep, names, redacted)
    if len(points) > MOST_DRAWN:
        lines.append(f"drawn are the best {MOST_DRAWN:,} of {len(points):,} configurations")
    return element("ul", *(element("li", line) for line in lines), class_="limits")


def _key(points: Sequence[Point]) -> Html:
    """What the marks of the charts are."""
    kinds = {"point best": "the best", "point": "a configuration"}
    if any(p.is_early for p in points):
        kinds["point early"] = "ended early"
    if any(p.metric is None for p in points):
        kinds["cross"] = "without a value"
    shapes = {"point best": "M8 1l7 7l-7 7l-7-7z", "cross": "M4 4l8 8m-8 0l8-8"}
    items = [
        element(
            "li",
            element("svg",
                    element("path", d=shapes[kind], class_=kind) if kind in shapes
                    else element("circle", cx="8", cy="8", r="5", class_=kind),
                    viewBox="0 0 16 16", class_="key", aria_hidden="true"),
            text,
        )
        for kind, text in kinds.items()
    ]  # fmt: skip
    return element("ul", *items, class_="legend")


def _table(
    sweep: Sweep, parameters: Mapping[str, Mapping[str, str]], names: Mapping[str, str]
) -> Html:
    """The runs of all rungs, later rungs first and in each the best first."""
    runs = best_first(sweep)
    head = ["run", "state", *parameters, *([sweep.budget] if sweep.budget else []), sweep.metric]
    rows = [
        [
            names.get(run.folder, run.name),
            run.state.replace("_", " "),
            *(texts[shown(run.values.get(n, "-"))] for n, texts in parameters.items()),
            *([shown(run.values.get(sweep.budget, "-"))] if sweep.budget else []),
            "-" if run.metric is None else f"{run.metric:.6g}",
        ]
        for run in runs[:MOST_DRAWN]
    ]
    left_out = len(runs) - len(rows)
    caption = "runs of the sweep" + (f" ({left_out:,} are left out)" if left_out else "")
    shown_table = table(head, rows, caption, texts={1})
    return element("details", element("summary", "Table of the runs"), shown_table)
