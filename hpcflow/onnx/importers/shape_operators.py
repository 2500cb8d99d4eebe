"""ONNX import of reshape, shape, filling, concatenation, slicing and tiling."""

from __future__ import annotations

import math as plain
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.element_types import from_onnx
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.onnx.importers.partial_shapes import partial
from hpcflow.ops.array import array_ops, broadcast_ops
from hpcflow.ops.array.array_ops import constant, identity, reshape, squeeze, transpose
from hpcflow.ops.array.concat_split_ops import concat, split, tile
from hpcflow.ops.array.rearrange_ops import broadcast_dynamic_shape
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math import arithmetic_ops

imports("Identity")(lambda node, x: identity(x))
imports("Transpose")(lambda node, x: transpose(x, node.attr("perm")))
imports("Concat")(lambda node, *inputs: concat(inputs, node.attr("axis", 1)))
imports("Size")(lambda node, x: array_ops.size(x, out_type=int64))


# -- reshape


@imports("Reshape")
def _reshape(node: OnnxNode, x: Tensor, target_shape: Tensor) -> Tensor:
    """A size 0 copies the input's size, unless allowzero; -1 is inferred."""
    sizes = partial(target_shape)
    if sizes is None:
        sizes = np.array(node.value(target_shape, "shape"), object)
    elif None in sizes.tolist():
        value = node.maybe(target_shape, "shape")
        sizes = sizes if value is None else value.astype(object)
    target: list[Any] = sizes.tolist()
    dims: list[Any] = [target_shape[i] if d is None else d for i, d in enumerate(target)]
    if not node.attr("allowzero", 0):
        rank = len(target) if x.shape is None else len(x.shape)
        for i, d in enumerate(target[:rank]):
            if d == 0:
                target[i], dims[i] = _size(x, i, target_shape)
            elif d is None:
                dims[i] = arithmetic_ops.where(
                    arithmetic_ops.equal(dims[i], 0), _size(x, i, target_shape)[1], dims[i]
                )
    if None not in target:
        return reshape(x, target)
    if target.count(None) == 1 and -1 not in target and 0 not in target:
        return reshape(x, [-1 if d is None else d for d in target])
    y = reshape(x, dims)
    y.set_shape([None if d == -1 else d for d in target])
    return y


def _size(x: Tensor, axis: int, like: Tensor) -> tuple[int | None, Any]:
    """The static size of an axis if known, and the size as a number or tensor."""
    size = None if x.shape is None else x.shape[axis]
    return size, arithmetic_ops.cast(array_ops.shape(x)[axis], like.dtype) if size is None else size


@imports("Flatten")
def _flatten(node: OnnxNode, x: Tensor) -> Tensor:
    rank = node.rank(x)
    axis = node.attr("axis", 1)
    return flat(x, axis + rank if axis < 0 else axis)


def flat(x: Tensor, axis: int) -> Tensor:
    """`x` as a matrix: the axes before `axis` are its rows."""
    static_shape = x.shape or ()
    if x.shape is not None and None not in static_shape:
        dims: list[Any] = list(static_shape)
        return reshape(x, [plain.prod(dims[:axis]), plain.prod(dims[axis:])])
    if None not in static_shape[axis:]:
        trailing: list[Any] = list(static_shape[axis:])
        return reshape(x, [-1, plain.prod(trailing)])
    lead: list[Any] = list(static_shape[:axis])
    if None not in lead:
        return reshape(x, [plain.prod(lead), -1])
    sizes = array_ops.shape(x)
    return reshape(x, [_product(sizes, 0, axis), _product(sizes, axis, len(static_shape))])


def _product(sizes: Tensor, start: int, stop: int) -> Tensor:
    from hpcflow.ops.math.reduction_ops import reduce_prod

    return reduce_prod(sizes[start:stop])


@imports("Squeeze")
def _squeeze(node: OnnxNode, x: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = node.integers("axes", axes)
    return squeeze(x, tuple(chosen) if chosen is not None else None)


@imports("Unsqueeze")
def _unsqueeze(node: OnnxNode, x: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = node.integers("axes", axes)
    rank = node.rank(x) + len(chosen)
    for axis in sorted(a % rank for a in chosen):
        x = array_ops.expand_dims(x, axis)
    return identity(x) if not chosen else x


@imports("Expand")
def _expand(node: OnnxNode, x: Tensor, target_shape: Tensor) -> Tensor:
    """Two-way broadcasting: sizes of 1 in the given shape are also extended."""
    value = node.maybe(target_shape, "shape")
    if value is None or x.shape is None or None in x.shape:
        input_shape = array_ops.shape(x, out_type=target_shape.dtype)
        y = broadcast_ops.broadcast_to(x, broadcast_dynamic_shape(input_shape, target_shape))
        y.set_shape(_stretched(x, partial(target_shape)))
        return y
    try:
        target = np.broadcast_shapes(node.static_shape(x), tuple(value.tolist()))
    except ValueError:
        raise node.declined(
            f"{list(node.static_shape(x))} and {value.tolist()} cannot be broadcast together"
        ) from None
    return broadcast_ops.broadcast_to(x, target)


def _stretched(x: Tensor, sizes: np.ndarray | None) -> Any:
    """The partial shape of `x` broadcast with `sizes`; None where unknown."""
    if sizes is None or x.shape is None:
        return None
    target, shape = sizes.tolist(), list(x.shape)
    rank = max(len(target), len(shape))
    pairs = zip([1] * (rank - len(target)) + target, [1] * (rank - len(shape)) + shape, strict=True)
    return [s if t == 1 or (t is None and s not in (None, 1)) else t for t, s in pairs]


# -- shapes as values, filling


@imports("Shape")
def _shape(node: OnnxNode, x: Tensor) -> Tensor:
    y = array_ops.shape(x, out_type=int64)
    if node.has("start") or node.has("end"):
        y = getitem(y, slice(node.attr("start", 0), node.attr("end")))
    return y


@imports("Constant")
def _constant(node: OnnxNode) -> Tensor:
    for name, dtype in (
        *(("value", None), ("value_float", np.float32), ("value_floats", np.float32)),
        *(("value_int", np.int64), ("value_ints", np.int64)),
    ):
        if node.has(name):
            value = np.asarray(node.attr(name), dtype)
            return constant(value)
    raise node.declined(f"a constant with attributes {sorted(node.attributes)} is not supported")


@imports("ConstantOfShape")
def _constant_of_shape(node: OnnxNode, sizes: Tensor) -> Tensor:
    value = np.asarray(node.attr("value", np.zeros(1, np.float32))).reshape(())
    static_shape = node.maybe(sizes, "shape")
    return broadcast_ops.fill(sizes if static_shape is None else static_shape, value[()])


@imports("EyeLike")
def _eye_like(node: OnnxNode, x: Tensor) -> Tensor:
    dtype = from_onnx(node.attr("dtype")) if node.has("dtype") else x.dtype
    rows, columns = node.static_shape(x)
    return constant(np.eye(rows, columns, node.attr("k", 0)).astype(dtype))


@imports("Range")
def _range(node: OnnxNode, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """Models often pass vectors of one element instead of scalars."""
    first, last, step = (t if t.shape == () else reshape(t, []) for t in (start, limit, delta))
    return array_ops.range(first, last, step)


# -- slicing and tiling


@imports("Split")
def _split(node: OnnxNode, x: Tensor, sizes: Tensor | None = None) -> Sequence[Tensor]:
    axis = node.attr("axis", 0)
    chosen = node.integers("split", sizes)
    if chosen is None:
        size = node.static_shape(x)[axis]
        part = -(-size // node.outputs)  # the last part may be smaller
        chosen = [min(part, max(size - i * part, 0)) for i in range(node.outputs)]
    return split(x, chosen, axis)


@imports("Tile")
def _tile(node: OnnxNode, x: Tensor, repeats: Tensor) -> Tensor:
    return tile(x, node.integers("repeats", repeats))


@imports("Slice")
def _slice_by_attributes(node: OnnxNode, x: Tensor) -> Tensor:
    return _numpy_slices(x, node.attr("starts"), node.attr("ends"), node.attr("axes"), None)


@imports("Slice", since=10)
def _slice(
    node: OnnxNode,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    return _numpy_slices(
        x,
        _limits(node, "starts", starts),
        _limits(node, "ends", ends),
        node.integers("axes", axes),
        node.integers("steps", steps),
    )


def _limits(node: OnnxNode, name: str, bounds: Tensor) -> list[Any]:
    """The bounds as numbers where known, else as scalars of the vector."""
    value = node.maybe(bounds, name)
    if value is None:
        return [bounds[i] for i in range(node.static_shape(bounds)[0])]
    return [int(v) for v in value.reshape(-1)]


def _numpy_slices(
    x: Tensor, starts: Sequence[Any], ends: Sequence[Any], axes: Any, steps: Any
) -> Tensor:
    """NumPy slicing: bounds outside the axis are clipped."""
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    rank = len(x.shape) if x.shape is not None else max(axes) + 1
    key: list[slice] = [slice(None)] * rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = None if x.shape is None else x.shape[axis]
        key[axis] = slice(_clamped_limit(start, size), _clamped_limit(end, size, step), step)
    return getitem(x, tuple(key))


def _clamped_limit(limit: Any, size: int | None, step: int = 1) -> Any:
    """A bound with int64 extremes clipped; None for a bound before the first element."""
    if isinstance(limit, Tensor):
        return limit
    if size is not None:
        return min(max(limit, -size - 1), size)
    return None if step < 0 and limit < -(2**31) + 1 else limit
