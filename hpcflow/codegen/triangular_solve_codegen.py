"""Code generator of solutions of triangular systems, and of Cholesky factors, in place.

Substitution by tiles: a tile of rows of the solution stays in registers while the products with the
rows that are solved are subtracted, as in a matrix product; then its own small triangle is solved.
It is as accurate as substitution row by row: nothing is inverted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpcflow.codegen import python_call_abi
from hpcflow.codegen.fused_loop_ir import SIZES
from hpcflow.codegen.llvm_builder import BYTES, TYPES, LlvmValue
from hpcflow.codegen.llvm_loops import BEGIN, COUNT, BasicBlocks, int64_constant, module
from hpcflow.codegen.matmul_codegen import VectorWriter, vector_registers

A, X = "%a", "%x"
STRIDES = SIZES + 8  # byte offset of the strides of a NumPy array
VECTORS = 4  # of a tile


class _TileKind(NamedTuple):
    """Tiles of a number of vectors, of `lanes` columns each, and of `rows`."""

    vectors: int
    lanes: int
    rows: int

    @property
    def columns(self) -> int:
        """The number of columns of a tile."""
        return self.vectors * self.lanes


def text(dtype: str, transposed: bool, upward: bool) -> str:
    """The LLVM IR of the kernel of `a` [batch, n, n] and `x` [batch, n, columns].

    x becomes the solution y of a y = x. Of `a` the lower triangle is read, or with `upward` the
    upper one. With `transposed`, the system is that of the transpose of each matrix of `a`, and the
    triangle is that of the transpose. Rows are contiguous; their distance is read from the arrays.
    """
    head = _Writer(dtype, transposed, upward)
    units = head.binary("mul", head.batch, head.tiles)
    squares = head.binary("mul", head.size_n, head.size_n)
    work = head.binary("mul", head.batch, head.binary("mul", squares, head.columns))
    body = _Writer(dtype, transposed, upward, head)
    body.range_of_tiles()
    ranges = python_call_abi.KernelRanges("0", units.text, work.text)
    return module(head, ranges, body, computes=True)


def cholesky_text(dtype: str) -> str:
    """The LLVM IR of the kernel of `x` [batch, n, n].

    Of symmetric matrices the upper triangles are read, and become the upper triangular factors U
    with x = U^T U. Below the diagonal elements become arbitrary. A factor of a matrix that is not
    positive definite has a diagonal element that is not a positive number. Rows are contiguous.
    """
    head = _CholeskyWriter(dtype)
    squares = head.binary("mul", head.size_n, head.size_n)
    work = head.binary("mul", head.batch, head.binary("mul", squares, head.size_n))
    body = _CholeskyWriter(dtype, head)
    body.range_of_matrices()
    ranges = python_call_abi.KernelRanges("0", head.batch.text, work.text)
    return module(head, ranges, body, computes=True)


class _Writer(VectorWriter):
    """Writes the loops over tiles of columns, and over the rows of each as they are solved."""

    def __init__(
        self,
        dtype: str,
        transposed: bool,
        upward: bool,
        before: BasicBlocks | None = None,
        arrays: Sequence[str] = (A, X),
    ) -> None:
        super().__init__(arrays, TYPES[dtype], before)
        registers = vector_registers()
        lanes = registers.bytes // BYTES[self.element]
        most = VECTORS if registers.number > 16 else 2
        self.kinds = (
            _TileKind(most, lanes, (registers.number - most - 1) // most),
            _TileKind(1, lanes, 8),
            _TileKind(1, 1, 8),
        )
        self.transposed, self.upward = transposed, upward
        self.batch, self.size_n, self.columns = (self.size(X, axis) for axis in range(3))
        self.counts = self.tile_counts(self.columns)
        self.tiles = functools.reduce(functools.partial(self.binary, "add"), self.counts)

    def tile_counts(self, columns: LlvmValue) -> list[LlvmValue]:
        """The numbers of tiles of each kind for a number of columns."""
        counts = []
        for kind in self.kinds:
            operands = f"i64 {columns.text}, {kind.columns}"
            counts.append(self.add(f"udiv {operands}", "i64"))
            columns = self.add(f"urem {operands}", "i64")
        return counts

    def stride(self, array: str, axis: int) -> LlvmValue:
        """The distance of neighbours along an axis, in elements."""
        pointer = LlvmValue(array, "ptr")
        at = self.element_address(pointer, int64_constant(STRIDES), "i8")
        table = self.load(at, "ptr")
        nbytes = self.load(self.element_address(table, int64_constant(axis), "i64"), "i64")
        return self.add(f"sdiv i64 {nbytes.text}, {BYTES[self.element]}", "i64")

    def range_of_tiles(self) -> None:
        """The tiles of a thread's range, over all systems of the batch."""
        bases = [(self.data(array), self.stride(array, 0)) for array in (A, X)]
        last = self.binary("sub", self.size_n, int64_constant(1))
        self.steps = {array: self.stride(array, 1) for array in (A, X)}
        with self.loop(COUNT) as loop:
            unit = self.binary("add", BEGIN, loop.i)
            system = self.add(f"udiv i64 {unit.text}, {self.tiles.text}", "i64")
            tile = self.add(f"urem i64 {unit.text}, {self.tiles.text}", "i64")
            self.a, self.x = (
                self.element_address(base, self.binary("mul", system, step), self.element)
                for base, step in bases
            )
            if self.upward:  # the rows are numbered from the last one
                both = self.binary("add", self.steps[A], int64_constant(1))
                self.a = self.element_address(self.a, self.binary("mul", last, both), self.element)
                away = self.binary("mul", last, self.steps[X])
                self.x = self.element_address(self.x, away, self.element)
            for kind, number, column in self.numbered(tile):
                inside = self.add(
                    f"icmp ult i64 {number.text}, {self.counts[self.kinds.index(kind)].text}", "i1"
                )
                with self.when(inside):
                    self.solve_columns(column, kind)

    def numbered(self, tile: LlvmValue) -> Iterator[tuple[_TileKind, LlvmValue, LlvmValue]]:
        """For each kind of tiles the number of the tile among those, and its first column."""
        before = column = int64_constant(0)
        for kind, count in zip(self.kinds, self.counts, strict=True):
            number = self.binary("sub", tile, before)
            width = int64_constant(kind.columns)
            yield kind, number, self.binary("add", column, self.binary("mul", number, width))
            before = self.binary("add", before, count)
            column = self.binary("add", column, self.binary("mul", count, width))

    def solve_columns(self, column: LlvmValue, kind: _TileKind) -> None:
        """Solve for the columns of a tile, from the first row on."""
        rows = int64_constant(kind.rows)
        whole = self.add(f"udiv i64 {self.size_n.text}, {rows.text}", "i64")
        done = self.binary("mul", whole, rows)
        with self.loop(whole) as loop:
            self.solve_rows(self.binary("mul", loop.i, rows), kind.rows, column, kind)
        with self.loop(self.binary("sub", self.size_n, done)) as loop:
            self.solve_rows(self.binary("add", done, loop.i), 1, column, kind)

    def subtract_solved(
        self, row: LlvmValue, count: int, column: LlvmValue, kind: _TileKind
    ) -> tuple[list[LlvmValue], list[list[LlvmValue]], list[LlvmValue]]:
        """Subtract the products with the rows before `row` from a tile of `count` rows.

        Return the numbers of its rows, the addresses of its vectors by rows, and their new values.
        """
        rows = [self.binary("add", row, int64_constant(r)) for r in range(count)]
        columns = [
            self.binary("add", column, int64_constant(v * kind.lanes)) for v in range(kind.vectors)
        ]
        places = [[self.x_at(r, c) for c in columns] for r in rows]
        loaded = [self.vector(at, kind.lanes, kind.lanes) for of_row in places for at in of_row]
        with self.loop(row, loaded) as loop:
            solved = [self.vector(self.x_at(loop.i, c), kind.lanes, kind.lanes) for c in columns]
            factors = [self.negated(self.a_at(r, loop.i), kind.lanes) for r in rows]
            pairs = [(factor, y) for factor in factors for y in solved]
            loop.next = [
                self.multiply_add(factor, y, total)
                for (factor, y), total in zip(pairs, loop.carried, strict=True)
            ]
        return rows, places, loop.ends

    def solve_rows(self, row: LlvmValue, count: int, column: LlvmValue, kind: _TileKind) -> None:
        """Solve for `count` rows from `row` on; those before are solved."""
        rows, places, values = self.subtract_solved(row, count, column, kind)
        width, found = kind.vectors, list[list[LlvmValue]]()
        for r, of_row in enumerate(places):
            totals = values[r * width : (r + 1) * width]
            for before, solved in zip(rows[:r], found, strict=True):
                factor = self.negated(self.a_at(rows[r], before), kind.lanes)
                totals = [
                    self.multiply_add(factor, y, total)
                    for y, total in zip(solved, totals, strict=True)
                ]
            pivot = self.broadcast(self.a_at(rows[r], rows[r]), kind.lanes)
            found.append([self.binary_of_vectors("fdiv", total, pivot) for total in totals])
            for at, value in zip(of_row, found[-1], strict=True):
                self.store_vector(value, at, kind.lanes)

    def negated(self, at: LlvmValue, lanes: int) -> LlvmValue:
        """A vector of minus one element."""
        value = self.broadcast(at, lanes)
        return self.add(f"fneg {value.type} {value.text}", value.type)

    def binary_of_vectors(self, name: str, x: LlvmValue, y: LlvmValue) -> LlvmValue:
        """An instruction of two vectors."""
        return self.add(f"{name} {x.type} {x.text}, {y.text}", x.type)

    def x_at(self, row: LlvmValue, column: LlvmValue) -> LlvmValue:
        """The address of an element of the solution; with `upward` rows count from the last."""
        away = self.binary("mul", row, self.steps[X])
        at = self.binary("sub" if self.upward else "add", column, away)
        return self.element_address(self.x, at, self.element)

    def a_at(self, row: LlvmValue, column: LlvmValue) -> LlvmValue:
        """The address of an element of the matrix; with `upward` both count from the last."""
        row, column = (column, row) if self.transposed else (row, column)
        at = self.binary("add", self.binary("mul", row, self.steps[A]), column)
        if self.upward:
            at = self.binary("sub", int64_constant(0), at)
        return self.element_address(self.a, at, self.element)


class _CholeskyWriter(_Writer):
    """Writes the loop over tiles of rows; a row is the solution of the system of those above it."""

    def __init__(self, dtype: str, before: BasicBlocks | None = None) -> None:
        super().__init__(dtype, True, False, before, (X,))
        self.lanes = self.kinds[1].lanes
        self.high = min(self.kinds[0].rows, self.lanes)

    def range_of_matrices(self) -> None:
        """The matrices of a thread's range."""
        base, step = self.data(X), self.stride(X, 0)
        self.steps = dict.fromkeys((A, X), self.stride(X, 1))
        with self.loop(COUNT) as loop:
            number = self.binary("mul", self.binary("add", BEGIN, loop.i), step)
            self.a = self.x = self.element_address(base, number, self.element)
            self.factor()

    def factor(self) -> None:
        """Factor a matrix: tiles of rows while a vector fits behind the diagonal, then rows."""
        room = self.binary("sub", self.size_n, int64_constant(self.lanes - self.high))
        some = self.compare("gt", room, int64_constant(0))
        room = self.choose(some, room, int64_constant(0))
        whole = self.add(f"udiv i64 {room.text}, {self.high}", "i64")
        high = int64_constant(self.high)
        with self.loop(whole) as loop:
            self.factor_rows(self.binary("mul", loop.i, high), self.high, self.lanes)
        done = self.binary("mul", whole, high)
        with self.loop(self.binary("sub", self.size_n, done)) as loop:
            self.factor_rows(self.binary("add", done, loop.i), 1, 1)

    def factor_rows(self, row: LlvmValue, count: int, lanes: int) -> None:
        """Factor `count` rows from `row` on: the tile on the diagonal, then those behind it."""
        self.factor_diagonal(row, count, _TileKind(1, lanes, count))
        column = self.binary("add", row, int64_constant(lanes))
        columns = self.binary("sub", self.size_n, column)
        for kind, tiles in zip(self.kinds, self.tile_counts(columns), strict=True):
            width = int64_constant(kind.columns)
            with self.loop(tiles) as loop:
                at = self.binary("add", column, self.binary("mul", loop.i, width))
                self.solve_rows(row, count, at, kind)
            column = self.binary("add", column, self.binary("mul", tiles, width))

    def factor_diagonal(self, row: LlvmValue, count: int, kind: _TileKind) -> None:
        """Factor the tile that begins on the diagonal; its vectors have the pivots."""
        _, places, values = self.subtract_solved(row, count, row, kind)
        for r, (at,) in enumerate(places):
            pivot = self.call("sqrt", self.lane(values[r], r))
            pivots = self.spread(pivot, kind.lanes)
            values[r] = self.binary_of_vectors("fdiv", values[r], pivots)
            self.store_vector(values[r], at, kind.lanes)
            for below in range(r + 1, count):
                lane = self.lane(values[r], below)
                minus = self.add(f"fneg {lane.type} {lane.text}", lane.type)
                factor = self.spread(minus, kind.lanes)
                values[below] = self.multiply_add(factor, values[r], values[below])

    def lane(self, value: LlvmValue, number: int) -> LlvmValue:
        """A lane of a vector."""
        text = f"extractelement {value.type} {value.text}, i32 {number}"
        return self.add(text, self.element)
