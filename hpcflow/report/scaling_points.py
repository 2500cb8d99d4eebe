"""Scaling points: speedup and efficiency by numbers of workers, with the interval of efficiency."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple


class ScalingPoint(NamedTuple):
    """A number of workers: median samples/s, speedup, and efficiency with its interval.

    Speedup and efficiency are relative to the fewest workers. The interval is what the slowest and
    the fastest run of both numbers of workers allow.
    """

    ranks: int
    workers: int
    runs: int
    rate: float
    slowest: float
    fastest: float
    speedup: float
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    seconds_to_first_step: float | None = None  # median, since the launch of the job


def scaling_points(
    rates: Mapping[tuple[int, int], Sequence[float]],
    first_steps: Mapping[tuple[int, int], Sequence[float]] = MappingProxyType({}),
) -> list[ScalingPoint]:
    """The points of samples/s by (ranks, workers), fewest workers first; each needs a run.

    `first_steps` are the seconds from the launch to the first step of the runs that have them.
    """
    by_workers = sorted(rates.items(), key=lambda row: row[0][::-1])
    points: list[ScalingPoint] = []
    for (ranks, workers), found in by_workers:
        (_, fewest), first = by_workers[0]
        base, times = statistics.median(first), workers / fewest
        rate, low, high = statistics.median(found), min(found), max(found)
        to_step = first_steps.get((ranks, workers))
        points.append(
            ScalingPoint(
                ranks,
                workers,
                len(found),
                rate,
                low,
                high,
                rate / base,
                rate / base / times,
                low / max(first) / times,
                high / min(first) / times,
                statistics.median(to_step) if to_step else None,
            )
        )
    return points


def interval_text(point: ScalingPoint) -> str:
    """The interval of the efficiency, as `74% to 88%`; `-` for single runs."""
    if point.efficiency_low == point.efficiency_high:
        return "-"
    return f"{point.efficiency_low:.0%} to {point.efficiency_high:.0%}"
