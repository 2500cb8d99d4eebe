"""Rearrange ops: reverse_sequence, roll, repeat, meshgrid, sequence_mask, broadcast shapes."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import as_dtype, bool_, int32, int64
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import (
    Shape,
    Spec,
    as_shape,
    broadcast_shapes,
    merge_shapes,
    shape_text,
)
from hpcflow.ops.array.array_ops import checked_sizes, constant, expand_dims, range, reshape, shape
from hpcflow.ops.array.broadcast_ops import broadcast_to
from hpcflow.ops.array.concat_split_ops import stack
from hpcflow.ops.array.dynamic_axis_ops import flat_around, with_axis_replaced
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.array.where_unique_ops import positions
from hpcflow.ops.math.arithmetic_ops import (
    add,
    cast,
    divide,
    less,
    maximum,
    multiply,
    negative,
    subtract,
)
from hpcflow.ops.math.reduction_ops import reduce_max
from hpcflow.ops.shape_inference import (
    Attrs,
    axes_argument,
    first_output,
    integer_argument,
    normal_axis,
    operand,
    operands,
    require,
    require_equal,
    require_rank,
    several,
    static_axes,
    with_value,
)

# -- reversal and rotation


def _reverse_sequence(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x, lengths = inputs
    require("reverse_sequence's lengths", lengths, "iu")
    require_rank("reverse_sequence's lengths", lengths, 1)
    if x.shape is None:
        return [Spec(x.dtype, None)]
    along, batch = (normal_axis(attrs[a], len(x.shape)) for a in ("seq_axis", "batch_axis"))
    if along == batch:
        raise ShapeError(f"reverse_sequence: seq_axis and batch_axis must differ, both are {along}")
    if lengths.shape is None:
        return [Spec(x.dtype, x.shape)]
    count = (merge_shapes((x.shape[batch],), lengths.shape) or (None,))[0]
    return [Spec(x.dtype, (*x.shape[:batch], count, *x.shape[batch + 1 :]))]


def _reverse_sequence_back(op: Operation, g: Tensor) -> list[Any]:
    return [first_output("ReverseSequence", [g, op.inputs[1]], op.attrs), None]


op("ReverseSequence", infer=_reverse_sequence, grad=_reverse_sequence_back, work="move")


@accepts_aliases(seq_dim="seq_axis", batch_dim="batch_axis")
def reverse_sequence(
    input: Any,
    seq_lengths: Any,
    seq_axis: int,
    batch_axis: int = 0,
    name: str | None = None,
) -> Tensor:
    """The first `seq_lengths[i]` elements of sample i reversed along `seq_axis`.

    The other elements are unchanged.
    Errors: RangeError at run time for a length below 0 or above the size.
    """
    attrs = {"seq_axis": static_axes(seq_axis), "batch_axis": static_axes(batch_axis)}
    inputs = [convert_to_tensor(input), operand(seq_lengths, "iu")]
    return first_output("ReverseSequence", inputs, attrs, name)


def _roll(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    for what, s in (("a shift", inputs[1]), ("an axis", inputs[2])):
        require(what, s, "iu")
        require_rank(what, s, 0, 1)
    return [Spec(inputs[0].dtype, inputs[0].shape)]


def _roll_back(op: Operation, g: Tensor) -> list[Any]:
    return [first_output("Roll", [g, negative(op.inputs[1]), op.inputs[2]]), None, None]


op("Roll", infer=_roll, grad=_roll_back, work="move")


def _roll_by(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    if inputs[0].shape is not None:
        for axis in attrs["axis"]:
            normal_axis(axis, len(inputs[0].shape))
    return [Spec(inputs[0].dtype, inputs[0].shape)]


def _roll_by_back(op: Operation, g: Tensor) -> list[Any]:
    return [
        first_output("RollBy", [g], _roll_attrs([-s for s in op.attrs["shift"]], op.attrs["axis"]))
    ]


def _roll_attrs(shifts: Sequence[int], axes: Sequence[int]) -> Attrs:
    return {"shift": tuple(shifts), "axis": tuple(axes)}


op("RollBy", infer=_roll_by, grad=_roll_by_back, work="move")  # by known shifts, along known axes


def roll(input: Any, shift: Any, axis: Any, name: str | None = None) -> Tensor:
    """The elements shifted cyclically by `shift` along each axis of `axis`."""
    x, shifts = convert_to_tensor(input), convert_to_tensor(shift)
    axes = axes_argument(axis)
    if isinstance(axes, Tensor) or shifts.shape is None:
        return first_output("Roll", [x, shifts, convert_to_tensor(axis)], {}, name)
    listed = [axes] if isinstance(axes, int) else list(axes or ())
    if shifts.shape not in ((), (len(listed),)) or (shifts.shape == ()) != isinstance(axes, int):
        raise ShapeError(
            "roll needs one shift for each axis, not a shift of shape "
            f"{shape_text(shifts.shape)} for axis {axis}"
        )
    if x.shape is not None:
        for along in listed:
            normal_axis(along, len(x.shape))
    if shifts.constant is None:
        at = constant(axes if isinstance(axes, int) else listed, int32)
        return first_output("Roll", [x, shifts, at], {}, name)
    attrs = _roll_attrs(shifts.constant.ravel().tolist(), listed)
    return first_output("RollBy", [x], attrs, name)


def repeat(input: Any, repeats: Any, axis: int | None = None, name: str | None = None) -> Tensor:
    """Each element repeated `repeats` times along `axis` (None: of the flattened input).

    `repeats` is a number, or a vector with one for each element along the axis.
    """
    x, times = convert_to_tensor(input), checked_sizes(repeats, "a number of repeats")
    if axis is None:
        x, axis = reshape(x, [-1]), 0
    if x.shape is None:
        at = constant(integer_argument(axis, "axis"))
        flat = repeat(flat_around(x, at), times, 1)
        size = reshape(getitem(shape(flat, out_type=int64), 1), [1])
        return reshape(flat, with_axis_replaced(x, at, size), name)
    axis = normal_axis(integer_argument(axis, "axis"), len(x.shape))
    if times.shape is None:
        times = reshape(times, [-1])
    size = getitem(shape(x), axis)
    length = _repeated(x.shape[axis], times)
    if times.shape in ((), (1,), (None,)):
        times = broadcast_to(times, stack([size]))
    elif times.shape is not None:
        merge_shapes((x.shape[axis],), times.shape)
    which = getitem(positions(sequence_mask(times)), (Ellipsis, 0))
    repeated = gather(x, which, axis=axis, name=name)
    repeated.set_shape((*x.shape[:axis], length, *x.shape[axis + 1 :]))
    return repeated


def _repeated(size: int | None, times: Tensor) -> int | None:
    """The size of an axis of `size` elements after repetition."""
    if size == 0:
        return 0
    if times.constant is None:
        return None
    if times.constant.size != 1:
        return int(times.constant.sum())
    return None if size is None else size * int(times.constant.item())


# -- sequences and grids


def sequence_mask(
    lengths: Any, maxlen: Any = None, dtype: Any = bool_, name: str | None = None
) -> Tensor:
    """`mask[..., j] = j < lengths[...]` for j < `maxlen` (None: the largest length)."""
    lengths = operand(lengths, "iu")
    limit = maxlen
    if limit is None:
        static = lengths.constant
        limit = reduce_max(lengths) if static is None or not static.size else static.max()
        limit = maximum(limit, 0)
    limit = checked_sizes(limit, "maxlen")
    wide = int64 if int64 in (limit.dtype, lengths.dtype) else lengths.dtype
    mask = less(range(limit, dtype=wide), cast(expand_dims(lengths, -1), wide), name)
    return mask if as_dtype(dtype) == bool_ else cast(mask, dtype)


def linspace(start: Any, stop: Any, num: Any, name: str | None = None) -> Tensor:
    """`num` evenly spaced floating-point numbers from `start` to `stop` inclusive."""
    first, last = operands(start, stop)
    require("linspace", first.spec, "f")
    count = checked_sizes(num, "the number of points of linspace", 1)
    places = cast(range(count, dtype=count.dtype), first.dtype)
    steps = cast(_at_least_one(subtract(count, 1)), first.dtype)
    part = divide(places, steps)
    return add(multiply(first, subtract(1.0, part)), multiply(last, part), name)


lin_space = linspace


def _at_least_one(n: Tensor) -> Tensor:
    return first_output("Maximum", [n, constant(1, n.dtype)])


def meshgrid(*args: Any, indexing: str = "xy", name: str | None = None) -> list[Tensor]:
    """Coordinate grids of vectors: output i is `args[i]` along its axis, repeated along the others.

    Shapes: sizes in the order of `args` ("ij"), or with the first two exchanged ("xy").
    """
    if indexing not in ("xy", "ij"):
        raise ShapeError(f"indexing {indexing!r} is neither 'xy' nor 'ij'")
    vectors = [reshape(a, [-1]) for a in args]
    axes = list(builtins.range(len(vectors)))
    if indexing == "xy" and len(axes) > 1:
        axes[:2] = 1, 0
    placed = []
    for vector, axis in zip(vectors, axes, strict=True):
        under = [1] * len(vectors)
        under[axis] = -1
        placed.append(reshape(vector, under))
    counts: list[Any] = [None] * len(vectors)
    for vector, axis in zip(vectors, axes, strict=True):
        counts[axis] = getitem(shape(vector), 0)
    grid_shape = stack(counts) if counts else None
    last = len(placed) - 1
    return [broadcast_to(p, grid_shape, name if i == last else None) for i, p in enumerate(placed)]


# -- broadcast shapes


def _broadcast_args(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("broadcast_dynamic_shape", inputs)
    require("broadcast_dynamic_shape", inputs[0], "iu")
    for s in inputs:
        require_rank("broadcast_dynamic_shape", s, 1)
    lengths = [None if s.shape is None else s.shape[0] for s in inputs]
    static = [n for n in lengths if n is not None]
    longest = max(static) if len(static) == len(lengths) else None
    spec = Spec(inputs[0].dtype, (longest,))
    return [with_value(spec, lambda *shapes: broadcast_shapes([tuple(s) for s in shapes]), inputs)]


op("BroadcastArgs", infer=_broadcast_args, grad=NoGrad("its output is integers"))


def broadcast_dynamic_shape(shape_x: Any, shape_y: Any) -> Tensor:
    """The shape to which two shapes, given as vectors, broadcast.

    Errors: ShapeError, also at run time, if they do not.
    """
    x, y = operands(shape_x, shape_y)
    return first_output("BroadcastArgs", [x, y])


def broadcast_static_shape(shape_x: Any, shape_y: Any) -> Shape:
    """The static shape to which two static shapes broadcast.

    Errors: ShapeError if they do not.
    """
    return broadcast_shapes([as_shape(shape_x), as_shape(shape_y)])


def shape_n(input: Sequence[Any], out_type: Any = int32, name: str | None = None) -> list[Tensor]:
    """The shape of each tensor."""
    return [shape(t, name, out_type) for t in several(input, "shape_n")]


def parallel_stack(values: Sequence[Any], name: str = "parallel_stack") -> Tensor:
    """The same as `stack` along axis 0."""
    return stack(values, 0, name)


def unravel_index(indices: Any, dims: Any, name: str | None = None) -> Tensor:
    """The index vectors, one per column, of flat indices into a tensor of shape `dims`.

    Errors: RangeError at run time for an index outside.
    """
    i, d = operands(indices, dims)
    if d.shape is None or len(d.shape) != 1 or d.shape[0] is None:
        raise ShapeError(f"dims {shape_text(d.shape)} must be a vector of a known length")
    return first_output("UnravelIndex", [i, d], {}, name)


def _unravel(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("unravel_index", inputs[0], "iu")
    require_equal("unravel_index", inputs)
    require_rank("unravel_index's dims", inputs[1], 1)
    input_shape, dims = inputs[0].shape, inputs[1].shape
    if input_shape is None:
        return [Spec(inputs[0].dtype, None)]
    return [Spec(inputs[0].dtype, (None if dims is None else dims[0], *input_shape))]


op("UnravelIndex", infer=_unravel, grad=NoGrad("its output is integers"))
