"""Assertions: checks of values, ranks and dtypes, at graph construction if possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import AssertError, DTypeError, ShapeError
from hpcflow.graph.dtypes import as_dtype, float32, kind_of, limits, name_of
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.array.array_ops import constant, rank, reshape
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.control_flow.control_dependencies import no_op
from hpcflow.ops.control_flow.host_callback_ops import Assert
from hpcflow.ops.math.arithmetic_ops import (
    abs,
    add,
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    multiply,
    not_equal,
    subtract,
)
from hpcflow.ops.math.reduction_ops import reduce_all, reduce_any
from hpcflow.ops.shape_inference import first_output, operands, require

# -- values


def _static_value(t: Tensor) -> Any:
    """The value of `t` if it is constant."""
    return t.op.attrs["value"] if t.op.type == "Const" else t.constant


def _make_assertion(
    condition: Tensor,
    static_value: Any,
    description: str,
    data: Sequence[Any],
    options: tuple[Any, int | None, str | None, str | None],
) -> Operation:
    """The assertion of `condition`.

    Errors: AssertError at graph construction if `static_value`, its value, is false.
    """
    user_data, summarize, message, name = options
    text = f"{message}: {description}" if message else description
    if static_value is not None and not np.all(static_value):
        raise AssertError(f"assertion failed: {text}", line=user_line())
    shown = [text, *(data if user_data is None else user_data)]
    return Assert(reduce_all(condition), shown, summarize, name)


def _comparison(
    sign: str, compare: Callable[..., Tensor], static_compare: Callable[..., Any], doc: str
) -> Any:
    def function(
        x: Any,
        y: Any,
        data: Sequence[Any] | None = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        a, b = operands(x, y)
        values = _static_value(a), _static_value(b)
        holds = None if any(v is None for v in values) else static_compare(*values)
        text = f"x {sign} y does not hold everywhere, x ({a.name}) and y ({b.name})"
        return _make_assertion(compare(a, b), holds, text, [a, b], (data, summarize, message, name))

    function.__doc__ = f"""An operation that fails unless {doc} everywhere; they are broadcast.

    `data` is shown in place of `x` and `y`, at most `summarize` elements of each.
    Errors: AssertError, while the graph is built if both are known then.
    """
    return function


assert_equal = _comparison("==", equal, np.equal, "`x == y`")
assert_none_equal = _comparison("!=", not_equal, np.not_equal, "`x != y`")
assert_less = _comparison("<", less, np.less, "`x < y`")
assert_less_equal = _comparison("<=", less_equal, np.less_equal, "`x <= y`")
assert_greater = _comparison(">", greater, np.greater, "`x > y`")
assert_greater_equal = _comparison(">=", greater_equal, np.greater_equal, "`x >= y`")


def assert_near(
    x: Any,
    y: Any,
    rtol: float | None = None,
    atol: float | None = None,
    data: Sequence[Any] | None = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """An operation that fails unless `|x - y| <= atol + rtol |y|` everywhere.

    Both tolerances default to ten times the machine epsilon of the dtype.
    """
    a, b = operands(x, y)
    require("assert_near", a.spec, "f")
    eps = 10 * float(limits(a.dtype).eps)
    relative, absolute = (eps if t is None else t for t in (rtol, atol))
    bound = add(multiply(abs(b), relative), absolute)
    text = f"x and y are not near, x ({a.name}) and y ({b.name})"
    near = less_equal(abs(subtract(a, b)), bound)
    return _make_assertion(near, None, text, [a, b], (data, summarize, message, name))


def _against_zero(compare: Any, words: str) -> Any:
    def function(
        x: Any,
        data: Sequence[Any] | None = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        t = convert_to_tensor(x)
        text = f"{message}: x is not {words}" if message else f"x is not {words}"
        return compare(t, constant(0, t.dtype), data, summarize, text, name)

    function.__doc__ = f"An operation that fails unless all of `x` is {words}; see `assert_less`."
    return function


assert_positive = _against_zero(assert_greater, "positive")
assert_negative = _against_zero(assert_less, "negative")
assert_non_negative = _against_zero(assert_greater_equal, "0 or more")
assert_non_positive = _against_zero(assert_less_equal, "0 or less")


# -- ranks


def _rank_holds(
    x: Any,
    is_valid_rank: Callable[[int], bool],
    condition: Callable[[Tensor], Tensor],
    requirement: str,
    options: tuple[Any, int | None, str | None, str | None],
) -> Operation:
    t = convert_to_tensor(x)
    text = f"{options[2]}: " if options[2] else ""
    if t.shape is not None:
        if not is_valid_rank(len(t.shape)):
            raise ShapeError(
                f"{text}{t.name!r} has shape {shape_text(t.shape)}, not rank {requirement}"
            )
        return no_op(options[3] or "assert_rank")
    actual = rank(t)
    return _make_assertion(
        condition(actual), None, f"the rank of {t.name} is not {requirement}", [actual], options
    )


def assert_rank(
    x: Any,
    rank: int,
    data: Sequence[Any] | None = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """An operation that fails unless the rank of `x` is `rank`; ShapeError if statically known."""
    options = (data, summarize, message, name)
    return _rank_holds(x, lambda r: r == rank, lambda r: equal(r, rank), str(rank), options)


def assert_rank_at_least(
    x: Any,
    rank: int,
    data: Sequence[Any] | None = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """An operation that fails unless the rank of `x` is at least `rank`; see `assert_rank`."""
    options, needed = (data, summarize, message, name), f"{rank} or more"
    return _rank_holds(x, lambda r: r >= rank, lambda r: greater_equal(r, rank), needed, options)


def assert_rank_in(
    x: Any,
    ranks: Sequence[int],
    data: Sequence[Any] | None = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """An operation that fails unless the rank of `x` is in `ranks`; see `assert_rank`."""
    needed, listed = " or ".join(map(str, ranks)), list(ranks)

    def among(r: Tensor) -> Tensor:
        return reduce_any(equal(r, constant(listed)))

    return _rank_holds(x, lambda r: r in listed, among, needed, (data, summarize, message, name))


def assert_scalar(tensor: Any, name: str | None = None, message: str | None = None) -> Tensor:
    """`tensor` itself, checked to have rank 0.

    Errors: ShapeError at graph construction, or AssertError at run time.
    """
    t = convert_to_tensor(tensor)
    check = assert_rank(t, 0, message=message)
    with get_default_graph().control_dependencies([check]):
        scalar = first_output("Identity", [t], {}, name)
    scalar.set_shape(())
    return scalar


# -- dtypes


def assert_type(
    tensor: Any, tf_type: Any, message: str | None = None, name: str | None = None
) -> Operation:
    """Check the dtype of `tensor`; adds no operation.

    Errors: DTypeError if it differs.
    """
    t, dtype = convert_to_tensor(tensor), as_dtype(tf_type)
    if t.dtype != dtype:
        text = f"{message}: " if message else ""
        raise DTypeError(f"{text}{t.name!r} is {name_of(t.dtype)}, not {name_of(dtype)}")
    return no_op(name or "assert_type")


def assert_integer(x: Any, message: str | None = None, name: str | None = None) -> Operation:
    """Check that `x` has an integer dtype; adds no operation.

    Errors: DTypeError if not.
    """
    t = convert_to_tensor(x)
    if t.dtype.kind not in "iu":
        text = f"{message}: " if message else ""
        raise DTypeError(f"{text}{t.name!r} is {name_of(t.dtype)}, not integers")
    return no_op(name or "assert_integer")


def assert_same_float_dtype(tensors: Sequence[Any] | None = None, dtype: Any = None) -> np.dtype:
    """The common real floating dtype of `tensors` and `dtype`; float32 if there is none.

    Errors: DTypeError if they differ, or are not floating point.
    """
    tensor_dtypes = [convert_to_tensor(t).dtype for t in tensors or ()]
    distinct = list(dict.fromkeys([*tensor_dtypes, *([] if dtype is None else [as_dtype(dtype)])]))
    if len(distinct) > 1:
        raise DTypeError(f"dtypes differ: {', '.join(map(name_of, distinct))}", line=user_line())
    common = distinct[0] if distinct else float32
    if kind_of(common) != "f":
        raise DTypeError(f"{name_of(common)} is not floating point", line=user_line())
    return common


def is_numeric_tensor(tensor: Any) -> bool:
    """True for a tensor of numbers; false for booleans, strings, handles and other objects."""
    return isinstance(tensor, Tensor) and kind_of(tensor.dtype) in "iufc"


def assert_proper_iterable(values: Any) -> None:
    """Check that `values` can be iterated over and is no tensor, array or text.

    Errors: TypeError (a DTypeError) if not.
    """
    if isinstance(values, (Tensor, np.ndarray, str, bytes)) or hasattr(values, "as_tensor"):
        raise DTypeError(f"a list or another iterable is needed, not {type(values).__name__}")
    if not isinstance(values, Iterable):
        raise DTypeError(f"{values!r} is not iterable")


# -- order


def _neighbors(x: Any, compare: Callable[..., Tensor], name: str | None) -> Tensor:
    flat = reshape(x, [-1])
    return reduce_all(compare(getitem(flat, slice(1, None)), getitem(flat, slice(-1))), name=name)


def is_non_decreasing(x: Any, name: str | None = None) -> Tensor:
    """Whether the elements of `x` in row-major order never decrease; true for fewer than two."""
    return _neighbors(x, greater_equal, name)


def is_strictly_increasing(x: Any, name: str | None = None) -> Tensor:
    """Whether each element of `x` in row-major order is larger than the previous one."""
    return _neighbors(x, greater, name)
