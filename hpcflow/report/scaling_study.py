"""Scaling study: rates by numbers of workers, beside Amdahl's and Gustafson's laws."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from hpcflow.report.run_tables import first_step_text, table
from hpcflow.report.scaling_points import ScalingPoint, interval_text, scaling_points

SUSPICIOUS = 1.02  # an efficiency above that needs a cause


class Study(NamedTuple):
    """The points, the parallel part that fits them best, and remarks."""

    kind: str  # strong or weak
    points: list[ScalingPoint]
    parallel_part: float | None
    remarks: list[str]


def study(
    rates: Mapping[tuple[int, int], Sequence[float]],
    kind: str,
    first_steps: Mapping[tuple[int, int], Sequence[float]] = MappingProxyType({}),
) -> Study:
    """The study of samples/s by (ranks, workers); each needs at least one run.

    `first_steps` are the seconds from the launch to the first step of the runs that have them.
    """
    points = scaling_points(rates, first_steps)
    part = parallel_part([(p.workers / points[0].workers, p.speedup) for p in points], kind)
    return Study(kind, points, part, _remarks(points))


def parallel_part(speedups: Sequence[tuple[float, float]], kind: str) -> float | None:
    """The share of the work that runs in parallel, by least squares; None for one point.

    Strong scaling by Amdahl (1967): 1 / speedup = 1 - p (1 - 1 / n). Weak scaling by Gustafson
    (1988): speedup = n - (1 - p) (n - 1).
    """
    several = [(n, s) for n, s in speedups if n > 1 and s > 0]
    if not several:
        return None
    if kind == "strong":
        pairs = [(1 - 1 / n, 1 - 1 / s) for n, s in several]
    else:
        pairs = [(n - 1, s - 1) for n, s in several]
    return sum(a * b for a, b in pairs) / sum(a * a for a, _ in pairs)


def _remarks(points: Sequence[ScalingPoint]) -> list[str]:
    remarks = [
        f"{p.workers} workers: efficiency {p.efficiency:.2f} is above 1; cause unknown (smaller "
        "parts may fit into caches, or the first point was disturbed)"
        for p in points
        if p.efficiency > SUSPICIOUS and p.efficiency_low > 1
    ]
    if any(p.runs < 3 for p in points):
        remarks.append("fewer than three runs at a number of workers: intervals say little")
    return remarks


def as_text(found: Study) -> str:
    """The study as a table, with the fit."""
    head = ["ranks", "workers", "runs", "samples/s", "speedup", "efficiency", "interval"]
    head.append("first step")
    rows = [
        [
            f"{p.ranks}",
            f"{p.workers}",
            f"{p.runs}",
            f"{p.rate:,.0f}",
            f"{p.speedup:.2f}",
            f"{p.efficiency:.0%}",
            interval_text(p),
            first_step_text(p.seconds_to_first_step),
        ]
        for p in found.points
    ]
    lines = [f"{found.kind} scaling", table(head, rows)]
    return "\n".join([*lines, *fit_lines(found), *found.remarks])


def fit_lines(found: Study) -> list[str]:
    """The parallel part that fits, as a line."""
    law = "Amdahl" if found.kind == "strong" else "Gustafson"
    if found.parallel_part is None:
        return []
    if found.parallel_part <= 0:
        return [f"more workers are not faster: no parallel part fits {law}'s law"]
    return [f"parallel part by {law}'s law: {min(found.parallel_part, 1.0):.2%}"]


def as_data(found: Study) -> dict[str, Any]:
    """The study as plain data."""
    return {
        "format": "hpcflow-scale-1",
        "kind": found.kind,
        "parallel_part": found.parallel_part,
        "remarks": found.remarks,
        "points": [point._asdict() for point in found.points],
    }


def as_csv(found: Study) -> str:
    """The points as a CSV table."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ScalingPoint._fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(point._asdict() for point in found.points)
    return text.getvalue()
