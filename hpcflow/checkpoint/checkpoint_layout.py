"""What a checkpoint holds and which rank writes which rows: pure functions of names and shapes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

WHOLE_BYTES = 64 << 10  # arrays up to this size are not cut
ALIGN_BYTES = 1 << 20  # cuts of large arrays lie at multiples of it where rows allow: file stripes
SLOTS = ".slots"  # the group of arrays whose names lie below another array's
NUMBERED = ".numbered"  # that of arrays whose names are no paths
GRAPH, STATE = ".graph", ".state"  # texts beside the arrays
RESERVED = (SLOTS, NUMBERED, GRAPH, STATE)


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


def arrays_of(told: Mapping[str, Any]) -> dict[str, Array]:
    """The "arrays" of which ranks tell each other, by name."""
    return {name: Array(name, dtype, tuple(shape)) for name, dtype, shape in told["arrays"]}


def mine_of(own: Mapping[str, str], replica: int) -> dict[str, str]:
    """Under which names a checkpoint has what is of one replica alone."""
    return {variable: f"{name}/replica_{replica}" for variable, name in own.items()}


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
    """Where in the file each array is: under its own name if it can be, else below a group of ours.

    HDF5 has either an array or a group at a place, so `w/Adam` cannot be below `w`: it is at
    `.slots/w/Adam`, and what is below it too, one more `.slots` deep. Names that are no path of
    HDF5, or one of our own, have a number.
    """
    known, found = set(names), {}
    odd = [name for name in sorted(known) if not _is_path(name)]
    for name in sorted(known):
        parts = name.split("/")
        above = sum("/".join(parts[:i]) in known for i in range(1, len(parts)))
        found[name] = (SLOTS + "/") * above + name
    return found | {name: f"{NUMBERED}/{i}" for i, name in enumerate(odd)}


def _is_path(name: str) -> bool:
    parts = name.split("/")
    return not {"", "."} & set(parts) and parts[0] not in RESERVED
