"""Pictures of the experiments, by matplotlib, in the style of `hpcflow report`."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

from hpcflow.report.scaling_plots import COLORS, GREY, MARKS, STYLE

__all__ = ["COLORS", "GREY", "MARKS", "bars", "counts", "picture"]


def picture(
    path: pathlib.Path, draw: Callable[[Any, dict[str, Any]], None], record: dict[str, Any]
) -> None:
    """Let `draw` fill a figure, and write it; the same record gives the same file."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "hpcflow", "svg.fonttype": "none"}):
        figure = Figure(figsize=(10.4, 3.6), layout="constrained")
        draw(figure, record)
        figure.savefig(path, metadata={"Date": None})


def counts(axes: Any, numbers: list[int]) -> None:
    """A logarithmic axis of these numbers of ranks."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(n) for n in numbers])
    axes.minorticks_off()


def bars(low: list[float], middle: list[float], high: list[float]) -> list[list[float]]:
    """Error bars from quantiles."""
    return [
        [m - v for m, v in zip(middle, low, strict=True)],
        [v - m for m, v in zip(middle, high, strict=True)],
    ]
