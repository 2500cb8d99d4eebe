"""What a kernel of fused operations computes, as data: see `codegen/llvm_cpu_codegen.py` for how it
is written.

A kernel goes over rows of `cols` elements each. A value has an element for each of them (FULL), one
for each row (COLUMN), one for each place in a row (ROW), or one (ONE).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

HEAD = object.__basicsize__  # bytes of what all Python objects begin with
DATA, RANK, SIZES = HEAD, HEAD + 8, HEAD + 16  # fields of an array
FULL, ROW, COLUMN, ONE, JOINED = "full", "row", "column", "one", "joined"
Begins = tuple[int, tuple[tuple[int, int, int], ...]]

SUM, MAX = "RowSum", "RowMax"  # steps that make one value of a row
COLUMN_SUM = "ColumnSum"  # one that makes a row of all rows: only as a result
JOIN = "Join"  # one that puts rows side by side in longer ones (JOINED): only as a result
PLACE = "Place"  # the number of an element in its row; no inputs
NUMBER = "Number"  # a constant: attributes `value` and `dtype`; no inputs
OF_ROWS = (SUM, MAX)


class Operand(NamedTuple):
    """An array: its dtype, and which of its elements goes with row i, column j.

    With a `limit` there is one for each row, from 0 up to that limit: a class. Where rows are not
    one behind the other, `begins` is a number, and terms (a, b, c) of which i // a % b * c is added
    to it (0 as b: i // a * c). There row i begins.
    """

    dtype: Any
    way: str
    limit: int = 0
    begins: Begins | None = None


class Step(NamedTuple):
    """One operation; its inputs are numbers of operands or, behind those, of earlier steps."""

    type: str
    inputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    way: str = FULL


class Body(NamedTuple):
    """What a kernel computes: `results` are the numbers of what it stores, in order.

    Rows have `cols` elements; 0: there is one row of all. Of arrays of which none has an element
    for each, `size` tells how many there are.
    """

    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    cols: int = 0
    size: int = 0

    def way(self, value: int) -> str:
        """Of which elements there is one of a value."""
        count = len(self.operands)
        return self.operands[value].way if value < count else self.steps[value - count].way

    def step(self, value: int) -> Step | None:
        """What makes a value; None if it is an operand."""
        count = len(self.operands)
        return self.steps[value - count] if value >= count else None


class Schedule:
    """In which of the loops over a row each value is known first: a step of `OF_ROWS` ends one.

    `kept` are values that a later loop takes from memory, where the first one puts them: those that
    cost much to compute again.
    """

    def __init__(self, body: Body, costly: frozenset[str]) -> None:
        self.body, self.costly = body, costly
        self.loop = [0] * len(body.operands)
        for step in body.steps:
            first = max((self.loop[i] for i in step.inputs), default=0)
            self.loop.append(first + (step.type in OF_ROWS))
        self.results = set(body.results)
        self.kept: set[int] = set()
        self.used: list[set[int]] = []
        for k in range(max(self.loop, default=0) + 1):
            self.used.append(self._used(k))

    def roots(self, loop: int) -> list[int]:
        """Values that a loop stores, and steps that it makes of whole rows or columns."""
        found, count = [], len(self.body.operands)
        for value, step in enumerate(self.body.steps, count):
            if step.type in OF_ROWS or step.type == COLUMN_SUM:
                if self.loop[step.inputs[0]] == loop:
                    found.append(value)
            elif value in self.results and step.way in (FULL, JOINED) and self.loop[value] == loop:
                found.append(value)
        passed = [v for v in self.body.results if v < count]
        return found + ([v for v in passed if self.body.way(v) == FULL] if loop == 0 else [])

    def sources(self, loop: int, value: int) -> tuple[int, ...]:
        """What has to be known in a loop before a value is."""
        step = self.body.step(value)
        if step is None or step.way == COLUMN or self.is_there(loop, value):
            return ()
        return step.inputs

    def is_there(self, loop: int, value: int) -> bool:
        """Whether an earlier loop has put a value into memory."""
        return self.loop[value] < loop and (value in self.kept or value in self.results)

    def _used(self, loop: int) -> set[int]:
        """All values of elements that a loop needs, those first that others need."""
        found: set[int] = set()
        roots = self.roots(loop)
        stack = [i for v in roots for i in self._of_root(v)]
        while stack:
            value = stack.pop()
            if value in found:
                continue
            found.add(value)
            step = self.body.step(value)
            first = self.loop[value]
            if step is not None and step.type in self.costly and first < loop:
                self.kept |= {value} & self.used[first]
            stack += self.sources(loop, value)
        return found

    def _of_root(self, value: int) -> tuple[int, ...]:
        step = self.body.step(value)
        if step is not None and step.type in (*OF_ROWS, COLUMN_SUM, JOIN):
            return step.inputs
        return (value,)

    def writable(self) -> list[int]:
        """Operands of which no loop needs a row any more when its first result is stored."""
        body = self.body
        if not body.results or body.way(body.results[0]) != FULL:
            return []
        later = set().union(*self.used[self.loop[body.results[0]] + 1 :])
        whole = [i for i, o in enumerate(body.operands) if o.way == FULL and o.begins is None]
        return [i for i in whole if i not in later]
