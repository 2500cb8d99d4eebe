"""Noise statistics: how the time of a step varies from rank to rank, and the slowest of many ranks.

The noise of a rank in a step is a log-normal factor with median 1. Its logarithm has the standard
deviation `sigma`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from hpcflow.errors import PlacementError

_NORMAL = statistics.NormalDist()


def noise_factor(sigma: float, quantile: float) -> float:
    """Return the factor at a quantile (0 to 1) of the noise: exp(sigma z), z standard normal."""
    return float(np.exp(sigma * _NORMAL.inv_cdf(quantile)))


def draw_order_statistics(ends: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Draw some of the order statistics of n = ends[-1] uniform numbers in (0, 1).

    `ends` are the positions of the wanted ones, from 1, ascending. They are drawn from their exact
    joint distribution: the gaps between n sorted uniform
    numbers are distributed as n + 1 exponential numbers divided by their sum, so the sum of k gaps
    is a gamma number. (Devroye, Non-Uniform Random Variate Generation, 1986, section V.3.)
    Errors: PlacementError if the positions do not ascend.
    """
    gaps = np.diff([0, *ends])
    if len(gaps) == 0 or gaps.min() < 1:
        raise PlacementError(f"the ranks of order statistics must ascend from 1: {list(ends)}")
    sums = np.cumsum(rng.gamma(np.append(gaps, 1)))
    return np.asarray(sums[:-1] / sums[-1])


def group_sizes(count: int, groups: int) -> list[int]:
    """Return the sizes of at most `groups` groups of `count` ranks that are sorted by their noise.

    Each rank has a group of its own if there are enough. Else the slowest ranks, at the end, are
    groups of one, because a synchronous step ends with them. Half of the groups, rounded up, share
    the other ranks equally.
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
