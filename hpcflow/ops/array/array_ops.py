"""Array ops: constants, placeholders, reshape, transpose, shape, range."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ArgumentError, DTypeError, NumericError, ShapeError
from hpcflow.graph.composite_tensor import CompositeTensor
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import as_array, as_dtype, int32, int64, kind_of
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import (
    Shape,
    Spec,
    as_sizes,
    is_known,
    merge_shapes,
    normalize_axes,
    shape_text,
    size_of,
)
from hpcflow.ops.shape_inference import (
    MAX_CONSTANT_SIZE,
    Attrs,
    axes_argument,
    first_output,
    fitted,
    given_shape,
    has_tensors,
    make,
    normal_axis,
    operand,
    require,
    require_equal,
    require_rank,
    static_axes,
    told_shape,
    with_value,
)
from hpcflow.platform.exception_translation import value_text

_INTEGERS = NoGrad("its output is integers")
LARGE = 1 << 16  # elements: larger constants are computed in the step if possible

# -- shape arguments


def partial_value(t: Tensor) -> Shape:
    """The static value of a vector of sizes: None for each unknown size, or for unknown length.

    It is traced through `shape`, `stack`, `concat` and `cast`, so that `[hf.shape(x)[0], 784]` is
    partially known.
    """
    if t.constant is not None:
        return tuple(int(v) for v in t.constant)
    if t.op.type == "Shape":
        return t.op.inputs[0].shape
    if t.op.type == "Placeholder" and "sizes" in t.op.attrs:
        return t.op.attrs["sizes"]
    if t.op.type == "Pack" and any(i.shape == () for i in t.op.inputs):
        return tuple(None if i.constant is None else int(i.constant) for i in t.op.inputs)
    if t.op.type == "Cast":
        return cast_sizes(partial_value(t.op.inputs[0]), t.dtype)
    if t.op.type == "Concat":
        parts = [partial_value(i) for i in t.op.inputs]
        if None not in parts:
            return tuple(size for part in parts for size in part or ())
    if t.shape is None or len(t.shape) != 1 or t.shape[0] is None:
        return None
    return (None,) * t.shape[0]


def cast_sizes(sizes: Shape, dtype: np.dtype) -> Shape:
    """Sizes known in part, cast to an integer dtype: those that it cannot hold wrap around."""
    if sizes is None:
        return None
    return tuple(None if d is None else int(np.asarray(d).astype(dtype)) for d in sizes)


def shape_argument(shape: Any) -> tuple[Shape, list[Tensor]]:
    """A shape argument: the static sizes, and the tensor with the dynamic ones, if any.

    -1 stays -1 (a size that `reshape` infers). None is a size that the tensor determines.
    """
    if hasattr(shape, "as_tensor") or has_tensors(shape):
        shape = convert_to_tensor(shape)
    if isinstance(shape, Tensor):
        if shape.dtype.kind not in "iu":
            raise DTypeError(f"a shape must hold integers; {shape.name!r} is {shape.dtype}")
        if shape.shape is not None and len(shape.shape) != 1:
            raise ShapeError(
                f"a shape must be a vector; {shape.name!r} has shape {shape_text(shape.shape)}"
            )
        static = partial_value(shape)
        return static, [] if shape.constant is not None else [shape]
    if isinstance(shape, (int, np.integer)):
        shape = (shape,)
    static = None if shape is None else as_sizes(shape)
    if not is_known(static):
        raise ShapeError(f"shape {shape!r} must be known", hint="use hf.shape(x) for unknown sizes")
    return static, []


def _check_sizes(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    (spec,) = inputs
    require(attrs["what"], spec, "iu")
    if spec.value is not None:
        _at_least(spec.value, **attrs)
    return [spec]


def _at_least(value: np.ndarray, what: str, least: int) -> None:
    if value.size and (smallest := int(value.min())) < least:
        raise ShapeError(f"{what} is {smallest}, less than {least}", line=user_line())


op("CheckSizes", infer=_check_sizes, grad=_INTEGERS, work="start")


def checked_sizes(sizes: Any, label: str, least: int = 0) -> Tensor:
    """The integers, checked to be at least `least`.

    Errors: ShapeError at graph construction or at run time.
    """
    tensor = operand(sizes, "iu")
    if tensor.constant is None:
        return first_output("CheckSizes", [tensor], {"what": label, "least": least})
    require(label, tensor.spec, "iu")
    _at_least(tensor.constant, label, least)
    return tensor


# -- constants and placeholders


def _const(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    value = attrs["value"]
    return [Spec(value.dtype, value.shape, value)]


def _placeholder(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(attrs["dtype"], attrs["shape"])]


def _default(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    merge_shapes(inputs[0].shape, attrs["shape"])
    return [Spec(inputs[0].dtype, attrs["shape"])]


op(
    "Const",
    infer=_const,
    grad=NoGrad("it has no inputs"),
    source="constant",
    no_kernel=True,
    work="nothing",
)
op(
    "Placeholder",
    infer=_placeholder,
    grad=NoGrad("it has no inputs"),
    stateful=True,
    source="placeholder",
    stands_for_feed=True,
)
op(
    "PlaceholderWithDefault",
    infer=_default,
    grad=lambda op, g: [g],
    identity="always",
    work="start",
)


def constant(value: Any, dtype: Any = None, shape: Any = None, name: str | None = None) -> Tensor:
    """A tensor with a constant value.

    Shapes: that of `value`, or `shape`, which the last element of `value` fills up. Without `dtype`
            Python floats become float32 and Python ints int32; arrays keep their dtype.
    Errors: DTypeError if `value` does not fit `dtype`.
    """
    if dtype is None:
        array = as_array(value)
    else:
        dtype = as_dtype(dtype)
        array = fitted(value, dtype, "the constant")
    if shape is not None:
        array = _under(array, given_shape(shape))
    array = np.ascontiguousarray(array).reshape(array.shape)
    array.flags.writeable = False
    return first_output("Const", [], {"value": array}, name)


def _under(array: np.ndarray, target: Shape) -> np.ndarray:
    """The array of a constant with the requested shape, filled up with its last element, or 0."""
    count = None if target is None or None in target else size_of(target)
    if count is None or (count and array.size > count):
        raise ShapeError(
            f"{array.size} values do not make a constant of shape {shape_text(target)}",
            line=user_line(),
        )
    dims = tuple(d for d in target or () if d is not None)
    if not count or not array.size:
        return np.zeros(dims, array.dtype)
    if array.size == 1:
        return np.array(np.broadcast_to(array.reshape(()), dims))
    padding = np.full(size_of(dims) - array.size, array.reshape(-1)[-1], array.dtype)
    return np.concatenate([array.reshape(-1), padding]).reshape(dims)


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Tensor:
    """A tensor fed in each run; varying sizes are None in `shape`."""
    return first_output(
        "Placeholder", [], {"dtype": as_dtype(dtype), "shape": given_shape(shape)}, name
    )


def placeholder_with_default(input: Any, shape: Any, name: str | None = None) -> Tensor:
    """A tensor that a run may feed; its default value is `input`."""
    default = convert_to_tensor(input)
    return first_output("PlaceholderWithDefault", [default], {"shape": given_shape(shape)}, name)


# -- reshape


def _identity(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [inputs[0]]


def _deduce(target: tuple[int | None, ...], source: Shape) -> Shape:
    """The result shape of a reshape: infers -1 if possible and checks sizes."""
    if target.count(-1) > 1:
        raise ShapeError(f"reshape to {list(target)}: only one size can be -1")
    if not is_known(source) or (None in target and -1 in target):
        return tuple(None if d == -1 else d for d in target)
    total, fixed = size_of(source), size_of(tuple(d for d in target if d not in (-1, None)))
    if None in target:
        dim = total // fixed if target.count(None) == 1 and fixed and total % fixed == 0 else None
        return tuple(dim if d is None else d for d in target)
    if -1 not in target:
        if total != fixed:
            raise ShapeError(
                f"{shape_text(source)} ({total} elements) cannot be reshaped to {target}"
            )
        return target
    if fixed == 0 and total == 0:  # the kernel infers it from the nonzero sizes
        return tuple(None if d == -1 else d for d in target)
    if fixed == 0 or total % fixed:
        raise ShapeError(f"{shape_text(source)} ({total} elements) cannot be reshaped to {target}")
    return tuple(total // fixed if d == -1 else d for d in target)


def _reshape(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    target = told_shape(inputs, 1, attrs, -1)
    shape = None if target is None else _deduce(target, inputs[0].shape)
    return [
        with_value(Spec(inputs[0].dtype, shape), lambda x: x.reshape(shape), inputs[:1], moves=True)
    ]


def _expand_dims(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    shape = inputs[0].shape
    if shape is None:
        return [Spec(inputs[0].dtype, None)]
    at = normal_axis(attrs["axis"], len(shape) + 1)
    spec = Spec(inputs[0].dtype, (*shape[:at], 1, *shape[at:]))
    return [with_value(spec, lambda x: np.expand_dims(x, at), inputs, moves=True)]


def _squeeze(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    shape, axis = inputs[0].shape, attrs["axis"]
    if shape is None or (axis is None and None in shape):
        return [Spec(inputs[0].dtype, None)]
    if axis is None:
        axes: tuple[int, ...] = tuple(i for i, d in enumerate(shape) if d == 1)
    else:
        axes = normalize_axes(axis, len(shape))
    for a in axes:
        if shape[a] not in (None, 1):
            raise ShapeError(f"axis {a} of {shape_text(shape)} has size {shape[a]}, not 1")
    spec = Spec(inputs[0].dtype, tuple(d for i, d in enumerate(shape) if i not in axes))
    return [with_value(spec, lambda x: x.squeeze(axes), inputs, moves=True)]


def reshaped_like(g: Tensor, x: Tensor) -> Tensor:
    """`g` reshaped to the shape of `x`; no shape node if at most one size is unknown."""
    if x.shape is not None and x.shape.count(None) == 1 and 0 not in x.shape:
        return reshape(g, [-1 if d is None else d for d in x.shape])
    return reshape(g, sizes(x))


def _reshape_back(op: Operation, g: Tensor) -> list[Any]:
    return [reshaped_like(g, op.inputs[0]), *[None] * (len(op.inputs) - 1)]


def _ensure_shape(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    (spec,) = inputs
    return [spec._replace(shape=merge_shapes(spec.shape, attrs["shape"]))]


op("EnsureShape", infer=_ensure_shape, grad=lambda op, g: [g], work="start")
op(
    "Identity",
    infer=_identity,
    grad=lambda op, g: [g],
    slices=True,
    update_formula=True,
    initial_formula=True,
    identity="always",
    view="same_order",
    work="start",
)
op(
    "StopGradient",
    infer=_identity,
    grad=lambda op, g: [None],
    identity="always",
    view="same_order",
    work="start",
)
op(
    "Reshape",
    shape_input=True,
    infer=_reshape,
    grad=_reshape_back,
    identity="if_specs_equal",
    view="same_order",
    contiguous_view=True,
    work="start",
    checks_shape=True,
)
op("ExpandDims", infer=_expand_dims, grad=_reshape_back, view="same_order", work="start")
op(
    "Squeeze",
    infer=_squeeze,
    grad=_reshape_back,
    identity="if_specs_equal",
    view="same_order",
    work="start",
)


def identity(input: Any, name: str | None = None) -> Any:
    """The same value under a new name; for IndexedSlices and sparse tensors, of each component."""
    if isinstance(input, CompositeTensor):
        return input.of([identity(part) for part in input.parts()])
    return first_output("Identity", [convert_to_tensor(input)], {}, name)


def stop_gradient(input: Any, name: str | None = None) -> Tensor:
    """The same value without gradient."""
    return first_output("StopGradient", [convert_to_tensor(input)], {}, name)


def ensure_shape(x: Any, shape: Any, name: str | None = None) -> Tensor:
    """`x`, checked to have `shape`, which may have unknown sizes.

    Errors: ShapeError at graph construction or at run time.
    """
    return first_output("EnsureShape", [convert_to_tensor(x)], {"shape": given_shape(shape)}, name)


def reshape(tensor: Any, shape: Any, name: str | None = None) -> Tensor:
    """The elements of `tensor`, in order, with another shape; one size may be -1 (inferred).

    Errors: ShapeError if the numbers of elements differ.
    """
    static, dynamic = shape_argument(shape)
    return first_output("Reshape", [convert_to_tensor(tensor), *dynamic], {"shape": static}, name)


@accepts_aliases(dim="axis")
def expand_dims(input: Any, axis: Any, name: str | None = None) -> Tensor:
    """`input` with a new axis of size 1 at `axis`, an int or a list of one."""
    x, at = convert_to_tensor(input), axes_argument(axis)
    if isinstance(at, tuple) and len(at) == 1:
        at = at[0]
    if isinstance(at, Tensor):
        around = [shape(x, out_type=int64), at, constant([1], int64)]
        return reshape(x, make("AroundAxis", around, {"insert": True}).outputs[1], name)
    if not isinstance(at, int):
        raise ShapeError(f"expand_dims takes one axis, not {value_text(axis)}", line=user_line())
    return first_output("ExpandDims", [x], {"axis": at}, name)


@accepts_aliases(squeeze_dims="axis")
def squeeze(input: Any, axis: Any = None, name: str | None = None) -> Tensor:
    """`input` without its axes of size 1, or without those listed in `axis`."""
    axes = static_axes(axis)
    return first_output(
        "Squeeze", [convert_to_tensor(input)], {"axis": None if axes == () else axes}, name
    )


# -- transpose


def _transpose(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    shape, perm = inputs[0].shape, attrs["perm"]
    if shape is None:
        return [Spec(inputs[0].dtype, None if perm is None else (None,) * len(perm))]
    perm = tuple(reversed(builtins.range(len(shape)))) if perm is None else perm
    if sorted(perm) != list(builtins.range(len(shape))):
        raise ShapeError(f"perm {perm} does not name each axis of {shape_text(shape)} once")
    return [Spec(inputs[0].dtype, tuple(shape[p] for p in perm))]


def _transpose_back(op: Operation, g: Tensor) -> list[Tensor]:
    perm = op.attrs["perm"]
    if perm is not None:
        perm = [perm.index(i) for i in builtins.range(len(perm))]
    return [transpose(g, perm)]


def _transpose_told(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x, perm = inputs
    require("a perm", perm, "iu")
    require_rank("a perm", perm, 1)
    if perm.value is not None:
        return _transpose([x], {"perm": tuple(int(p) for p in perm.value)})
    rank = merge_shapes(perm.shape, None if x.shape is None else (len(x.shape),))
    return [Spec(x.dtype, None if not rank or rank[0] is None else (None,) * rank[0])]


def _transpose_told_back(op: Operation, g: Tensor) -> list[Any]:
    return [
        first_output("TransposeTold", [g, first_output("InvertPermutation", [op.inputs[1]])]),
        None,
    ]


op("Transpose", infer=_transpose, grad=_transpose_back, view="strided", work="move")
op("TransposeTold", infer=_transpose_told, grad=_transpose_told_back, work="move")


def transpose(a: Any, perm: Any = None, name: str | None = None, conjugate: bool = False) -> Tensor:
    """`a` with axes in the order `perm` (None: reversed), conjugated if `conjugate`.

    `perm` may be a vector computed at run time.
    """
    axes, x = axes_argument(perm), convert_to_tensor(a)
    if conjugate and x.dtype.kind == "c":
        x = first_output("Conj", [x])
    if isinstance(axes, Tensor):
        return first_output("TransposeTold", [x, axes], {}, name)
    if isinstance(axes, tuple):  # axes count from the back, too
        axes = tuple(p + len(axes) if p < 0 else p for p in axes)
    return first_output("Transpose", [x], {"perm": axes}, name)


def as_scalar(value: Any) -> Tensor:
    """A tensor of unknown rank that must be a number or flag, as a scalar."""
    x = convert_to_tensor(value)
    return reshape(x, []) if x.shape is None else x


# -- shapes as values


def _shape(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    input_shape = inputs[0].shape
    if input_shape is None:
        return [Spec(attrs["dtype"], (None,))]
    spec = Spec(attrs["dtype"], (len(input_shape),))
    if is_known(input_shape):
        return [spec._replace(value=np.array(input_shape, attrs["dtype"]))]
    return [spec._replace(sizes=input_shape if any(input_shape) else None)]


def _size(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    input_shape = inputs[0].shape
    value = np.array(size_of(input_shape), attrs["dtype"]) if is_known(input_shape) else None
    return [Spec(attrs["dtype"], (), value)]


def _rank(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    input_shape = inputs[0].shape
    return [Spec(int32, (), None if input_shape is None else np.array(len(input_shape), int32))]


op("Shape", infer=_shape, grad=_INTEGERS, work="start")
op("Size", infer=_size, grad=_INTEGERS, work="start")
op("Rank", infer=_rank, grad=_INTEGERS, work="start")


def _constant_if_known(type: str, x: Any, attrs: Attrs, name: str | None) -> Tensor:
    infer = {"Shape": _shape, "Size": _size, "Rank": _rank}[type]
    x = convert_to_tensor(x)
    value = infer([x.spec], attrs)[0].value
    return (
        first_output(type, [x], attrs, name)
        if value is None
        else constant(value, name=name or type)
    )


def _dense_shape(x: Any) -> Tensor | None:
    """The dense shape of a sparse tensor or its value; None for other arguments."""
    dense_shape = getattr(x, "dense_shape", None)
    if dense_shape is None or isinstance(dense_shape, Tensor):
        return dense_shape
    return convert_to_tensor(np.asarray(dense_shape))


def shape(input: Any, name: str | None = None, out_type: Any = int32) -> Tensor:
    """The shape of `input` as a vector, constant if static; the dense shape of a sparse tensor."""
    dense = _dense_shape(input)
    if dense is not None:
        return first_output("Cast", [dense], {"dtype": as_dtype(out_type)}, name)
    return _constant_if_known("Shape", input, {"dtype": as_dtype(out_type)}, name)


def sizes(x: Tensor) -> Any:
    """The shape of `x` as an argument: a list if static, else a tensor."""
    return x.shape if is_known(x.shape) else shape(x)


def size(input: Any, name: str | None = None, out_type: Any = int32) -> Tensor:
    """The number of elements of `input`; of a sparse tensor, that of the dense form."""
    dense = _dense_shape(input)
    if dense is not None:
        count = first_output("Prod", [dense], {"axis": None, "keepdims": False})
        return first_output("Cast", [count], {"dtype": as_dtype(out_type)}, name)
    return _constant_if_known("Size", input, {"dtype": as_dtype(out_type)}, name)


def rank(input: Any, name: str | None = None) -> Tensor:
    """The number of axes of `input`."""
    dense = _dense_shape(input)
    if dense is not None:
        return size(dense, name)
    return _constant_if_known("Rank", input, {}, name)


# -- sequences


def _range(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("range", inputs)
    for s in inputs:
        require("range", s, "iuf")
        require_rank("range", s, 0)
    limits: list[Any] = [s.value.item() for s in inputs if s.value is not None]
    if inputs[-1].value is not None:
        _length(0, 0, limits[-1])
    if len(limits) < len(inputs):
        return [Spec(inputs[0].dtype, (None,))]
    count, dtype = _length(*limits), inputs[0].dtype
    return [
        Spec(
            dtype, (count,), np.arange(*limits, dtype=dtype) if count <= MAX_CONSTANT_SIZE else None
        )
    ]


def _length(start: Any, limit: Any, delta: Any) -> int:
    """The number of elements of a range."""
    for number in (start, limit, delta):
        if np.ndim(number) or as_array(number).dtype.kind not in "biuf":
            raise ArgumentError(f"range takes numbers, not {value_text(number)}", line=user_line())
    if delta == 0:
        raise ShapeError("range: delta must not be 0", line=user_line())
    if (limit - start) * delta < 0:
        raise ShapeError(
            f"range: delta {delta} does not lead from start {start} to limit {limit}",
            line=user_line(),
        )
    steps = (limit - start) / delta
    if steps - steps != 0:  # NaN and infinity
        raise NumericError(
            f"range: start, limit and delta must be finite, not {[start, limit, delta]}",
            line=user_line(),
        )
    return max(0, math.ceil(steps))


op(
    "Range",
    infer=_range,
    grad=NoGrad("the length of a sequence is not differentiable", none=True),
    work="move",
)


def range(
    start: Any, limit: Any = None, delta: Any = 1, dtype: Any = None, name: str = "range"
) -> Tensor:
    """The numbers `start`, `start + delta`, ... below `limit`; from 0 if `limit` is None.

    The dtype is `dtype`, by default the widest dtype of the arguments.
    Errors: ShapeError, also at run time, if `delta` leads away from `limit`.
    """
    if limit is None:
        start, limit = 0, start
    args = [t.as_tensor() if hasattr(t, "as_tensor") else t for t in (start, limit, delta)]
    tensors = [t for t in args if isinstance(t, Tensor)]
    if dtype is None:
        arrays = [as_array(t).dtype for t in args if not isinstance(t, Tensor)]
        integral = all(kind_of(t.dtype) != "f" for t in tensors)
        plain = [d for d in arrays if d.kind == "f" and integral]
        dtype = max([*(t.dtype for t in tensors), *plain] or arrays, key=_rank_of)
    dtype = as_dtype(dtype)
    if not tensors and _length(*args) <= LARGE:
        return constant(np.arange(*args, dtype=dtype), name=name)
    return first_output("Range", [_as(t, dtype) for t in args], {}, name)


def _rank_of(dtype: np.dtype) -> tuple[bool, int]:
    return kind_of(dtype) == "f", dtype.itemsize


def _as(value: Any, dtype: np.dtype) -> Tensor:
    """`value` converted to `dtype`; a tensor is cast."""
    if isinstance(value, Tensor) and value.dtype != dtype:
        return first_output("Cast", [value], {"dtype": dtype})
    return convert_to_tensor(value, dtype)
