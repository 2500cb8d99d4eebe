"""ONNX import of CumSum, CumProd, TopK, NonZero, Compress, Unique, NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array import cumulative_ops, where_unique_ops
from hpcflow.ops.array.array_ops import constant, reshape, transpose
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.array.slice_ops import boolean_mask, getitem
from hpcflow.ops.array.where_unique_ops import distinct_slices
from hpcflow.ops.image.non_max_suppression_ops import best_boxes
from hpcflow.ops.math import arithmetic_ops
from hpcflow.ops.math.bitwise_ops import invert


def _running(name: str, function: Callable[..., Tensor]) -> None:
    @imports(name)
    def build(node: OnnxNode, x: Tensor, axis: Tensor) -> Tensor:
        (along,) = node.integers("axis", axis)
        both = bool(node.attr("exclusive", 0)), bool(node.attr("reverse", 0))
        return function(x, along % node.rank(x), *both)


_running("CumSum", cumulative_ops.cumsum)
_running("CumProd", cumulative_ops.cumprod)


@imports("TopK", since=10)
def _top_k(node: OnnxNode, x: Tensor, k: Tensor) -> Sequence[Tensor]:
    return _largest(node, x, int(node.value(k, "k").reshape(())))


@imports("TopK")
def _top_k_by_attribute(node: OnnxNode, x: Tensor) -> Sequence[Tensor]:
    return _largest(node, x, node.attr("k"))


def _largest(node: OnnxNode, x: Tensor, k: int) -> Sequence[Tensor]:
    axis, rank = node.attr("axis", -1), node.rank(x)
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    turned = transpose(x, perm)
    smallest = not node.attr("largest", 1)
    order = arithmetic_ops.cast(
        cumulative_ops.top_k(_backwards(turned) if smallest else turned, k)[1], int64
    )
    values = gather(turned, order, batch_dims=rank - 1, axis=rank - 1)
    return transpose(values, perm), transpose(order, perm)


def _backwards(x: Tensor) -> Tensor:
    """Transform that reverses the order of numbers, also for unsigned and least signed integers."""
    if x.dtype.kind == "f":
        return arithmetic_ops.negative(x)
    return invert(x)


# -- data-dependent sizes


@imports("NonZero")
def _non_zero(node: OnnxNode, x: Tensor) -> Tensor:
    there = x if x.dtype.kind == "b" else arithmetic_ops.not_equal(x, x.dtype.type(0))
    return transpose(where_unique_ops.positions(there), [1, 0])


@imports("Compress")
def _compress(node: OnnxNode, x: Tensor, condition: Tensor) -> Tensor:
    """A condition shorter than the axis is extended with false."""
    if not node.has("axis"):
        x, axis = reshape(x, [-1]), 0
    else:
        axis = node.attr("axis") % node.rank(x)
    (length,) = node.static_shape(condition)
    short = getitem(x, (*[slice(None)] * axis, slice(0, length)))
    return boolean_mask(short, condition, axis=axis)


@imports("ReverseSequence")
def _reverse_sequence(node: OnnxNode, x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the first `lengths` steps of each sample."""
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    perm = [batch, time, *range(2, node.rank(x))]
    turned = transpose(x, perm)
    at = constant(np.arange(node.static_shape(turned)[1], dtype=np.int64)[None])
    ends = reshape(arithmetic_ops.cast(lengths, int64), [-1, 1])
    index = arithmetic_ops.where(
        arithmetic_ops.less(at, ends),
        arithmetic_ops.subtract(arithmetic_ops.subtract(ends, 1), at),
        at,
    )
    return transpose(gather(turned, index, batch_dims=1, axis=1), perm)


@imports("Unique")
def _unique(node: OnnxNode, x: Tensor) -> Sequence[Tensor]:
    """Without an axis, unique elements; in sorted order unless `sorted` is 0."""
    axis = node.attr("axis")
    operand = reshape(x, [-1]) if axis is None else x
    unique, first, which, count = distinct_slices(operand, axis or 0, bool(node.attr("sorted", 1)))
    return unique, first, reshape(which, [-1]), count


@imports("NonMaxSuppression")
def _non_max_suppression(
    node: OnnxNode,
    boxes: Tensor,
    scores: Tensor,
    max_boxes: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
) -> Tensor:
    return best_boxes(
        boxes,
        scores,
        0 if max_boxes is None else max_boxes,
        0.0 if iou_threshold is None else iou_threshold,
        float("-inf") if score_threshold is None else score_threshold,
        bool(node.attr("center_point_box", 0)),
    )
