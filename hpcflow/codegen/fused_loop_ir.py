"""Intermediate representation of fused kernels, from which `codegen/llvm_cpu_codegen.py` generates.

A kernel loops over rows of `cols` elements. A value has an element for each of them (FULL), one for
each row (COLUMN), one for each place in a row (ROW), or one (ONE).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

HEAD = object.__basicsize__  # bytes of the header of a Python object
DATA, RANK, SIZES = HEAD, HEAD + 8, HEAD + 16  # byte offsets of fields of a NumPy array
FULL, ROW, COLUMN, ONE, JOINED = "full", "row", "column", "one", "joined"
Begins = tuple[int, tuple[tuple[int, int, int], ...]]

SUM, MAX = "RowSum", "RowMax"  # reductions of a row
COLUMN_SUM = "ColumnSum"  # the sum of all rows; only as a result
JOIN = "Join"  # concatenates rows to longer ones (JOINED); only as a result
COLUMN_INDEX = "Place"  # the index of an element in its row; no inputs
NUMBER = "Number"  # a constant: attributes `value` and `dtype`; no inputs
ROUND = "Round"  # to the 16-bit floats of attribute `storage`; only as a result, or joined
OF_ROWS = (SUM, MAX)


class AxisShift(NamedTuple):
    """An axis of an operand that is read at shifted indices: index i at i + `by`, of `size`.

    With `wraps` it is read modulo `size`; without, elements outside are 0. The axis is that of the
    columns if `over` is 0. Else its indices are row // over % of (row // over if `of` is 0), and
    neighbours are `stride` elements apart.
    """

    by: int
    size: int
    wraps: bool
    over: int = 0
    of: int = 0
    stride: int = 1

    def column_offset(self, column: int) -> int | None:
        """What to add to the index of a column; None where the element is 0."""
        if self.wraps:
            return (column + self.by) % self.size - column
        return self.by if 0 <= column + self.by < self.size else None


class KernelOperand(NamedTuple):
    """An array: its dtype, and `mapping`, which of its elements belongs to row i, column j.

    With a `limit` it has one class label per row, from 0 up to that limit. Where rows are not
    consecutive, `begins` gives the offset of row i: a number plus, for each of its terms (a, b, c),
    i // a % b * c (i // a * c if b is 0). Each of `shifts` adds the offset of its axis.
    """

    dtype: Any
    mapping: str
    limit: int = 0
    begins: Begins | None = None
    shifts: tuple[AxisShift, ...] = ()


class KernelStep(NamedTuple):
    """One operation; inputs are numbers of operands, then of earlier steps."""

    type: str
    inputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    mapping: str = FULL


class KernelBody(NamedTuple):
    """The computation of a kernel: `results` are the numbers of the values it stores, in order.

    Rows have `cols` elements; 0: one row has all elements. If no array is FULL, `size` is the
    number of elements.
    """

    operands: tuple[KernelOperand, ...]
    steps: tuple[KernelStep, ...]
    results: tuple[int, ...]
    cols: int = 0
    size: int = 0

    def mapping(self, value: int) -> str:
        """How a value maps to rows and columns."""
        count = len(self.operands)
        return self.operands[value].mapping if value < count else self.steps[value - count].mapping

    def step(self, value: int) -> KernelStep | None:
        """The step that computes a value; None if it is an operand."""
        count = len(self.operands)
        return self.steps[value - count] if value >= count else None


def column_pieces(operands: Iterable[KernelOperand], cols: int) -> list[tuple[int, int]]:
    """The ranges of columns in which no operand changes its `column_offset`."""
    ends = {cols}
    for shift in (shift for operand in operands for shift in operand.shifts if not shift.over):
        by = shift.by % shift.size if shift.wraps else shift.by
        ends |= {end for end in (-by, shift.size - by) if 0 < end < cols}
    return list(pairwise([0, *sorted(ends)]))


class LoopSchedule:
    """Assigns each value to the first loop over a row that can compute it.

    A step of `OF_ROWS` ends a loop. `spilled` are values that the first loop stores in memory for a
    later one: those that are expensive to recompute.
    """

    def __init__(self, body: KernelBody, costly: frozenset[str]) -> None:
        self.body, self.costly = body, costly
        self.loop = [0] * len(body.operands)
        for step in body.steps:
            first = max((self.loop[i] for i in step.inputs), default=0)
            self.loop.append(first + (step.type in OF_ROWS))
        self.results = set(body.results)
        self.spilled: set[int] = set()
        self.used_values: list[set[int]] = []
        for k in range(max(self.loop, default=0) + 1):
            self.used_values.append(self._find_used_values(k))

    def roots(self, loop: int) -> list[int]:
        """The values that a loop stores, and the reductions that it computes."""
        roots, count = [], len(self.body.operands)
        for value, step in enumerate(self.body.steps, count):
            if step.type in OF_ROWS or step.type == COLUMN_SUM:
                if self.loop[step.inputs[0]] == loop:
                    roots.append(value)
            elif (
                value in self.results
                and step.mapping in (FULL, JOINED)
                and self.loop[value] == loop
            ):
                roots.append(value)
        passed = [v for v in self.body.results if v < count]
        return roots + ([v for v in passed if self.body.mapping(v) == FULL] if loop == 0 else [])

    def sources(self, loop: int, value: int) -> tuple[int, ...]:
        """The values that a loop needs to compute a value."""
        step = self.body.step(value)
        if step is None or step.mapping == COLUMN or self.is_there(loop, value):
            return ()
        return step.inputs

    def is_there(self, loop: int, value: int) -> bool:
        """Whether an earlier loop has stored a value in memory."""
        return self.loop[value] < loop and (value in self.spilled or value in self.results)

    def _find_used_values(self, loop: int) -> set[int]:
        """The elementwise values that a loop needs."""
        used_values: set[int] = set()
        roots = self.roots(loop)
        stack = [i for v in roots for i in self._of_root(v)]
        while stack:
            value = stack.pop()
            if value in used_values:
                continue
            used_values.add(value)
            step = self.body.step(value)
            first = self.loop[value]
            if step is not None and step.type in self.costly and first < loop:
                self.spilled |= {value} & self.used_values[first]
            stack += self.sources(loop, value)
        return used_values

    def _of_root(self, value: int) -> tuple[int, ...]:
        step = self.body.step(value)
        if step is not None and step.type in (*OF_ROWS, COLUMN_SUM, JOIN):
            return step.inputs
        return (value,)

    def writable(self) -> list[int]:
        """The FULL operands that no loop reads after the first result is stored."""
        body = self.body
        if not body.results or body.mapping(body.results[0]) != FULL:
            return []
        later = set().union(*self.used_values[self.loop[body.results[0]] + 1 :])
        full_inputs = [
            i for i, o in enumerate(body.operands) if o.mapping == FULL and o.begins is None
        ]
        return [i for i in full_inputs if i not in later]
