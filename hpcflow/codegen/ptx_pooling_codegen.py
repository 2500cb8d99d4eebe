"""GPU code generator of sliding windows: max pooling, its gradient, windows as rows of a matrix.

Shapes are static, with any number of axes. A thread computes one element of the result: a maximum,
or an element of the gradient, to which it adds what comes from each window that the element is in,
in the order of the elements of a window. So there are no atomic additions, and windows may overlap.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from hpcflow.codegen.llvm_builder import (
    InstructionBuilder,
    LlvmValue,
    metadata,
    number,
    storage_type_of,
    value_type,
)
from hpcflow.codegen.max_pooling_codegen import PoolShape
from hpcflow.codegen.ptx_codegen import (
    DECLARED,
    INT32_INDEX_LIMIT,
    grid_stride,
    kernel_head,
    loop_lines,
    when,
)


def largest(pool: PoolShape, dtype: Any) -> str:
    """The kernel `NAME(x, y, length)`: the maximum of each window, NaN if it has one.

    Elements of the padding are minus infinity.
    """
    writer = _PoolWriter(pool, dtype)
    return writer.module(["x", "y"], writer.write_largest())


def gradient(pool: PoolShape, dtype: Any) -> str:
    """The kernel `NAME(x, y, g, dx, length)`: g goes to the first maximum of each window."""
    writer = _PoolWriter(pool, dtype)
    return writer.module(["x", "y", "g", "d"], writer.write_gradient())


def rows(pool: PoolShape, dtype: Any) -> str:
    """The kernel `NAME(x, r, length)`: r has a row for each window, with channels last.

    A row is [*window, channels]; elements of the padding are 0.
    """
    writer = _PoolWriter(pool, dtype)
    return writer.module(["x", "r"], writer.write_rows())


class _PoolWriter:
    """The body of a kernel, of element %n of its result."""

    def __init__(self, pool: PoolShape, dtype: Any) -> None:
        self.pool, self.storage = pool, storage_type_of(dtype) or ""
        self.value = value_type(self.storage)
        most = max(math.prod(pool.space), math.prod(pool.out) * len(pool.taps))
        few = pool.batch * pool.channels * most * max(pool.strides) < INT32_INDEX_LIMIT
        self.index = "i32" if few else "i64"
        self.lines = InstructionBuilder()

    def module(self, names: list[str], body: Iterable[str]) -> str:
        """The LLVM module of a kernel of these arrays."""
        lines = [*kernel_head("@NAME", names), f"  %sum = alloca {self.value}", *grid_stride()]
        lines += [*loop_lines("n", "%n.first", "%length", "%n.step", body), "  ret void", "}"]
        return "\n".join([*sorted(DECLARED | self.lines.declared), *lines, *metadata(0)])

    def write_largest(self) -> list[str]:
        """The maximum of a window."""
        pool, lines = self.pool, self.lines
        batch, place, channel = self.coordinates(pool.out)
        start = self.offset(batch, channel, pool.space)
        axes = [self.window_axis(a, place[a]) for a in range(len(pool.space))]
        best = number(-np.inf, self.value)
        for tap in pool.taps:
            found = [axes[a][k] for a, k in enumerate(tap)]
            at = functools.reduce(self.add, [term for term, _ in found], start)
            x = self.load("%x", at)
            inside = self.all(condition for _, condition in found)
            if inside is not None:
                x = lines.choose(inside, x, number(-np.inf, self.value))
            best = lines.call("maximum", best, x)
        self.store("%y", best)
        return lines.lines

    def write_rows(self) -> list[str]:
        """An element of a row."""
        pool, lines = self.pool, self.lines
        sizes = [pool.batch, *pool.out, *pool.window, pool.channels]
        batch, *places, channel = self.digits(sizes)
        at = self.offset(batch, channel, pool.space)
        axes, conditions = len(pool.space), []
        for a, stride in zip(range(axes), self.element_strides(pool.space), strict=False):
            begin = self.mul(places[a], pool.strides[a])
            shift = self.mul(places[axes + a], pool.dilations[a])
            place = self.add(self.add(begin, shift), self.constant(-pool.before[a]))
            conditions.append(self.lines.is_below(place, pool.space[a]))
            at = self.add(at, self.mul(place, stride))
        inside = self.all(conditions)
        assert inside is not None
        value = self.load("%x", lines.choose(inside, at, self.constant(0)))
        self.store("%r", lines.choose(inside, value, number(0, self.value)))
        return lines.lines

    def window_axis(self, axis: int, window: LlvmValue) -> list[tuple[LlvmValue, LlvmValue | None]]:
        """For each element of a window along an axis: its offset, and whether it is in the data."""
        pool = self.pool
        n, stride = pool.space[axis], self.element_strides(pool.space)[axis]
        begin = self.mul(window, pool.strides[axis])
        made = []
        for k in range(pool.window[axis]):
            shift = k * pool.dilations[axis] - pool.before[axis]
            place, inside = self.add(begin, self.constant(shift)), None
            last = (pool.out[axis] - 1) * pool.strides[axis] + shift
            if shift < 0 or last >= n:
                inside = self.lines.is_below(place, n)
                place = self.lines.choose(inside, place, self.constant(0))
            made.append((self.mul(place, stride), inside))
        return made

    def write_gradient(self) -> list[str]:
        """The gradient of one element, the sum over the windows of which it is the maximum."""
        pool, lines = self.pool, self.lines
        batch, place, channel = self.coordinates(pool.space)
        start = self.offset(batch, channel, pool.out)
        mine = lines.load(lines.at("%x", "%n", self.storage), self.storage)
        total = LlvmValue("%sum", "ptr")
        lines.store(number(0, self.value), total)
        axes = [self.windows_of(a, place[a]) for a in range(len(pool.space))]
        for tap in pool.taps:
            found = [axes[a][k] for a, k in enumerate(tap)]
            exists = self.all(condition for _, condition in found)
            assert exists is not None
            with when(lines, exists):
                at = functools.reduce(self.add, [term for term, _ in found], start)
                y = self.load("%y", at)
                with when(lines, lines.compare("eq", mine, y)):
                    free = lines.binary("xor", self.is_taken(place, tap, y), number(1, "i1"))
                    with when(lines, free):
                        g = self.load("%g", at)
                        lines.store(lines.binary("add", lines.load(total, self.value), g), total)
        self.store("%d", lines.load(total, self.value))
        return lines.lines

    def windows_of(self, axis: int, place: LlvmValue) -> list[tuple[LlvmValue, LlvmValue]]:
        """For each k: the offset of the window whose element k is at a place; whether it exists."""
        pool, lines = self.pool, self.lines
        stride, made = self.element_strides(pool.out)[axis], []
        for k in range(pool.window[axis]):
            shift = pool.before[axis] - k * pool.dilations[axis]
            first = self.add(place, self.constant(shift))  # of the window; large if negative
            window, step = first, pool.strides[axis]
            exists = number(1, "i1")
            if step > 1:
                window = lines.binary("udiv", first, self.constant(step))
                rest = lines.binary("urem", first, self.constant(step))
                exists = lines.compare("eq", rest, self.constant(0))
            exists = lines.binary("and", exists, self.lines.is_below(window, pool.out[axis]))
            made.append((self.mul(window, stride), exists))
        return made

    def is_taken(self, place: list[LlvmValue], tap: tuple[int, ...], y: LlvmValue) -> LlvmValue:
        """Whether an element of the window before element `tap`, which is at %n, is its maximum."""
        pool, lines = self.pool, self.lines
        strides, taken = self.element_strides(pool.space), number(0, "i1")
        here = self.trunc("%n")
        for other in pool.taps[: pool.taps.index(tap)]:
            steps = zip(other, tap, pool.dilations, strict=True)
            shifts = [(j - k) * d for j, k, d in steps]
            inside = self.all(
                self.lines.is_below(self.add(place[a], self.constant(shift)), pool.space[a])
                for a, shift in enumerate(shifts)
                if shift
            )
            assert inside is not None
            apart = sum(s * n for s, n in zip(shifts, strides, strict=False))
            at = lines.choose(inside, self.add(here, self.constant(apart)), here)
            same = lines.compare("eq", self.load("%x", at), y)
            taken = lines.binary("or", taken, lines.binary("and", same, inside))
        return taken

    # -- indices

    def coordinates(self, space: tuple[int, ...]) -> tuple[LlvmValue, list[LlvmValue], LlvmValue]:
        """Sample, place and channel of element %n of an array with these spatial sizes."""
        pool = self.pool
        if pool.first:
            batch, channel, *place = self.digits([pool.batch, pool.channels, *space])
        else:
            batch, *place, channel = self.digits([pool.batch, *space, pool.channels])
        return batch, place, channel

    def digits(self, sizes: list[int]) -> list[LlvmValue]:
        """The indices of element %n of an array of these sizes."""
        rest, found = self.trunc("%n"), []
        for size in reversed(sizes[1:]):
            found.append(self.lines.binary("urem", rest, self.constant(size)))
            rest = self.lines.binary("udiv", rest, self.constant(size))
        return [rest, *reversed(found)]

    def element_strides(self, space: tuple[int, ...]) -> list[int]:
        """The elements between neighbours along each spatial axis, along channels and samples."""
        channels = self.pool.channels
        each = [math.prod(space[a + 1 :]) for a in range(len(space))]
        whole = math.prod(space)
        if self.pool.first:
            return [*each, whole, whole * channels]
        return [*(n * channels for n in each), 1, whole * channels]

    def offset(self, batch: LlvmValue, channel: LlvmValue, space: tuple[int, ...]) -> LlvmValue:
        """The index of the first element of a sample and channel."""
        *_, by_channel, by_batch = self.element_strides(space)
        return self.add(self.mul(batch, by_batch), self.mul(channel, by_channel))

    def constant(self, value: int) -> LlvmValue:
        """An index."""
        return number(value, self.index)

    def trunc(self, name: str) -> LlvmValue:
        """A 64-bit integer as an index."""
        if self.index == "i64":
            return LlvmValue(name, "i64")
        return self.lines.add(f"trunc i64 {name} to i32", "i32")

    def add(self, x: LlvmValue, y: LlvmValue) -> LlvmValue:
        """The sum of two indices."""
        return self.lines.binary("add", x, y)

    def mul(self, x: LlvmValue, by: int) -> LlvmValue:
        """A multiple of an index."""
        return x if by == 1 else self.lines.binary("mul", x, self.constant(by))

    def all(self, conditions: Iterable[LlvmValue | None]) -> LlvmValue | None:
        """Whether all conditions hold; None if there are none."""
        some = [condition for condition in conditions if condition is not None]
        if not some:
            return None
        return functools.reduce(lambda x, y: self.lines.binary("and", x, y), some)

    def load(self, array: str, index: LlvmValue) -> LlvmValue:
        """The value of an element of an array."""
        at = (
            index if index.type == "i64" else self.lines.add(f"zext i32 {index.text} to i64", "i64")
        )
        return self.lines.load(self.lines.at(array, at.text, self.storage), self.storage)

    def store(self, array: str, value: LlvmValue) -> None:
        """Store element %n of the result."""
        if self.storage != self.value:
            value = self.lines.rounded(value, self.storage)
        self.lines.store(value, self.lines.at(array, "%n", self.storage))
