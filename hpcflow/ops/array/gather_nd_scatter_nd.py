"""Gather_nd and scatter_nd: slices selected or updated by index vectors."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import op
from hpcflow.graph.static_shape import Shape, Spec, merge_shapes, shape_text
from hpcflow.ops.array.array_ops import range, reshape, shape, shape_argument, sizes
from hpcflow.ops.array.broadcast_ops import broadcast_to, zeros_like
from hpcflow.ops.array.concat_split_ops import concat
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import negative
from hpcflow.ops.shape_inference import (
    Attrs,
    first_output,
    like,
    require,
    require_equal,
    told_shape,
)


def _depth(indices: Spec, full_shape: Shape) -> int | None:
    """The number of axes that an index vector selects; None if unknown."""
    require("index vectors", indices, "iu")
    if indices.shape == ():
        raise ShapeError(
            "indices must have at least one axis: the last one holds the index vectors"
        )
    depth = None if indices.shape is None else indices.shape[-1]
    if depth is not None and full_shape is not None and depth > len(full_shape):
        raise ShapeError(
            f"index vectors of length {depth} do not fit a tensor of shape {shape_text(full_shape)}"
        )
    return depth


def _gather_nd(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    params, indices = inputs
    depth = _depth(indices, params.shape)
    if params.shape is None or indices.shape is None or depth is None:
        return [Spec(params.dtype, None)]
    return [Spec(params.dtype, (*indices.shape[:-1], *params.shape[depth:]))]


def _check_updates_shape(indices: Spec, updates: Spec, full_shape: Shape) -> None:
    """Check that `updates` has a slice of `full_shape` for each index vector.

    Errors: ShapeError if not.
    """
    depth = _depth(indices, full_shape)
    if indices.shape is None or full_shape is None or depth is None:
        return
    merge_shapes(updates.shape, (*indices.shape[:-1], *full_shape[depth:]))


def _scatter_nd(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    indices, updates = inputs[:2]
    out_shape = told_shape(inputs, 2, attrs)
    _check_updates_shape(indices, updates, out_shape)
    return [Spec(updates.dtype, out_shape)]


def _changed(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    tensor, indices, updates = inputs
    require_equal("tensor_scatter", (tensor, updates))
    _check_updates_shape(indices, updates, tensor.shape)
    return [Spec(tensor.dtype, tensor.shape)]


def _gather_nd_back(op: Operation, g: Tensor) -> list[Any]:
    params, indices = op.inputs
    return [scatter_nd(indices, g, sizes(params)), None]


def _scatter_nd_back(op: Operation, g: Tensor) -> list[Any]:
    return [None, gather_nd(g, op.inputs[0]), *[None] * (len(op.inputs) - 2)]


def _add_back(op: Operation, g: Tensor) -> list[Any]:
    return [g, None, lambda: gather_nd(g, op.inputs[1])]


def _update_back(op: Operation, g: Tensor) -> list[Any]:
    _, indices, updates = op.inputs
    return [
        lambda: tensor_scatter_update(g, indices, zeros_like(updates)),
        None,
        lambda: gather_nd(g, indices),
    ]


op("GatherNd", infer=_gather_nd, grad=_gather_nd_back, work="pick")
op("ScatterNd", infer=_scatter_nd, grad=_scatter_nd_back)
op("TensorScatterAdd", infer=_changed, grad=_add_back)
op("TensorScatterUpdate", infer=_changed, grad=_update_back, work="move")


def gather_nd(params: Any, indices: Any, name: str | None = None, batch_dims: int = 0) -> Tensor:
    """The elements or slices of `params` at the index vectors on the last axis of `indices`.

    The first `batch_dims` axes of both correspond.
    Shapes: indices.shape[:-1] + params.shape[batch_dims + indices.shape[-1]:].
    Errors: RangeError at run time for a negative or too large index.
    """
    x, i = convert_to_tensor(params), convert_to_tensor(indices)
    if batch_dims:
        i = _with_batch(i, batch_dims)
    return first_output("GatherNd", [x, i], {}, name)


def _with_batch(indices: Tensor, batch: int) -> Tensor:
    """The index vectors, prefixed with their positions along the batch axes."""
    if indices.shape is None or not 0 <= batch < len(indices.shape):
        raise ShapeError(
            f"batch_dims {batch} does not fit indices of shape {shape_text(indices.shape)}",
            line=user_line(),
        )
    lead = shape(indices)
    places: list[Tensor] = []
    for axis in builtins.range(batch):
        along = range(getitem(lead, axis), dtype=indices.dtype)
        under = [1] * len(indices.shape)
        under[axis] = -1
        column = concat([getitem(lead, builtins.slice(-1)), [1]], 0)
        places.append(broadcast_to(reshape(along, under), column))
    return concat([*places, indices], -1)


def scatter_nd(indices: Any, updates: Any, shape: Any, name: str | None = None) -> Tensor:
    """Zeros of `shape` with `updates` added at the index vectors `indices`.

    Shapes: updates.shape = indices.shape[:-1] + shape[indices.shape[-1]:]. Updates of equal indices
            are added.
    Errors: RangeError at run time for a negative or too large index.
    """
    static, dynamic = shape_argument(shape)
    inputs = [convert_to_tensor(indices), convert_to_tensor(updates), *dynamic]
    return first_output("ScatterNd", inputs, {"shape": static}, name)


def _tensors(tensor: Any, indices: Any, updates: Any) -> list[Tensor]:
    t = convert_to_tensor(tensor)
    return [t, convert_to_tensor(indices), like(updates, t)]


def tensor_scatter_update(
    tensor: Any, indices: Any, updates: Any, name: str | None = None
) -> Tensor:
    """`tensor` with `updates` at the index vectors `indices`; for equal indices the last counts.

    Shapes and errors as `scatter_nd`. The gradient of overwritten updates is undefined.
    """
    return first_output("TensorScatterUpdate", _tensors(tensor, indices, updates), {}, name)


def tensor_scatter_add(tensor: Any, indices: Any, updates: Any, name: str | None = None) -> Tensor:
    """`tensor` with `updates` added at the index vectors `indices`."""
    return first_output("TensorScatterAdd", _tensors(tensor, indices, updates), {}, name)


def tensor_scatter_sub(tensor: Any, indices: Any, updates: Any, name: str | None = None) -> Tensor:
    """`tensor` with `updates` subtracted at the index vectors `indices`."""
    t, i, u = _tensors(tensor, indices, updates)
    return first_output("TensorScatterAdd", [t, i, negative(u)], {}, name)


tensor_scatter_nd_update = tensor_scatter_update
tensor_scatter_nd_add = tensor_scatter_add
tensor_scatter_nd_sub = tensor_scatter_sub
