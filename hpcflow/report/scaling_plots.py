"""Plots of runs: metrics, throughput and waits of each, and the scaling curves, by matplotlib."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcflow.errors import MissingPackageError
from hpcflow.platform.install_hints import install_hint
from hpcflow.report.run_summary import RunSummary, ScalingCurve

# The colour-blind safe palette of Okabe and Ito.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
MARKS = "osD^vP"
GREY = "#666666"
MOST_NAMED = 12  # runs in a legend
LONGEST = 60  # characters of a name
MOST, NAN = 1e100, float("nan")  # larger values are left out like infinity: squares overflow
SMOOTHED = 200  # from this number of points on a curve is smoothed, over its pale raw points
UNITS = ((7200, 3600, "h"), (120, 60, "min"), (0, 1, "s"))  # minimum and length in s, name
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "text.parse_math": False,  # names of runs and metrics are not formulas
}


def draw(runs: Sequence[RunSummary], curves: Sequence[ScalingCurve], path: Path) -> None:
    """Write a PNG with a panel for each kind of data that the runs have.

    Errors: MissingPackageError that names the extra if matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "the picture needs the package matplotlib", hint=install_hint("plot")
        ) from error
    names = list(dict.fromkeys(name for run in runs for name in run.values))
    panels: list[Any] = [("value", name) for name in names[:4]]
    if any(run.rows for run in runs):
        panels.append(("rate", ""))
    if any(run.input_wait is not None for run in runs):
        panels.append(("waits", ""))
    if curves:
        panels += [("scaling", ""), ("efficiency", "")]
    wide = min(2, max(1, len(panels)))
    high = -(-len(panels) // wide) or 1
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # matplotlib draws a missing glyph as a box
        figure = Figure(figsize=(5.2 * wide, 3.5 * high), dpi=150, layout="constrained")
        grid = list(figure.subplots(high, wide, squeeze=False).flat)
        for axes, (kind, name) in zip(grid, panels, strict=False):
            if kind == "value":
                _values(axes, runs, name)
            elif kind == "rate":
                _rates(axes, runs)
            elif kind == "waits":
                _waits(axes, [run for run in runs if run.input_wait is not None])
            else:
                _scaling(axes, curves, kind)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            figure.savefig(draft, format="png")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def _values(axes: Any, runs: Sequence[RunSummary], name: str) -> None:
    for run, color in _coloured(runs):
        x, y = run.curve("step", name)
        _line(axes, x, y, color, _label(run.name))
    axes.set(title=_label(name), xlabel="step", ylabel=_label(name))
    values = [y for run in runs for y in run.curve("step", name)[1] if abs(y) < MOST]
    if "loss" in name and values and min(values) > 0 and max(values) / min(values) > 30:
        axes.set_yscale("log")
    _legend(axes, runs)


def _rates(axes: Any, runs: Sequence[RunSummary]) -> None:
    curves = [run.curve("seconds", "samples_per_second") for run in runs]
    longest = max((x[-1] for x, _ in curves if x), default=0.0)
    unit, name = _unit(longest)
    for (run, color), (x, y) in zip(_coloured(runs), curves, strict=True):
        _line(axes, [seconds / unit for seconds in x], y, color, _label(run.name))
    axes.set(title="throughput", xlabel=f"time ({name})", ylabel="samples/s")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_engineering())
    _legend(axes, runs)


def _unit(longest: float) -> tuple[float, str]:
    """Length in seconds and name of the unit for times up to `longest` seconds."""
    return next((length, name) for least, length, name in UNITS if longest >= least)


def _waits(axes: Any, runs: Sequence[RunSummary]) -> None:
    """A bar for each run: work, input wait and rank wait, as means of its workers."""
    runs = runs[:MOST_NAMED]
    unit, name = _unit(max(run.seconds for run in runs))
    rows, busy = range(len(runs)), [run.busy / unit for run in runs]
    waits = [(run.input_wait or 0.0) / unit for run in runs]
    axes.barh(rows, busy, 0.6, color=COLORS[0], label="at work")
    axes.barh(rows, waits, 0.6, left=busy, color=COLORS[1], label="waiting for input")
    if any(run.waited is not None for run in runs):
        starts = [a + b for a, b in zip(busy, waits, strict=True)]
        rank_waits = [(run.waited or 0.0) / unit for run in runs]
        axes.barh(rows, rank_waits, 0.6, left=starts, color=COLORS[2], label="waiting for ranks")
    axes.set_yticks(rows, [_label(run.name) for run in runs])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(title="a worker's time", xlabel=f"time ({name})")
    axes.margins(y=0.05)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=3)


def _scaling(axes: Any, curves: Sequence[ScalingCurve], kind: str) -> None:
    from matplotlib.ticker import LogLocator

    ticks = sorted({point.workers for curve in curves for point in curve.points})
    for i, curve in enumerate(curves):
        x = [point.workers for point in curve.points]
        label = _label(f"{curve.kind}: {curve.description}")
        look = {"color": COLORS[i % len(COLORS)], "marker": MARKS[i % len(MARKS)], "label": label}
        first = curve.points[0]
        if kind == "scaling":
            ideal = [first.rate * n / first.workers for n in x]
            axes.plot(x, ideal, color=look["color"], linestyle=":", linewidth=1, alpha=0.6)
            axes.plot(x, [point.rate for point in curve.points], **look)
        else:
            y = [100 * point.efficiency for point in curve.points]
            ends = [
                [max(0.0, 100 * (p.efficiency - p.efficiency_low)) for p in curve.points],
                [max(0.0, 100 * (p.efficiency_high - p.efficiency)) for p in curve.points],
            ]
            axes.errorbar(x, y, ends, capsize=3, elinewidth=1, **look)
            last = (x[-1], y[-1])
            axes.annotate(f"{y[-1]:.0f} %", last, (6, 0), textcoords="offset points", va="center",
                          fontsize=8, color=look["color"], annotation_clip=False)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    if kind == "scaling":
        axes.plot([], [], color=GREY, linestyle=":", linewidth=1, label="ideal")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(_engineering())
        axes.minorticks_off()
        axes.set(title="scaling", xlabel="workers", ylabel="samples/s")
        axes.legend(loc="best")
    else:
        axes.axhline(100, color=GREY, linestyle=":", linewidth=1)
        axes.set(title="efficiency", xlabel="workers", ylabel="efficiency (% of ideal)")
        axes.set_ylim(0, max(110, axes.get_ylim()[1]))


def _line(axes: Any, x: list[float], y: list[float], color: str, label: str) -> None:
    y = [value if abs(value) < MOST else NAN for value in y]
    if len(x) >= SMOOTHED:
        axes.plot(x, y, color=color, linewidth=0.6, alpha=0.25)
        y = smooth(y, len(y) // 100)
    mark = "." if len(x) < 3 else ""
    axes.plot(x, y, color=color, marker=mark, label=label)


def smooth(values: Sequence[float], over: int) -> list[float]:
    """An exponential moving average with a length of `over` values, unbiased at the start."""
    keep, total, weight, averages = 1 - 1 / max(over, 1), 0.0, 0.0, []
    for value in values:
        total, weight = keep * total + value, keep * weight + 1
        averages.append(total / weight)
    return averages


def _label(name: str) -> str:
    """A name shortened for a plot; matplotlib hides labels that begin with an underscore."""
    short = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    return f" {short}" if short.startswith("_") else short


def _coloured(runs: Sequence[RunSummary]) -> list[tuple[RunSummary, str]]:
    return [(run, COLORS[i % len(COLORS)]) for i, run in enumerate(runs)]


def _legend(axes: Any, runs: Sequence[RunSummary]) -> None:
    lines = axes.get_legend_handles_labels()[0]
    if len(runs) > 1 and lines:
        axes.legend(lines[:MOST_NAMED], [line.get_label() for line in lines[:MOST_NAMED]])


def _engineering() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")
