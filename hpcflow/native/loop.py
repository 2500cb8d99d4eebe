"""The text of a kernel: a loop over rows and columns, its body the formulas of several operations.

A kernel is called with NumPy arrays themselves, as Python objects, inputs first. Where an array's
numbers lie, and its sizes, it reads from the fields that NumPy's headers define
(`PyArrayObject_fields` of numpy/ndarraytypes.h), so a call hands over nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.native import call
from hpcflow.native.formulas import written
from hpcflow.native.words import MEMORY, TYPES, Lines, Value

HEAD = object.__basicsize__  # bytes of what all Python objects begin with
DATA, RANK, SIZES = HEAD, HEAD + 8, HEAD + 16  # fields of an array
FULL, ROW, COLUMN, ONE = "full", "row", "column", "one"  # an element each; of a column; of a row; 1


class Operand(NamedTuple):
    """An array: its dtype, and which of its elements goes with row i, column j."""

    dtype: Any
    way: str


class Step(NamedTuple):
    """One operation; its inputs are numbers of operands or, behind those, of earlier steps."""

    type: str
    inputs: tuple[int, ...]
    attrs: Mapping[str, Any]


class Body(NamedTuple):
    """What a kernel computes: `results` are the numbers of what it stores, in order.

    The first `split` axes of a result are its rows, the others its columns.
    """

    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    split: int


def text(body: Body, exact: bool) -> str | None:
    """The kernel in LLVM's language, `@NAME` its function; None if an operation has no formula.

    All results have an element for each row and column, and lie in C order.
    """
    b = Lines()
    values: list[Value] = []
    for i, operand in enumerate(body.operands):
        type = TYPES.get(np.dtype(operand.dtype).name)
        if type is None:
            return None
        values.append(_loaded(b, f"%x{i}", type, operand.way))
    for step in body.steps:
        made = written(b, step.type, [values[i] for i in step.inputs], step.attrs, exact)
        if made is None:
            return None
        values.append(made)
    for k, i in enumerate(body.results):
        _stored(b, f"%y{k}", values[i])
    arrays = [f"%a{i}" for i in range(len(body.operands))]
    outputs = [f"%o{k}" for k in range(len(body.results))]
    head = [
        *call.objects([*arrays, *outputs]),
        *_addresses(arrays, "x"),
        *_addresses(outputs, "y"),
        *_sizes(outputs[0], body.split),
    ]
    return "\n".join(
        [
            *sorted(b.declared | call.CALLED),
            f"define ptr @NAME({call.SIGNATURE}) {{",
            "entry:",
            *head,
            "  %total = mul i64 %rows, %cols",
            *call.unlocked("%total", "sized"),
            *LOOP_BEGIN,
            *b.lines,
            *LOOP_END,
            *call.END,
            "}",
            *METADATA,
        ]
    )


def _addresses(arrays: Sequence[str], letter: str) -> list[str]:
    """Where the numbers of each array begin."""
    found = []
    for i, array in enumerate(arrays):
        found.append(f"  %d{letter}{i} = getelementptr i8, ptr {array}, i64 {DATA}")
        found.append(f"  %{letter}{i} = load ptr, ptr %d{letter}{i}")
    return found


def _sizes(array: str, split: int) -> list[str]:
    """%rows and %cols: the products of the first `split` sizes of an array and of the others."""
    return [
        f"  %pr = getelementptr i8, ptr {array}, i64 {RANK}",
        "  %rank = load i32, ptr %pr",
        f"  %ps = getelementptr i8, ptr {array}, i64 {SIZES}",
        "  %sizes = load ptr, ptr %ps",
        "  br label %count",
        "count:",
        "  %k = phi i32 [0, %entry], [%k1, %counted]",
        "  %rows = phi i64 [1, %entry], [%rows1, %counted]",
        "  %cols = phi i64 [1, %entry], [%cols1, %counted]",
        "  %done = icmp sge i32 %k, %rank",
        "  br i1 %done, label %sized, label %counted",
        "counted:",
        "  %at = getelementptr i64, ptr %sizes, i32 %k",
        "  %size = load i64, ptr %at",
        f"  %is_row = icmp slt i32 %k, {split}",
        "  %by_row = select i1 %is_row, i64 %size, i64 1",
        "  %by_col = select i1 %is_row, i64 1, i64 %size",
        "  %rows1 = mul i64 %rows, %by_row",
        "  %cols1 = mul i64 %cols, %by_col",
        "  %k1 = add i32 %k, 1",
        "  br label %count",
        "sized:",
    ]


LOOP_BEGIN = [
    "  %none = icmp eq i64 %cols, 0",
    "  br i1 %none, label %end, label %rowhead",
    "rowhead:",
    "  %i = phi i64 [0, %py.unlocked], [%i1, %rownext]",
    "  %over = icmp sge i64 %i, %rows",
    "  br i1 %over, label %end, label %rowbegin",
    "rowbegin:",
    "  %base = mul i64 %i, %cols",
    "  br label %loop",
    "loop:",
    "  %j = phi i64 [0, %rowbegin], [%j1, %loop]",
    "  %n = add i64 %base, %j",
]
LOOP_END = [
    "  %j1 = add nuw nsw i64 %j, 1",
    "  %again = icmp ult i64 %j1, %cols",
    "  br i1 %again, label %loop, label %rownext, !llvm.loop !1",
    "rownext:",
    "  %i1 = add nuw nsw i64 %i, 1",
    "  br label %rowhead",
    "end:",
]
METADATA = [  # no element of an array is used by more than one round of the loop
    "!0 = distinct !{}",
    "!1 = distinct !{!1, !2}",
    '!2 = !{!"llvm.loop.parallel_accesses", !0}',
]
PLACE = {FULL: "%n", ROW: "%j", COLUMN: "%i", ONE: "0"}


def _loaded(b: Lines, base: str, type: str, way: str) -> Value:
    """The element of an operand."""
    memory = MEMORY[type]
    at = b.add(f"getelementptr {memory}, ptr {base}, i64 {PLACE[way]}", "ptr")
    value = b.add(f"load {memory}, ptr {at.text}, !llvm.access.group !0", memory)
    if type == "i1":
        return b.add(f"icmp ne i8 {value.text}, 0", "i1")
    return value


def _stored(b: Lines, base: str, value: Value) -> None:
    """Put an element into an output."""
    memory = MEMORY[value.type]
    if value.type == "i1":
        value = b.add(f"zext i1 {value.text} to i8", "i8")
    at = b.add(f"getelementptr {memory}, ptr {base}, i64 %n", "ptr")
    b.add(f"  store {memory} {value.text}, ptr {at.text}, !llvm.access.group !0")
