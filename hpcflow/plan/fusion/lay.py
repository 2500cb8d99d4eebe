"""How the elements of an array lie in the memory of another: from where on, and how far apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class Lay(NamedTuple):
    """An array of `sizes`, whose elements begin at `start` and lie `strides` apart, in elements."""

    start: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def is_packed(self) -> bool:
        """Whether the elements lie one behind the other in C order."""
        expected, pairs = packed(self.sizes), zip(self.sizes, self.strides, strict=True)
        return all(n == 1 or s == e for (n, s), e in zip(pairs, expected.strides, strict=True))

    def turned(self, perm: Sequence[int]) -> Lay:
        """With the axes in the order of `perm`."""
        sizes = tuple(self.sizes[i] for i in perm)
        return Lay(self.start, sizes, tuple(self.strides[i] for i in perm))

    def swapped(self) -> Lay:
        """With the last two axes swapped."""
        return self.turned([*range(len(self.sizes) - 2), -1, -2])

    def part(self, axis: int, first: int, count: int) -> Lay:
        """`count` places of an axis from `first` on."""
        sizes = (*self.sizes[:axis], count, *self.sizes[axis + 1 :])
        return Lay(self.start + first * self.strides[axis], sizes, self.strides)

    def at(self, axis: int, place: int) -> Lay:
        """One place of an axis, without the axis."""
        one = self.part(axis, place, 1)
        return one.turned([i for i in range(len(self.sizes)) if i != axis])

    def reshaped(self, shape: Sequence[int]) -> Lay | None:
        """The elements in another shape; None if no strides say where they lie then."""
        runs: list[tuple[int, int]] = []  # how many elements lie alike, and how far apart
        for n, stride in zip(self.sizes, self.strides, strict=True):
            if n == 1:
                continue
            if runs and runs[-1][1] == n * stride:
                runs[-1] = (runs[-1][0] * n, stride)
            else:
                runs.append((n, stride))
        strides: list[int] = []
        for n in reversed(shape):
            if n == 1:
                strides.append(1)
                continue
            count, stride = runs.pop()
            if count % n:
                return None
            strides.append(stride)
            if count > n:
                runs.append((count // n, n * stride))
        return Lay(self.start, tuple(shape), tuple(reversed(strides)))

    def picked(self, key: Sequence[tuple[Any, ...]]) -> Lay | None:
        """What a key of `StridedSlice` picks, if it is of numbers and runs forward."""
        places = sum(part[0] in ("at", "slice") for part in key)
        lay, axis = self, 0
        for kind, *told in key or (("rest",),):
            if kind == "rest":
                axis += len(self.sizes) - places
            elif kind == "at" and isinstance(told[0], int):
                lay = lay.at(axis, told[0] % lay.sizes[axis])
            elif kind == "slice" and not any(isinstance(v, tuple) for v in told):
                start, stop, step = slice(*told).indices(lay.sizes[axis])
                if step != 1 or start >= stop:
                    return None
                lay, axis = lay.part(axis, start, stop - start), axis + 1
            else:
                return None
        return lay


def packed(shape: Sequence[int]) -> Lay:
    """An array of this shape in C order."""
    sizes = tuple(shape)
    return Lay(0, sizes, tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes))))
