"""ONNX import of reductions, softmax, ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.graph.dtypes import float32, int64
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array.array_ops import expand_dims, identity, reshape, shape
from hpcflow.ops.array.gather_ops import one_hot
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math import arithmetic_ops, reduction_ops
from hpcflow.ops.nn import nn_ops

# -- reductions: axes are an attribute in old opsets, an input in new ones

Reduce = Callable[..., Tensor]


def _sum_of(before: Callable[[Tensor], Tensor], after: Any = None) -> Reduce:
    def function(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
        y = reduction_ops.reduce_sum(before(x), axis, keepdims)
        return y if after is None else after(y)

    return function


def _of_booleans(numbers: Reduce, booleans: Reduce) -> Reduce:
    def function(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
        return (booleans if x.dtype.kind == "b" else numbers)(x, axis, keepdims)

    return function


def _as_floats(function: Reduce) -> Reduce:
    """Integers are reduced as floating-point numbers and cast back."""

    def cast(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
        if x.dtype.kind == "f":
            return function(x, axis, keepdims)
        return arithmetic_ops.cast(
            function(arithmetic_ops.cast(x, float32), axis, keepdims), x.dtype
        )

    return cast


_REDUCTIONS: dict[str, tuple[Reduce, Callable[[Tensor], Tensor]]] = {
    # operator: the reduction, and its result for no elements
    "ReduceSum": (reduction_ops.reduce_sum, identity),
    "ReduceMean": (_as_floats(reduction_ops.reduce_mean), identity),
    "ReduceProd": (reduction_ops.reduce_prod, identity),
    "ReduceMax": (_of_booleans(reduction_ops.reduce_max, reduction_ops.reduce_any), identity),
    "ReduceMin": (_of_booleans(reduction_ops.reduce_min, reduction_ops.reduce_all), identity),
    "ReduceL1": (_sum_of(arithmetic_ops.abs), arithmetic_ops.abs),
    "ReduceL2": (
        _as_floats(_sum_of(arithmetic_ops.square, arithmetic_ops.sqrt)),
        arithmetic_ops.abs,
    ),
    "ReduceSumSquare": (_sum_of(arithmetic_ops.square), arithmetic_ops.square),
    "ReduceLogSum": (_as_floats(_sum_of(lambda x: x, arithmetic_ops.log)), arithmetic_ops.log),
    "ReduceLogSumExp": (_as_floats(reduction_ops.reduce_logsumexp), identity),
}


def _reduction(name: str, function: Reduce, over_none: Callable[[Tensor], Tensor]) -> None:
    @imports(name)
    def build(node: OnnxNode, x: Tensor, axes: Tensor | None = None) -> Tensor:
        chosen = node.integers("axes", axes)
        if not chosen and node.attr("noop_with_empty_axes", 0):
            return over_none(x)
        return function(x, tuple(chosen) if chosen else None, bool(node.attr("keepdims", 1)))


for _name, _row in _REDUCTIONS.items():
    _reduction(_name, *_row)


# -- ArgMax and ArgMin


def _position(name: str, function: Callable[..., Tensor]) -> None:
    @imports(name)
    def build(node: OnnxNode, x: Tensor) -> Tensor:
        axis = node.attr("axis", 0) % node.rank(x)
        if node.attr("select_last_index", 0):
            turned = getitem(x, (*[slice(None)] * axis, slice(None, None, -1)))
            last = arithmetic_ops.subtract(shape(x, out_type=int64)[axis], 1)
            y = arithmetic_ops.subtract(last, function(turned, axis, output_type=int64))
        else:
            y = function(x, axis, output_type=int64)
        return expand_dims(y, axis) if node.attr("keepdims", 1) else y


_position("ArgMax", reduction_ops.argmax)
_position("ArgMin", reduction_ops.argmin)


# -- softmax: over one axis since opset 13, before over all axes from one on


def _hardmax(x: Tensor, axis: int) -> Tensor:
    depth = x.shape[axis] if x.shape is not None else None
    assert depth is not None
    return one_hot(reduction_ops.argmax(x, axis), depth, axis=axis, dtype=x.dtype)


def _softmax(name: str, function: Callable[..., Tensor]) -> None:
    @imports(name)
    def over_many(node: OnnxNode, x: Tensor) -> Tensor:
        sizes = node.static_shape(x)
        rows = 1
        for size in sizes[: node.attr("axis", 1) % max(len(sizes), 1)]:
            rows *= size
        return reshape(function(reshape(x, [rows, -1]), axis=1), sizes)

    @imports(name, since=13)
    def over_one(node: OnnxNode, x: Tensor) -> Tensor:
        return function(x, axis=node.attr("axis", -1) % node.rank(x))


_softmax("Softmax", nn_ops.softmax)
_softmax("LogSoftmax", nn_ops.log_softmax)
_softmax("Hardmax", _hardmax)
