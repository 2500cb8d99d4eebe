"""Durations: predicted seconds with the interval of their uncertainty.

They are uncertain because nobody has measured them. How the times of ranks and steps vary is in
`noise_statistics.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Seconds(NamedTuple):
    """Predicted seconds with an interval from `low` to `high`.

    The source of the time defines the interval: quantiles of measured calls (usually 0.1 and 0.9),
    the errors of a model, or a factor either way.
    """

    median: float
    low: float
    high: float

    def scaled(self, factor: float) -> Seconds:
        """Return the time multiplied by a factor."""
        return Seconds(*(factor * value for value in self))


NOTHING = Seconds(0.0, 0.0, 0.0)


def total(times: Iterable[Seconds]) -> Seconds:
    """Return the time of all, one after the other.

    The ends of the intervals add up too. They would be narrower if errors were independent, but one
    cost model errs in one direction.
    """
    return Seconds(*(sum(column) for column in zip(NOTHING, *times, strict=True)))
