"""Checkpoint layout: arrays, their HDF5 paths, and the split into rows; pure functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

WHOLE_BYTES = 64 << 10  # arrays up to this size are not split
ALIGN_BYTES = 1 << 20  # splits of large arrays are multiples of it if rows allow: file stripes
SLOTS = ".slots"  # the group of arrays whose names are below another array's name
NUMBERED = ".numbered"  # the group of arrays whose names are not valid HDF5 paths
GRAPH, STATE = ".graph", ".state"  # text datasets beside the arrays
RESERVED = (SLOTS, NUMBERED, GRAPH, STATE)


class ArraySpec(NamedTuple):
    """A whole variable; a scalar counts as one row."""

    name: str
    dtype: str  # as np.dtype(...).str
    shape: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The size of the first dimension, along which the array is split."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes


class HeldRows(NamedTuple):
    """The rows of an array that a rank hosts; `copy` numbers a slot that each piece has."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of the array
    start: int
    stop: int
    copy: int

    @property
    def array(self) -> ArraySpec:
        """The whole array."""
        return ArraySpec(self.name, self.dtype, tuple(self.shape))

    @property
    def slab(self) -> Slab:
        """These rows."""
        return Slab(self.name, self.start, self.stop)


class Slab(NamedTuple):
    """Rows `start` to `stop` of an array."""

    name: str
    start: int
    stop: int


def decode_arrays(message: Mapping[str, Any]) -> dict[str, ArraySpec]:
    """The entry "arrays" of a message, as name -> Array."""
    return {name: ArraySpec(name, dtype, tuple(shape)) for name, dtype, shape in message["arrays"]}


def replica_names(per_replica_names: Mapping[str, str], replica: int) -> dict[str, str]:
    """The names in the checkpoint of the variables that each replica has for itself."""
    return {variable: f"{name}/replica_{replica}" for variable, name in per_replica_names.items()}


def assign_rows(arrays: Sequence[ArraySpec], writers: int) -> list[list[Slab]]:
    """The rows that each writer of the same arrays writes; shares have about equal bytes."""
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
            for owner, (start, stop) in _split_array(array, before, total, writers).items():
                shares[owner].append(Slab(array.name, start, stop))
        before += array.nbytes
    return shares


def _split_array(
    array: ArraySpec, before: int, total: int, writers: int
) -> dict[int, tuple[int, int]]:
    """The rows of `array` by writer; `before` of the `total` bytes precede the array."""
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


def hdf5_paths(names: Iterable[str]) -> dict[str, str]:
    """The HDF5 path of each array: its name where possible, else a path in a reserved group.

    HDF5 allows either a dataset or a group at a path, so `w/Adam` cannot be below the dataset `w`
    and is stored at `.slots/w/Adam`. Each further dataset above it adds one more `.slots`. Names
    that are not valid HDF5 paths, or whose first component is reserved, are stored by number.
    """
    array_names, paths = set(names), {}
    odd = [name for name in sorted(array_names) if not _is_path(name)]
    for name in sorted(array_names):
        parts = name.split("/")
        above = sum("/".join(parts[:i]) in array_names for i in range(1, len(parts)))
        paths[name] = (SLOTS + "/") * above + name
    return paths | {name: f"{NUMBERED}/{i}" for i, name in enumerate(odd)}


def _is_path(name: str) -> bool:
    parts = name.split("/")
    return not {"", "."} & set(parts) and parts[0] not in RESERVED
