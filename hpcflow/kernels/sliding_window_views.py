"""Sliding windows over arrays of shape [batch, *space, channels]: padding, strided views, tiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

TILE_BYTES = 4 << 20  # about the size of the tiles in which windows are copied


class Windows:
    """The positions of the windows: `out` windows of `kernel` elements along each axis."""

    def __init__(
        self, attrs: dict[str, Any], space: Sequence[int], kernel: Sequence[int], out: Sequence[int]
    ) -> None:
        self.space, self.kernel, self.out = tuple(space), tuple(kernel), tuple(out)
        self.strides, self.dilations = attrs["strides"], attrs["dilations"]
        steps = zip(self.out, self.kernel, self.strides, self.dilations, strict=True)
        self.reach = tuple((o - 1) * s + (k - 1) * d + 1 for o, k, s, d in steps)
        padding = attrs["padding"]
        if padding == "SAME":
            pairs = zip(self.reach, self.space, strict=True)
            self.before = tuple(max(r - n, 0) // 2 for r, n in pairs)
        elif padding == "VALID":
            self.before = (0,) * len(self.out)
        else:
            self.before = tuple(a for a, _ in padding)

    @property
    def positions(self) -> int:
        """The number of windows of a sample."""
        return math.prod(self.out)

    @property
    def plain(self) -> bool:
        """True if each window is one element, and all elements have one."""
        steps = (*self.kernel, *self.strides)
        return all(n == 1 for n in steps) and self.out == self.space and not any(self.before)

    def inside(self) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """The slices of the padded array that hold data, and the slices of that data."""
        sizes = [
            max(0, min(n, r - b))
            for n, r, b in zip(self.space, self.reach, self.before, strict=True)
        ]
        there = tuple(slice(b, b + n) for b, n in zip(self.before, sizes, strict=True))
        return (slice(None), *there), (slice(None), *(slice(n) for n in sizes))

    def padded(self, xp: Any, x: Any, value: Any, dtype: Any, first: bool = False) -> Any:
        """The array that the windows cover: a view of `x` if it needs no padding, else a copy.

        With `first` the copy has its channels before the spatial axes in memory.
        """
        there, here = self.inside()
        fits = all(r <= n for r, n in zip(self.reach, self.space, strict=True))
        if fits and not any(self.before) and x.dtype == dtype:
            return x[here]
        padded = self.empty(xp, x, dtype, first)
        padded.fill(value)
        padded[there] = x[here]
        return padded

    def empty(self, xp: Any, x: Any, dtype: Any, first: bool = False) -> Any:
        """An uninitialized padded array for `x`."""
        if first:
            room = xp.empty((x.shape[0], x.shape[-1], *self.reach), dtype)
            return channels_last(room, True)
        return xp.empty((x.shape[0], *self.reach, x.shape[-1]), dtype)

    def valid(self, xp: Any, tap: Sequence[int], rows: slice) -> Any:
        """Where this element of the windows is in the data: mask [*out, 1]; None: everywhere."""
        mask = None
        for axis, index in enumerate(self.places(xp, tap, rows)):
            size = self.space[axis]
            if self.before[axis] or self.reach[axis] > size:
                inside = xp.logical_and(index >= 0, index < size)
                mask = inside if mask is None else xp.logical_and(mask, inside)
        return mask

    def places(self, xp: Any, tap: Sequence[int], rows: slice) -> list[Any]:
        """The index along each axis of this element of the windows, shaped for broadcasting."""
        indices = []
        rank = len(self.out)
        for axis, t in enumerate(tap):
            at = xp.arange(self.out[axis]) * self.strides[axis]
            at = at + (t * self.dilations[axis] - self.before[axis])
            if axis == 0:
                at = at[rows]
            indices.append(at.reshape([-1 if i == axis else 1 for i in range(rank)] + [1]))
        return indices

    def counts(self, xp: Any, dtype: Any) -> Any:
        """The number of elements of each window that are in the data, at least 1: [*out, 1]."""
        total = xp.ones((1,) * (len(self.out) + 1), dtype)
        for axis, k in enumerate(self.kernel):
            starts = xp.arange(self.out[axis]) * self.strides[axis] - self.before[axis]
            index = starts[:, None] + xp.arange(k) * self.dilations[axis]
            inside = xp.logical_and(index >= 0, index < self.space[axis]).sum(axis=1)
            sizes = [-1 if i == axis else 1 for i in range(len(self.out))] + [1]
            total = total * inside.reshape(sizes).astype(dtype)
        return xp.maximum(total, xp.asarray(1, dtype))

    def view(self, xp: Any, padded: Any, groups: int = 1) -> Any:
        """All windows, without a copy: [groups, batch, *out, *kernel, channels of a group]."""
        inner, last = padded.strides[1:-1], padded.strides[-1]
        moves = [a * s for a, s in zip(inner, self.strides, strict=True)]
        taps = [a * d for a, d in zip(inner, self.dilations, strict=True)]
        each = padded.shape[-1] // groups
        return xp.lib.stride_tricks.as_strided(
            padded,
            (groups, padded.shape[0], *self.out, *self.kernel, each),
            (each * last, padded.strides[0], *moves, *taps, last),
        )

    def taps(self, rows: slice | None = None) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Each element of the window, and the slices of a padded array that have it.

        The slices cover all windows, with `rows` those at these positions of the first axis.
        """
        steps = list(zip(self.out, self.strides, self.dilations, strict=True))
        for tap in itertools.product(*map(range, self.kernel)):
            slices = [
                slice(t * d, t * d + (o - 1) * s + 1, s)
                for t, (o, s, d) in zip(tap, steps, strict=True)
            ]
            if rows is not None:
                (_, s, d), start = steps[0], tap[0]
                first = start * d + rows.start * s
                slices[0] = slice(first, first + (rows.stop - rows.start - 1) * s + 1, s)
            yield tap, (slice(None), *slices)

    def back(self, xp: Any, padded: Any, out: Any) -> None:
        """Copy the data part of a padded array to `out`; elements that no window covers are 0."""
        there, here = self.inside()
        if out[here].shape != out.shape:
            out.fill(0)
        xp.copyto(out[here], padded[there], casting="same_kind")


def tiles(
    batch: int, rows: int, row_bytes: int, limit: int = TILE_BYTES
) -> Iterator[tuple[slice, slice]]:
    """Slices of (batch, rows along the first spatial axis) of about `limit` bytes each."""
    count = max(1, limit // max(1, row_bytes))
    if count >= rows:
        step = count // rows
        for i in range(0, batch, step):
            yield slice(i, min(i + step, batch)), slice(0, rows)
        return
    for i in range(batch):
        for k in range(0, rows, count):
            yield slice(i, i + 1), slice(k, min(k + count, rows))


def channels_last(x: Any, first: bool) -> Any:
    """A view of `x` with its channels after the spatial axes."""
    return x.transpose(0, *range(2, x.ndim), 1) if first else x


def accumulator_dtype(dtype: Any) -> Any:
    """The dtype of sums: float32 for 16-bit floats."""
    return "float32" if dtype.kind not in "iu" and dtype.itemsize == 2 else dtype
