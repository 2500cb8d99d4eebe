"""ONNX export of arithmetic, comparison, logic and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.graph.dtypes import int32, int64
from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, rank_of

# -- ops equal to an ONNX operator

_SAME = {
    **{"Abs": "Abs", "Neg": "Neg", "Sign": "Sign", "Sqrt": "Sqrt", "Exp": "Exp", "Log": "Log"},
    **{"Sin": "Sin", "Cos": "Cos", "Tan": "Tan", "Asin": "Asin", "Acos": "Acos", "Atan": "Atan"},
    **{"Sinh": "Sinh", "Cosh": "Cosh", "Tanh": "Tanh", "Asinh": "Asinh", "Acosh": "Acosh"},
    **{"Atanh": "Atanh", "Sigmoid": "Sigmoid", "Erf": "Erf", "Floor": "Floor", "Ceil": "Ceil"},
    **{"Rint": "Round", "Reciprocal": "Reciprocal", "IsNan": "IsNaN", "IsInf": "IsInf"},
    **{"Add": "Add", "Sub": "Sub", "Mul": "Mul", "RealDiv": "Div", "Pow": "Pow"},
    **{"TruncateDiv": "Div", "Maximum": "Max", "Minimum": "Min", "AddN": "Sum"},
    **{"Equal": "Equal", "Less": "Less", "LessEqual": "LessOrEqual", "Greater": "Greater"},
    **{"GreaterEqual": "GreaterOrEqual", "LogicalAnd": "And", "LogicalOr": "Or"},
    **{"LogicalXor": "Xor", "LogicalNot": "Not", "Select": "Where", "BiasAdd": "Add"},
    **{"Relu": "Relu", "Softplus": "Softplus"},
}


def _same(type: str, name: str) -> None:
    @exports(type)
    def say(to: Emitter, op: Operation) -> Any:
        return to.node(name, *op.inputs)


for _type, _name in _SAME.items():
    _same(_type, _name)


@exports("CheckSizes", "Identity", "StopGradient", "PlaceholderWithDefault", "CheckNumerics")
def _identity(to: Emitter, op: Operation) -> str:
    return to.name(op.inputs[0])


@exports("IdentityN", "CustomGradient")
def _identities(to: Emitter, op: Operation) -> list[str]:
    return [to.name(t) for t in op.inputs[: len(op.outputs)]]


# -- ops composed of several operators


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


@exports("Expm1")
def _expm1(to: Emitter, op: Operation) -> Any:
    x = op.inputs[0]
    return to.node("Sub", to.node("Exp", x), to.number(1, x))


@exports("Erfc")
def _erfc(to: Emitter, op: Operation) -> Any:
    x = op.inputs[0]
    return to.node("Sub", to.number(1, x), to.node("Erf", x))


@exports("SquaredDifference")
def _squared_difference(to: Emitter, op: Operation) -> Any:
    difference = to.node("Sub", *op.inputs)
    return to.node("Mul", difference, difference)


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
    whole = to.node("Floor", to.node("Div", x, y))
    return to.node("Sub", x, to.node("Mul", whole, y))


@exports("TruncateMod")
def _truncate_mod(to: Emitter, op: Operation) -> Any:
    return to.node("Mod", *op.inputs, fmod=1)


@exports("ClipByValue")
def _clip(to: Emitter, op: Operation) -> Any:
    x, low, high = op.inputs
    return to.node("Max", to.node("Min", x, high), low)


@exports("Cast")
def _cast(to: Emitter, op: Operation) -> Any:
    return to.cast(op.inputs[0], op.attrs["dtype"])


@exports("L2Loss")
def _l2_loss(to: Emitter, op: Operation) -> Any:
    x = op.inputs[0]
    total = to.node("ReduceSum", to.node("Mul", x, x), keepdims=0)
    return to.node("Mul", total, to.number(0.5, x))


@exports("MatMul")
def _matmul(to: Emitter, op: Operation) -> Any:
    names = []
    for tensor, turned in zip(op.inputs, ("transpose_a", "transpose_b"), strict=True):
        name: Any = to.name(tensor)
        if op.attrs[turned]:
            perm = list(range(rank_of(tensor)))
            perm[-1], perm[-2] = perm[-2], perm[-1]
            name = to.node("Transpose", tensor, perm=perm)
        names.append(name)
    return to.node("MatMul", *names)


# -- reductions


def _axes(op: Operation) -> list[int] | None:
    axis = op.attrs["axis"]
    if axis is None:
        return None
    return [axis] if isinstance(axis, int) else list(axis)


def _reduced(to: Emitter, op: Operation, name: str, x: Any) -> Any:
    axes, keep = _axes(op), int(op.attrs["keepdims"])
    if axes == []:
        return to.node("Identity", x)
    if name == "ReduceSum":
        return to.node(name, x, *([] if axes is None else [to.ints(axes)]), keepdims=keep)
    return to.node(name, x, axes=axes, keepdims=keep)


def _reduction(type: str, name: str) -> None:
    @exports(type)
    def say(to: Emitter, op: Operation) -> Any:
        return _reduced(to, op, name, op.inputs[0])


for _type, _name in {
    **{"Sum": "ReduceSum", "Mean": "ReduceMean", "Prod": "ReduceProd", "Max": "ReduceMax"},
    **{"Min": "ReduceMin", "LogSumExp": "ReduceLogSumExp"},
}.items():
    _reduction(_type, _name)


@exports("Any", "All")
def _logic(to: Emitter, op: Operation) -> Any:
    """Count the true or false elements, which is also correct for an empty tensor."""
    x: Any = op.inputs[0]
    counted = to.cast(x if op.type == "Any" else to.node("Not", x), int32)
    found = to.node("Greater", _reduced(to, op, "ReduceSum", counted), to.constant(np.int32(0)))
    return found if op.type == "Any" else to.node("Not", found)


@exports("ArgMax", "ArgMin")
def _position(to: Emitter, op: Operation) -> Any:
    at = to.node(op.type, op.inputs[0], axis=op.attrs["axis"], keepdims=0)
    return at if op.outputs[0].dtype == int64 else to.cast(at, op.outputs[0].dtype)


@exports("Cumsum")
def _cumsum(to: Emitter, op: Operation) -> Any:
    attributes = {k: int(op.attrs[k]) for k in ("exclusive", "reverse")}
    return to.node("CumSum", op.inputs[0], to.ints(op.attrs["axis"]), **attributes)


@exports("TopK")
def _top_k(to: Emitter, op: Operation) -> Any:
    if len(op.inputs) == 1:
        k = to.ints([op.attrs["k"]])
    else:
        k = to.node("Reshape", to.cast(op.inputs[1], int64), to.ints([1]))
    values, at = to.node("TopK", op.inputs[0], k, outputs=2)
    return [values, to.cast(at, op.outputs[1].dtype)]


@exports("IsFinite")
def _is_finite(to: Emitter, op: Operation) -> Any:
    x = op.inputs[0]
    return to.node("Not", to.node("Or", to.node("IsNaN", x), to.node("IsInf", x)))


@exports("DivNoNan")
def _div_no_nan(to: Emitter, op: Operation) -> Any:
    x, y = op.inputs
    none, zero = to.node("Equal", y, to.number(0, y)), to.number(0, x)
    return to.node("Where", none, zero, to.node("Div", x, y))


@exports("Einsum")
def _einsum(to: Emitter, op: Operation) -> Any:
    return to.node("Einsum", *op.inputs, equation=op.attrs["equation"])


@exports("MatrixDeterminant")
def _determinant(to: Emitter, op: Operation) -> Any:
    return to.node("Det", op.inputs[0])
