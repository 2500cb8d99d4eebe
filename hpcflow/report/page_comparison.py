"""Comparison of runs as sections of a page: tables, overlaid curves, scaling."""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.platform.quantity_text import format_seconds
from hpcflow.report.html_elements import Html, element, joined, table
from hpcflow.report.page_charts import COLORS, Series, line_chart
from hpcflow.report.run_baseline import NO_BASELINE, Baseline
from hpcflow.report.run_comparison import all_names, differing
from hpcflow.report.run_summary import RunSummary, ScalingCurve
from hpcflow.report.run_tables import first_step_text
from hpcflow.report.run_view import RunView
from hpcflow.report.scaling_points import ScalingPoint, interval_text


def comparison_sections(
    views: Sequence[RunView], baseline: Baseline = NO_BASELINE
) -> list[Html | None]:
    """Tables of the runs, of what differs and of their results, and overlaid curves."""
    rows = [
        [
            view.name,
            view.run.state,
            view.run.mode,
            view.run.workers or "-",
            view.run.servers or "-",
            view.run.batch or "-",
            f"{view.run.steps:,}",
            format_seconds(view.run.seconds),
            f"{view.run.rate:,.0f}" if view.run.rate else "-",
            view.limited_by,
        ]
        for view in views
    ]
    head = ["run", "state", "mode", "workers", "servers", "batch", "steps", "time", "samples/s",
            "limited by"]  # fmt: skip
    parts: list[Html | None] = [element("h2", "Runs"), table(head, rows, texts={1, 2, 9})]
    shown = [view for view in views if not view.redacted]
    options = [view.run.options for view in shown]
    names = differing(options) if options else []
    if names:
        cells = [[v.name, *(v.run.options.get(n, "-") for n in names)] for v in shown]
        parts += [element("h2", "What differs"), table(["run", *names], cells)]
    results = all_names([view.results for view in views])
    if results:
        cells = [[v.name, *(v.results.get(n, "-") for n in results)] for v in views]
        parts += [element("h2", "Results"), table(["run", *results], cells)]
    parts.append(curves_section(views, baseline))
    return parts


NO_CURVES = (
    "No values were recorded. hf.train.Progress and Model.fit record the loss, other values and "
    "samples per second by step."
)
MANY_CURVES = (
    f"The first {COLORS} have colours. Point at a name to see its curves; a click on a name gives "
    "them a colour, or takes it away."
)


def curves_section(views: Sequence[RunView], baseline: Baseline = NO_BASELINE) -> Html | None:
    """A chart for each metric and its validation, and one of the rate.

    A run has the same colour in all of them; its validation and the baseline are dashed.
    """
    names = all_names([dict.fromkeys(view.run.values, "") for view in views])
    names = [name for name in names if not name.startswith("val_") or name[4:] not in names]
    charts = [line_chart(n, _series(views, n, baseline), "steps", n) for n in names]
    column = "samples_per_second"
    first = _first_group(baseline)
    rates = [
        Series(view.name, *view.run.curve("step", column), group=k)
        for k, view in enumerate(views, first)
    ]
    rates += [
        Series(name, *run.curve("step", column), dashed=True, group=k)
        for k, (name, run) in enumerate(_named(baseline, views), 1)
    ]
    charts.append(line_chart("samples per second", rates, "steps", "samples/s"))
    charts = [chart for chart in charts if chart]
    if not charts and any(view.run.steps for view in views):
        return joined([element("h2", "Curves"), element("p", NO_CURVES, class_="remedy")])
    if not charts:
        return None
    slider = element(
        "label",
        "smoothing ",
        element("input", type="range", class_="smooth", min="0", max="99", value="0"),
    )
    parts: list[Html | None] = [element("h2", "Curves"), slider]
    if len(views) + first > COLORS:
        parts.append(element("p", MANY_CURVES, class_="remedy"))
    return joined([*parts, element("div", *charts, class_="grid")])


def _first_group(baseline: Baseline) -> int:
    """The group of the first run: the value of the baseline and its runs come before."""
    return 1 + len(baseline.runs) if baseline.values or baseline.runs else 0


def _named(baseline: Baseline, views: Sequence[RunView]) -> list[tuple[str, RunSummary]]:
    """The runs of the baseline with their names, numbers in a redacted page."""
    redacted = any(view.redacted for view in views)
    return [
        (f"baseline {k if redacted else run.name}", run) for k, run in enumerate(baseline.runs, 1)
    ]


def _series(views: Sequence[RunView], name: str, baseline: Baseline) -> list[Series]:
    """The curves of a metric and of its validation, then those of the baseline."""
    columns = (name, f"val_{name}")
    found = []
    first, single = _first_group(baseline), len(views) == 1
    for k, view in enumerate(views, first):
        for i, column in enumerate(columns):
            xs, ys = view.run.curve("step", column)
            label = column if single else f"{view.name}: {column}"
            group = k + i if single else k
            found.append(Series(label, xs, ys, len(xs) < 30, column != name, group=group))
    steps = [step for one in found for step in (*one.xs[:1], *one.xs[-1:])]
    for k, (label, run) in enumerate(_named(baseline, views), 1):
        for column in columns:
            curve = run.curve("step", column)
            found.append(Series(f"{label}: {column}", *curve, dashed=True, group=k))
    for column in columns:
        if column in baseline.values and steps:
            level = baseline.values[column]
            ends = [min(steps), max(steps)]
            found.append(
                Series(f"baseline: {column} {level:g}", ends, [level] * 2, dashed=True, group=0)
            )
    return [one for one in found if one.xs]


def scaling_section(curves: Sequence[ScalingCurve]) -> Html | None:
    """Strong and weak scaling beside the ideal, and the efficiency with its interval."""
    if not curves:
        return None
    parts: list[Html | None] = [element("h2", "Scaling")]
    for curve in curves:
        title = f"{curve.kind} scaling: {curve.description}"
        rows = [
            [p.workers, f"{p.rate:,.0f}", f"{p.speedup:.2f}", _efficiency(p.efficiency),
             interval_text(p), p.runs, first_step_text(p.seconds_to_first_step)]
            for p in curve.points
        ]  # fmt: skip
        head = ["workers", "samples/s", "speedup", "efficiency", "interval", "runs", "first step"]
        charts = element("div", *_scaling_charts(curve.points), class_="grid")
        parts += [element("h3", title), charts, table(head, rows, "samples/s and efficiency")]
    said = "intervals: what the slowest and the fastest run of both numbers of workers allow"
    return joined([*parts, element("p", said, class_="remedy")])


def _scaling_charts(points: Sequence[ScalingPoint]) -> list[Html]:
    """The speedup beside the ideal line; the efficiency with whiskers."""
    workers = [float(point.workers) for point in points]
    ideal = Series("ideal", workers, [w / workers[0] for w in workers], dashed=True)
    speedup = Series("measured", workers, [p.speedup for p in points], marked=True)
    whiskers = [
        (p.workers, 100 * p.efficiency_low, 100 * p.efficiency_high)
        for p in points
        if p.efficiency_low < p.efficiency_high
    ]
    share = Series("measured", workers, [100 * p.efficiency for p in points], True, False, whiskers)
    whole = Series("ideal", workers, [100.0] * len(workers), dashed=True)
    return [
        line_chart("speedup", [speedup, ideal], "workers", "speedup"),
        line_chart("efficiency", [share, whole], "workers", "% of ideal"),
    ]


def _efficiency(value: float) -> str:
    """An efficiency; above 1 with a word that it needs a cause."""
    return f"{value:.0%}" + (" (above 1: caches, or a slow first point)" if value > 1.02 else "")
