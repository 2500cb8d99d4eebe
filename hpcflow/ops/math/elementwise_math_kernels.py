"""Elementwise math kernels: trigonometry, rounding, remainders, float tests, bits, complex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.math.arithmetic_kernels import no_zero, number, truncated, ufunc

UFUNCS = {
    **{"Tan": "tan", "Asin": "arcsin", "Acos": "arccos", "Atan": "arctan", "Atan2": "arctan2"},
    **{"Sinh": "sinh", "Cosh": "cosh", "Asinh": "arcsinh", "Acosh": "arccosh", "Atanh": "arctanh"},
    **{"Expm1": "expm1", "Reciprocal": "reciprocal"},
    **{"Ceil": "ceil", "Floor": "floor", "Rint": "rint"},
    **{"IsFinite": "isfinite", "IsInf": "isinf", "IsNan": "isnan"},
    **{"BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor"},
    **{"LeftShift": "left_shift", "RightShift": "right_shift", "Invert": "invert"},
    **{"Conj": "conjugate", "NextAfter": "nextafter"},
}

for _type, _name in UFUNCS.items():
    ufunc(_type, _name)


@kernel("SquaredDifference", "out", inplace=(0, 1))
def _squared_difference(xp: Any, node: KernelNode) -> Callable[..., Any]:
    is_complex = node.outputs[0].dtype.kind == "c"

    def run(x: Any, y: Any, out: Any) -> None:
        xp.subtract(x, y, out)
        xp.multiply(out, xp.conj(out) if is_complex else out, out)

    return run


@kernel("TruncateMod", "out", inplace=(0,))
def _truncate_mod(xp: Any, node: KernelNode) -> Callable[..., Any]:
    is_integer = node.inputs[0].dtype.kind in "iu"

    def run(x: Any, y: Any, out: Any) -> None:
        if is_integer:
            no_zero(xp, x, y)
        xp.fmod(x, y, out)

    return run


@kernel("TruncateDiv", "out", inplace=(0,))
def _truncate_div(xp: Any, node: KernelNode) -> Callable[..., Any]:
    if node.inputs[0].dtype.kind == "f":

        def cut(x: Any, y: Any, out: Any) -> None:
            xp.true_divide(x, y, out)
            xp.trunc(out, out)

        return cut

    def run(x: Any, y: Any, out: Any) -> None:
        xp.copyto(out, truncated(xp, x, y))

    return run


@kernel("DivNoNan", "out")
def _div_no_nan(xp: Any, node: KernelNode) -> Callable[..., Any]:
    zero, unit = number(xp, 0, node), number(xp, 1, node)

    def run(x: Any, y: Any, out: Any) -> None:
        nothing = xp.equal(y, zero)
        xp.true_divide(x, xp.where(nothing, unit, y), out)
        xp.copyto(out, zero, where=nothing)

    return run


@kernel("MulNoNan", "out")
def _mul_no_nan(xp: Any, node: KernelNode) -> Callable[..., Any]:
    zero = number(xp, 0, node)

    def run(x: Any, y: Any, out: Any) -> None:
        xp.multiply(x, y, out)
        xp.copyto(out, zero, where=xp.equal(y, zero))

    return run


@kernel("Cross", "out")
def _cross(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(a: Any, b: Any, out: Any) -> None:
        for i in range(3):
            j, k = (i + 1) % 3, (i + 2) % 3
            at = out[..., i]
            xp.multiply(a[..., j], b[..., k], at)
            xp.subtract(at, xp.multiply(a[..., k], b[..., j]), at)

    return run
