"""Code generator of normalization over leading axes, as batch, group and instance norm.

An array is [outer, rows, lanes] in C order; the statistics of a lane are over the rows. Lanes are
contiguous, so that they fill vector registers. The rows are cut into blocks that fit into a core's
cache: the second pass over a block, for its variance about its own mean, reads no memory. Threads
share the blocks, and each block has partial results of its own, so that results do not depend on
the number of threads. Sizes are those of the arrays: one kernel serves all.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hpcflow.codegen.llvm_builder import LlvmValue, type_of
from hpcflow.codegen.llvm_loops import BEGIN, COUNT, BasicBlocks, int64_constant, module
from hpcflow.codegen.python_call_abi import KernelRanges

UNROLLED = 4  # rows that are added up before the sums of the lanes are stored
PARTS = "%parts"
Terms = Callable[[list[LlvmValue], list[LlvmValue]], list[LlvmValue]]


def means_and_squares(dtype: str) -> str:
    """The kernel of x and `parts` [2, outer, blocks, lanes], statistics of each lane of a block.

    `parts[0]` are the means, `parts[1]` the sums of squared deviations from them.
    """
    b = _Writer(("%x", PARTS), dtype)
    with b.each_block() as block:
        means, squares = block.parts
        b.accumulate(block, [means], lambda x, _: x)
        with b.loop(b.lanes, free=True) as lane:
            at = b.element_address(means, lane.i, b.type)
            count = b.add(f"sitofp i64 {block.height.text} to {b.type}", b.type)
            b.store(b.binary("fdiv", b.load(at, b.type, lane.tag), count), at, lane.tag)

        def squared(x: list[LlvmValue], mean: list[LlvmValue]) -> list[LlvmValue]:
            away = b.binary("sub", x[0], mean[0])
            return [b.binary("mul", away, away)]

        b.accumulate(block, [squares], squared, [means])
    return _kernel(b)


def sums_of_gradients(dtype: str) -> str:
    """The kernel of g, y and `parts` [2, outer, blocks, lanes]: sums of g, and of g y."""
    b = _Writer(("%g", "%y", PARTS), dtype)
    with b.each_block() as block:
        b.accumulate(block, block.parts, lambda pair, _: [pair[0], b.binary("mul", *pair)])
    return _kernel(b)


def normalized(dtype: str) -> str:
    """The kernel of x, mean, scale and y: y = (x - mean) scale; mean and scale [outer, lanes]."""
    b = _Writer(("%x", "%mean", "%scale", "%out"), dtype)
    b.each_row(1, lambda x, of: b.binary("mul", b.binary("sub", x[0], of[0]), of[1]))
    return _kernel(b)


def gradient(dtype: str) -> str:
    """The kernel of g, y, m, a, scale, dx: dx = (g - m - y a) scale; m, a, scale [outer, lanes]."""
    b = _Writer(("%g", "%y", "%m", "%a", "%scale", "%out"), dtype)

    def value(pair: list[LlvmValue], of: list[LlvmValue]) -> LlvmValue:
        centered = b.binary("sub", pair[0], of[0])
        return b.binary("mul", b.binary("sub", centered, b.binary("mul", pair[1], of[1])), of[2])

    b.each_row(2, value)
    return _kernel(b)


class _Block(NamedTuple):
    """A block: the addresses of its first row in the arrays and of its partial results."""

    rows: list[LlvmValue]
    height: LlvmValue  # number of rows
    parts: list[LlvmValue]


class _Writer(BasicBlocks):
    """Writes the loops over blocks, rows and lanes."""

    def __init__(self, arrays: Sequence[str], dtype: str) -> None:
        super().__init__(arrays)
        self.arrays, self.type = arrays, type_of(dtype) or ""
        self.outer, self.rows, self.lanes = (self.size(arrays[0], axis) for axis in range(3))

    def _row(self, base: LlvmValue, row: LlvmValue) -> LlvmValue:
        """The address of a row of lanes."""
        return self.element_address(base, self.binary("mul", row, self.lanes), self.type)

    def _divided(self, x: LlvmValue, by: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
        """Quotient and remainder."""
        operands = f"i64 {x.text}, {by.text}"
        return self.add(f"udiv {operands}", "i64"), self.add(f"urem {operands}", "i64")

    @contextlib.contextmanager
    def each_block(self) -> Iterator[_Block]:
        """The loop over a range of the blocks of all samples."""
        blocks = self.size(PARTS, 2)
        above = self.binary("sub", self.binary("add", self.rows, blocks), int64_constant(1))
        most, _ = self._divided(above, blocks)
        all_blocks = self.binary("mul", self.outer, blocks)
        data = [self.data(name) for name in self.arrays]
        with self.loop(COUNT) as loop:
            index = self.binary("add", BEGIN, loop.i)
            sample, number = self._divided(index, blocks)
            begin = self.binary("mul", number, most)
            left = self.binary("sub", self.rows, begin)
            count = self.choose(self.compare("lt", left, most), left, most)
            first = self.binary("add", self.binary("mul", sample, self.rows), begin)
            second = self.binary("add", index, all_blocks)
            yield _Block(
                [self._row(array, first) for array in data[:-1]],
                count,
                [self._row(data[-1], index), self._row(data[-1], second)],
            )

    def accumulate(
        self,
        block: _Block,
        outs: Sequence[LlvmValue],
        terms: Terms,
        lane_values: Sequence[LlvmValue] = (),
    ) -> None:
        """Store in `outs`, for each lane, the sums over the rows of a block of `terms`.

        `terms` gets one element of each array, and those of `lane_values` for its lane.
        """
        with self.loop(self.lanes, free=True) as lane:
            for out in outs:
                zero = LlvmValue("0.0", self.type)
                self.store(zero, self.element_address(out, lane.i, self.type), lane.tag)
        many, rest = self._divided(block.height, int64_constant(UNROLLED))
        with self.loop(many) as loop:
            first = self.binary("mul", loop.i, int64_constant(UNROLLED))
            self._add_rows(block, first, UNROLLED, outs, terms, lane_values)
        done = self.binary("sub", block.height, rest)
        with self.loop(rest) as loop:
            row = self.binary("add", done, loop.i)
            self._add_rows(block, row, 1, outs, terms, lane_values)

    def _add_rows(
        self,
        block: _Block,
        first: LlvmValue,
        rows: int,
        outs: Sequence[LlvmValue],
        terms: Terms,
        lane_values: Sequence[LlvmValue],
    ) -> None:
        numbers = [self.binary("add", first, int64_constant(k)) for k in range(rows)]
        addresses = [[self._row(array, row) for array in block.rows] for row in numbers]
        with self.loop(self.lanes, free=True) as lane:

            def of_lane(base: LlvmValue) -> LlvmValue:
                at = self.element_address(base, lane.i, self.type)
                return self.load(at, self.type, lane.tag)

            values = [of_lane(base) for base in lane_values]
            added = [terms([of_lane(base) for base in row], values) for row in addresses]
            for out, column in zip(outs, zip(*added, strict=True), strict=True):
                total = functools.reduce(functools.partial(self.binary, "add"), column)
                at = self.element_address(out, lane.i, self.type)
                self.store(
                    self.binary("add", self.load(at, self.type, lane.tag), total), at, lane.tag
                )

    def each_row(
        self, arrays: int, value: Callable[[list[LlvmValue], list[LlvmValue]], LlvmValue]
    ) -> None:
        """The loop over a range of the rows of all samples, which stores `value` of each element.

        It gets the elements of the first `arrays` arrays, and those of the others for its lane.
        """
        data = [self.data(name) for name in self.arrays]
        with self.loop(COUNT) as loop:
            index = self.binary("add", BEGIN, loop.i)
            sample, _ = self._divided(index, self.rows)
            rows = [self._row(array, index) for array in data[:arrays]]
            lane_values = [self._row(array, sample) for array in data[arrays:-1]]
            out = self._row(data[-1], index)
            with self.loop(self.lanes, free=True) as lane:
                loaded = [
                    self.load(self.element_address(base, lane.i, self.type), self.type, lane.tag)
                    for base in (*rows, *lane_values)
                ]
                result = value(loaded[:arrays], loaded[arrays:])
                self.store(result, self.element_address(out, lane.i, self.type), lane.tag)


def _kernel(body: _Writer) -> str:
    """The module; threads share the blocks, or the rows where there are no blocks."""
    head = BasicBlocks(body.arrays)
    outer, rows, lanes = (head.size(body.arrays[0], axis) for axis in range(3))
    each = head.size(PARTS, 2) if PARTS in body.arrays else rows
    last = head.binary("mul", outer, each)
    elements = head.binary("mul", head.binary("mul", outer, rows), lanes)
    return module(head, KernelRanges("0", last.text, elements.text), body)
