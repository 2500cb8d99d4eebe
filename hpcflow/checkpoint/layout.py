"""What a checkpoint holds and which rank writes which rows: pure functions of names and shapes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.errors import CheckpointError

WHOLE_BYTES = 64 << 10  # arrays up to this size are not cut
ALIGN_BYTES = 1 << 20  # cuts of large arrays lie at multiples of it where rows allow: file stripes
SLOTS = ".slots"  # the group of arrays whose names lie below another array's


class Array(NamedTuple):
    """A variable as a whole; a scalar counts as one row."""

    name: str
    dtype: str  # as np.dtype(...).str
    shape: tuple[int, ...]

    @property
    def rows(self) -> int:
        """What it is cut by: its first dimension."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes


class Slab(NamedTuple):
    """Rows `start` to `stop` of an array."""

    name: str
    start: int
    stop: int


def share(arrays: Sequence[Array], writers: int) -> list[list[Slab]]:
    """The rows each of several writers of the same arrays writes: about as many bytes each."""
    shares: list[list[Slab]] = [[] for _ in range(writers)]
    total = sum(array.nbytes for array in arrays)
    before = 0
    for array in arrays:
        if not array.nbytes:
            continue
        if array.nbytes <= WHOLE_BYTES:
            owner = (before + array.nbytes // 2) * writers // total
            shares[min(owner, writers - 1)].append(Slab(array.name, 0, array.rows))
        else:
            for owner, (start, stop) in _cut(array, before, total, writers).items():
                shares[owner].append(Slab(array.name, start, stop))
        before += array.nbytes
    return shares


def _cut(array: Array, before: int, total: int, writers: int) -> dict[int, tuple[int, int]]:
    """The rows of `array` by writer, where `before` of the `total` bytes lie in front of it."""
    unit = ALIGN_BYTES // math.gcd(ALIGN_BYTES, array.row_bytes)  # rows between aligned cuts
    if unit * array.row_bytes * writers > array.nbytes:
        unit = 1
    first = before * writers // total
    last = min((before + array.nbytes - 1) * writers // total, writers - 1)
    cuts = [0]
    for owner in range(first + 1, last + 1):
        row = (owner * total // writers - before) / array.row_bytes
        cuts.append(max(cuts[-1], min(round(row / unit) * unit, array.rows)))
    cuts.append(array.rows)
    ranges = itertools.pairwise(cuts)
    return {first + i: (a, b) for i, (a, b) in enumerate(ranges) if b > a}


def paths(names: Iterable[str]) -> dict[str, str]:
    """Where in the file each array is: under its own name, a slot under `.slots/` and its name.

    HDF5 has either an array or a group at a place, so `w/Adam` cannot be below `w`.
    """
    known = set(names)
    found = {name: SLOTS + "/" + name if _below(name, known) else name for name in sorted(known)}
    for one, place in found.items():
        parts = place.split("/")
        above = {"/".join(parts[:i]) for i in range(1, len(parts))} & set(found.values())
        if above or "" in parts or "." in parts:
            raise CheckpointError(
                f"variable {one!r} has no place in an HDF5 file"
                + (f" beside {min(above)!r}" if above else ""),
                op=one,
                hint="give it another name",
            )
    return found


def _below(name: str, known: set[str]) -> bool:
    parts = name.split("/")
    return any("/".join(parts[:i]) in known for i in range(1, len(parts)))
