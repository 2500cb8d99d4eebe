"""Sharding of global batches over replicas: a pure function, equal on every rank.

The order of an epoch depends only on the seed and the epoch. Each global batch is a range of this
order, split into one contiguous share per replica: as evenly as possible, or by speed (`balance`).
So the global batches do not depend on the number of replicas, and one of the replicas takes each
sample, once per epoch. An interrupted epoch continues with the remaining ranges of its order,
sharded in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.data.epoch_shuffle import EpochOrder, Ranges, RemainingOrder, Shuffle, epoch_order

SplitPoints = Callable[[int, int], np.ndarray]  # step and size of a batch -> its split points
DRAWN = 1 << 14  # samples of the order that are drawn at once if batches are smaller


class BatchShare(NamedTuple):
    """One replica's share of a global batch."""

    step: int  # the batch's number in its epoch
    indices: np.ndarray  # this replica's samples; empty if there are fewer samples than replicas
    joined_size: int  # samples of the global batch
    epoch_position: int = 0  # position of the global batch in the order of the epoch
    offset: int = 0  # of the share's first sample in the global batch
    line: int = 0  # number of the worker's line (`runtime/failure/shard_reassignment.py`)


def split_points(size: int, replicas: int) -> np.ndarray:
    """The split points of `size` samples: replica r has cuts[r] to cuts[r + 1].

    Counts differ by at most one; the larger ones come first.
    """
    base, remainder = divmod(size, replicas)
    ranks = np.arange(replicas + 1)
    return ranks * base + np.minimum(ranks, remainder)


def steps_per_epoch(samples: int, batch: int) -> int:
    """Global batches in an epoch; the last one may be smaller."""
    return -(-samples // batch)


def shard_epoch(
    samples: int,
    batch: int,
    seed: int,
    epoch: int,
    replicas: int,
    replica: int,
    shuffle: Shuffle = True,
    remaining: Ranges | None = None,
    begun_with: int | None = None,
    cut: SplitPoints | None = None,
    drawn: EpochOrder | None = None,
) -> Iterator[BatchShare]:
    """The shares of `replica` in the global batches of an epoch, or of its ranges `remaining`.

    The last step has the number that it has in a whole epoch. `begun_with` is the global batch size
    that an interrupted epoch began with. `cut` returns the split points of a step's batch, by
    default even ones; it is called once per batch, in order. `drawn` is the order to shard, if
    already known.
    """
    if drawn is None:
        drawn = epoch_order(samples, seed, epoch, shuffle, begun_with or batch, remaining)
    total = len(drawn)
    steps = steps_per_epoch(total, batch)
    first = max(steps_per_epoch(samples, batch) - steps, 0)
    together, part = DRAWN // batch, np.arange(0)
    for step in range(steps):
        at = step * batch
        size = min(batch, total - at)
        if cut is not None:
            low, high = cut(first + step, size)[replica : replica + 2].tolist()
        else:
            base, remainder = divmod(size, replicas)  # as in `cuts`, but faster
            low = replica * base + min(replica, remainder)
            high = low + base + (replica < remainder)
        if together < 2:
            indices = drawn[at + low : at + high]
        else:
            ahead = step % together * batch
            if not ahead:
                part = drawn[at : min(at + together * batch, total)]
            indices = part[ahead + low : ahead + high]
        place = drawn.epoch_position(at) if isinstance(drawn, RemainingOrder) else at
        yield BatchShare(first + step, indices, size, place, low)


def remaining_ranges(
    remaining: Ranges,
    batch: int,
    consumed: Sequence[Sequence[int]],
    cut: SplitPoints | None = None,
    shift: int = 0,
) -> list[list[int]]:
    """The ranges of `remaining`, sharded in batches, after worker r took consumed[r].

    consumed[r] has n numbers if the share of worker r is in n pieces: its share of batch s belongs
    to piece (s + shift) % n. `cut` returns the split points of batch s, by default even ones.
    """
    total = sum(b - a for a, b in remaining)
    fewest, most = min(map(min, consumed)), max(map(max, consumed))
    open_: list[list[int]] = []  # remaining ranges, as positions within `remaining`
    for step in range(fewest, min(most, steps_per_epoch(total, batch))):
        size = min(batch, total - step * batch)
        at = step * batch + (split_points(size, len(consumed)) if cut is None else cut(step, size))
        open_ += [
            [int(at[r]), int(at[r + 1])]
            for r, t in enumerate(consumed)
            if t[(step + shift) % len(t)] <= step
        ]
    open_.append([min(most * batch, total), total])
    ranges: list[list[int]] = []
    before = 0
    for a, b in remaining:  # convert them to positions in the order of the epoch
        for low, high in open_:
            low, high = max(low - before, 0) + a, min(high - before, b - a) + a
            if low < high and ranges and ranges[-1][1] == low:
                ranges[-1][1] = high
            elif low < high:
                ranges.append([low, high])
        before += b - a
    return ranges
