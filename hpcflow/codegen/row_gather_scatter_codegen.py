"""Code generator of gather and scatter kernels of rows, along one axis of an array, `table`.

A kernel checks all indices first. If some are out of range, it returns their count and does nothing
else. Rows are read and updated in the order of the indices.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from hpcflow.codegen import python_call_abi
from hpcflow.codegen.elementwise_formulas import written
from hpcflow.codegen.fused_loop_ir import ONE, KernelOperand, KernelStep
from hpcflow.codegen.llvm_builder import BYTES, LINE, TYPES, LlvmValue
from hpcflow.codegen.llvm_loops import BEGIN, COUNT, BasicBlocks, int64_constant, module

PREFETCH_DISTANCE = 8  # rows of prefetch distance
MOST_LINES = 16  # cache lines of a row to prefetch; the hardware prefetches the others
CHANGES = {  # name -> operation on an element and its operand; "": the operand replaces it
    **{"Add": "Add", "Sub": "Sub", "Mul": "Mul", "Div": "RealDiv"},
    **{"Min": "Minimum", "Max": "Maximum", "Update": ""},
}
DTYPES = frozenset(TYPES) - {"bool"}  # of elements that can be updated
INDICES = ("int32", "int64")


def lines_of(nbytes: int) -> int:
    """How many cache lines to prefetch of a row of `nbytes` bytes."""
    return min(MOST_LINES, -(-nbytes // LINE))


def gather_kernel(itemsize: int, index: str, axis: int, lines: int) -> str:
    """The gather kernel of table, indices, out: out[..., i, ...] = table[..., indices[i], ...].

    Elements have 1, 2, 4, 8 or 16 bytes. Threads split the indices.
    """
    of, units = f"i{8 * min(itemsize, 8)}", max(1, itemsize // 8)
    head = BasicBlocks(GATHER_ARRAYS)
    cut = _RowOffsets(head, index, axis, units).checked()
    b = BasicBlocks(GATHER_ARRAYS, head)
    rows = _RowOffsets(b, index, axis, units)
    table, out = b.data("%table"), b.data("%out")
    with b.loop(rows.outer) as outer, b.loop(COUNT) as loop:
        i = b.binary("add", BEGIN, loop.i)
        start = b.element_address(table, rows.table_offset(outer.i, i), of)
        rows.fetch(table, outer.i, i, of, lines, write=False)
        to = b.element_address(out, rows.operand_offset(outer.i, i), of)
        with b.loop(rows.width, free=True) as inner:
            value = b.load(b.element_address(start, inner.i, of), of, inner.tag)
            b.store(value, b.element_address(to, inner.i, of), inner.tag)
    return module(head, cut, b)


GATHER_ARRAYS = ("%table", "%indices", "%out")


def change(
    kind: str,
    dtype: str,
    index: str,
    axis: int,
    lines: int,
    scaled: bool = False,
    skips: bool = False,
) -> str:
    """The scatter kernel of table, indices, rows: updates rows of the table as `CHANGES[how]` says.

    With `scaled`, rows are multiplied by the scalar in a fourth array first. With `skips`, negative
    indices are skipped. Threads split the columns, since an index may repeat.
    """
    of, arrays = TYPES[dtype], ("%table", "%indices", "%rows", *["%scale"] * scaled)
    head = BasicBlocks(arrays)
    cut = _RowOffsets(head, index, axis).checked(skips, by_columns=True)
    b = BasicBlocks(arrays, head)
    rows = _RowOffsets(b, index, axis)
    table, changes = b.data("%table"), b.data("%rows")
    factor = b.load(b.data("%scale"), of) if scaled else None
    with b.loop(rows.outer) as outer, b.loop(rows.count) as loop:
        rows.fetch(table, outer.i, loop.i, of, lines, write=True, part=COUNT)
        valid = b.compare("ge", rows.index(loop.i), int64_constant(0)) if skips else None
        with nullcontext() if valid is None else b.when(valid):
            start = b.element_address(
                table, b.binary("add", rows.table_offset(outer.i, loop.i), BEGIN), of
            )
            src = b.element_address(
                changes, b.binary("add", rows.operand_offset(outer.i, loop.i), BEGIN), of
            )
            with b.loop(COUNT, free=True) as inner:
                value = b.load(b.element_address(src, inner.i, of), of, inner.tag)
                value = value if factor is None else b.binary("mul", value, factor)
                at = b.element_address(start, inner.i, of)
                if CHANGES[kind]:
                    old = b.load(at, of, inner.tag)
                    value = written(b, CHANGES[kind], [old, value], {}, True)
                b.store(value, at, inner.tag)
    return module(head, cut, b)


class RowUpdateFormula(NamedTuple):
    """The update of rows of several tables of one shape and dtype.

    Values have numbers: those of the tables, then operands, then steps. `changes` has for each
    table the kind of its update, and the number of the value.
    """

    dtype: Any
    indices: str
    operands: tuple[KernelOperand, ...]
    steps: tuple[KernelStep, ...]
    changes: tuple[tuple[str, int], ...]


def formula(body: RowUpdateFormula, lines: int, exact: bool) -> str | None:
    """The kernel of tables, indices and operands; None if an operation has no formula.

    Indices must be distinct: rows are read before any is updated, and threads split the indices.
    """
    of = TYPES[np.dtype(body.dtype).name]
    names = [f"%table{t}" for t in range(len(body.changes))]
    operand_names = [f"%x{k}" for k in range(len(body.operands))]
    arrays = [*names, "%indices", *operand_names]
    head = BasicBlocks(arrays)
    cut = _RowOffsets(head, body.indices, 0, table=names[0]).checked()
    b = BasicBlocks(arrays, head)
    tables, places = [b.data(name) for name in names], [b.data(name) for name in operand_names]
    rows = _RowOffsets(b, body.indices, 0, table=names[0])
    types = [TYPES[np.dtype(operand.dtype).name] for operand in body.operands]
    both = list(zip(body.operands, places, types, strict=True))
    ones = {at: b.load(at, type) for o, at, type in both if o.mapping == ONE}
    with b.loop(COUNT) as loop:
        i = b.binary("add", BEGIN, loop.i)
        for table in tables:
            rows.fetch(table, int64_constant(0), i, of, lines, write=True)
        start, beside = (
            rows.table_offset(int64_constant(0), i),
            rows.operand_offset(int64_constant(0), i),
        )
        starts = [b.element_address(table, start, of) for table in tables]
        with b.loop(rows.width, free=True) as inner:
            at = [b.element_address(place, inner.i, of) for place in starts]
            values = [b.load(place, of, inner.tag) for place in at]
            away = b.binary("add", beside, inner.i)
            for _, place, type in both:
                scalar = ones.get(place)
                value = scalar or b.load(b.element_address(place, away, type), type, inner.tag)
                values.append(value)
            for step in body.steps:
                output = written(b, step.type, [values[v] for v in step.inputs], step.attrs, exact)
                if output is None:
                    return None
                values.append(output)
            for t, (how, v) in enumerate(body.changes):
                value = values[v]
                if CHANGES[how]:
                    value = written(b, CHANGES[how], [values[t], value], {}, True)
                b.store(value, at[t], inner.tag)
    return module(head, cut, b)


def group(index: str) -> str:
    """The kernel of keys, found, inverse: a key has an index, its lower 32 bits a position.

    Keys are sorted; equal indices form a group. found[g] becomes the index of group g,
    inverse[position] the group of the index at that position.
    """
    arrays = ("%keys", "%found", "%inverse")
    head = BasicBlocks(arrays)
    cut = python_call_abi.KernelRanges("0", "1", head.elements("%keys").text)
    b = BasicBlocks(arrays)
    keys, found, inverse = (b.data(a) for a in arrays)
    many = b.binary("mul", b.elements("%keys"), COUNT)
    with b.loop(many, [int64_constant(-1), int64_constant(-1)]) as loop:
        group, last = loop.carried
        key = b.load(b.element_address(keys, loop.i, "i64"), "i64")
        row = b.binary("ashr", key, int64_constant(32))
        place = b.binary("and", key, int64_constant((1 << 32) - 1))
        new = b.add(f"zext i1 {b.compare('ne', row, last).text} to i64", "i64")
        group = b.binary("add", group, new)
        at = b.element_address(found, group, TYPES[index])
        if index == "int32":
            b.store(b.add(f"trunc i64 {row.text} to i32", "i32"), at)
        else:
            b.store(row, at)
        b.store(group, b.element_address(inverse, place, "i64"))
        loop.next = [group, row]
    return module(head, cut, b)


class _RowOffsets:
    """Offsets of rows of the table, and of the rows that belong to the indices."""

    def __init__(
        self, b: BasicBlocks, index: str, axis: int, units: int = 1, table: str = "%table"
    ) -> None:
        self.b, self.type = b, TYPES[index]
        self.indices, self.count = b.data("%indices"), b.elements("%indices")
        self.outer, self.size = b.elements(table, 0, axis), b.size(table, axis)
        self.width = b.binary("mul", b.elements(table, axis + 1), int64_constant(units))

    def index(self, i: LlvmValue) -> LlvmValue:
        """Index number i, in 64 bits."""
        index = self.b.load(self.b.element_address(self.indices, i, self.type), self.type)
        return index if self.type == "i64" else self.b.add(f"sext i32 {index.text} to i64", "i64")

    def table_offset(self, outer: LlvmValue, i: LlvmValue) -> LlvmValue:
        """The offset of the row of the table at index number i."""
        return self._start(outer, self.size, self.index(i))

    def operand_offset(self, outer: LlvmValue, i: LlvmValue) -> LlvmValue:
        """The offset of row i of the array that has a row for each index."""
        return self._start(outer, self.count, i)

    def _start(self, outer: LlvmValue, size: LlvmValue, row: LlvmValue) -> LlvmValue:
        b = self.b
        return b.binary("mul", b.binary("add", b.binary("mul", outer, size), row), self.width)

    def checked(
        self, skips: bool = False, by_columns: bool = False
    ) -> python_call_abi.KernelRanges:
        """Write code that returns the count of out-of-range indices; return the kernel's ranges."""
        b, word = self.b, "sge" if skips else "uge"
        with b.loop(self.count, [int64_constant(0)], free=True) as loop:
            wrong = b.add(f"icmp {word} i64 {self.index(loop.i).text}, {self.size.text}", "i1")
            wrong = b.add(f"zext i1 {wrong.text} to i64", "i64")
            loop.next = [b.binary("add", loop.carried[0], wrong)]
        b.end_if(b.compare("ne", loop.ends[0], int64_constant(0)), loop.ends[0])

        elements = b.binary("mul", b.binary("mul", self.outer, self.count), self.width).text
        if by_columns:
            return python_call_abi.KernelRanges(
                "0", self.width.text, elements, python_call_abi.GRAIN
            )
        return python_call_abi.KernelRanges("0", self.count.text, elements)

    def fetch(
        self,
        table: LlvmValue,
        outer: LlvmValue,
        i: LlvmValue,
        element_type: str,
        lines: int,
        write: bool,
        part: LlvmValue | None = None,
    ) -> None:
        """Prefetch the row used `PREFETCH_DISTANCE` rows later; with `part`, only some columns."""
        b = self.b
        last = b.binary("sub", self.count, int64_constant(1))
        later = b.binary("add", i, int64_constant(PREFETCH_DISTANCE))
        later = b.choose(b.compare("lt", later, last), later, last)
        start = self.table_offset(outer, later)
        start = b.element_address(
            table, start if part is None else b.binary("add", start, BEGIN), element_type
        )
        for k in range(lines):
            away = int64_constant(k * LINE)
            if part is not None:
                inside = b.compare("lt", int64_constant(k * LINE // BYTES[element_type]), part)
                away = b.choose(inside, away, int64_constant(0))
            b.prefetch(b.element_address(start, away, "i8"), write)
