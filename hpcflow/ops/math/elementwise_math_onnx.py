"""ONNX export of elementwise functions."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, exports_same

exports_same(
    {
        **{"Tan": "Tan", "Asin": "Asin", "Acos": "Acos", "Atan": "Atan", "Sinh": "Sinh"},
        **{"Cosh": "Cosh", "Asinh": "Asinh", "Acosh": "Acosh", "Atanh": "Atanh"},
        **{"Floor": "Floor", "Ceil": "Ceil", "Rint": "Round", "Reciprocal": "Reciprocal"},
        **{"IsNan": "IsNaN", "IsInf": "IsInf", "TruncateDiv": "Div"},
    }
)


@exports("Expm1")
def _expm1(to: Emitter, op: Operation) -> Any:
    x = op.inputs[0]
    return to.node("Sub", to.node("Exp", x), to.number(1, x))


@exports("SquaredDifference")
def _squared_difference(to: Emitter, op: Operation) -> Any:
    difference = to.node("Sub", *op.inputs)
    return to.node("Mul", difference, difference)


@exports("TruncateMod")
def _truncate_mod(to: Emitter, op: Operation) -> Any:
    return to.node("Mod", *op.inputs, fmod=1)


@exports("IsFinite")
def _is_finite(to: Emitter, op: Operation) -> Any:
    x = op.inputs[0]
    return to.node("Not", to.node("Or", to.node("IsNaN", x), to.node("IsInf", x)))


@exports("DivNoNan")
def _div_no_nan(to: Emitter, op: Operation) -> Any:
    x, y = op.inputs
    none, zero = to.node("Equal", y, to.number(0, y)), to.number(0, x)
    return to.node("Where", none, zero, to.node("Div", x, y))
