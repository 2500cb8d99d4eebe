"""Running sums, the largest, and what depends on the data: masks, places, distinct values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.node import Node
from hpcflow.onnx.table import imports
from hpcflow.ops import math, positions, scans
from hpcflow.ops.array import constant, reshape, transpose
from hpcflow.ops.bits import invert
from hpcflow.ops.boxes import best_boxes
from hpcflow.ops.distinct import distinct_slices
from hpcflow.ops.gather import gather
from hpcflow.ops.slicing import boolean_mask, getitem


def _running(name: str, function: Callable[..., Tensor]) -> None:
    @imports(name)
    def build(node: Node, x: Tensor, axis: Tensor) -> Tensor:
        (along,) = node.integers("axis", axis)
        both = bool(node.attr("exclusive", 0)), bool(node.attr("reverse", 0))
        return function(x, along % node.rank(x), *both)


_running("CumSum", scans.cumsum)
_running("CumProd", scans.cumprod)


@imports("TopK", since=10)
def _top_k(node: Node, x: Tensor, k: Tensor) -> Sequence[Tensor]:
    return _largest(node, x, int(node.value(k, "k").reshape(())))


@imports("TopK")
def _top_k_by_attribute(node: Node, x: Tensor) -> Sequence[Tensor]:
    return _largest(node, x, node.attr("k"))


def _largest(node: Node, x: Tensor, k: int) -> Sequence[Tensor]:
    axis, rank = node.attr("axis", -1), node.rank(x)
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    turned = transpose(x, perm)
    smallest = not node.attr("largest", 1)
    order = math.cast(scans.top_k(_backwards(turned) if smallest else turned, k)[1], int64)
    values = gather(turned, order, batch_dims=rank - 1, axis=rank - 1)
    return transpose(values, perm), transpose(order, perm)


def _backwards(x: Tensor) -> Tensor:
    """Numbers in the opposite order; also of unsigned integers and the smallest of signed ones."""
    if x.dtype.kind == "f":
        return math.negative(x)
    return invert(x)


# -- sizes that the data decide


@imports("NonZero")
def _non_zero(node: Node, x: Tensor) -> Tensor:
    there = x if x.dtype.kind == "b" else math.not_equal(x, x.dtype.type(0))
    return transpose(positions.positions(there), [1, 0])


@imports("Compress")
def _compress(node: Node, x: Tensor, condition: Tensor) -> Tensor:
    """A condition that is shorter than the axis counts as false beyond its end."""
    if not node.has("axis"):
        x, axis = reshape(x, [-1]), 0
    else:
        axis = node.attr("axis") % node.rank(x)
    (length,) = node.known(condition)
    short = getitem(x, (*[slice(None)] * axis, slice(0, length)))
    return boolean_mask(short, condition, axis=axis)


@imports("ReverseSequence")
def _reverse_sequence(node: Node, x: Tensor, lengths: Tensor) -> Tensor:
    """The first steps of each sample backwards, as many as `lengths` says."""
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    perm = [batch, time, *range(2, node.rank(x))]
    turned = transpose(x, perm)
    at = constant(np.arange(node.known(turned)[1], dtype=np.int64)[None])
    ends = reshape(math.cast(lengths, int64), [-1, 1])
    index = math.where(math.less(at, ends), math.subtract(math.subtract(ends, 1), at), at)
    return transpose(gather(turned, index, batch_dims=1, axis=1), perm)


@imports("Unique")
def _unique(node: Node, x: Tensor) -> Sequence[Tensor]:
    """Without an axis of the elements, in order unless `sorted` is 0."""
    axis = node.attr("axis")
    given = reshape(x, [-1]) if axis is None else x
    found, first, which, count = distinct_slices(given, axis or 0, bool(node.attr("sorted", 1)))
    return found, first, reshape(which, [-1]), count


@imports("NonMaxSuppression")
def _non_max_suppression(
    node: Node,
    boxes: Tensor,
    scores: Tensor,
    most: Tensor | None = None,
    limit: Tensor | None = None,
    least: Tensor | None = None,
) -> Tensor:
    return best_boxes(
        boxes,
        scores,
        0 if most is None else most,
        0.0 if limit is None else limit,
        float("-inf") if least is None else least,
        bool(node.attr("center_point_box", 0)),
    )
