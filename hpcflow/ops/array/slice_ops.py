"""Slice ops: `x[...]`, strided_slice, slice, boolean_mask, reverse."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import bool_, int32
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.operator_overloads import OPERATORS
from hpcflow.graph.static_shape import (
    Spec,
    broadcast_shapes,
    is_known,
    merge_shapes,
    normalize_axes,
    shape_text,
)
from hpcflow.ops.array.array_ops import constant, rank, reshape, shape, shape_argument, sizes
from hpcflow.ops.array.broadcast_ops import broadcast_to
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.array.index_expression import filled, index_of, plain_key, scalars_in, sliced
from hpcflow.ops.array.where_unique_ops import positions
from hpcflow.ops.shape_inference import (
    Attrs,
    axes_argument,
    first_output,
    like,
    normal_axis,
    one_axis,
    require,
    require_rank,
    told_shape,
    with_value,
)

# -- x[...]: the key is stored as plain data (hpcflow.ops.array.index_expression)


def _strided(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    for s in inputs[1:]:
        require("an index", s, "iu")
        require_rank("an index", s, 0)
    input_shape, key = inputs[0].shape, filled(attrs["key"], [s.value for s in inputs[1:]])
    spec = Spec(inputs[0].dtype, None if input_shape is None else sliced(input_shape, key))
    if any(s.value is None for s in inputs[1:]):
        return [spec]
    return [with_value(spec, lambda x: x[index_of(key)], inputs[:1], moves=True)]


def _strided_back(op: Operation, g: Tensor) -> list[Any]:
    x, *scalars = op.inputs
    static, extra = shape_argument(sizes(x))
    attrs = {"key": op.attrs["key"], "shape": static}
    return [first_output("StridedSliceGrad", [g, *scalars, *extra], attrs), *[None] * len(scalars)]


def _strided_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(inputs[0].dtype, told_shape(inputs, 1 + scalars_in(attrs["key"]), attrs))]


def _strided_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    key = op.attrs["key"]
    grad = first_output("StridedSlice", [gg, *op.inputs[1 : 1 + scalars_in(key)]], {"key": key})
    return [grad, *[None] * (len(op.inputs) - 1)]


op(
    "StridedSlice",
    infer=_strided,
    grad=_strided_back,
    view="strided",
    work="pick",
)
op(
    "StridedSliceGrad",
    shape_input=True,
    infer=_strided_grad,
    grad=_strided_grad_back,
    work="move",
)


def getitem(x: Any, key: Any) -> Tensor:
    """`x[key]`: ints, slices, `...`, None, with scalar tensors as ints; one mask; index tensors.

    Negative ints and bounds count from the end, as in Python, but not in index tensors (`gather`).
    Several index tensors must be adjacent at the front (`gather_nd`).
    Errors: ShapeError at graph construction or RangeError at run time for an index outside.
    """
    x, parts = convert_to_tensor(x), key if isinstance(key, tuple) else (key,)
    if any(_is_many(part) for part in parts):
        return _advanced(x, parts)
    if x.op.type == "Shape" and isinstance(key, (int, np.integer)):
        size = _size_known(x, int(key))
        if size is not None:
            return constant(size, x.dtype)
    plain, scalars = plain_key(key)
    return first_output("StridedSlice", [x, *scalars], {"key": plain})


def _size_known(shape: Tensor, at: int) -> int | None:
    dims = shape.op.inputs[0].shape
    return None if dims is None or not -len(dims) <= at < len(dims) else dims[at]


def _is_many(part: Any) -> bool:
    """Whether a key is a mask, or a list or tensor of indices."""
    if part is None or part is Ellipsis or isinstance(part, (builtins.slice, int, np.integer)):
        return False
    if isinstance(part, Tensor):
        return part.dtype.kind == "b" or part.shape not in (None, ())
    return not hasattr(part, "as_tensor") and np.ndim(part) > 0


def _advanced(x: Tensor, parts: tuple[Any, ...]) -> Tensor:
    """`x[parts]` with masks or index tensors: slices first, then these."""
    if Ellipsis in [p for p in parts if p is Ellipsis]:
        parts = _without_rest(x, parts)
    basic: list[Any] = []
    many: list[tuple[int, Tensor]] = []  # axis after slicing, index
    axis = 0
    for part in parts:
        if _is_many(part):
            index = convert_to_tensor(part)
            axes = 1 if index.dtype.kind != "b" else len(index.shape or (0,))
            many.append((axis, index))
            basic += [builtins.slice(None)] * axes
            axis += axes
        else:
            basic.append(part)
            axis += part is None or isinstance(part, builtins.slice)
    if any(part != builtins.slice(None) for part in basic):
        x = getitem(x, tuple(basic))
    if len(many) == 1:
        at, index = many[0]
        if index.dtype.kind == "b":
            return boolean_mask(x, index, axis=at)
        return gather(x, index, axis=at)
    if [at for at, _ in many] != list(builtins.range(len(many))) or any(
        index.dtype.kind == "b" for _, index in many
    ):
        raise ShapeError(
            "several index tensors must be adjacent and come first, without masks",
            hint="hf.transpose the axes to the front, or use hf.gather and hf.boolean_mask",
        )
    return first_output("GatherNd", [x, _columns([index for _, index in many])], {})


def _without_rest(x: Tensor, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The parts with slices in place of `...`."""
    if x.shape is None:
        raise ShapeError("an index with '...' and a tensor needs a known rank", op=x.op.name)
    used = 0
    for part in parts:
        if _is_many(part):
            index = convert_to_tensor(part)
            used += len(index.shape or (0,)) if index.dtype.kind == "b" else 1
        else:
            used += part is not None and part is not Ellipsis
    full_slices = (builtins.slice(None),) * (len(x.shape) - used)
    at = next(i for i, part in enumerate(parts) if part is Ellipsis)
    return (*parts[:at], *full_slices, *parts[at + 1 :])


def _columns(indices: Sequence[Tensor]) -> Tensor:
    """Index tensors, broadcast together and stacked on a last axis."""
    shapes = [i.shape for i in indices]
    joint = broadcast_shapes(shapes)
    if joint is None or None in joint:
        merged = shapes[0]
        for s in shapes[1:]:
            merged = merge_shapes(merged, s)
    else:
        indices = [i if i.shape == joint else broadcast_to(i, joint) for i in indices]
    return first_output("Pack", [like(i, indices[0]) for i in indices], {"axis": -1})


OPERATORS["getitem"] = getitem


def strided_slice(
    input_: Any,
    begin: Any,
    end: Any,
    strides: Any = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    name: str | None = None,
) -> Tensor:
    """`input_[begin[0]:end[0]:strides[0], ...]`; bit i of a mask changes the meaning of entry i.

    `begin_mask` and `end_mask` ignore that bound, `shrink_axis_mask` takes one element and removes
    the axis, `new_axis_mask` inserts an axis of size 1, `ellipsis_mask` is `...`.
    """
    begins, ends = _entries(begin), _entries(end)
    steps = [1] * len(begins) if strides is None else _entries(strides)
    if not len(begins) == len(ends) == len(steps):
        raise ShapeError(
            "strided_slice: begin, end and strides have different lengths: "
            f"{len(begins)}, {len(ends)} and {len(steps)}"
        )
    key: list[Any] = []
    for i, (b, e, s) in enumerate(zip(begins, ends, steps, strict=True)):
        bit = 1 << i
        if ellipsis_mask & bit:
            key.append(Ellipsis)
        elif new_axis_mask & bit:
            key.append(None)
        elif shrink_axis_mask & bit:
            key.append(b)
        else:
            limits = (None if begin_mask & bit else b, None if end_mask & bit else e)
            key.append(builtins.slice(*limits, s))
    plain, scalars = plain_key(tuple(key))
    return first_output("StridedSlice", [convert_to_tensor(input_), *scalars], {"key": plain}, name)


def _entries(vector: Any) -> list[Any]:
    """The entries of an index vector: ints, or scalar tensors if known only at run time."""
    static, dyn = shape_argument(vector)
    if static is None:
        raise ShapeError("strided_slice needs vectors of a known length", line=user_line())
    return [
        getitem(dyn[0], i) if dyn and dyn[0].constant is None else v for i, v in enumerate(static)
    ]


# -- slice: begin and size may be tensors


def _slice(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x, begin, length = inputs
    for s in (begin, length):
        require("slice's begin and size", s, "iu")
        require_rank("slice's begin and size", s, 1)
    lengths = attrs["size"] if length.value is None else tuple(int(v) for v in length.value)
    if x.shape is None:
        out_shape = None if lengths is None else tuple(None if n == -1 else n for n in lengths)
        return [Spec(x.dtype, out_shape)]
    for counts in (begin.shape, length.shape):
        if counts not in (None, (None,), (len(x.shape),)):
            raise ShapeError(
                f"slice: begin of shape {shape_text(begin.shape)} and size of shape "
                f"{shape_text(length.shape)} do not fit a tensor of shape {shape_text(x.shape)}",
                hint="give begin and size one entry for each axis",
            )
    starts = (None,) * len(x.shape) if begin.value is None else tuple(map(int, begin.value))
    out: list[int | None] = []
    for size, start, n in zip(x.shape, starts, lengths or (None,) * len(x.shape), strict=True):
        if n == -1:
            n = None if size is None or start is None else size - start
        inside = size is None or start is None or n is None or 0 <= start <= start + n <= size
        if not inside:
            raise ShapeError(
                f"a slice of {n} from {start} is outside {shape_text(x.shape)}", line=user_line()
            )
        out.append(n)
    return [Spec(x.dtype, tuple(out))]


def _inside_is_known(x: Tensor, starts: Any, lengths: Any) -> bool:
    """Whether a slice of `lengths` is known to fit; Python's slices would be clipped silently."""
    if x.shape is None or not len(x.shape) == len(lengths) == len(starts):
        return x.shape is not None
    parts = zip(x.shape, starts, lengths, strict=True)
    return all(d is not None or (b == 0 and n == -1) for d, b, n in parts)


def _slice_back(op: Operation, g: Tensor) -> list[Any]:
    x, begin, _ = op.inputs
    static, dynamic = shape_argument(sizes(x))
    dynamic = dynamic or [convert_to_tensor(np.array(static, int32))]
    return [first_output("SliceGrad", [g, begin, *dynamic], {"shape": static}), None, None]


def _slice_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(inputs[0].dtype, told_shape(inputs, 2, attrs))]


def _slice_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    return [slice(gg, op.inputs[1], sizes(op.inputs[0])), None, None]


op("Slice", infer=_slice, grad=_slice_back, work="pick")
op(
    "SliceGrad",
    shape_input=True,
    infer=_slice_grad,
    grad=_slice_grad_back,
    work="move",
)


def slice(input_: Any, begin: Any, size: Any, name: str | None = None) -> Tensor:
    """`size` elements from `begin` along each axis; size -1 means up to the end."""
    x = convert_to_tensor(input_)
    starts, begin_told = shape_argument(begin)
    lengths, size_told = shape_argument(size)
    fixed = not begin_told and not size_told and starts is not None and lengths is not None
    if fixed and _inside_is_known(x, starts, lengths):
        assert starts is not None and lengths is not None
        if len(starts) != len(lengths):
            raise ShapeError(
                f"slice: begin {list(starts)} and size {list(lengths)} are of different lengths",
                hint="give begin and size one entry for each axis",
            )
        if x.shape is not None:
            static = [Spec(np.dtype(int32), (len(v),), np.array(v)) for v in (starts, lengths)]
            _slice([x.spec, *static], {})
        pairs = zip(starts, lengths, strict=True)
        key = tuple(("slice", b, None if n == -1 else (b or 0) + (n or 0), None) for b, n in pairs)
        return first_output("StridedSlice", [x], {"key": key}, name)
    inputs = [
        x,
        *(
            t[0] if t else convert_to_tensor(list(v or ()))
            for v, t in ((starts, begin_told), (lengths, size_told))
        ),
    ]
    return first_output("Slice", inputs, {"size": lengths}, name)


# -- masks


def boolean_mask(tensor: Any, mask: Any, name: str | None = None, axis: Any = None) -> Tensor:
    """The parts of `tensor` where `mask` is true; it covers axes from `axis` (default 0) on.

    Shapes: the masked axes become one, whose size is known only at run time.
    Errors: ShapeError if the mask does not fit, or its rank is unknown.
    """
    x, m = convert_to_tensor(tensor), convert_to_tensor(mask, bool_)
    axis = 0 if axis is None else axis
    if not m.shape:
        raise ShapeError(
            f"a mask must have a known rank of at least 1, not shape {shape_text(m.shape)}"
        )
    many, axis = len(m.shape), one_axis(axis)
    if isinstance(axis, Tensor):
        axis = first_output("FloorMod", [first_output("Cast", [axis], {"dtype": int32}), rank(x)])
    elif axis < 0:
        if x.shape is None:
            raise ShapeError("a negative axis needs a tensor of a known rank")
        axis = normal_axis(axis, len(x.shape))
    if x.shape is not None and not isinstance(axis, Tensor):
        merge_shapes(x.shape[axis : axis + many], m.shape)
    if many > 1:
        x = reshape(x, _joined(x, axis, many))
    flat = m if many == 1 else reshape(m, [-1])
    rows = getitem(positions(flat), (Ellipsis, 0))
    size = None if m.shape is None or not is_known(m.shape) else flat.shape
    if size is not None and x.shape is not None and not isinstance(axis, Tensor):
        merge_shapes(x.shape[axis : axis + 1], size)
    return gather(x, rows, axis=axis, name=name or "boolean_mask")


def _joined(x: Tensor, axis: Any, rank: int) -> Any:
    """The shape of `x` with `rank` axes from `axis` on merged into one."""
    if x.shape is not None and not isinstance(axis, Tensor):
        ends = (*x.shape[:axis], *x.shape[axis + rank :])
        if None not in ends:
            return [*x.shape[:axis], -1, *x.shape[axis + rank :]]
    x_shape = shape(x)
    return first_output(
        "Concat",
        [getitem(x_shape, builtins.slice(axis)), constant([-1]), _from(x_shape, axis + rank)],
        {"axis": 0},
    )


def _from(vector: Tensor, start: Any) -> Tensor:
    return getitem(vector, builtins.slice(start, None))


# -- reverse


def _reverse(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    if inputs[0].shape is not None:
        normalize_axes(attrs["axis"], len(inputs[0].shape))
    return [Spec(inputs[0].dtype, inputs[0].shape)]


def _reverse_told(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("an axis", inputs[1], "iu")
    require_rank("axes", inputs[1], 0, 1)
    return [Spec(inputs[0].dtype, inputs[0].shape)]


def _reverse_told_back(op: Operation, g: Tensor) -> list[Any]:
    return [first_output("ReverseTold", [g, op.inputs[1]]), None]


op(
    "Reverse",
    infer=_reverse,
    grad=lambda op, g: [first_output("Reverse", [g], op.attrs)],
    work="move",
)
op(
    "ReverseTold",
    infer=_reverse_told,
    grad=_reverse_told_back,
    work="move",
)


def reverse(tensor: Any, axis: Any, name: str | None = None) -> Tensor:
    """`tensor` reversed along each axis in `axis`."""
    x, axes = convert_to_tensor(tensor), axes_argument(axis)
    if isinstance(axes, Tensor):
        return first_output("ReverseTold", [x, axes], {}, name)
    return first_output("Reverse", [x], {"axis": (axes,) if isinstance(axes, int) else axes}, name)


reverse_v2 = reverse


# -- a view that plans insert


def _rows(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    (spec,), start, stop = inputs, attrs["start"], attrs["stop"]
    if not spec.shape or spec.shape[0] is None:
        raise ShapeError("a view of rows needs an array with a known number of rows")
    if not 0 <= start <= stop <= spec.shape[0]:
        raise ShapeError(f"rows {start} to {stop} are not in {shape_text(spec.shape)}")
    return [Spec(spec.dtype, (stop - start, *spec.shape[1:]))]


op(
    "Rows",
    infer=_rows,
    grad=NoGrad("inserted when the plan is made, after gradients are computed"),
    doc="Rows `start` to `stop`, where they lie.",
    view="strided",
    contiguous_view=True,
)
