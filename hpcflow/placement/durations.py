"""Durations: times with their uncertainty, and the variation of a step from rank to rank.

Two things are kept apart. An *estimate* is uncertain because nobody has measured it: `Seconds`.
*Noise* differs between ranks and steps: a log-normal factor with median 1, whose logarithm has the
standard deviation `sigma`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.errors import PlacementError

_NORMAL = statistics.NormalDist()


class Seconds(NamedTuple):
    """A time whose true value lies between `low` and `high` in 9 cases of 10."""

    median: float
    low: float
    high: float

    def scaled(self, factor: float) -> Seconds:
        """Return the time multiplied by a factor."""
        return Seconds(*(factor * value for value in self))


NOTHING = Seconds(0.0, 0.0, 0.0)


def total(times: Iterable[Seconds]) -> Seconds:
    """Return the time of all, one after the other.

    Ends are added to ends: the errors of one cost model have one direction and do not cancel.
    """
    return Seconds(*(sum(column) for column in zip(NOTHING, *times, strict=True)))


def noise_factor(sigma: float, quantile: float) -> float:
    """Return the quantile of the noise."""
    return float(np.exp(sigma * _NORMAL.inv_cdf(quantile)))


def draw_order_statistics(ends: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Draw some of the order statistics of n = ends[-1] uniform numbers, jointly and exactly.

    `ends` are the wanted ranks, from 1, in ascending order. The gaps between n sorted uniform
    numbers are distributed as n + 1 exponential numbers divided by their sum, so the sum of k gaps
    is a gamma number. (Devroye, Non-Uniform Random Variate Generation, 1986, section V.3.)
    Errors: PlacementError if the ranks do not ascend.
    """
    gaps = np.diff([0, *ends])
    if len(gaps) == 0 or gaps.min() < 1:
        raise PlacementError(f"the ranks of order statistics must ascend from 1: {list(ends)}")
    sums = np.cumsum(rng.gamma(np.append(gaps, 1)))
    return np.asarray(sums[:-1] / sums[-1])


def group_sizes(count: int, groups: int) -> list[int]:
    """Return how many of `count` equal ranks each group stands for, the slowest ranks last.

    If there are more ranks than groups, the slowest ranks are groups of one, because a synchronous
    step ends with them; half of the groups, rounded up, share the rest equally.
    Errors: PlacementError without a rank or a group.
    """
    if count < 1 or groups < 1:
        raise PlacementError(f"{count} ranks cannot be divided into {groups} groups")
    if count <= groups:
        return [1] * count
    single = groups // 2
    shared = groups - single
    rest = count - single
    return [rest // shared + (i >= shared - rest % shared) for i in range(shared)] + [1] * single
