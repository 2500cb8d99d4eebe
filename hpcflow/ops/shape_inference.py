"""Shape inference helpers: creating ops, converting operands, shape rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ArgumentError, DTypeError, ShapeError
from hpcflow.graph.dtypes import (
    as_array,
    as_strings,
    bool_,
    float32,
    float64,
    int32,
    kind_of,
    name_of,
    plain_array,
    string,
)
from hpcflow.graph.graph import (
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
    user_line,
)
from hpcflow.graph.op_registry import Infer
from hpcflow.graph.static_shape import (
    Shape,
    Spec,
    as_shape,
    broadcast_shapes,
    is_known,
    merge_shapes,
    require_known,
    shape_text,
    size_of,
)
from hpcflow.platform.exception_translation import value_text

Attrs = dict[str, Any]
MAX_CONSTANT_SIZE = 64  # largest integer constants that are propagated at graph construction
KINDS = {
    "b": "booleans",
    "i": "integers",
    "u": "unsigned integers",
    "f": "floating point",
    "F": "float32 or float64",
    "O": "strings",
    "c": "complex numbers",
}
FROM_STRINGS = "convert with hf.string_to_number or hf.as_string"


# -- creating operations


def make(
    type: str, inputs: Sequence[Tensor], attrs: Attrs | None = None, name: str | None = None
) -> Operation:
    """A new operation in the default graph."""
    return get_default_graph().create_op(type, inputs, attrs, name)


def first_output(
    type: str, inputs: Sequence[Tensor], attrs: Attrs | None = None, name: str | None = None
) -> Tensor:
    """The first output of a new operation in the default graph."""
    return make(type, inputs, attrs, name).outputs[0]


def rename_function(function: Callable[..., Any], name: str, doc: str | None) -> Callable[..., Any]:
    """`function`, renamed to the public function `name`."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


# -- operands of one dtype

_KIND_ORDER = "biufcO"


def operands(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Two tensors of one dtype: a Python value takes the dtype of the other operand."""
    x, y = _as_tensor(x), _as_tensor(y)
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        a, b = as_array(x), as_array(y)
        if _KIND_ORDER.index(kind_of(b.dtype)) > _KIND_ORDER.index(kind_of(a.dtype)):
            y = convert_to_tensor(b)
        else:
            x = convert_to_tensor(a)
    if isinstance(x, Tensor):
        y = like(y, x)
    else:
        x = like(x, y)
    return x, y


def like(value: Any, other: Tensor) -> Tensor:
    """`value` as a tensor with the dtype of `other`.

    Errors: DTypeError if it would lose information.
    """
    value = _as_tensor(value)
    if isinstance(value, Tensor):
        if value.dtype != other.dtype:
            cast = f"hf.cast one of them, e.g. hf.cast(x, hf.{other.dtype})"
            raise DTypeError(
                f"{other.name!r} is {name_of(other.dtype)} and "
                f"{value.name!r} is {name_of(value.dtype)}",
                line=user_line(),
                hint=FROM_STRINGS if string in (value.dtype, other.dtype) else cast,
            )
        return value
    return convert_to_tensor(fitted(value, other.dtype, f"tensor {other.name!r}"))


def fitted(value: Any, dtype: np.dtype, beside: str) -> np.ndarray:
    """A Python value as an array of `dtype`; booleans count as 0 and 1.

    Errors: DTypeError if its kind or range does not fit.
    """
    if dtype.kind == "O":
        return as_strings(value)
    array = plain_array(value)
    source, target = kind_of(array.dtype), kind_of(dtype)
    order = "biufc"
    fits = source == target or (source in "biuf" and target in order[order.index(source) :])
    if source in "iu" and target in "iu":
        info = np.iinfo(dtype)
        fits = array.size == 0 or bool(array.min() >= info.min and array.max() <= info.max)
    if not fits and array.size:
        raise DTypeError(
            f"{value_text(value)} does not fit {dtype}, the data type of {beside}",
            line=user_line(),
            hint="hf.cast the tensor first, e.g. hf.cast(x, hf.float32)",
        )
    return array.astype(dtype)


def operand(value: Any, kinds: str) -> Tensor:
    """`value` as a tensor; an empty list gets a dtype of the kinds that the op accepts."""
    listed = isinstance(value, (list, tuple)) and not has_tensors(value)
    if listed and "f" not in kinds and not plain_array(value).size:
        return convert_to_tensor(value, bool_ if "b" in kinds else int32)
    return convert_to_tensor(value)


def several(values: Any, op_name: str) -> list[Any]:
    """The elements of a list argument of `op_name`.

    Errors: ArgumentError if it is empty.
    """
    if not isinstance(values, Iterable):
        raise ArgumentError(
            f"{op_name} takes a list of tensors, not {value_text(values)}", line=user_line()
        )
    return list(values)


def tensors(values: Sequence[Any], op_name: str) -> list[Tensor]:
    """Tensors of one dtype: that of the first element that is a tensor.

    Errors: ShapeError if the list is empty.
    """
    values = several(values, op_name)
    lead = next((v for v in values if isinstance(v, Tensor) or hasattr(v, "as_tensor")), None)
    if not values:
        raise ShapeError(f"{op_name} needs at least one tensor")
    first = convert_to_tensor(values[0] if lead is None else lead)
    return [like(v, first) for v in values]


def _as_tensor(value: Any) -> Any:
    """A variable's value; a tensor stacked from a list with tensors; else `value` itself."""
    if hasattr(value, "as_tensor") or has_tensors(value):
        return convert_to_tensor(value)
    return value


def has_tensors(value: Any) -> bool:
    """Whether a list or tuple contains a tensor, at any depth.

    Errors: ShapeError for a list that contains itself.
    """
    try:
        return _has_tensors(value)
    except RecursionError:
        raise ShapeError(f"{value_text(value)} is nested too deeply", line=user_line()) from None


def _has_tensors(value: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    return any(isinstance(v, Tensor) or hasattr(v, "as_tensor") or _has_tensors(v) for v in value)


# -- checks and shape rules


def require(type: str, spec: Spec, kinds: str) -> None:
    """Check that the dtype of `spec` is of one of `kinds` (see KINDS). Errors: DTypeError."""
    wide = "F" in kinds and spec.dtype in (float32, float64)
    if kind_of(spec.dtype) not in kinds and not wide:
        accepted = " or ".join(words for kind, words in KINDS.items() if kind in kinds)
        raise DTypeError(
            f"{type} takes {accepted}, not {name_of(spec.dtype)}",
            hint=FROM_STRINGS if spec.dtype == string else "convert with hf.cast(x, hf.float32)",
        )


def require_equal(type: str, inputs: Sequence[Spec]) -> None:
    """Check that all inputs have one dtype. Errors: DTypeError."""
    if any(s.dtype != inputs[0].dtype for s in inputs):
        names = dict.fromkeys(name_of(s.dtype) for s in inputs)
        raise DTypeError(
            f"{type} needs one dtype, not {' and '.join(names)}",
            hint="convert with hf.cast(x, dtype)",
        )


def elementwise(
    type: str,
    kinds: str,
    result: np.dtype | None = None,
    value: Callable[..., Any] | None = None,
) -> Infer:
    """Shape rule of an op with broadcast inputs, all of one dtype among `kinds`.

    `result` is the output's dtype if it differs; `value` computes small static integers.
    """

    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        require_equal(type, inputs)
        require(type, inputs[0], kinds)
        spec = Spec(result or inputs[0].dtype, broadcast_shapes([s.shape for s in inputs]))
        return [spec if value is None else with_value(spec, value, inputs)]

    return infer


def elementwise_shape(type: str, kinds: str) -> Infer:
    """Shape rule of an elementwise op with inputs of one dtype and one shape."""

    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        require_equal(type, inputs)
        require(type, inputs[0], kinds)
        shape = inputs[0].shape
        for s in inputs[1:]:
            shape = merge_shapes(shape, s.shape)
        return [Spec(inputs[0].dtype, shape)]

    return infer


def with_value(
    spec: Spec, function: Callable[..., Any], inputs: Sequence[Spec], moves: bool = False
) -> Spec:
    """`spec` with its static value, if it has few integers and the inputs' values are known.

    `function` returns None if there is no value, because the op would raise an error. `moves`: it
    only moves entries, so those of a vector may be known in part.
    """
    if (
        spec.dtype.kind not in "iub"
        or not is_known(spec.shape)
        or size_of(spec.shape) > MAX_CONSTANT_SIZE
    ):
        return spec
    values = [s.value for s in inputs]
    if any(v is None for v in values):
        return _with_sizes(spec, function, inputs) if moves else spec
    with np.errstate(all="ignore"):
        folded = function(*values)
    return spec if folded is None else spec._replace(value=np.asarray(folded).astype(spec.dtype))


def _with_sizes(spec: Spec, move: Callable[..., Any], inputs: Sequence[Spec]) -> Spec:
    """`spec` with the entries that `move` takes from those of `inputs` that are known."""
    entries = [e for s in inputs if (e := _entries(s)) is not None]
    if len(entries) < len(inputs) or all(x is None for e in entries for x in e.flat):
        return spec
    moved = np.asarray(move(*entries), object)
    known = [x is not None for x in moved.flat]
    if all(known):
        return spec._replace(value=moved.astype(spec.dtype))
    return spec._replace(sizes=tuple(moved.tolist())) if any(known) and moved.ndim == 1 else spec


def _entries(spec: Spec) -> np.ndarray | None:
    """The entries of a small tensor as objects, None for those that are not known."""
    if spec.value is not None:
        return spec.value.astype(object)
    if not is_known(spec.shape) or size_of(spec.shape) > MAX_CONSTANT_SIZE:
        return None
    sizes = (None,) * size_of(spec.shape) if spec.sizes is None else spec.sizes
    return np.array(sizes, object).reshape(require_known(spec.shape))


def as_first(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    """Shape rule of an op whose output is like its first input."""
    return [Spec(inputs[0].dtype, inputs[0].shape)]


def given_shape(shape: Any) -> Shape:
    """`as_shape` of an argument; its error names the user's line."""
    try:
        return as_shape(shape)
    except ShapeError as error:
        error.line = user_line()
        raise


def told_shape(inputs: Sequence[Spec], at: int, attrs: Attrs, least: int = 0) -> Shape:
    """The shape in input `at`, if present and static, else in `attrs`.

    Errors: ShapeError if it is not a vector, or a size is below `least`.
    """
    if len(inputs) > at:
        require(f"the shape in input {at}", inputs[at], "iu")
        require_rank("a shape", inputs[at], 1)
        value, sizes = inputs[at].value, inputs[at].sizes
        if value is not None:
            return _sized(tuple(int(d) for d in value), least)
        if sizes is not None:
            static = attrs["shape"] or (None,) * len(sizes)
            known = tuple(None if s == -1 else s for s in sizes)  # of a reshape: to be inferred
            both = zip(static, known, strict=True)
            return _sized(tuple(s if d is None else d for d, s in both), least)
    return _sized(attrs["shape"], least)


def _sized(shape: Shape, least: int) -> Shape:
    """`shape`, checked to have no size below `least` (0, or -1)."""
    for d in shape or ():
        if d is not None and d < least:
            raise ShapeError(f"shape {shape_text(shape)} has a negative size")
    return shape


def require_alike(type: str, *tensors: Tensor) -> None:
    """Check that the static shapes of `tensors` are compatible. Errors: ShapeError."""
    shape: Shape = None
    for t in tensors:
        try:
            shape = merge_shapes(shape, t.shape)
        except ShapeError as error:
            error.op, error.line = type, user_line()
            raise


def with_shape_of(result: Tensor, t: Tensor, op_name: str) -> Tensor:
    """`result`, checked to have the shape of `t`.

    Errors: ShapeError if other operands broadcast it to a larger one.
    """
    try:
        result.set_shape(merge_shapes(result.shape, t.shape))
    except ShapeError:
        raise ShapeError(
            f"{op_name} of shape {shape_text(t.shape)} does not fit bounds of shape "
            f"{shape_text(result.shape)}",
            line=user_line(),
        ) from None
    return result


def truth(condition: Any) -> Tensor:
    """A condition as booleans; numbers are true unless they are 0."""
    if isinstance(condition, np.ndarray) and condition.dtype.kind in "iufc":
        condition = condition != 0
    return convert_to_tensor(condition, bool_)


def integer_argument(value: Any, name: str) -> int:
    """An integer argument: an int, a NumPy integer, or a constant tensor.

    Errors: ArgumentError, which calls it `name`.
    """
    if isinstance(value, int):
        return value
    static = value.constant if isinstance(value, Tensor) else value
    array = np.asarray(static) if isinstance(static, (float, np.ndarray, np.generic)) else None
    if array is None or array.ndim or not _is_whole(array):
        raise ArgumentError(f"{name} is {value_text(value)}, not an integer", line=user_line())
    return int(array)


def _is_whole(number: np.ndarray) -> bool:
    kind = number.dtype.kind
    return kind in "biu" or (kind == "f" and float(number).is_integer())


def static_axes(axis: Any) -> int | tuple[int, ...] | None:
    """An axis argument as plain data; tensors, alone or in a list, must be constants."""
    if isinstance(axis, (list, tuple)) and has_tensors(axis):
        axis = [static_axes(entry) for entry in axis]
    if axis is None or isinstance(axis, (int, np.integer)):
        return None if axis is None else int(axis)
    if isinstance(axis, Tensor):
        if axis.constant is None:
            raise ShapeError(
                f"{axis.name!r} must be known when the graph is built", line=user_line()
            )
        axis = axis.constant
    array = as_array(axis)
    if (array.dtype.kind not in "iu" and array.size) or array.ndim > 1:
        raise ShapeError(f"axis {value_text(axis)} is not an integer or a list of them")
    return int(array) if array.ndim == 0 else tuple(int(a) for a in array)


def axes_argument(axis: Any) -> Any:
    """An axis argument as plain data, or the tensor with its value at run time.

    Errors: DTypeError if it has no integers, ShapeError if its rank is 2 or more.
    """
    if isinstance(axis, Tensor) or hasattr(axis, "as_tensor") or has_tensors(axis):
        axes = convert_to_tensor(axis)
        if axes.constant is None:
            if axes.dtype.kind not in "iu":
                raise DTypeError(
                    f"an axis must be an integer; {axes.name!r} is {axes.dtype}", line=user_line()
                )
            require_rank("axes", axes.spec, 0, 1)
            return axes
        axis = axes
    return static_axes(axis)


def one_axis(axis: Any) -> Any:
    """`axes_argument` for one axis: an int, or the tensor with its value at run time."""
    resolved = axes_argument(axis)
    if isinstance(resolved, Tensor) and resolved.shape not in (None, ()):
        raise ShapeError(
            f"an axis must be a scalar; {resolved.name!r} has shape {shape_text(resolved.shape)}",
            line=user_line(),
        )
    return resolved if isinstance(resolved, Tensor) else integer_argument(axis, "axis")


def count_argument(value: Any, name: str) -> tuple[int | None, list[Tensor]]:
    """A static number, or None and the scalar tensor with its value at run time."""
    if isinstance(value, Tensor) or hasattr(value, "as_tensor"):
        tensor = convert_to_tensor(value)
        if tensor.constant is None:
            require(name, tensor.spec, "iu")
            require_rank(name, tensor.spec, 0)
            return None, [tensor]
        value = tensor
    return integer_argument(value, name), []


def normal_axis(axis: int, rank: int) -> int:
    """`axis` as a non-negative int.

    Errors: ShapeError if it is out of range.
    """
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def require_rank(type: str, spec: Spec, *ranks: int) -> None:
    """Check that the rank of `spec` is unknown or one of `ranks`. Errors: ShapeError."""
    if spec.shape is not None and len(spec.shape) not in ranks:
        accepted = " or ".join(map(str, ranks))
        raise ShapeError(f"{type} needs rank {accepted}, not shape {shape_text(spec.shape)}")
