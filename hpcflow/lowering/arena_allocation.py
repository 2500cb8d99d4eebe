"""Where blocks lie in the arena of a device: two overlap only if one ends before the other begins.

The largest come first, each in the tightest gap that those before it have left, so the arena is
seldom larger than the most that is alive at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from hpcflow.plan.ir.program import Ref

ALIGNED = 64  # bytes: a cache line, which vector units load at once
NEVER = 2**62  # the place behind a step


@dataclasses.dataclass(frozen=True)
class Life:
    """When memory of `nbytes` is in use: from place `start` of `strand` on.

    `ends` has the last place of each strand that uses it; None if the step's end alone frees it.
    """

    nbytes: int
    strand: int
    start: int
    ends: Mapping[int, int] | None

    def then(self, ends: Mapping[int, int] | None) -> Life:
        """With another value in the same memory behind the last one."""
        if ends is None or self.ends is None:
            return dataclasses.replace(self, ends=None)
        return dataclasses.replace(self, ends={**self.ends, **ends})


@dataclasses.dataclass
class Block:
    """Memory on `device` for values of which each takes the place of the last; where it lies."""

    device: str
    life: Life
    values: list[Ref]
    start: int = 0  # its first byte in the arena


def lay_out(lives: Sequence[Life], over: np.ndarray) -> tuple[list[int], int]:
    """The first byte of each block, and the size of the arena.

    `over[i, j]` is the last place of strand j that is over when strand i begins (see
    `hpcflow.lowering.segments_between_waits.over`).
    """
    apart = _Conflicts(lives, over)
    starts = [0] * len(lives)
    placed = np.zeros(len(lives), bool)
    sizes = [-(-life.nbytes // ALIGNED) * ALIGNED for life in lives]
    for i in sorted(range(len(lives)), key=lambda i: (-sizes[i], i)):
        others = np.flatnonzero(apart.of(i) & placed).tolist()
        taken = sorted((starts[j], starts[j] + sizes[j]) for j in others)
        starts[i] = _tightest(taken, sizes[i])
        placed[i] = True
    return starts, max((s + n for s, n in zip(starts, sizes, strict=True)), default=0)


def _tightest(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap between intervals, in their order, that has room for `size`."""
    best, least, end = -1, NEVER, 0
    for first, last in taken:
        if size <= first - end < least:
            best, least = end, first - end
        end = max(end, last)
    return end if best < 0 else best


class _Conflicts:
    """Which blocks may be in use at one time."""

    def __init__(self, lives: Sequence[Life], over: np.ndarray) -> None:
        self.over = over
        self.strand = np.array([life.strand for life in lives], np.int64)
        self.start = np.array([life.start for life in lives], np.int64)
        self.ends = [
            [(life.strand, NEVER)] if life.ends is None else [*life.ends.items()] for life in lives
        ]
        pairs = [pair for ends in self.ends for pair in ends]
        self.where = np.array([strand for strand, _ in pairs], np.int64)
        self.last = np.array([last for _, last in pairs], np.int64)
        counts = np.array([len(ends) for ends in self.ends], np.int64)
        self.first = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(lives) else counts

    def of(self, i: int) -> np.ndarray:
        """Which blocks may be in use while block `i` is."""
        mine = self.over[self.strand[i]].copy()  # what is over when it begins, strand by strand
        mine[self.strand[i]] = self.start[i] - 1
        before = np.logical_and.reduceat(mine[self.where] >= self.last, self.first)
        after = np.ones(len(before), bool)
        for strand, last in self.ends[i]:
            there = self.over[self.strand, strand]
            after &= np.where(self.strand == strand, self.start - 1, there) >= last
        return ~(before | after)
