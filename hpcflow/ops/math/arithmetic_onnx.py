"""ONNX export of arithmetic, comparison and logic."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, exports_same

exports_same(
    {
        **{"Abs": "Abs", "Neg": "Neg", "Sign": "Sign", "Sqrt": "Sqrt", "Exp": "Exp", "Log": "Log"},
        **{"Sin": "Sin", "Cos": "Cos", "Tanh": "Tanh", "Sigmoid": "Sigmoid"},
        **{"Add": "Add", "Sub": "Sub", "Mul": "Mul", "RealDiv": "Div", "Pow": "Pow"},
        **{"Maximum": "Max", "Minimum": "Min", "AddN": "Sum", "Select": "Where"},
        **{"Equal": "Equal", "Less": "Less", "LessEqual": "LessOrEqual", "Greater": "Greater"},
        **{"GreaterEqual": "GreaterOrEqual", "LogicalAnd": "And", "LogicalOr": "Or"},
        **{"LogicalXor": "Xor", "LogicalNot": "Not"},
    }
)


@exports("CheckNumerics")
def _check_numerics(to: Emitter, op: Operation) -> str:
    return to.name(op.inputs[0])


@exports("NotEqual")
def _not_equal(to: Emitter, op: Operation) -> Any:
    return to.node("Not", to.node("Equal", *op.inputs))


@exports("Square")
def _square(to: Emitter, op: Operation) -> Any:
    return to.node("Mul", op.inputs[0], op.inputs[0])


@exports("Rsqrt")
def _rsqrt(to: Emitter, op: Operation) -> Any:
    return to.node("Reciprocal", to.node("Sqrt", op.inputs[0]))


@exports("Log1p")
def _log1p(to: Emitter, op: Operation) -> Any:
    x = op.inputs[0]
    return to.node("Log", to.node("Add", x, to.number(1, x)))


@exports("FloorDiv")
def _floor_div(to: Emitter, op: Operation) -> Any:
    x, y = op.inputs
    if x.dtype.kind == "f":
        return to.node("Floor", to.node("Div", x, y))
    return to.node("Div", to.node("Sub", x, to.node("Mod", x, y)), y)


@exports("FloorMod")
def _floor_mod(to: Emitter, op: Operation) -> Any:
    x, y = op.inputs
    if x.dtype.kind != "f":
        return to.node("Mod", x, y)
    quotient = to.node("Floor", to.node("Div", x, y))
    return to.node("Sub", x, to.node("Mul", quotient, y))


@exports("ClipByValue")
def _clip(to: Emitter, op: Operation) -> Any:
    x, low, high = op.inputs
    return to.node("Max", to.node("Min", x, high), low)


@exports("Cast")
def _cast(to: Emitter, op: Operation) -> Any:
    return to.cast(op.inputs[0], op.attrs["dtype"])
