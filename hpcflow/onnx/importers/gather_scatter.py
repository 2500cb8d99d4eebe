"""ONNX import of gather and scatter operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.graph.dtypes import int32, int64
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array import array_ops, segment_ops
from hpcflow.ops.array.array_ops import constant, expand_dims, reshape, transpose
from hpcflow.ops.array.broadcast_ops import ones_like
from hpcflow.ops.array.gather_ops import gather as take
from hpcflow.ops.math import arithmetic_ops


def wrapped(index: Tensor, x: Tensor, axis: int) -> Tensor:
    """Non-negative indices along `axis`; negative ones count from the end."""
    size = x.shape[axis] if x.shape is not None else None
    if index.constant is not None:
        if (index.constant >= 0).all():
            return index
        if size is not None:
            value = index.constant
            return constant(np.where(value < 0, value + size, value).astype(value.dtype))
    length: Any = (
        arithmetic_ops.cast(array_ops.shape(x)[axis], index.dtype) if size is None else size
    )
    return arithmetic_ops.where_v2(
        arithmetic_ops.less(index, 0), arithmetic_ops.add(index, length), index
    )


@imports("Gather")
def _gather(node: OnnxNode, x: Tensor, index: Tensor) -> Tensor:
    axis = node.attr("axis", 0) % max(node.rank(x), 1)
    return take(x, wrapped(index, x, axis), axis=axis)


@imports("ArrayFeatureExtractor", domain="ai.onnx.ml")
def _features(node: OnnxNode, x: Tensor, index: Tensor) -> Tensor:
    return take(x, reshape(index, [-1]), axis=node.rank(x) - 1)


# -- single elements: flat indices into the tensor as a vector


def _numbers(node: OnnxNode, index: Tensor, x: Tensor, axis: int) -> Tensor:
    """The flat indices of the elements x[i, index[i, j], ...], in the shape of `index`."""
    sizes, shape = node.static_shape(x), node.static_shape(index)
    strides = np.cumprod([1, *sizes[:0:-1]])[::-1]
    base = np.zeros(shape, np.int64)
    for a in range(len(shape)):
        if a != axis:
            at = np.arange(shape[a]) * strides[a]
            base += at.reshape([-1 if a == b else 1 for b in range(len(shape))])
    inside = arithmetic_ops.cast(wrapped(index, x, axis), int64)
    return arithmetic_ops.add(
        arithmetic_ops.multiply(inside, np.int64(strides[axis])), constant(base)
    )


@imports("GatherElements")
def _gather_elements(node: OnnxNode, x: Tensor, index: Tensor) -> Tensor:
    numbers = _numbers(node, index, x, node.attr("axis", 0) % node.rank(x))
    return take(reshape(x, [-1]), numbers)


def _row_numbers(node: OnnxNode, x: Tensor, index: Tensor, batch: int) -> tuple[Tensor, int, int]:
    """Row numbers for the index vectors on the last axis of `index`, row count, and indexed axes.

    The first `batch` axes of `x` and `index` correspond.
    """
    sizes, shape = node.static_shape(x), node.static_shape(index)
    width = shape[-1]
    rows = int(np.prod(sizes[: batch + width]))
    places: Any = np.zeros((1,) * (len(shape) - 1), np.int64)
    for a in range(batch):
        axes = [-1 if a == b else 1 for b in range(len(shape) - 1)]
        places = places * sizes[a] + np.arange(sizes[a]).reshape(axes)
    numbers = constant(np.broadcast_to(places, (*shape[:batch], *[1] * (len(shape) - 1 - batch))))
    for k in range(width):
        part = arithmetic_ops.cast(wrapped(index[..., k], x, batch + k), int64)
        numbers = arithmetic_ops.add(
            arithmetic_ops.multiply(numbers, np.int64(sizes[batch + k])), part
        )
    return numbers, rows, batch + width


@imports("GatherND")
def _gather_nd(node: OnnxNode, x: Tensor, index: Tensor) -> Tensor:
    numbers, rows, used = _row_numbers(node, x, index, node.attr("batch_dims", 0))
    return take(reshape(x, [rows, *node.static_shape(x)[used:]]), numbers)


# -- scatter: reduce the updates of each row, then combine with the old row

_TOGETHER: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "add": (segment_ops.unsorted_segment_sum, arithmetic_ops.add),
    "mul": (segment_ops.unsorted_segment_prod, arithmetic_ops.multiply),
    "max": (segment_ops.unsorted_segment_max, arithmetic_ops.maximum),
    "min": (segment_ops.unsorted_segment_min, arithmetic_ops.minimum),
}


def _written(rows: Tensor, numbers: Tensor, updates: Tensor, count: int, reduction: str) -> Tensor:
    """`rows` [count, ...] with `updates` [n, ...] written to the rows `numbers` [n]."""
    if reduction in _TOGETHER:
        together, put = _TOGETHER[reduction]
        return put(rows, together(updates, numbers, count))
    times = segment_ops.unsorted_segment_sum(ones_like(numbers, int32), numbers, count)
    there = arithmetic_ops.greater(times, 0)
    for _ in range(len(updates.shape or ()) - 1):
        there = expand_dims(there, -1)
    if updates.dtype.kind == "b":
        most = segment_ops.unsorted_segment_max(arithmetic_ops.cast(updates, int32), numbers, count)
        return arithmetic_ops.where_v2(there, arithmetic_ops.greater(most, 0), rows)
    return arithmetic_ops.where_v2(
        there, segment_ops.unsorted_segment_sum(updates, numbers, count), rows
    )


@imports("ScatterElements")
@imports("Scatter")
def _scatter_elements(node: OnnxNode, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    sizes = node.static_shape(x)
    numbers = reshape(_numbers(node, index, x, node.attr("axis", 0) % len(sizes)), [-1])
    total, flat = int(np.prod(sizes)), reshape(updates, [-1])
    reduction = node.attr("reduction", "none")
    return reshape(_written(reshape(x, [-1]), numbers, flat, total, reduction), sizes)


@imports("ScatterND")
def _scatter_nd(node: OnnxNode, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    sizes = node.static_shape(x)
    numbers, rows, used = _row_numbers(node, x, index, 0)
    updated = _written(
        reshape(x, [rows, *sizes[used:]]),
        reshape(numbers, [-1]),
        reshape(updates, [-1, *sizes[used:]]),
        rows,
        node.attr("reduction", "none"),
    )
    return reshape(updated, sizes)


@imports("TensorScatter")
def _tensor_scatter(
    node: OnnxNode, past: Tensor, update: Tensor, start: Tensor | None = None
) -> Tensor:
    """A cache with `update` written along `axis`, starting at `start` of each sample."""
    sizes, rank = node.static_shape(past), node.rank(past)
    axis = node.attr("axis", -2) % rank
    perm = [0, axis, *(a for a in range(1, rank) if a != axis)]
    batch, length, steps = sizes[0], sizes[axis], node.static_shape(update)[axis]
    at: Any = constant(np.arange(steps, dtype=np.int64)[None])
    if start is not None:
        at = arithmetic_ops.add(at, expand_dims(arithmetic_ops.cast(start, int64), 1))
    if node.attr("mode", "linear") == "circular":
        at = arithmetic_ops.mod(at, np.int64(length))
    numbers = arithmetic_ops.add(at, constant((np.arange(batch) * length)[:, None]))
    inner_sizes = [sizes[a] for a in perm[2:]]
    rows = reshape(transpose(past, perm), [batch * length, *inner_sizes])
    new = reshape(transpose(update, perm), [batch * steps, *inner_sizes])
    updated = _written(rows, reshape(numbers, [-1]), new, batch * length, "none")
    back = [perm.index(a) for a in range(rank)]
    return transpose(reshape(updated, [batch, length, *inner_sizes]), back)


def scattered(index: Tensor, values: Tensor, sizes: Sequence[int]) -> Tensor:
    """A tensor of shape `sizes` with `values` at the flat indices `index`, 0 elsewhere."""
    total = functools.reduce(lambda a, b: a * b, sizes, 1)
    flat = segment_ops.unsorted_segment_sum(reshape(values, [-1]), reshape(index, [-1]), total)
    return reshape(flat, sizes)
