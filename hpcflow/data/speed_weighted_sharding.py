"""Sharding of global batches by measured speed: slow workers get fewer samples.

The split points of a batch are a function of its number and of decisions that all replicas receive,
so they are equal on all. Workers prefetch by different amounts. So new shares apply from a batch on
that no worker can have sharded yet, `lead` batches after the last one taken.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from hpcflow.data.global_batch_sharding import split_points
from hpcflow.errors import HpcflowError

FINENESS = 16  # shares change in steps of 1/16 of an equal one: few sizes, hence few plans
MIN_GAIN = 0.05  # shares change if the slowest worker's time falls by at least this fraction;
LARGE_GAIN = 0.25  # below this fraction, each change doubles the pause before the next:
LONGEST_REST = 32  # decisions; a new size costs each worker a new plan
MAX_BATCHES_AHEAD = 4  # batches that a worker may have taken beyond those of the deciding one
DAMPING = 0.5  # the weight of the earlier speeds


def shares_by_speed(speeds: Sequence[float], batch: int) -> np.ndarray:
    """The samples of each replica in a batch of `batch`, in proportion to its speed (samples/s).

    Each gets at least one, if there are enough. The others are assigned in steps of 1 / FINENESS of
    an equal share, each step to the replica that would finish it first.
    """
    replicas = len(speeds)
    step = max(1, batch // (replicas * FINENESS))
    total = float(sum(speeds))
    least = 1 if batch >= replicas else 0
    shares = [max(int(batch * v / total) // step * step, least) for v in speeds]
    remaining = batch - sum(shares)
    queue = [((n + step) / v, r) for r, (n, v) in enumerate(zip(shares, speeds, strict=True))]
    heapq.heapify(queue)
    while remaining > 0:
        _, r = heapq.heappop(queue)
        shares[r] += min(step, remaining)
        remaining -= min(step, remaining)
        heapq.heappush(queue, ((shares[r] + step) / speeds[r], r))
    while remaining < 0:  # the minimum of one sample has assigned too many
        r = max((r for r in range(replicas) if shares[r] > 1), key=lambda r: shares[r] / speeds[r])
        shares[r] -= 1
        remaining += 1
    return np.array(shares)


class SpeedBalance:
    """The split points of global batches of `batch` samples over replicas, by batch number.

    Batches are numbered in the order in which a worker takes them. `consumed` counts those that the
    worker has taken, `dealt` those that were split for it, at most `lead` more.
    """

    def __init__(self, replicas: int, batch: int, lead: int, rank: int, consumed: int = 0) -> None:
        self.replicas, self.batch, self.lead, self.rank = replicas, batch, lead, rank
        self.consumed, self.dealt = consumed, 0
        # first batch of a change, and the split points of a full batch from there on
        self._changes: list[tuple[int, np.ndarray]] = [(0, split_points(batch, replicas))]
        self._speeds: np.ndarray | None = None
        self._backoff, self._backoff_left = 1, 0  # decisions to skip after the next change, and now

    @property
    def shares(self) -> list[int]:
        """The samples of each replica in a full batch, by the last decision."""
        return np.diff(self._changes[-1][1]).tolist()

    def take(self) -> None:
        """Count a batch that the worker takes."""
        self.consumed += 1

    def deal(self, number: int, size: int) -> np.ndarray:
        """Split batch `number`, of `size` samples; see `cuts`."""
        self.dealt = max(self.dealt, number + 1)
        return self.cuts(number, size)

    def cuts(self, number: int, size: int) -> np.ndarray:
        """The split points of batch `number`, of `size` samples (`global_batch_sharding.cuts`)."""
        first, cuts = next(change for change in reversed(self._changes) if change[0] <= number)
        if size == self.batch:
            return cuts
        return cuts * size // self.batch if first else split_points(size, self.replicas)

    def decide(self, speeds: Sequence[float]) -> tuple[int, list[int]] | None:
        """The first batch and the sizes of new shares by these speeds (samples/s), for all ranks.

        None if the current shares are good enough. The caller is within MARGIN batches of all
        workers.
        """
        now = np.asarray(speeds, float)
        if self._speeds is not None:
            now = self._speeds**DAMPING * now ** (1 - DAMPING)
        self._speeds = now
        proposed = shares_by_speed(now.tolist(), self.batch)
        gain = 1 - (proposed / now).max() / (np.array(self.shares) / now).max()
        self._backoff_left -= 1
        if gain < MIN_GAIN or (gain < LARGE_GAIN and self._backoff_left >= 0):
            return None
        self._backoff = 1 if gain >= LARGE_GAIN else min(2 * self._backoff, LONGEST_REST)
        self._backoff_left = self._backoff
        return self.consumed + MAX_BATCHES_AHEAD + self.lead, proposed.tolist()

    def change(self, first: int, shares: Sequence[int]) -> None:
        """Use these shares of a full batch from batch `first` on; called on all replicas.

        Errors: HpcflowError if batches were taken ahead of the steps.
        """
        if self.dealt > first:
            raise HpcflowError(
                f"{self.dealt - self.consumed} batches were taken ahead of the steps, which "
                "balance=True cannot shard again",
                rank=self.rank,
                hint="take each batch when its step begins; Dataset(read_ahead=...) reads ahead",
            )
        self._changes.append((first, np.concatenate([[0], np.cumsum(shares)])))
