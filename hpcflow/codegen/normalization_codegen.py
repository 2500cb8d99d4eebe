"""Code generator of normalization (batch, group, instance) and of sums over leading axes.

An array is [outer, rows, lanes] in C order; the statistics of a lane are over the rows. Lanes are
contiguous, so that they fill vector registers. The rows are cut into blocks that fit into a core's
cache: the second pass over a block, for its variance about its own mean, reads no memory. Threads
share the blocks, and each block has partial results of its own, so that results do not depend on
the number of threads. Sizes are those of the arrays: one kernel serves all. Statistics and partial
results of 16-bit arrays are float32.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hpcflow.codegen.llvm_builder import (
    HALVES,
    LlvmValue,
    number,
    storage_type_of,
    value_type,
)
from hpcflow.codegen.llvm_loops import (
    BEGIN,
    COUNT,
    BasicBlocks,
    LoopBlocks,
    int64_constant,
    module,
)
from hpcflow.codegen.python_call_abi import KernelRanges

UNROLLED = 4  # rows that are added up before the sums of the lanes are stored
PARTS, OF_LANES = "%parts", "%of_lanes"
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


def sums(dtype: str) -> str:
    """The kernel of x and `parts` [1, outer, blocks, lanes]: sums over the rows of each block."""
    b = _Writer(("%x", PARTS), dtype)
    with b.each_block() as block:
        b.accumulate(block, block.parts[:1], lambda x, _: x)
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


def joined_statistics(dtype: str, epsilon: float) -> str:
    """The kernel of x, `parts`, and the results mean, variance [outer, kept] and `of_lanes`.

    `parts` are those of `means_and_squares`. `of_lanes` [2, outer, sides, kept, inner] gets mean
    and scale 1 / sqrt(variance + epsilon) of each lane. Statistics of blocks and lanes are joined
    as by Chan, Golub and LeVeque, *Updating formulae and a pairwise algorithm for computing sample
    variances*, 1979.
    """
    b = _LaneWriter(("%x", PARTS, "%mean", "%variance", OF_LANES), dtype)
    with b.each_sample() as sample:
        means, squares = b.blocks_of(sample, 2)
        lane_means, lane_squares = lanes = b.lanes_of(sample, 2)
        b.clear(lanes)
        rows = b.as_float(b.rows)

        def mean_term(height: LlvmValue, mean: LlvmValue, total: LlvmValue) -> LlvmValue:
            weight = b.binary("fdiv", height, rows)
            return b.binary("add", total, b.binary("mul", weight, mean))

        b.each_block_of_lanes([means], lane_means, mean_term)

        def square_term(height: LlvmValue, *of: LlvmValue) -> LlvmValue:
            mean, square, lane_mean, total = of
            away = b.binary("sub", mean, lane_mean)
            about = b.binary("mul", height, b.binary("mul", away, away))
            return b.binary("add", total, b.binary("add", square, about))

        b.each_block_of_lanes([means, squares], lane_squares, square_term, [lane_means])
        with b.each_kept(sample) as kept:
            mean = b.binary("fdiv", b.lane_sum(kept, [lane_means], lambda m: m), b.lane_count)

            def around(lane_mean: LlvmValue, square: LlvmValue) -> LlvmValue:
                away = b.binary("sub", lane_mean, mean)
                return b.binary("add", square, b.binary("mul", rows, b.binary("mul", away, away)))

            total = b.lane_sum(kept, [lane_means, lane_squares], around)
            variance = b.binary("fdiv", total, b.binary("mul", rows, b.lane_count))
            b.store_kept("%mean", kept, mean)
            b.store_kept("%variance", kept, variance)
            b.store_lanes(kept, lanes, [mean, b.scale(variance, epsilon)])
    return b.kernel()


def joined_gradient_sums(dtype: str, epsilon: float) -> str:
    """The kernel of x, `parts`, variance [outer, kept], and the result `of_lanes`.

    `parts` are those of `sums_of_gradients`. `of_lanes` [3, outer, sides, kept, inner] gets the
    means of g and of g y, and the scale 1 / sqrt(variance + epsilon), of each lane.
    """
    b = _LaneWriter(("%x", PARTS, "%variance", OF_LANES), dtype)
    with b.each_sample() as sample:
        parts, lanes = b.blocks_of(sample, 2), b.lanes_of(sample, 3)
        b.clear(lanes[:2])
        for part, lane in zip(parts, lanes[:2], strict=True):
            b.each_block_of_lanes([part], lane, lambda _, x, total: b.binary("add", total, x))
        count = b.binary("mul", b.as_float(b.rows), b.lane_count)
        with b.each_kept(sample) as kept:
            means = [
                b.binary("fdiv", b.lane_sum(kept, [lane], lambda x: x), count) for lane in lanes[:2]
            ]
            scale = b.scale(b.load_kept("%variance", kept), epsilon)
            b.store_lanes(kept, lanes, [*means, scale])
    return b.kernel()


class _Block(NamedTuple):
    """A block: the addresses of its first row in the arrays and of its partial results."""

    rows: list[LlvmValue]
    height: LlvmValue  # number of rows
    parts: list[LlvmValue]


class _Writer(BasicBlocks):
    """Writes the loops over blocks, rows and lanes."""

    def __init__(self, arrays: Sequence[str], dtype: str) -> None:
        super().__init__(arrays)
        self.arrays, self.storage = arrays, storage_type_of(dtype) or ""
        self.type = value_type(self.storage)
        self.outer, self.rows, self.lanes = (self.size(arrays[0], axis) for axis in range(3))

    def _row(self, base: LlvmValue, row: LlvmValue, type: str) -> LlvmValue:
        """The address of a row of lanes of this type in memory."""
        return self.element_address(base, self.binary("mul", row, self.lanes), type)

    def _element(self, base: LlvmValue, lane: LoopBlocks, type: str) -> LlvmValue:
        """The value of a lane in a row of this type in memory."""
        return self.load(self.element_address(base, lane.i, type), type, lane.tag)

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
                [self._row(array, first, self.storage) for array in data[:-1]],
                count,
                [self._row(data[-1], part, self.type) for part in (index, second)],
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
        addresses = [
            [self._row(array, row, self.storage) for array in block.rows] for row in numbers
        ]
        with self.loop(self.lanes, free=True) as lane:
            values = [self._element(base, lane, self.type) for base in lane_values]
            added = [
                terms([self._element(base, lane, self.storage) for base in row], values)
                for row in addresses
            ]
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
            rows = [self._row(array, index, self.storage) for array in data[:arrays]]
            lane_values = [self._row(array, sample, self.type) for array in data[arrays:-1]]
            out = self._row(data[-1], index, self.storage)
            with self.loop(self.lanes, free=True) as lane:
                result = value(
                    [self._element(base, lane, self.storage) for base in rows],
                    [self._element(base, lane, self.type) for base in lane_values],
                )
                if self.storage in HALVES:
                    result = self.rounded(result, self.storage)
                self.store(result, self.element_address(out, lane.i, self.storage), lane.tag)


def _kernel(body: _Writer) -> str:
    """The module; threads share the blocks, or the rows where there are no blocks."""
    head = BasicBlocks(body.arrays)
    outer, rows, lanes = (head.size(body.arrays[0], axis) for axis in range(3))
    each = head.size(PARTS, 2) if PARTS in body.arrays else rows
    last = head.binary("mul", outer, each)
    elements = head.binary("mul", head.binary("mul", outer, rows), lanes)
    return module(head, KernelRanges("0", last.text, elements.text), body)


class _LaneWriter(_Writer):
    """Writes the loops that join the partial results of blocks, by lane and then by `kept`."""

    def __init__(self, arrays: Sequence[str], dtype: str) -> None:
        super().__init__(arrays, dtype)
        self.addresses = {name: self.data(name) for name in arrays[1:]}
        self.block_count = self.size(PARTS, 2)
        self.sides, self.kept, self.inner = (self.size(OF_LANES, axis) for axis in (2, 3, 4))
        self.lane_count = self.as_float(self.binary("mul", self.sides, self.inner))

    def as_float(self, integer: LlvmValue) -> LlvmValue:
        """The same number."""
        return self.add(f"sitofp i64 {integer.text} to {self.type}", self.type)

    def scale(self, variance: LlvmValue, epsilon: float) -> LlvmValue:
        """1 / sqrt(variance + epsilon)."""
        inside = self.binary("add", variance, number(epsilon, self.type))
        return self.binary("fdiv", number(1, self.type), self.call("sqrt", inside))

    @contextlib.contextmanager
    def each_sample(self) -> Iterator[LlvmValue]:
        """The loop over a range of the samples."""
        with self.loop(COUNT) as loop:
            yield self.binary("add", BEGIN, loop.i)

    def _of_sample(
        self, name: str, sample: LlvmValue, count: int, each: LlvmValue
    ) -> list[LlvmValue]:
        """The addresses of rows of lanes of a sample in [count, outer, each, lanes]."""
        rows = [sample]
        for _ in range(count - 1):
            rows.append(self.binary("add", rows[-1], self.outer))
        numbers = [self.binary("mul", row, each) for row in rows]
        return [self._row(self.addresses[name], row, self.type) for row in numbers]

    def blocks_of(self, sample: LlvmValue, count: int) -> list[LlvmValue]:
        """The addresses of the partial results of a sample."""
        return self._of_sample(PARTS, sample, count, self.block_count)

    def lanes_of(self, sample: LlvmValue, count: int) -> list[LlvmValue]:
        """The addresses of its numbers by lane."""
        return self._of_sample(OF_LANES, sample, count, int64_constant(1))

    def clear(self, lanes: Sequence[LlvmValue]) -> None:
        """Set numbers by lane to 0."""
        with self.loop(self.lanes, free=True) as lane:
            for base in lanes:
                at = self.element_address(base, lane.i, self.type)
                self.store(number(0, self.type), at, lane.tag)

    def each_block_of_lanes(
        self,
        parts: Sequence[LlvmValue],
        total: LlvmValue,
        term: Callable[..., LlvmValue],
        lanes: Sequence[LlvmValue] = (),
    ) -> None:
        """Set each lane of `total` to `term(height, *parts, *lanes, total)`, block by block."""
        above = self.binary(
            "sub", self.binary("add", self.rows, self.block_count), int64_constant(1)
        )
        most, _ = self._divided(above, self.block_count)
        with self.loop(self.block_count) as loop:
            left = self.binary("sub", self.rows, self.binary("mul", loop.i, most))
            height = self.choose(self.compare("lt", left, most), left, most)
            block_height = self.as_float(height)
            rows = [self._row(part, loop.i, self.type) for part in parts]
            with self.loop(self.lanes, free=True) as lane:
                bases = (*rows, *lanes, total)
                loaded = [self._element(base, lane, self.type) for base in bases]
                at = self.element_address(total, lane.i, self.type)
                self.store(term(block_height, *loaded), at, lane.tag)

    @contextlib.contextmanager
    def each_kept(self, sample: LlvmValue) -> Iterator[_Kept]:
        """The loop over the statistics of a sample."""
        with self.loop(self.kept) as loop:
            first = self.binary("mul", sample, self.kept)
            yield _Kept(loop.i, self.binary("add", first, loop.i))

    @contextlib.contextmanager
    def _each_lane(
        self, kept: _Kept, carried: Sequence[LlvmValue] = ()
    ) -> Iterator[tuple[LlvmValue, LoopBlocks]]:
        """The loop over the lanes of one statistic."""
        count = self.binary("mul", self.sides, self.inner)
        with self.loop(count, carried) as loop:
            side, inner = self._divided(loop.i, self.inner)
            row = self.binary("add", self.binary("mul", side, self.kept), kept.place)
            yield self.binary("add", self.binary("mul", row, self.inner), inner), loop

    def lane_sum(
        self, kept: _Kept, lanes: Sequence[LlvmValue], term: Callable[..., LlvmValue]
    ) -> LlvmValue:
        """The sum of `term` over the lanes of one statistic."""
        with self._each_lane(kept, [number(0, self.type)]) as (lane, loop):
            places = [self.element_address(base, lane, self.type) for base in lanes]
            value = term(*(self.load(at, self.type) for at in places))
            loop.next = [self.binary("add", loop.carried[0], value)]
        return loop.ends[0]

    def store_lanes(
        self, kept: _Kept, lanes: Sequence[LlvmValue], values: Sequence[LlvmValue]
    ) -> None:
        """Store values in all lanes of one statistic."""
        with self._each_lane(kept) as (lane, _):
            for base, value in zip(lanes, values, strict=True):
                self.store(value, self.element_address(base, lane, self.type))

    def store_kept(self, name: str, kept: _Kept, value: LlvmValue) -> None:
        """Store one statistic."""
        self.store(value, self.element_address(self.addresses[name], kept.number, self.type))

    def load_kept(self, name: str, kept: _Kept) -> LlvmValue:
        """Load one statistic."""
        at = self.element_address(self.addresses[name], kept.number, self.type)
        return self.load(at, self.type)

    def kernel(self) -> str:
        """The module; threads share the samples."""
        head = BasicBlocks(self.arrays)
        outer = head.size(PARTS, 1)
        elements = head.elements(PARTS)
        return module(head, KernelRanges("0", outer.text, elements.text), self)


class _Kept(NamedTuple):
    """One statistic: its place within the sample, and its number over all samples."""

    place: LlvmValue
    number: LlvmValue
