"""ONNX import of Pad, Trilu and OneHot, with negative pads as cropping."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array.array_ops import constant, expand_dims, identity
from hpcflow.ops.array.concat_split_ops import pad
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math import arithmetic_ops

_MODES = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}


@imports("Pad")
def _pad_by_attributes(node: OnnxNode, x: Tensor) -> Tensor:
    pads = node.attr("pads")
    return _padded(node, x, pads, list(range(node.rank(x))), node.attr("value", 0.0))


@imports("Pad", since=11)
def _pad(
    node: OnnxNode, x: Tensor, pads: Tensor, value: Tensor | None = None, axes: Tensor | None = None
) -> Tensor:
    rank = node.rank(x)
    chosen = node.integers("axes", axes) if axes is not None else list(range(rank))
    fill = 0 if value is None else node.value(value, "constant_value").reshape(()).item()
    return _padded(node, x, node.integers("pads", pads), [a % rank for a in chosen], fill)


def _padded(
    node: OnnxNode, x: Tensor, pads: Sequence[int], axes: Sequence[int], fill: float
) -> Tensor:
    """`x` padded at both ends of each axis; negative pads crop."""
    mode, rank = node.attr("mode", "constant"), node.rank(x)
    pairs = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        pairs[axis] = (pads[i], pads[i + len(axes)])
    if mode != "constant":
        for axis, (before, after) in enumerate(pairs):
            if before or after:
                size = node.static_shape(x)[axis]
                index = np.pad(
                    np.arange(size),
                    (max(before, 0), max(after, 0)),
                    mode=_MODES[mode],  # type: ignore[call-overload]
                )
                index = index[max(-before, 0) : len(index) - max(-after, 0)]
                x = gather(x, constant(index), axis=axis)
        return identity(x)
    if any(a < 0 or b < 0 for a, b in pairs):
        x = getitem(x, tuple(slice(max(-a, 0), -max(-b, 0) or None) for a, b in pairs))
        pairs = [(max(a, 0), max(b, 0)) for a, b in pairs]
    return pad(x, pairs, constant_values=fill)


@imports("Trilu")
def _trilu(node: OnnxNode, x: Tensor, k: Tensor | None = None) -> Tensor:
    rows, columns = node.static_shape(x)[-2:]
    shift = 0 if k is None else int(node.value(k, "k").reshape(()))
    lower = np.tri(rows, columns, shift - (1 if node.attr("upper", 1) else 0), dtype=bool)
    keep_mask = ~lower if node.attr("upper", 1) else lower
    return arithmetic_ops.where_v2(constant(keep_mask), x, x.dtype.type(0))


@imports("OneHot")
def _one_hot(node: OnnxNode, index: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    """Negative indices count from the end; out-of-range ones select the off value."""
    count, rank = int(node.value(depth, "depth").reshape(())), node.rank(index) + 1
    axis = node.attr("axis", -1) % rank
    at = arithmetic_ops.cast(index, int64)
    at = expand_dims(
        arithmetic_ops.where_v2(
            arithmetic_ops.less(at, 0), arithmetic_ops.add(at, np.int64(count)), at
        ),
        axis,
    )
    places = np.arange(count).reshape([-1 if a == axis else 1 for a in range(rank)])
    return arithmetic_ops.where_v2(arithmetic_ops.equal(at, constant(places)), values[1], values[0])
