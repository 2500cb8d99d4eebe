"""Elementwise math ops: trigonometry, rounding, remainders, float tests, bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ArgumentError, DTypeError, ShapeError
from hpcflow.graph.composite_tensor import WithValues
from hpcflow.graph.deprecated_arguments import with_public_names
from hpcflow.graph.dtypes import (
    as_dtype,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float32,
    float64,
    int32,
    int64,
    is_floating,
    kind_of,
    limits,
)
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec, merge_shapes, shape_text
from hpcflow.ops.array.broadcast_ops import zeros_like
from hpcflow.ops.math.arithmetic_ops import (
    BinaryFunction,
    UnaryFunction,
    add,
    add_n,
    analytic,
    binary,
    cast,
    clip_by_value,
    conj,
    divide,
    equal,
    exp,
    floordiv,
    integer_function,
    log,
    mod,
    multiply,
    negative,
    rsqrt,
    square,
    subtract,
    times,
    times_no_nan,
    unary,
    where_v2,
)
from hpcflow.ops.shape_inference import (
    Attrs,
    elementwise_shape,
    first_output,
    like,
    operands,
    require,
    require_alike,
)
from hpcflow.platform.exception_translation import value_text

# -- trigonometry, exponentials

tan: UnaryFunction = analytic("Tan", lambda x, y: add(square(y), 1), "The tangent of `x`.")
asin: UnaryFunction = analytic(
    "Asin", lambda x, y: rsqrt(subtract(1, square(x))), "The inverse sine."
)
acos: UnaryFunction = analytic(
    "Acos", lambda x, y: negative(rsqrt(subtract(1, square(x)))), "The inverse cosine."
)
atan: UnaryFunction = analytic(
    "Atan", lambda x, y: reciprocal(add(square(x), 1)), "The inverse tangent."
)
sinh: UnaryFunction = analytic("Sinh", lambda x, y: cosh(x), "The hyperbolic sine of `x`.")
cosh: UnaryFunction = analytic("Cosh", lambda x, y: sinh(x), "The hyperbolic cosine of `x`.")
asinh: UnaryFunction = analytic("Asinh", lambda x, y: reciprocal(cosh(y)), "The inverse of `sinh`.")
acosh: UnaryFunction = analytic(
    "Acosh", lambda x, y: reciprocal(sinh(y)), "The inverse of `cosh`, not negative."
)
atanh: UnaryFunction = analytic(
    "Atanh", lambda x, y: reciprocal(subtract(1, square(x))), "The inverse of `tanh`."
)
expm1: UnaryFunction = analytic("Expm1", lambda x, y: exp(x), "`exp(x) - 1`, exact near 0.")
reciprocal: UnaryFunction = unary(
    "Reciprocal",
    "fc",
    lambda x, y, g: times_no_nan(g, negative(square(y))),
    "`1 / x`.",
    update_formula=True,
    initial_formula=True,
)

atan2: BinaryFunction = binary(
    "Atan2",
    "f",
    (
        lambda y, x, z, g: multiply(g, divide(x, add(square(x), square(y)))),
        lambda y, x, z, g: multiply(g, divide(negative(y), add(square(x), square(y)))),
    ),
    "The angle of the point (x, y) with the first axis, from -pi to pi.",
    np.arctan2,
)
atan2 = with_public_names(x="y", y="x")(atan2)


# -- rounding, remainders

_STEPS = "f"


def _flat(type: str, doc: str) -> UnaryFunction:
    return unary(type, _STEPS, lambda x, y, g: None, f"{doc}; its gradient is none.")


ceil: UnaryFunction = _flat("Ceil", "The smallest whole number not below `x`")
floor: UnaryFunction = _flat("Floor", "The largest whole number not above `x`")
rint: UnaryFunction = _flat("Rint", "The whole number nearest to `x`, the even one of two")

squared_difference: BinaryFunction = binary(
    "SquaredDifference",
    "iufc",
    (
        lambda x, y, z, g: multiply(add(g, g), subtract(x, y)),
        lambda x, y, z, g: multiply(add(g, g), subtract(y, x)),
    ),
    "`(x - y) ** 2`, of complex numbers `|x - y| ** 2`.",
    lambda x, y: np.square(np.subtract(x, y)),
)
nextafter: BinaryFunction = binary(
    "NextAfter",
    "F",
    (lambda x, y, z, g: g, lambda x, y, z, g: zeros_like(g)),
    "The number next to `x` on the way to `y`.",
    np.nextafter,
)
nextafter = with_public_names(x="x1", y="x2")(nextafter)
truncatediv: BinaryFunction = binary(
    "TruncateDiv",
    "iuf",
    (None, None),
    "The quotient cut towards zero, as of integers in C.",
    integer_function(lambda x, y: (x - np.fmod(x, y)) // y),
)
truncatemod: BinaryFunction = binary(
    "TruncateMod",
    "iuf",
    (
        lambda x, y, z, g: g,
        lambda x, y, z, g: negative(multiply(g, rint(divide(subtract(x, z), y)))),
    ),
    "The remainder of the quotient cut towards zero; it has the sign of `x`.",
    integer_function(np.fmod),
)
div_no_nan: BinaryFunction = binary(
    "DivNoNan",
    "fc",
    (
        lambda x, y, z, g: div_no_nan(g, conj(y)),
        lambda x, y, z, g: times(g, div_no_nan(negative(z), y)),
    ),
    "`x / y`, and 0 where `y` is 0.",
    None,
)
floor_div, floormod = floordiv, mod


def round(x: Any, name: str | None = None) -> Tensor:
    """`x` rounded to the nearest integer, ties to even; integers are unchanged."""
    x = convert_to_tensor(x)
    return rint(x, name) if is_floating(x.dtype) else first_output("Identity", [x], {}, name)


def realdiv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """`x / y` for floating-point numbers."""
    a, b = operands(x, y)
    return first_output("RealDiv", [a, b], {}, name)


def div(x: Any, y: Any, name: str | None = None) -> Tensor:
    """`x / y` as in Python 2: floor division for integers."""
    a, b = operands(x, y)
    return realdiv(a, b, name) if is_floating(a.dtype) else floordiv(a, b, name)


def scalar_mul(scalar: Any, x: Any, name: str | None = None) -> Any:
    """`x`, a tensor or IndexedSlices, times a scalar.

    Errors: ShapeError if it is not a scalar.
    """
    if isinstance(x, WithValues):
        return x.map_values(lambda values: scalar_mul(scalar, values, name))
    x = convert_to_tensor(x)
    scalar = like(scalar, x)
    if scalar.shape not in (None, ()):
        raise ShapeError(f"scalar_mul takes a scalar, not shape {shape_text(scalar.shape)}")
    return multiply(scalar, x, name)


def xlogy(x: Any, y: Any, name: str | None = None) -> Tensor:
    """`x * log(y)`; 0 where `x` is 0."""
    a, b = operands(x, y)
    return multiply(a, log(where_v2(equal(a, 0), 1, b)), name)


def xdivy(x: Any, y: Any, name: str | None = None) -> Tensor:
    """`x / y`; 0 where `x` is 0."""
    a, b = operands(x, y)
    nothing = equal(a, 0)
    return where_v2(nothing, 0, divide(a, where_v2(nothing, 1, b)), name)


def polyval(coeffs: Any, x: Any, name: str | None = None) -> Tensor:
    """The polynomial with coefficients `coeffs`, highest power first, at `x`."""
    x = convert_to_tensor(x)
    if not isinstance(coeffs, (list, tuple)):
        raise ArgumentError(f"coeffs must be a list, not {value_text(coeffs)}", line=user_line())
    with get_default_graph().name_scope(name or "polyval"):
        value = zeros_like(x)
        for i, coefficient in enumerate(coeffs):
            c = like(coefficient, x)
            value = add(multiply(value, x), c) if i else add(value, c)
    return value


# -- float tests


def _ask(type: str, doc: str, **facts: Any) -> UnaryFunction:
    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        require(type, inputs[0], "fc")
        return [Spec(bool_, inputs[0].shape)]

    op(type, infer=infer, grad=NoGrad("its output is booleans"), elementwise=True, **facts)

    def function(x: Any, name: str | None = None) -> Tensor:
        return first_output(type, [convert_to_tensor(x)], {}, name)

    function.__doc__ = doc
    return function


is_finite: UnaryFunction = _ask(
    "IsFinite", "Where `x` is neither infinite nor NaN.", update_formula=True
)
is_inf: UnaryFunction = _ask("IsInf", "Where `x` is infinite.")
is_nan: UnaryFunction = _ask("IsNan", "Where `x` is NaN.")


# -- cross product


def _cross(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    (spec,) = elementwise_shape("cross", "iuf")(inputs, attrs)
    if spec.shape is None:
        return [spec]
    if not spec.shape or spec.shape[-1] not in (3, None):
        raise ShapeError(f"cross needs a last axis of size 3, not shape {shape_text(spec.shape)}")
    return [Spec(spec.dtype, merge_shapes(spec.shape, (*spec.shape[:-1], 3)))]


def _cross_back(op: Operation, g: Tensor) -> list[Any]:
    a, b = op.inputs
    return [lambda: cross(b, g), lambda: cross(g, a)]


op("Cross", infer=_cross, grad=_cross_back)


def cross(a: Any, b: Any, name: str | None = None) -> Tensor:
    """The cross product of vectors: `a` and `b` are [..., 3], of one shape."""
    x, y = operands(a, b)
    return first_output("Cross", [x, y], {}, name)


# -- casts, accumulate_n


def saturate_cast(value: Any, dtype: Any, name: str | None = None) -> Tensor:
    """`value` cast to another dtype, with values outside its range clipped."""
    x, dtype = convert_to_tensor(value), as_dtype(dtype)
    if kind_of(x.dtype) not in "iuf" or kind_of(dtype) not in "iuf":
        raise DTypeError(f"saturate_cast does not convert {x.dtype} to {dtype}", hint="use hf.cast")
    low, high = _saturation_bounds(x.dtype, dtype)
    if low is not None:
        x = clip_by_value(x, low, high)
    return cast(x, dtype, name)


def _saturation_bounds(source: np.dtype, target: np.dtype) -> tuple[Any, Any]:
    """The bounds of values of `source` that fit in `target`; Nones if all do."""
    if np.can_cast(source, target, "safe"):
        return None, None
    bounds: list[Any] = []
    for dtype in (source, target):
        bounds.append((limits(dtype).min, limits(dtype).max))
    (low, high), (least, most) = bounds
    low, high = max(low, least), min(high, most)
    if kind_of(source) == "f" and kind_of(target) != "f":  # 2**31 - 1 is no float32: use one below
        top, bottom = source.type(high), source.type(low)
        low = np.nextafter(bottom, source.type(0)) if int(bottom) < least else bottom
        high = np.nextafter(top, source.type(0)) if int(top) > most else top
    return source.type(low), source.type(high)


def to_float(x: Any, name: str | None = None) -> Tensor:
    """`x` as float32."""
    return cast(x, float32, name)


def to_double(x: Any, name: str | None = None) -> Tensor:
    """`x` as float64."""
    return cast(x, float64, name)


def to_int32(x: Any, name: str | None = None) -> Tensor:
    """`x` as int32."""
    return cast(x, int32, name)


def to_int64(x: Any, name: str | None = None) -> Tensor:
    """`x` as int64."""
    return cast(x, int64, name)


def to_bfloat16(x: Any, name: str | None = None) -> Tensor:
    """`x` as bfloat16."""
    return cast(x, bfloat16, name)


def to_complex64(x: Any, name: str | None = None) -> Tensor:
    """`x` as complex64."""
    return cast(x, complex64, name)


def to_complex128(x: Any, name: str | None = None) -> Tensor:
    """`x` as complex128."""
    return cast(x, complex128, name)


def accumulate_n(
    inputs: Sequence[Any], shape: Any = None, tensor_dtype: Any = None, name: str | None = None
) -> Tensor:
    """The sum of `inputs`, all of one shape; `shape` and `tensor_dtype` are checked if given."""
    dtype = None if tensor_dtype is None else as_dtype(tensor_dtype)
    tensors = [convert_to_tensor(t, dtype) for t in inputs]
    require_alike("accumulate_n", *tensors)
    total = add_n(tensors, name)
    if shape is not None:
        total.set_shape(shape)
    return total
