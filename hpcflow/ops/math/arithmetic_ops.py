"""Arithmetic ops: elementwise arithmetic, comparison, logic, casts, add_n."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.composite_tensor import WithValues
from hpcflow.graph.dtypes import (
    OPAQUE,
    as_dtype,
    bool_,
    float32,
    float64,
    is_floating,
    name_of,
    string,
)
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.operator_overloads import OPERATORS
from hpcflow.graph.static_shape import Spec, broadcast_shapes, merge_shapes
from hpcflow.ops import flop_counts
from hpcflow.ops.array.array_ops import cast_sizes, constant, reshape
from hpcflow.ops.array.broadcast_ops import sum_to, zeros_like
from hpcflow.ops.array.where_unique_ops import positions
from hpcflow.ops.shape_inference import (
    Attrs,
    as_first,
    elementwise,
    elementwise_shape,
    first_output,
    like,
    operand,
    operands,
    require,
    require_alike,
    require_equal,
    several,
    truth,
    with_shape_of,
    with_value,
)

_BOOLEAN = NoGrad("its output is booleans")


class UnaryFunction(Protocol):
    """Type of a public function of one tensor."""

    def __call__(self, x: Any, name: str | None = None) -> Tensor: ...  # noqa: D102


class BinaryFunction(Protocol):
    """Type of a public function of two tensors, which are broadcast."""

    def __call__(self, x: Any, y: Any, name: str | None = None) -> Tensor: ...  # noqa: D102


def unary(
    type: str, kinds: str, grad: Any, doc: str, value: Any = None, **facts: Any
) -> UnaryFunction:
    """Add a unary elementwise op to the table; returns its public function.

    `kinds` are letters of `KINDS`: the dtypes that it takes. `grad(x, y, g)` returns the gradient
    of the input `x` from the output `y` and its gradient `g`. `value` computes small static
    integers.
    """

    def rule(op: Operation, g: Tensor) -> list[Tensor | None]:
        return [grad(op.inputs[0], op.outputs[0], g)]

    op(
        type,
        infer=elementwise(type, kinds, value=value),
        grad=grad if isinstance(grad, NoGrad) else rule,
        elementwise=True,
        **facts,
    )

    def function(x: Any, name: str | None = None) -> Tensor:
        return first_output(type, [operand(x, kinds)], {}, name)

    function.__doc__ = doc
    return function


def binary(
    type: str,
    kinds: str,
    grads: tuple[Any, Any] | NoGrad,
    doc: str,
    value: Any,
    result: np.dtype | None = None,
    **facts: Any,
) -> BinaryFunction:
    """Add an elementwise op with two broadcast inputs to the table; returns its public function.

    `grads` are two functions of (x, y, output, g), or None or NoGrad. Sums over broadcast axes are
    added.
    """

    def rule(op: Operation, g: Tensor) -> list[Any]:
        (x, y), z = op.inputs, op.outputs[0]
        of_x, of_y = grads  # type: ignore[misc]
        return [
            (lambda: sum_to(of_x(x, y, z, g), x, y)) if callable(of_x) else of_x,
            (lambda: sum_to(of_y(x, y, z, g), y, x)) if callable(of_y) else of_y,
        ]

    op(
        type,
        infer=elementwise(type, kinds, result, value),
        grad=grads if isinstance(grads, NoGrad) else rule,
        elementwise=True,
        **facts,
    )

    def function(x: Any, y: Any, name: str | None = None) -> Tensor:
        a, b = operands(operand(x, "b"), operand(y, "b")) if kinds == "b" else operands(x, y)
        return first_output(type, [a, b], {}, name)

    function.__doc__ = doc
    return function


# -- binary arithmetic; gradients of complex numbers are conjugate, as in TensorFlow

_ALL = "iuf"
_ARITHMETIC = "iufc"


def conj(x: Any, name: str | None = None) -> Tensor:
    """The complex conjugate of `x`; `x` itself if it is real."""
    x = convert_to_tensor(x)
    require("conj", x.spec, "iufc")
    return first_output("Conj", [x], {}, name) if x.dtype.kind == "c" else x


op(
    "Conj",
    infer=elementwise_shape("conj", "c"),
    grad=lambda op, g: [conj(g)],
    elementwise=True,
    kernels="elementwise_math_kernels",
)


def integer_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of static integers; None for division by zero, which is an error at run time."""
    return lambda x, y: function(x, y) if y.all() else None


def _powers(x: np.ndarray, y: np.ndarray) -> Any:
    return None if (y < 0).any() else np.power(x, y)


def times(g: Tensor, slope: Tensor) -> Tensor:
    """The gradient `g` times the derivative `slope`."""
    return multiply(g, conj(slope))


def double(g: Tensor) -> Tensor:
    """`g + g`."""
    return add(g, g)


def times_no_nan(g: Tensor, slope: Tensor) -> Tensor:
    """As `times`, but 0 where `g` is 0, even if the slope is infinite or NaN."""
    return multiply_no_nan(conj(slope), g)


_first, _second = (lambda x, y, z, g: g), (lambda x, y, z, g: g)

_sum: BinaryFunction = binary(
    "Add",
    _ARITHMETIC,
    (_first, _second),
    "`x + y`.",
    np.add,
    update_formula=True,
    initial_formula=True,
)


def add(x: Any, y: Any, name: str | None = None) -> Tensor:
    """`x + y`; strings are concatenated."""
    a, b = operands(x, y)
    if a.dtype == string:
        return first_output("StringJoin", [a, b], {"separator": ""}, name or "Add")
    return _sum(a, b, name)


subtract: BinaryFunction = binary(
    "Sub",
    _ARITHMETIC,
    (_first, lambda x, y, z, g: negative(g)),
    "`x - y`.",
    np.subtract,
    update_formula=True,
    initial_formula=True,
)
multiply: BinaryFunction = binary(
    "Mul",
    _ARITHMETIC,
    (lambda x, y, z, g: times(g, y), lambda x, y, z, g: times(g, x)),
    "`x * y`.",
    np.multiply,
    update_formula=True,
    initial_formula=True,
)
multiply_no_nan: BinaryFunction = binary(
    "MulNoNan",
    "fc",
    (
        lambda x, y, z, g: multiply_no_nan(g, conj(y)),
        lambda x, y, z, g: times_no_nan(g, x),
    ),
    "`x * y`, and 0 where `y` is 0, also if `x` is infinite or NaN.",
    None,
    kernels="elementwise_math_kernels",
)
_real_divide: BinaryFunction = binary(
    "RealDiv",
    "fc",
    (
        lambda x, y, z, g: _real_divide(g, conj(y)),
        lambda x, y, z, g: times(negative(_real_divide(g, conj(y))), z),
    ),
    "`x / y` of floating-point numbers.",
    np.true_divide,
    update_formula=True,
    initial_formula=True,
)
floordiv: BinaryFunction = binary(
    "FloorDiv",
    _ALL,
    (None, None),
    "The largest integer up to `x / y`.",
    integer_function(np.floor_divide),
)
mod: BinaryFunction = binary(
    "FloorMod",
    _ALL,
    (_first, lambda x, y, z, g: negative(multiply(g, floordiv(x, y)))),
    "The remainder of `floordiv`; it has the sign of `y`.",
    integer_function(np.mod),
)
maximum: BinaryFunction = binary(
    "Maximum",
    _ALL,
    (
        lambda x, y, z, g: where(greater_equal(x, y), g, 0),
        lambda x, y, z, g: where(greater_equal(x, y), 0, g),
    ),
    "The larger of `x` and `y`; the gradient of equal ones goes to `x`.",
    np.maximum,
    update_formula=True,
    initial_formula=True,
)
minimum: BinaryFunction = binary(
    "Minimum",
    _ALL,
    (
        lambda x, y, z, g: where(less_equal(x, y), g, 0),
        lambda x, y, z, g: where(less_equal(x, y), 0, g),
    ),
    "The smaller of `x` and `y`; the gradient of equal ones goes to `x`.",
    np.minimum,
    update_formula=True,
    initial_formula=True,
)


def _power_base(x: Tensor, y: Tensor, z: Tensor, g: Tensor) -> Tensor:
    static = y.constant
    if static is not None and static.ndim == 0:
        less = pow(x, static.item() - 1)
    else:
        less = _power(x, subtract(y, 1) if static is None else constant(static - y.dtype.type(1)))
    return times(times(g, y), less)


def _power_exponent(x: Tensor, y: Tensor, z: Tensor, g: Tensor) -> Tensor:
    defined = not_equal(x, 0) if x.dtype.kind == "c" else greater(x, 0)
    logs = where(defined, log(where(defined, x, 1)), 0)  # d/dy 0 ** y is 0
    return times(times(g, z), logs)


_power: BinaryFunction = binary(
    "Pow",
    _ARITHMETIC,
    (_power_base, _power_exponent),
    "`x ** y`.",
    _powers,
    update_formula=True,
    initial_formula=True,
)


def pow(x: Any, y: Any, name: str | None = None) -> Tensor:
    """`x ** y`; constant exponents 2 and 3 become products."""
    if isinstance(y, (int, float)) and y in (2, 3):
        return square(x, name) if y == 2 else multiply(square(x), x, name)
    return _power(x, y, name)


def divide(x: Any, y: Any, name: str | None = None) -> Tensor:
    """`x / y`; integers are converted to float64 (up to 16 bits: float32)."""
    a, b = operands(x, y)
    if not is_floating(a.dtype):
        wide = float32 if a.dtype.itemsize <= 2 else float64
        a, b = cast(a, wide), cast(b, wide)
    return _real_divide(a, b, name)


truediv = divide


# -- unary functions

_F, _C = "f", "fc"


def analytic(type: str, slope: Any, doc: str, value: Any = None, **facts: Any) -> UnaryFunction:
    """Add a unary function, real or complex, with derivative `slope(x, y)`."""
    return unary(type, _C, lambda x, y, g: times(g, slope(x, y)), doc, value, **facts)


negative: UnaryFunction = unary(
    "Neg",
    "ifc",
    lambda x, y, g: negative(g),
    "`-x`.",
    np.negative,
    update_formula=True,
    initial_formula=True,
)


def _turning(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    """The gradient of `x / |x|`: the part of `g` that rotates it, divided by |x|; 0 at 0."""
    along = cast(first_output("Real", [multiply(g, conj(y))]), x.dtype)
    size = cast(first_output("ComplexAbs", [x]), x.dtype)
    there = equal(size, 0)
    slope = _real_divide(subtract(g, multiply(y, along)), where(there, 1, size))
    return where(there, 0, slope)


sign: UnaryFunction = unary(
    "Sign",
    "ifc",
    lambda x, y, g: _turning(x, y, g) if x.dtype.kind == "c" else zeros_like(x),
    "-1, 0 or 1, which has the gradient 0; `x / |x|` of complex numbers.",
    np.sign,
    update_formula=True,
    initial_formula=True,
)
_real_abs: UnaryFunction = unary(
    "Abs",
    _ALL,
    lambda x, y, g: multiply(g, sign(x)),
    "`|x|`.",
    np.abs,
    update_formula=True,
    initial_formula=True,
)


def abs(x: Any, name: str | None = None) -> Tensor:
    """The absolute value of `x`; real also for complex numbers."""
    x = convert_to_tensor(x)
    return first_output("ComplexAbs", [x], {}, name) if x.dtype.kind == "c" else _real_abs(x, name)


square: UnaryFunction = unary(
    "Square",
    _ARITHMETIC,
    lambda x, y, g: double(times(g, x)),
    "`x * x`.",
    np.square,
    update_formula=True,
    initial_formula=True,
)
sqrt: UnaryFunction = unary(
    "Sqrt",
    _C,
    lambda x, y, g: times_no_nan(g, _real_divide(0.5, y)),
    "The square root of `x`.",
    update_formula=True,
    initial_formula=True,
)
rsqrt: UnaryFunction = unary(
    "Rsqrt",
    _C,
    lambda x, y, g: times_no_nan(g, multiply(multiply(square(y), y), -0.5)),
    "`1 / sqrt(x)`.",
    update_formula=True,
)
exp: UnaryFunction = analytic(
    "Exp", lambda x, y: y, "`e ** x`.", update_formula=True, initial_formula=True
)
log: UnaryFunction = unary(
    "Log",
    _C,
    lambda x, y, g: _real_divide(g, conj(x)),
    "The natural logarithm of `x`.",
    update_formula=True,
    initial_formula=True,
)
log1p: UnaryFunction = unary(
    "Log1p", _C, lambda x, y, g: _real_divide(g, conj(add(x, 1))), "`log(1 + x)`."
)
sin: UnaryFunction = analytic("Sin", lambda x, y: cos(x), "The sine of `x`.")
cos: UnaryFunction = analytic("Cos", lambda x, y: negative(sin(x)), "The cosine of `x`.")
tanh: UnaryFunction = unary(
    "Tanh",
    _C,
    lambda x, y, g: first_output("TanhGrad", [g, conj(y)]),
    "The hyperbolic tangent of `x`.",
    initial_formula=True,
)
sigmoid: UnaryFunction = unary(
    "Sigmoid",
    _F,
    lambda x, y, g: first_output("SigmoidGrad", [g, y]),
    "`1 / (1 + exp(-x))`.",
    initial_formula=True,
)


def _tanh_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    g, y = op.inputs  # g (1 - y y)
    return [
        lambda: first_output("TanhGrad", [gg, conj(y)]),
        lambda: times(gg, multiply(g, multiply(y, -2))),
    ]


def _sigmoid_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    g, y = op.inputs  # g y (1 - y)
    return [
        lambda: first_output("SigmoidGrad", [gg, y]),
        lambda: multiply(multiply(gg, g), subtract(1, add(y, y))),
    ]


op(
    "TanhGrad",
    infer=elementwise_shape("TanhGrad", "fc"),
    grad=_tanh_grad_back,
    elementwise=True,
    flops=flop_counts.per_output(3),
)
op(
    "SigmoidGrad",
    infer=elementwise_shape("SigmoidGrad", "f"),
    grad=_sigmoid_grad_back,
    elementwise=True,
    flops=flop_counts.per_output(3),
)


# -- comparison and logic


def _compare(
    type: str, kinds: str, doc: str, value: Callable[..., Any], **facts: Any
) -> BinaryFunction:
    return binary(type, kinds, _BOOLEAN, doc, value, bool_, **facts)


equal: BinaryFunction = _compare(
    "Equal", "biufcO", "Where `x` and `y` are equal.", np.equal, update_formula=True
)
not_equal: BinaryFunction = _compare(
    "NotEqual", "biufcO", "Where `x` and `y` differ.", np.not_equal
)
less: BinaryFunction = _compare("Less", _ALL, "`x < y`.", np.less, update_formula=True)
less_equal: BinaryFunction = _compare(
    "LessEqual", _ALL, "`x <= y`.", np.less_equal, update_formula=True
)
greater: BinaryFunction = _compare("Greater", _ALL, "`x > y`.", np.greater, update_formula=True)
greater_equal: BinaryFunction = _compare(
    "GreaterEqual", _ALL, "`x >= y`.", np.greater_equal, update_formula=True
)
logical_and: BinaryFunction = _compare(
    "LogicalAnd", "b", "`x and y` of booleans.", np.logical_and, update_formula=True
)
logical_or: BinaryFunction = _compare("LogicalOr", "b", "`x or y` of booleans.", np.logical_or)
logical_xor: BinaryFunction = _compare(
    "LogicalXor", "b", "Where exactly one of `x` and `y`.", np.logical_xor
)
logical_not: UnaryFunction = unary(
    "LogicalNot", "b", _BOOLEAN, "`not x` of booleans.", np.logical_not
)


def _select(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("where's condition", inputs[0], "b")
    require_equal("where", inputs[1:])
    spec = Spec(inputs[1].dtype, broadcast_shapes([s.shape for s in inputs]))
    return [with_value(spec, np.where, inputs)]


def _select_back(op: Operation, g: Tensor) -> list[Any]:
    c, x, y = op.inputs
    return [
        None,
        lambda: sum_to(where_v2(c, g, 0), x, c, y),
        lambda: sum_to(where_v2(c, 0, g), y, c, x),
    ]


def _row_condition(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("where's condition", inputs[0], "b")
    condition, *choices = (s.shape for s in inputs)
    if condition is None or len(condition) != 1:
        return [Spec(bool_, condition)]
    if None in choices:
        return [Spec(bool_, None)]
    added = max(len(s or ()) for s in choices) - 1
    return [Spec(bool_, (*condition, *(1,) * added))]


op("Select", infer=_select, grad=_select_back, update_formula=True, elementwise=True, work="move")
op("RowCondition", infer=_row_condition, grad=_BOOLEAN)


def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """`x` where `condition` is true, else `y`; a vector condition selects rows.

    Otherwise the three are broadcast together. Without `x` and `y`: the positions of true elements,
    int64 [count, rank].
    """
    if x is None or y is None:
        return where_v2(condition, x, y, name)
    condition, (a, b) = truth(condition), operands(x, y)
    if condition.shape is None or len(condition.shape) == 1:
        if condition.shape is None or a.shape is None or b.shape is None:
            condition = first_output("RowCondition", [condition, a, b])
        else:
            added = max(len(a.shape), len(b.shape)) - 1
            condition = reshape(condition, [-1, *[1] * added]) if added > 0 else condition
    return where_v2(condition, a, b, name)


def where_v2(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """`x` where `condition` is true, else `y`; the three are broadcast together as in NumPy.

    Without `x` and `y`: the positions of true elements, int64 [count, rank].
    """
    if x is None and y is None:
        return positions(condition, name)
    if x is None or y is None:
        raise ShapeError("where takes both x and y, or neither", line=user_line())
    a, b = operands(x, y)
    return first_output("Select", [truth(condition), a, b], {}, name)


# -- casts, clipping, add_n


def _cast(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    if "O" in (inputs[0].dtype.kind, attrs["dtype"].kind):
        raise DTypeError("strings are not cast", hint="use hf.string_to_number or hf.as_string")
    for dtype in (inputs[0].dtype, attrs["dtype"]):
        if dtype in OPAQUE:
            raise DTypeError(f"Cast takes numbers, not {name_of(dtype)}")
    spec = with_value(Spec(attrs["dtype"], inputs[0].shape), lambda x: x, inputs)
    if spec.value is None and attrs["dtype"].kind in "iu":
        spec = spec._replace(sizes=cast_sizes(inputs[0].sizes, attrs["dtype"]))
    return [spec]


def _cast_back(op: Operation, g: Tensor) -> list[Any]:
    return [lambda: cast(g, op.inputs[0].dtype)]


def _check_back(op: Operation, g: Tensor) -> list[Tensor]:
    return [check_numerics(g, f"gradient of {op.attrs['message']}")]


def _check(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("check_numerics", inputs[0], "f")
    return as_first(inputs, attrs)


def _clip_back(op: Operation, g: Tensor) -> list[Any]:
    """Gradient of `maximum(minimum(x, high), low)`; `low` gets what neither `x` nor `high` gets."""
    x, low, high = op.inputs
    inside = logical_and(less_equal(x, high), greater_equal(x, low))
    above = logical_and(greater(x, high), greater_equal(high, low))
    return [
        lambda: sum_to(where(inside, g, 0), x, low, high),
        lambda: sum_to(where(logical_or(inside, above), 0, g), low, x, high),
        lambda: sum_to(where(above, g, 0), high, x, low),
    ]


op(
    "Cast",
    infer=_cast,
    grad=_cast_back,
    update_formula=True,
    initial_formula=True,
    identity="if_specs_equal",
    elementwise=True,
    work="move",
)
op("CheckNumerics", infer=_check, grad=_check_back, elementwise=True)
op(
    "AddN",
    infer=elementwise_shape("add_n", _ARITHMETIC),
    grad=lambda op, g: [g] * len(op.inputs),
    update_formula=True,
    elementwise=True,
    flops=flop_counts.add_n,
)
op("ClipByValue", infer=elementwise("clip_by_value", _ALL), grad=_clip_back, elementwise=True)


def cast(x: Any, dtype: Any, name: str | None = None) -> Any:
    """`x` converted to another dtype; floats are truncated to integers.

    For sparse tensors and IndexedSlices the values are cast.
    """
    if isinstance(x, WithValues):
        return x.map_values(lambda values: cast(values, dtype, name))
    x, dtype = convert_to_tensor(x), as_dtype(dtype)
    return x if x.dtype == dtype else first_output("Cast", [x], {"dtype": dtype}, name)


def check_numerics(tensor: Any, message: str, name: str | None = None) -> Tensor:
    """`tensor` itself, checked at run time; NumericError with `message` for a NaN or infinity.

    The error also names the tensor, the line that created the check, and the rank.
    """
    t = convert_to_tensor(tensor)
    return first_output("CheckNumerics", [t], {"message": message, "of": t.name}, name)


def add_n(inputs: Sequence[Any], name: str | None = None) -> Tensor:
    """The sum of `inputs`, all of one shape, added from left to right."""
    tensors = [convert_to_tensor(t) for t in several(inputs, "add_n")]
    if not tensors:
        raise ShapeError("add_n needs at least one tensor")
    if len(tensors) == 1:
        return tensors[0]
    if len(tensors) > 2:
        return first_output("AddN", tensors, {}, name)
    require_alike("add_n", *tensors)
    total = first_output("Add", tensors, {}, name)
    total.set_shape(merge_shapes(tensors[0].shape, tensors[1].shape))
    return total


def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None) -> Any:
    """`maximum(minimum(t, clip_value_max), clip_value_min)`; IndexedSlices: of the rows."""
    if isinstance(t, WithValues):
        return t.map_values(lambda v: clip_by_value(v, clip_value_min, clip_value_max, name))
    t = convert_to_tensor(t)
    clipped = first_output(
        "ClipByValue", [t, like(clip_value_min, t), like(clip_value_max, t)], {}, name
    )
    return with_shape_of(clipped, t, "clip_by_value")


_TABLE: dict[str, Callable[..., Tensor]] = {
    **{"add": add, "sub": subtract, "mul": multiply, "truediv": divide, "floordiv": floordiv},
    **{"mod": mod, "pow": pow, "neg": negative, "abs": abs},
    **{"lt": less, "le": less_equal, "gt": greater, "ge": greater_equal},
}
OPERATORS.update(_TABLE)
