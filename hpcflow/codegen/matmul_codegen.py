"""Code generator of matrix products whose right operand stays in the cache.

A tile of the result stays in registers while the loop over the summed axis adds products of an
element of each row and a vector of columns: the inner kernel of Goto and van de Geijn (2008,
"Anatomy of High-Performance Matrix Multiplication"). BLAS packs both operands first, which takes as
long as the product if they have few columns.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpcflow.codegen import python_call_abi
from hpcflow.codegen.llvm_builder import BYTES, TYPES, LlvmValue, cpu_flags, number
from hpcflow.codegen.llvm_loops import BEGIN, COUNT, BasicBlocks, int64_constant, module

A, B, OUT, ROOM = "%a", "%b", "%out", "%room"
SUMMED_AT_ONCE = 64  # rows of both operands that stay in the cache when the result has few rows
MOST_VECTORS, MOST_ROWS = 4, 12  # of a tile


class VectorRegisters(NamedTuple):
    """The vector registers of a CPU: their size in bytes, and their number."""

    bytes: int
    number: int


@functools.cache
def vector_registers() -> VectorRegisters:
    """Those of this machine."""
    flags = cpu_flags()
    if "avx512f" in flags:
        return VectorRegisters(64, 32)
    return VectorRegisters(32, 16) if "avx2" in flags else VectorRegisters(16, 16)


class TileShape(NamedTuple):
    """A tile of the result: `rows`, and the numbers of columns of its vectors, of `lanes` each."""

    rows: int
    lanes: int
    vectors: tuple[int, ...]


def tile_shapes(
    columns: int, dtype: str, registers: VectorRegisters
) -> list[tuple[TileShape, int]]:
    """The tiles of a row of tiles: those of one shape, and how many there are of it."""
    lanes = registers.bytes // BYTES[TYPES[dtype]]
    vectors = -(-columns // lanes)
    widest = MOST_VECTORS if registers.number > 16 else 2
    wide = -(-vectors // -(-vectors // widest))
    rows = min((registers.number - wide - 1) // wide, MOST_ROWS)
    counts = [min(lanes, columns - at) for at in range(0, columns, lanes)]
    tiles = [
        TileShape(rows, lanes, tuple(counts[at : at + wide])) for at in range(0, vectors, wide)
    ]
    return [(tile, len([*alike])) for tile, alike in itertools.groupby(tiles)]


def text(
    columns: int, dtype: str, transpose_a: bool, transpose_b: bool, rows: int | None = None
) -> str:
    """The LLVM IR of a product of two matrices in C order, with so many columns.

    With `transpose_b` there is another argument, room for the second operand's transpose. `rows`
    are those of the result, if known: tiles have a number of rows that divides it, if possible.
    """
    tiles = tile_shapes(columns, dtype, vector_registers())
    most = tiles[0][0].rows
    high = next((n for n in range(most, most // 2, -1) if rows and rows % n == 0), most)
    arrays = (A, B, OUT, *([ROOM] if transpose_b else []))
    head = _MatmulWriter(arrays, columns, dtype, transpose_a, transpose_b)
    if transpose_b:
        head.transpose()
    last = head.tiles_of(high)
    work = head.binary("mul", head.rows, head.binary("mul", head.summed, int64_constant(columns)))
    writer = _MatmulWriter(arrays, columns, dtype, transpose_a, transpose_b, head)
    writer.row_tiles(tiles, high)
    ranges = python_call_abi.KernelRanges("0", last.text, work.text)
    return module(head, ranges, writer, computes=True)


class VectorWriter(BasicBlocks):
    """Writes vectors of elements of one type in memory."""

    def __init__(
        self, arrays: Sequence[str], element: str, before: BasicBlocks | None = None
    ) -> None:
        super().__init__(arrays, before)
        self.element = element

    def vector(self, at: LlvmValue, count: int, lanes: int) -> LlvmValue:
        """`count` elements at an address as a vector; the lanes behind them are undefined."""
        size, part = BYTES[self.element], f"<{count} x {self.element}>"
        value = self.add(f"load {part}, ptr {at.text}, align {size}", part)
        return value if count == lanes else self.lanes_of(value, count, lanes)

    def store_vector(self, value: LlvmValue, at: LlvmValue, count: int) -> None:
        """Store the first lanes of a vector."""
        part = self.lanes_of(value, count, count)
        self.add(f"  store {part.type} {part.text}, ptr {at.text}, align {BYTES[self.element]}")

    def lanes_of(self, value: LlvmValue, count: int, lanes: int) -> LlvmValue:
        """The first `count` lanes of a vector, in a vector of `lanes`."""
        which = ", ".join(f"i32 {i if i < count else 'undef'}" for i in range(lanes))
        return self.shuffled(value, f"<{which}>", lanes)

    def shuffled(self, value: LlvmValue, which: str, lanes: int) -> LlvmValue:
        """A vector of `lanes` lanes of a vector, numbered by `which`."""
        return self.add(
            f"shufflevector {value.type} {value.text}, {value.type} undef, <{lanes} x i32> {which}",
            f"<{lanes} x {self.element}>",
        )

    def broadcast(self, at: LlvmValue, lanes: int) -> LlvmValue:
        """A vector of one element in memory."""
        return self.spread(self.load(at, self.element), lanes)

    def spread(self, value: LlvmValue, lanes: int) -> LlvmValue:
        """A vector of one number."""
        kind = f"<{lanes} x {self.element}>"
        first = self.add(f"insertelement {kind} undef, {self.element} {value.text}, i32 0", kind)
        return self.shuffled(first, "zeroinitializer", lanes)

    def multiply_add(self, x: LlvmValue, y: LlvmValue, total: LlvmValue) -> LlvmValue:
        """x y + total, rounded once."""
        lanes = x.type.split()[0].lstrip("<")
        name = f"llvm.fma.v{lanes}f{8 * BYTES[self.element]}"
        self.declared.add(f"declare {x.type} @{name}({x.type}, {x.type}, {x.type})")
        operands = ", ".join(f"{v.type} {v.text}" for v in (x, y, total))
        return self.add(f"call {x.type} @{name}({operands})", x.type)


class _MatmulWriter(VectorWriter):
    """Writes the loops; `rows` of the result, and `summed`, the length of the summed axis."""

    def __init__(
        self,
        arrays: Sequence[str],
        columns: int,
        dtype: str,
        transpose_a: bool,
        transpose_b: bool,
        before: BasicBlocks | None = None,
    ) -> None:
        super().__init__(arrays, TYPES[dtype], before)
        self.columns, self.transpose_a = columns, transpose_a
        self.rows, self.summed = self.size(OUT, 0), self.size(A, 0 if transpose_a else 1)
        self.a, self.out = self.data(A), self.data(OUT)
        self.b = self.data(ROOM if transpose_b else B)
        self.given_b = self.data(B)

    def transpose(self) -> None:
        """Write the transpose of the second operand to the room."""
        with self.loop(int64_constant(self.columns)) as j:
            row = self.element_address(
                self.given_b, self.binary("mul", j.i, self.summed), self.element
            )
            with self.loop(self.summed, free=True) as k:
                value = self.load(self.element_address(row, k.i, self.element), self.element, k.tag)
                at = self.binary("add", self.times(k.i, self.columns), j.i)
                self.store(value, self.element_address(self.b, at, self.element), k.tag)

    def tiles_of(self, high: int) -> LlvmValue:
        """The number of tiles in a column of the result; the last one may have fewer rows."""
        more = self.binary("add", self.rows, int64_constant(high - 1))
        return self.add(f"udiv i64 {more.text}, {high}", "i64")

    def times(self, i: LlvmValue, number: int) -> LlvmValue:
        """An index times a number."""
        return self.binary("mul", i, int64_constant(number))

    def row_tiles(self, tiles: Sequence[tuple[TileShape, int]], high: int) -> None:
        """The rows of tiles of a thread's range; the rows that are left over, one by one."""
        first = self.times(BEGIN, high)
        left = self.binary("sub", self.rows, first)
        some = self.times(COUNT, high)
        count = self.choose(self.compare("lt", some, left), some, left)
        if self.transpose_a:
            self.clear(first, count)
        whole = self.add(f"udiv i64 {count.text}, {high}", "i64")
        rest = self.binary("sub", count, self.times(whole, high))
        behind = self.binary("add", first, self.times(whole, high))
        with self.blocks_of_summed() as (start, length):
            with self.loop(whole) as loop:
                row = self.binary("add", first, self.times(loop.i, high))
                self.row_of_tiles(row, tiles, high, start, length)
            with self.loop(rest) as loop:
                self.row_of_tiles(self.binary("add", behind, loop.i), tiles, 1, start, length)

    @contextlib.contextmanager
    def blocks_of_summed(self) -> Iterator[tuple[LlvmValue, LlvmValue]]:
        """The first index and the length of the part of the summed axis that a tile adds at once.

        With a transposed first operand these are rows of both operands, which stay in the cache.
        """
        if not self.transpose_a:
            yield int64_constant(0), self.summed
            return
        more = self.binary("add", self.summed, int64_constant(SUMMED_AT_ONCE - 1))
        with self.loop(self.add(f"udiv i64 {more.text}, {SUMMED_AT_ONCE}", "i64")) as loop:
            start = self.times(loop.i, SUMMED_AT_ONCE)
            left, most = self.binary("sub", self.summed, start), int64_constant(SUMMED_AT_ONCE)
            yield start, self.choose(self.compare("lt", left, most), left, most)

    def row_of_tiles(
        self,
        row: LlvmValue,
        tiles: Sequence[tuple[TileShape, int]],
        high: int,
        start: LlvmValue,
        length: LlvmValue,
    ) -> None:
        """The tiles of `high` rows from `row` on."""
        first = 0
        for tile, count in tiles:
            width = sum(tile.vectors)
            with self.loop(int64_constant(count)) as loop:
                column = self.binary("add", self.times(loop.i, width), int64_constant(first))
                self.tile(row, column, tile._replace(rows=high), start, length)
            first += count * width

    def tile(
        self,
        row: LlvmValue,
        column: LlvmValue,
        tile: TileShape,
        start: LlvmValue,
        length: LlvmValue,
    ) -> None:
        """One tile of the result, whose sums are carried by the loop over the summed axis."""
        columns = [
            self.binary("add", column, int64_constant(tile.lanes * v))
            for v in range(len(tile.vectors))
        ]
        places = [
            (self.element_at(self.out, self.binary("add", row, int64_constant(r)), c), count)
            for r in range(tile.rows)
            for c, count in zip(columns, tile.vectors, strict=True)
        ]
        zero = LlvmValue("zeroinitializer", f"<{tile.lanes} x {self.element}>")
        sums = [self.vector(*p, tile.lanes) if self.transpose_a else zero for p in places]
        bases = self.operand_rows(row, tile.rows, start)
        with self.loop(length, sums) as loop:
            k = self.binary("add", start, loop.i)
            right = [
                self.vector(self.element_at(self.b, k, c), count, tile.lanes)
                for c, count in zip(columns, tile.vectors, strict=True)
            ]
            left = [self.broadcast(at, tile.lanes) for at in self.elements_of(bases, loop.i)]
            products = [(x, y) for x in left for y in right]
            loop.next = [
                self.multiply_add(x, y, total)
                for (x, y), total in zip(products, loop.carried, strict=True)
            ]
        for (at, count), total in zip(places, loop.ends, strict=True):
            self.store_vector(total, at, count)

    def element_at(self, base: LlvmValue, row: LlvmValue, column: LlvmValue) -> LlvmValue:
        """The address of an element of the result or of the second operand."""
        at = self.binary("add", self.times(row, self.columns), column)
        return self.element_address(base, at, self.element)

    def operand_rows(self, row: LlvmValue, count: int, start: LlvmValue) -> list[LlvmValue]:
        """The addresses of the elements at `start` of rows of the first operand."""
        if self.transpose_a:
            at = self.binary("add", self.binary("mul", start, self.rows), row)
            places = [self.binary("add", at, int64_constant(r)) for r in range(count)]
        else:
            rows = [self.binary("add", row, int64_constant(r)) for r in range(count)]
            places = [self.binary("add", self.binary("mul", r, self.summed), start) for r in rows]
        return [self.element_address(self.a, place, self.element) for place in places]

    def elements_of(self, bases: Sequence[LlvmValue], i: LlvmValue) -> list[LlvmValue]:
        """The addresses of the elements behind `bases` by `i` along the summed axis."""
        away = self.binary("mul", i, self.rows) if self.transpose_a else i
        return [self.element_address(base, away, self.element) for base in bases]

    def clear(self, first: LlvmValue, count: LlvmValue) -> None:
        """Set rows of the result to 0."""
        start = self.element_address(self.out, self.times(first, self.columns), self.element)
        with self.loop(self.times(count, self.columns), free=True) as loop:
            at = self.element_address(start, loop.i, self.element)
            self.store(number(0, self.element), at, loop.tag)
