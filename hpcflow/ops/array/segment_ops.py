"""Segment ops: reductions over rows with the same segment number, sorted or unsorted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import int32, is_half, limits
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.graph.op_registry import op
from hpcflow.graph.static_shape import Shape, Spec, merge_shapes, shape_text
from hpcflow.ops.array.array_ops import expand_dims, rank, reshape, shape
from hpcflow.ops.array.broadcast_ops import ones, ones_like
from hpcflow.ops.array.concat_split_ops import concat
from hpcflow.ops.array.slice_ops import gather
from hpcflow.ops.math.arithmetic_ops import (
    cast,
    equal,
    greater,
    greater_equal,
    logical_and,
    maximum,
    sqrt,
    subtract,
    times,
    truediv,
    where,
)
from hpcflow.ops.math.elementwise_math_ops import div_no_nan, truncatediv
from hpcflow.ops.shape_inference import Attrs, first_output, require, require_rank

# -- shape rules


def _sorted(kinds: str) -> Callable[[Sequence[Spec], Attrs], list[Spec]]:
    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        data, ids = inputs
        require("a segment reduction", data, kinds)
        require("segment_ids", ids, "iu")
        require_rank("segment_ids", ids, 1)
        if data.shape is None:
            return [Spec(data.dtype, None)]
        if not data.shape:
            raise ShapeError("a segment reduction needs data with rows, not a scalar")
        if ids.shape is not None:
            merge_shapes(data.shape[:1], ids.shape)
        rows = None
        if ids.value is not None:
            rows = int(ids.value[-1]) + 1 if ids.value.size else 0
        return [Spec(data.dtype, (rows, *data.shape[1:]))]

    return infer


def _unsorted(kinds: str) -> Callable[[Sequence[Spec], Attrs], list[Spec]]:
    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        data, ids, num = inputs
        require("a segment reduction", data, kinds)
        for s in (ids, num):
            require("segment_ids and num_segments", s, "iu")
        require_rank("num_segments", num, 0)
        rows = None if num.value is None else int(num.value)
        if rows is not None and rows < 0:
            raise ShapeError(f"num_segments must be at least 0, not {rows}")
        if data.shape is None or ids.shape is None:
            return [Spec(data.dtype, None)]
        lead = len(ids.shape)
        if len(data.shape) < lead:
            raise ShapeError(
                f"segment_ids of shape {shape_text(ids.shape)} do not fit data of shape "
                f"{shape_text(data.shape)}"
            )
        merge_shapes(data.shape[:lead], ids.shape)
        out: Shape = (rows, *data.shape[lead:])
        return [Spec(data.dtype, out)]

    return infer


# -- gradients; gather selects the row of each segment


def _picked(t: Tensor, ids: Tensor, sorted: bool, absent: float = 0) -> Tensor:
    """The row of `t` for each of `ids`; `absent` for negative ids, which have no segment."""
    if sorted:
        return gather(t, ids)
    return where(_inside(ids, t), gather(t, maximum(ids, 0)), absent)


def _inside(ids: Tensor, t: Tensor) -> Tensor:
    """Whether `ids` are not negative, with axes to broadcast over the rows of `t`."""
    inside = greater_equal(ids, 0)
    if t.shape is None:
        return reshape(inside, concat([shape(ids), ones([subtract(rank(t), 1)], int32)], 0))
    for _ in t.shape[1:]:
        inside = expand_dims(inside, -1)
    return inside


def _reduce_segments(op: Operation, kind: str, data: Tensor) -> Tensor:
    """Another reduction over the same segments."""
    prefix = "" if len(op.inputs) == 2 else "Unsorted"
    return first_output(f"{prefix}Segment{kind}", [data, *op.inputs[1:]])


def _padded(op: Operation, gradient: Callable[[bool], Tensor]) -> list[Any]:
    sorted = len(op.inputs) == 2
    return [lambda: gradient(sorted), *[None] * (len(op.inputs) - 1)]


def _sum_back(op: Operation, g: Tensor) -> list[Any]:
    return _padded(op, lambda sorted: _picked(g, op.inputs[1], sorted))


def _extreme_back(op: Operation, g: Tensor) -> list[Any]:
    x, ids = op.inputs[:2]

    def gradient(sorted: bool) -> Tensor:
        best = equal(x, _picked(op.outputs[0], ids, sorted))
        if not sorted:
            best = logical_and(best, _inside(ids, op.outputs[0]))
        count = _reduce_segments(
            op, "Sum", cast(best, x.dtype)
        )  # equal elements share the gradient
        return where(best, _picked(div_no_nan(g, count), ids, sorted), 0)

    return _padded(op, gradient)


def _prod_back(op: Operation, g: Tensor) -> list[Any]:
    x, ids = op.inputs[:2]

    def gradient(sorted: bool) -> Tensor:
        zero = equal(x, 0)
        zeros = _reduce_segments(op, "Sum", cast(zero, int32))
        nonzero = where(zero, 1, x)  # product of the others if exactly one is 0
        without = _picked(_reduce_segments(op, "Prod", nonzero), ids, sorted)
        quotient = first_output("RealDiv", [_picked(op.outputs[0], ids, sorted), nonzero])
        g_rows = _picked(where(greater(zeros, 1), 0, g), ids, sorted)
        return times(g_rows, where(zero, without, quotient))

    return _padded(op, gradient)


_LLVM = "segment_kernels kernels.llvm_row_gather_scatter"
_KINDS = {
    "Sum": ("iufc", _sum_back),
    "Prod": ("iufc", _prod_back),
    "Max": ("iuf", _extreme_back),
    "Min": ("iuf", _extreme_back),
}
for _kind, (_kinds, _back) in _KINDS.items():
    op(f"Segment{_kind}", infer=_sorted(_kinds), grad=_back)
    op(f"UnsortedSegment{_kind}", infer=_unsorted(_kinds), grad=_back, kernels=_LLVM)


# -- public functions


def _segment(kind: str, doc: str) -> Callable[..., Tensor]:
    def function(data: Any, segment_ids: Any, name: str | None = None) -> Tensor:
        inputs = [convert_to_tensor(data), convert_to_tensor(segment_ids)]
        return first_output(f"Segment{kind}", inputs, {}, name)

    function.__doc__ = f"""{doc} of the rows of each segment.

    Shapes: `data` [n, ...], `segment_ids` [n], not negative and sorted; [last number + 1, ...].
    Errors: RangeError, when it runs, if the numbers are not sorted or negative.
    """
    return function


def _of_none(kind: str, dtype: np.dtype) -> Attrs:
    """The result for empty segments of 16-bit floats, if it differs from that of float32."""
    if kind not in ("Max", "Min") or not is_half(dtype):
        return {}
    most = limits(dtype)
    return {"empty": float(most.min if kind == "Max" else most.max)}


def _unsorted_segment(kind: str, doc: str, absent: str) -> Callable[..., Tensor]:
    def function(data: Any, segment_ids: Any, num_segments: Any, name: str | None = None) -> Tensor:
        inputs = [convert_to_tensor(t) for t in (data, segment_ids, num_segments)]
        return first_output(f"UnsortedSegment{kind}", inputs, _of_none(kind, inputs[0].dtype), name)

    function.__doc__ = f"""{doc} of the rows of each of `num_segments` segments; {absent} of none.

    Shapes: `segment_ids` is the first axes of `data`, in any order; [num_segments, ...].
    Errors: a negative number leaves its row out; one too large is a RangeError when it runs.
    """
    return function


segment_sum = _segment("Sum", "The sum (0 of none)")
segment_prod = _segment("Prod", "The product (1 of none)")
segment_max = _segment("Max", "The largest (0 of none)")
segment_min = _segment("Min", "The smallest (0 of none)")
unsorted_segment_sum = _unsorted_segment("Sum", "The sum", "0")
unsorted_segment_prod = _unsorted_segment("Prod", "The product", "1")
unsorted_segment_max = _unsorted_segment("Max", "The largest", "the smallest number there is")
unsorted_segment_min = _unsorted_segment("Min", "The smallest", "the largest number there is")


def segment_mean(data: Any, segment_ids: Any, name: str | None = None) -> Tensor:
    """The mean of the rows of each segment, 0 for an empty one; see `segment_sum`.

    The mean of integers is an integer, rounded toward 0.
    """
    data = convert_to_tensor(data)
    count, total = segment_sum(ones_like(data), segment_ids), segment_sum(data, segment_ids)
    if data.dtype.kind in "iu":
        return truncatediv(total, maximum(count, 1), name)
    return div_no_nan(total, count, name)


def segment_sqrt_n(data: Any, segment_ids: Any, name: str | None = None) -> Tensor:
    """The sum of the rows of each segment over the root of their number; see `segment_sum`."""
    data = convert_to_tensor(data)
    count = segment_sum(ones_like(data), segment_ids)
    return div_no_nan(segment_sum(data, segment_ids), sqrt(count), name)


def unsorted_segment_mean(
    data: Any, segment_ids: Any, num_segments: Any, name: str | None = None
) -> Tensor:
    """The mean of the rows of each segment, 0 for an empty one; see `unsorted_segment_sum`.

    The mean of integers is a float, as of `truediv`.
    """
    data = convert_to_tensor(data)
    count = unsorted_segment_sum(ones_like(data), segment_ids, num_segments)
    total = unsorted_segment_sum(data, segment_ids, num_segments)
    if data.dtype.kind in "iu":
        return truediv(total, maximum(count, 1), name)
    return div_no_nan(total, count, name)


def unsorted_segment_sqrt_n(
    data: Any, segment_ids: Any, num_segments: Any, name: str | None = None
) -> Tensor:
    """The sum of the rows of each segment divided by the root of their number."""
    data = convert_to_tensor(data)
    count = unsorted_segment_sum(ones_like(data), segment_ids, num_segments)
    return div_no_nan(unsorted_segment_sum(data, segment_ids, num_segments), sqrt(count), name)
