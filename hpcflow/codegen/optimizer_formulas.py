"""Optimizer update formulas: op -> a function that writes the LLVM IR for one element.

They are bitwise equal to `hpcflow.ops.variables.variable_kernels`, which defines the
formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcflow.codegen.llvm_builder import InstructionBuilder, LlvmValue, number

# (lines before the loop, lines of its body, values of the variables, other operands, attributes)
# -> the variables' new values
Change = Callable[
    [InstructionBuilder, InstructionBuilder, list[LlvmValue], list[LlvmValue], Mapping[str, Any]],
    list[LlvmValue],
]
UPDATES: dict[str, Change] = {}
UPDATE_COUNT_INPUTS = {"ApplyAdam": 3}  # op -> the input that counts updates, a scalar variable


def change(type: str) -> Callable[[Change], Change]:
    """Decorator: register the formula of an update."""

    def add(write: Change) -> Change:
        UPDATES[type] = write
        return write

    return add


@change("Assign")
def _assign(
    h: InstructionBuilder,
    b: InstructionBuilder,
    old: list[LlvmValue],
    inputs: list[LlvmValue],
    attrs: Mapping[str, Any],
) -> list[LlvmValue]:
    return inputs


@change("AssignAdd")
def _add(
    h: InstructionBuilder,
    b: InstructionBuilder,
    old: list[LlvmValue],
    inputs: list[LlvmValue],
    attrs: Mapping[str, Any],
) -> list[LlvmValue]:
    return [b.binary("add", old[0], inputs[0])]


@change("AssignSub")
def _subtract(
    h: InstructionBuilder,
    b: InstructionBuilder,
    old: list[LlvmValue],
    inputs: list[LlvmValue],
    attrs: Mapping[str, Any],
) -> list[LlvmValue]:
    return [b.binary("sub", old[0], inputs[0])]


@change("ApplyGradientDescent")
def _descent(
    h: InstructionBuilder,
    b: InstructionBuilder,
    old: list[LlvmValue],
    inputs: list[LlvmValue],
    attrs: Mapping[str, Any],
) -> list[LlvmValue]:
    rate, g = inputs
    return [b.binary("sub", old[0], b.binary("mul", g, rate))]


@change("ApplyMomentum")
def _momentum(
    h: InstructionBuilder,
    b: InstructionBuilder,
    old: list[LlvmValue],
    inputs: list[LlvmValue],
    attrs: Mapping[str, Any],
) -> list[LlvmValue]:
    rate, momentum, g = inputs
    accum = moved = b.binary("add", b.binary("mul", old[1], momentum), g)
    if attrs.get("use_nesterov", False):
        moved = b.binary("add", b.binary("mul", accum, momentum), g)
    return [b.binary("sub", old[0], b.binary("mul", moved, rate)), accum]


@change("ApplyAdam")
def _adam(
    h: InstructionBuilder,
    b: InstructionBuilder,
    old: list[LlvmValue],
    inputs: list[LlvmValue],
    attrs: Mapping[str, Any],
) -> list[LlvmValue]:
    x, m, v, count = old
    *numbers, eps, g = inputs
    count = h.binary("add", count, number(1, "i64"))
    t = h.add(f"sitofp i64 {count.text} to double", "double")
    rate, beta1, beta2 = (_exact(h, c) for c in numbers)
    unit = number(1, "double")
    rest1, rest2 = h.binary("sub", unit, beta1), h.binary("sub", unit, beta2)
    first, second = (
        h.binary("sub", unit, h.call("pow", h.binary("sub", unit, rest), t))
        for rest in (rest1, rest2)
    )
    rate = h.binary("fdiv", h.binary("mul", rate, h.call("sqrt", second)), first)
    rest1, rest2, rate = (_rounded(h, c, x.type) for c in (rest1, rest2, rate))
    m = b.binary("add", m, b.binary("mul", b.binary("sub", g, m), rest1))
    v = b.binary("add", v, b.binary("mul", b.binary("sub", b.binary("mul", g, g), v), rest2))
    moved = b.binary("fdiv", m, b.binary("add", b.call("sqrt", v), eps))
    return [b.binary("sub", x, b.binary("mul", moved, rate)), m, v, count]


def _exact(h: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """A scalar converted to 64 bits."""
    converted = h.convert(x, "double")
    assert converted is not None
    return converted


def _rounded(h: InstructionBuilder, x: LlvmValue, type: str) -> LlvmValue:
    """A 64-bit scalar converted to the type of a variable."""
    converted = h.convert(x, type)
    assert converted is not None
    return converted
