"""All-reduce tables: measured times of sums over ranks by message size, and interpolation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from hpcflow.errors import PlacementError

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class AllreduceTables:
    """Of each number of ranks: bytes of a message, ascending, and seconds of its sum."""

    by_ranks: Mapping[int, tuple[Array, Array]]

    def __post_init__(self) -> None:
        for ranks, (sizes, seconds) in self.by_ranks.items():
            fits = sizes.ndim == 1 and sizes.shape == seconds.shape and len(sizes) >= 2
            if not (fits and np.all(np.diff(sizes) > 0) and sizes[0] > 0 and np.all(seconds > 0)):
                raise PlacementError(
                    f"the all-reduce table of {ranks} ranks is not usable",
                    hint="give two or more ascending sizes with positive times",
                )

    def seconds(self, ranks: Array, sizes: Array) -> Array:
        """Times of all-reduces of `sizes` bytes, each over its number of ranks; 0 for one rank.

        Errors: PlacementError for a number of ranks without a table.
        """
        times = np.zeros(np.broadcast(ranks, sizes).shape)
        for count in np.unique(ranks[ranks > 1]):
            if int(count) not in self.by_ranks:
                raise PlacementError(
                    f"there is no all-reduce table of {count} ranks",
                    hint=f"measure one; there are tables of {sorted(self.by_ranks)} ranks",
                )
            here = ranks == count
            times[here] = _interpolated(*self.by_ranks[int(count)], sizes[here])
        return times


def _interpolated(known: Array, seconds: Array, sizes: Array) -> Array:
    """Log-log interpolation; outside of the table, latency plus size by bandwidth.

    Below, latency and bandwidth are those of the two smallest sizes. Above, the bandwidth is that
    of the largest size, where latency does not count.
    """
    times = np.exp(np.interp(np.log(sizes), np.log(known), np.log(seconds)))
    slope = (seconds[1] - seconds[0]) / (known[1] - known[0])
    slope = np.clip(slope, 0.0, seconds[0] / known[0])  # neither bandwidth nor latency below 0
    times = np.where(sizes < known[0], seconds[0] - slope * (known[0] - sizes), times)
    return np.where(sizes > known[-1], seconds[-1] * sizes / known[-1], times)
