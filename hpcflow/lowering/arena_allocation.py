"""Arena allocation: the offset of each memory block in the arena of its device.

Two blocks overlap only if the lifetime of one ends before that of the other begins. Greedy by size:
the largest block is placed first, each in the tightest gap that the blocks placed before leave. The
arena is seldom larger than the peak of live memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from hpcflow.plan.ir.program import Ref

ALIGNED = 64  # bytes: a cache line, which vector units load at once
AFTER_STEP = 2**62  # a position after the end of the step


@dataclasses.dataclass(frozen=True)
class Lifetime:
    """The lifetime of `nbytes` of memory, in use from position `start` of `segment` on.

    `ends` maps each segment that uses the memory to the position of its last use. It is None if the
    memory is in use until the end of the step.
    """

    nbytes: int
    segment: int
    start: int
    ends: Mapping[int, int] | None

    def then(self, ends: Mapping[int, int] | None) -> Lifetime:
        """The lifetime extended to `ends`: another value reuses the memory after the last one."""
        if ends is None or self.ends is None:
            return dataclasses.replace(self, ends=None)
        return dataclasses.replace(self, ends={**self.ends, **ends})


@dataclasses.dataclass
class MemoryBlock:
    """A memory block on `device`, used by `values` in turn, at arena offset `start`."""

    device: str
    life: Lifetime
    values: list[Ref]
    start: int = 0  # byte offset in the arena


def place_blocks(lives: Sequence[Lifetime], over: np.ndarray) -> tuple[list[int], int]:
    """Return the byte offset of each block, and the size of the arena in bytes.

    `over[i, j]` is the position of the last node of segment j that has finished when segment i
    begins (see `hpcflow.lowering.segments_between_waits.over`).
    """
    apart = _LifetimeConflicts(lives, over)
    starts = [0] * len(lives)
    placed = np.zeros(len(lives), bool)
    sizes = [-(-life.nbytes // ALIGNED) * ALIGNED for life in lives]
    for i in sorted(range(len(lives)), key=lambda i: (-sizes[i], i)):
        conflicts = np.flatnonzero(apart.overlapping(i) & placed).tolist()
        occupied = sorted((starts[j], starts[j] + sizes[j]) for j in conflicts)
        starts[i] = _tightest_gap(occupied, sizes[i])
        placed[i] = True
    return starts, max((s + n for s, n in zip(starts, sizes, strict=True)), default=0)


def _tightest_gap(intervals: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap of at least `size` between sorted intervals, else their end."""
    best, least, end = -1, AFTER_STEP, 0
    for first, last in intervals:
        if size <= first - end < least:
            best, least = end, first - end
        end = max(end, last)
    return end if best < 0 else best


class _LifetimeConflicts:
    """Which blocks may be live at the same time."""

    def __init__(self, lives: Sequence[Lifetime], over: np.ndarray) -> None:
        self.over = over
        self.segment = np.array([life.segment for life in lives], np.int64)
        self.start = np.array([life.start for life in lives], np.int64)
        self.ends = [
            [(life.segment, AFTER_STEP)] if life.ends is None else [*life.ends.items()]
            for life in lives
        ]
        pairs = [pair for ends in self.ends for pair in ends]
        self.end_segments = np.array([segment for segment, _ in pairs], np.int64)
        self.last = np.array([last for _, last in pairs], np.int64)
        counts = np.array([len(ends) for ends in self.ends], np.int64)
        self.first = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(lives) else counts

    def overlapping(self, i: int) -> np.ndarray:
        """A boolean mask of the blocks that may be live while block `i` is."""
        finished = self.over[self.segment[i]].copy()  # per segment, what has finished by then
        finished[self.segment[i]] = self.start[i] - 1
        before = np.logical_and.reduceat(finished[self.end_segments] >= self.last, self.first)
        after = np.ones(len(before), bool)
        for segment, last in self.ends[i]:
            there = self.over[self.segment, segment]
            after &= np.where(self.segment == segment, self.start - 1, there) >= last
        return ~(before | after)
