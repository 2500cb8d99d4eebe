"""Shares of the joined batch by measured speed: who works slowly is dealt fewer samples.

The cuts of a batch are a function of its number and of decisions that all replicas have heard of,
so all make the same. Workers read ahead, each as far as its threads are: new shares hold from a
batch on that nobody can have been dealt yet, `lead` batches behind the last one that was taken.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from hpcflow.data.global_batch_sharding import cuts
from hpcflow.errors import HpcflowError

FINENESS = 16  # shares differ by this part of an equal one: few sizes, for which plans are made
GAIN = 0.05  # shares are dealt anew where the slowest worker's time falls by this part;
MUCH = 0.25  # by less than this the less often, the more often that was done:
LONGEST_REST = 32  # a new size costs each worker a new plan
MARGIN = 4  # batches that a worker may have taken more than the one who decides
DAMPING = 0.5  # the weight of speeds that were known before


def shares_by(speeds: Sequence[float], batch: int) -> np.ndarray:
    """How many of `batch` samples each replica gets, in proportion to its speed (samples/s).

    Each gets one at least, if there are as many; the others in steps of 1 / FINENESS of an equal
    share, the next always to who would be done with it first.
    """
    replicas = len(speeds)
    step = max(1, batch // (replicas * FINENESS))
    total = float(sum(speeds))
    least = 1 if batch >= replicas else 0
    found = [max(int(batch * v / total) // step * step, least) for v in speeds]
    more = batch - sum(found)
    queue = [((n + step) / v, r) for r, (n, v) in enumerate(zip(found, speeds, strict=True))]
    heapq.heapify(queue)
    while more > 0:
        _, r = heapq.heappop(queue)
        found[r] += min(step, more)
        more -= min(step, more)
        heapq.heappush(queue, ((found[r] + step) / speeds[r], r))
    while more < 0:  # those who were given one in spite of their speed
        r = max((r for r in range(replicas) if found[r] > 1), key=lambda r: found[r] / speeds[r])
        found[r] -= 1
        more += 1
    return np.array(found)


class Balance:
    """The cuts of joined batches of `batch` samples over replicas, by number.

    Batches are numbered in the order in which a worker takes them. `taken` are those that it has
    taken, `dealt` those that were cut for it, at most `lead` more.
    """

    def __init__(self, replicas: int, batch: int, lead: int, rank: int) -> None:
        self.replicas, self.batch, self.lead, self.rank = replicas, batch, lead, rank
        self.taken = self.dealt = 0
        # from which batch on, and where a full one is cut
        self._changes: list[tuple[int, np.ndarray]] = [(0, cuts(batch, replicas))]
        self._speeds: np.ndarray | None = None
        self._rest, self._left = 1, 0  # decisions to pass over after the next change, and now

    @property
    def shares(self) -> list[int]:
        """How many samples of a full batch each replica gets, as decided last."""
        return np.diff(self._changes[-1][1]).tolist()

    def deal(self, number: int, size: int) -> np.ndarray:
        """Cut batch `number`, of `size` samples; see `cuts`."""
        self.dealt = max(self.dealt, number + 1)
        return self.cuts(number, size)

    def cuts(self, number: int, size: int) -> np.ndarray:
        """Where batch `number`, of `size` samples, is cut; see `dealer.cuts`."""
        first, whole = next(one for one in reversed(self._changes) if one[0] <= number)
        if size == self.batch:
            return whole
        return whole * size // self.batch if first else cuts(size, self.replicas)

    def decide(self, speeds: Sequence[float]) -> tuple[int, list[int]] | None:
        """From which batch on to deal by these speeds (samples/s), and the shares; for all.

        None if shares are good enough. The caller is within MARGIN batches of all workers.
        """
        now = np.asarray(speeds, float)
        if self._speeds is not None:
            now = self._speeds**DAMPING * now ** (1 - DAMPING)
        self._speeds = now
        wanted = shares_by(now.tolist(), self.batch)
        gain = 1 - (wanted / now).max() / (np.array(self.shares) / now).max()
        self._left -= 1
        if gain < GAIN or (gain < MUCH and self._left >= 0):
            return None
        self._rest = 1 if gain >= MUCH else min(2 * self._rest, LONGEST_REST)
        self._left = self._rest
        return self.taken + MARGIN + self.lead, wanted.tolist()

    def change(self, first: int, shares: Sequence[int]) -> None:
        """From batch `first` on a full one is dealt in these shares: on all replicas.

        Errors: HpcflowError where batches were taken ahead of the steps.
        """
        if self.dealt > first:
            raise HpcflowError(
                f"{self.dealt - self.taken} batches were dealt ahead of the steps, which "
                "balance=True cannot deal anew",
                rank=self.rank,
                hint="take each batch when its step begins; Dataset(read_ahead=...) reads ahead",
            )
        self._changes.append((first, np.concatenate([[0], np.cumsum(shares)])))
