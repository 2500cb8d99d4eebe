"""Who draws which sample when: a pure function, the same on every rank.

The order of an epoch depends on the seed and the epoch alone. Each joined batch is a run of that
order, cut into one contiguous share per replica: as evenly as possible, or by speed (`balance`). So
any number of replicas sees the joined batches of one, and every sample is drawn once per epoch over
all of them. An epoch that was interrupted goes on with the ranges of its order that are left, dealt
in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.data.epoch_shuffle import Left, Order, Ranges, Shuffle, ordered

Cut = Callable[[int, int], np.ndarray]  # of a batch's number and size: where it is cut
DRAWN = 1 << 14  # samples of the order that are drawn at once where batches are smaller


class Share(NamedTuple):
    """One replica's part of a joined batch."""

    step: int  # the batch's number in its epoch
    indices: np.ndarray  # the samples of this replica; none if there are fewer than replicas
    joined_size: int  # samples of the joined batch
    place: int = 0  # of the joined batch in the order of the epoch
    offset: int = 0  # of the first sample in the joined batch
    line: int = 0  # of the worker's lines that it is of (`runtime/failure/shard_reassignment.py`)


def cuts(size: int, replicas: int) -> np.ndarray:
    """Where `size` samples are cut: replica r has those from cuts[r] to cuts[r + 1].

    Counts differ by at most one, larger ones first.
    """
    base, more = divmod(size, replicas)
    ranks = np.arange(replicas + 1)
    return ranks * base + np.minimum(ranks, more)


def steps_per_epoch(samples: int, batch: int) -> int:
    """Joined batches in an epoch; the last one may be smaller."""
    return -(-samples // batch)


def deal(
    samples: int,
    batch: int,
    seed: int,
    epoch: int,
    replicas: int,
    replica: int,
    shuffle: Shuffle = True,
    left: Ranges | None = None,
    begun_with: int | None = None,
    cut: Cut | None = None,
    drawn: Order | None = None,
) -> Iterator[Share]:
    """The shares of `replica` in the joined batches of one epoch, or of what is `left` of it.

    Steps are numbered so that the last one has the number it has in a whole epoch. `begun_with` is
    the size of the joined batch that an interrupted epoch began with. `cut` says where the batch of
    a step is cut, if not evenly; it is asked once for each, in order. `drawn` is the order of what
    is dealt, if it is known.
    """
    if drawn is None:
        drawn = ordered(samples, seed, epoch, shuffle, begun_with or batch, left)
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
            base, more = divmod(size, replicas)  # as `cuts` has it, faster
            low = replica * base + min(replica, more)
            high = low + base + (replica < more)
        if together < 2:
            mine = drawn[at + low : at + high]
        else:
            ahead = step % together * batch
            if not ahead:
                part = drawn[at : min(at + together * batch, total)]
            mine = part[ahead + low : ahead + high]
        place = drawn.place(at) if isinstance(drawn, Left) else at
        yield Share(first + step, mine, size, place, low)


def left_after(
    left: Ranges,
    batch: int,
    taken: Sequence[Sequence[int]],
    cut: Cut | None = None,
    shift: int = 0,
) -> list[list[int]]:
    """The ranges left of `left`, dealt in batches, after worker r has taken its first taken[r].

    These are several numbers where its share is in n pieces: that of batch s is of piece
    (s + shift) % n. `cut` says where batch number s of them was cut, if not evenly.
    """
    total = sum(b - a for a, b in left)
    fewest, most = min(map(min, taken)), max(map(max, taken))
    open_: list[list[int]] = []  # in numbers of samples dealt
    for step in range(fewest, min(most, steps_per_epoch(total, batch))):
        size = min(batch, total - step * batch)
        at = step * batch + (cuts(size, len(taken)) if cut is None else cut(step, size))
        open_ += [
            [int(at[r]), int(at[r + 1])]
            for r, t in enumerate(taken)
            if t[(step + shift) % len(t)] <= step
        ]
    open_.append([min(most * batch, total), total])
    found: list[list[int]] = []
    before = 0
    for a, b in left:  # the same in the order of the epoch
        for low, high in open_:
            low, high = max(low - before, 0) + a, min(high - before, b - a) + a
            if low < high and found and found[-1][1] == low:
                found[-1][1] = high
            elif low < high:
                found.append([low, high])
        before += b - a
    return found
