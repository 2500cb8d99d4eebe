"""Code generator of fused variable updates: one loop over a range of elements.

A kernel is called with the first element of the range and its end; then, for each variable, the
array to write and the array with the old value (the same array, if nothing else needs the old
value); then operands; then outputs.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.codegen import python_call_abi
from hpcflow.codegen.elementwise_formulas import written
from hpcflow.codegen.fused_loop_ir import ONE, KernelOperand, KernelStep
from hpcflow.codegen.llvm_builder import (
    FREE,
    TYPES,
    InstructionBuilder,
    LlvmValue,
    metadata,
    number,
)
from hpcflow.codegen.optimizer_formulas import UPDATES


class UpdateTarget(NamedTuple):
    """A variable. One that `counts` updates is a single 64-bit element."""

    dtype: Any
    counts: bool = False


class VariableChange(NamedTuple):
    """An update of the variables with the numbers `targets`."""

    type: str
    targets: tuple[int, ...]
    inputs: tuple[int, ...]
    attrs: Mapping[str, Any]


class UpdateKernel(NamedTuple):
    """The computation of a kernel; values are numbered, operands first, then steps.

    `results` are the numbers of the values that it stores, in order.
    """

    targets: tuple[UpdateTarget, ...]
    operands: tuple[KernelOperand, ...]
    steps: tuple[KernelStep | VariableChange, ...]
    results: tuple[int, ...]


def text(update: UpdateKernel, exact: bool) -> str | None:
    """The LLVM module with the function `@NAME`; None if an operation has no formula."""
    written = lines(update, exact, already_incremented=True)
    if written is None:
        return None
    head, body = written
    return python_call_abi.text(
        head.declared | body.declared,
        [
            *python_call_abi.integer("%first", 0),
            *python_call_abi.integer("%last", 1),
            *_counting(update),
        ],
        python_call_abi.KernelRanges("%first", "%last", "%size", python_call_abi.GRAIN),
        [*_addresses(arrays(update), 2), *head.lines, *LOOP_BEGIN, *body.lines, *LOOP_END],
        metadata(1),
    )


def arrays(update: UpdateKernel) -> list[str]:
    """The names of the array arguments of a kernel, which follow the range."""
    names = [f"{kind}{k}" for k in range(len(update.targets)) for kind in ("n", "o")]
    names += [f"x{i}" for i in range(len(update.operands))]
    return names + [f"y{i}" for i in range(len(update.results))]


def lines(
    update: UpdateKernel, exact: bool, already_incremented: bool
) -> tuple[InstructionBuilder, InstructionBuilder] | None:
    """The code before the loop, and its body for element %j; None if an operation has no formula.

    `already_incremented`: the variables that count updates have already been incremented.
    """
    dtypes = [*(t.dtype for t in update.targets), *(o.dtype for o in update.operands)]
    if not all(np.dtype(dtype).name in TYPES for dtype in dtypes):
        return None
    head, body = InstructionBuilder("h"), InstructionBuilder()
    now = _variables(update, head, body, already_incremented)
    values = [_operand(head, body, i, operand) for i, operand in enumerate(update.operands)]
    for step in update.steps:
        inputs = [values[i] for i in step.inputs]
        if isinstance(step, KernelStep):
            output = written(body, step.type, inputs, step.attrs, exact)
            if output is None:
                return None
            values.append(output)
            continue
        new = UPDATES[step.type](head, body, [now[k] for k in step.targets], inputs, step.attrs)
        for k, value in zip(step.targets, new, strict=True):
            now[k] = value
        values.append(NOTHING)
    for k, target in enumerate(update.targets):
        if not target.counts:
            body.store(now[k], body.at(f"%n{k}", "%j", now[k].type), FREE)
    for i, result in enumerate(update.results):
        value = values[result]
        body.store(value, body.at(f"%y{i}", "%j", value.type), FREE)
    return head, body


NOTHING = LlvmValue("", "")  # the value of an update step, which has none
LOOP_BEGIN = [
    "  %some = icmp slt i64 %begin, %end",
    "  br i1 %some, label %loop, label %over",
    "loop:",
    "  %j = phi i64 [%begin, %entry], [%j1, %loop]",
]
LOOP_END = [
    "  %j1 = add nuw nsw i64 %j, 1",
    "  %again = icmp slt i64 %j1, %end",
    "  br i1 %again, label %loop, label %over, !llvm.loop !2",
    "over:",
]


def _addresses(arrays: Sequence[str], first: int) -> list[str]:
    """Load the data pointers of arrays, arguments from `first` on."""
    loads = python_call_abi.objects([f"%{name}.of" for name in arrays], first)
    for name in arrays:
        loads += python_call_abi.numbers(f"%{name}", f"%{name}.of")
    return loads


def times(update: UpdateKernel) -> list[int]:
    """The number of updates of each variable."""
    changes = [step for step in update.steps if isinstance(step, VariableChange)]
    counts = collections.Counter(k for change in changes for k in change.targets)
    return [counts[k] for k in range(len(update.targets))]


def _counting(update: UpdateKernel) -> list[str]:
    """%size, and the increment of counts in the first range of elements."""
    lines = InstructionBuilder("c")
    lines.add("  %size = sub i64 %last, %first")
    lines.add("  %starts = icmp eq i64 %first, 0")
    for k, (target, many) in enumerate(zip(update.targets, times(update), strict=True)):
        if target.counts:
            lines.lines += _addresses([f"n{k}"], 2 + 2 * k)
            at, starts = LlvmValue(f"%n{k}", "ptr"), LlvmValue("%starts", "i1")
            increment = lines.choose(starts, number(many, "i64"), number(0, "i64"))
            lines.store(lines.binary("add", lines.load(at, "i64"), increment), at)
    return lines.lines


def _variables(
    update: UpdateKernel, h: InstructionBuilder, b: InstructionBuilder, already_incremented: bool
) -> list[LlvmValue]:
    """The value of each variable before the update."""
    values = []
    for k, (target, many) in enumerate(zip(update.targets, times(update), strict=True)):
        if target.counts:
            count = h.load(LlvmValue(f"%n{k}", "ptr"), "i64")
            values.append(
                h.binary("sub", count, number(many, "i64")) if already_incremented else count
            )
        else:
            type = TYPES[np.dtype(target.dtype).name]
            values.append(b.load(b.at(f"%o{k}", "%j", type), type, FREE))
    return values


def _operand(
    h: InstructionBuilder, b: InstructionBuilder, i: int, operand: KernelOperand
) -> LlvmValue:
    """A scalar, loaded before the loop, or an element."""
    type = TYPES[np.dtype(operand.dtype).name]
    if operand.mapping == ONE:
        return h.load(h.at(f"%x{i}", "0", type), type)
    return b.load(b.at(f"%x{i}", "%j", type), type, FREE)
