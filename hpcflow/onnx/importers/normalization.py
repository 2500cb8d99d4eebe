"""ONNX import of normalization and Dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.graph.dtypes import bool_, float32
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.element_types import from_onnx
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array import broadcast_ops
from hpcflow.ops.array.array_ops import identity, reshape
from hpcflow.ops.array.concat_split_ops import pad
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math import arithmetic_ops, reduction_ops
from hpcflow.ops.nn import nn_ops


def _along(x: Tensor, like: Tensor, rank: int) -> Tensor:
    """A vector over channels (axis 1), reshaped to broadcast with a tensor of `rank`."""
    return reshape(arithmetic_ops.cast(x, like.dtype), [-1] + [1] * (rank - 2))


@imports("BatchNormalization")
def _batch_norm(
    node: OnnxNode, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Sequence[Tensor]:
    rank, epsilon = node.rank(x), node.attr("epsilon", 1e-5)
    outputs = []
    if node.attr("training_mode", 0) or _trains(node):
        axes = (0, *range(2, rank))
        now = reduction_ops.reduce_mean(x, axes)
        spread = reduction_ops.reduce_mean(
            arithmetic_ops.square(arithmetic_ops.subtract(x, _along(now, x, rank))), axes
        )
        share = node.attr("momentum", 0.9)
        for old, new in ((mean, now), (variance, spread)):
            new = arithmetic_ops.cast(new, old.dtype)
            outputs.append(
                arithmetic_ops.add(
                    arithmetic_ops.multiply(old, share), arithmetic_ops.multiply(new, 1 - share)
                )
            )
        mean, variance = now, spread
    gain = arithmetic_ops.multiply(
        scale,
        arithmetic_ops.rsqrt(
            arithmetic_ops.add(arithmetic_ops.cast(variance, scale.dtype), epsilon)
        ),
    )
    centered = arithmetic_ops.subtract(x, _along(mean, x, rank))
    y = arithmetic_ops.add(
        arithmetic_ops.multiply(centered, _along(gain, x, rank)), _along(bias, x, rank)
    )
    return [y, *outputs]


@imports("InstanceNormalization")
def _instance_norm(node: OnnxNode, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    rank = node.rank(x)
    centered, deviation = _standard(x, tuple(range(2, rank)), node.attr("epsilon", 1e-5))
    y = arithmetic_ops.multiply(
        centered, arithmetic_ops.multiply(deviation, _along(scale, x, rank))
    )
    return arithmetic_ops.add(y, _along(bias, x, rank))


def _standard(x: Tensor, axes: tuple[int, ...], epsilon: float) -> tuple[Tensor, Tensor]:
    """`x` minus its mean over `axes`, and the reciprocal of its standard deviation."""
    centered = arithmetic_ops.subtract(x, reduction_ops.reduce_mean(x, axes, True))
    variance = reduction_ops.reduce_mean(arithmetic_ops.square(centered), axes, True)
    return centered, arithmetic_ops.rsqrt(arithmetic_ops.add(variance, epsilon))


@imports("LayerNormalization")
def _layer_norm(
    node: OnnxNode, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Sequence[Tensor]:
    rank = node.rank(x)
    axes = tuple(range(node.attr("axis", -1) % rank, rank))
    wide = arithmetic_ops.cast(x, from_onnx(node.attr("stash_type", 1)))
    mean = reduction_ops.reduce_mean(wide, axes, True)
    centered = arithmetic_ops.subtract(wide, mean)
    variance = reduction_ops.reduce_mean(arithmetic_ops.square(centered), axes, True)
    inverse = arithmetic_ops.rsqrt(arithmetic_ops.add(variance, node.attr("epsilon", 1e-5)))
    y = arithmetic_ops.multiply(
        arithmetic_ops.cast(arithmetic_ops.multiply(centered, inverse), x.dtype), scale
    )
    return [y if bias is None else arithmetic_ops.add(y, bias), mean, inverse]


@imports("LpNormalization")
def _lp_norm(node: OnnxNode, x: Tensor) -> Tensor:
    axis = node.attr("axis", -1)
    if node.attr("p", 2) == 1:
        size = reduction_ops.reduce_sum(arithmetic_ops.abs(x), axis, True)
    else:
        size = arithmetic_ops.sqrt(reduction_ops.reduce_sum(arithmetic_ops.square(x), axis, True))
    none = arithmetic_ops.equal(size, 0)
    return arithmetic_ops.where(
        none, 0.0, arithmetic_ops.divide(x, arithmetic_ops.where(none, 1.0, size))
    )


@imports("LRN")
def _local_response(node: OnnxNode, x: Tensor) -> Tensor:
    """The squares are summed over `size` neighbouring channels."""
    size, channels, rank = node.attr("size"), node.static_shape(x)[1], node.rank(x)
    before = (size - 1) // 2
    widened = pad(
        arithmetic_ops.square(x), [(0, 0), (before, size - 1 - before), *[(0, 0)] * (rank - 2)]
    )
    parts = [getitem(widened, (slice(None), slice(o, o + channels))) for o in range(size)]
    scaled = arithmetic_ops.multiply(arithmetic_ops.add_n(parts), node.attr("alpha", 1e-4) / size)
    power = arithmetic_ops.pow(
        arithmetic_ops.add(scaled, node.attr("bias", 1.0)), node.attr("beta", 0.75)
    )
    return arithmetic_ops.divide(x, power)


def _trains(node: OnnxNode) -> bool:
    """Whether a node of opset 6 is in training mode; later opsets lack this attribute."""
    return node.version < 7 and not node.attr("is_test", 0)


@imports("Dropout")
def _dropout_by_attribute(node: OnnxNode, x: Tensor) -> Sequence[Tensor]:
    mask = bool_ if node.version >= 10 else x.dtype
    return _dropped(node, x, node.attr("ratio", 0.5), mask) if _trains(node) else _identity(x, mask)


@imports("Dropout", since=12)
def _dropout(
    node: OnnxNode, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> Sequence[Tensor]:
    if training is None or not node.value(training, "training_mode"):
        return _identity(x)
    return _dropped(node, x, 0.5 if ratio is None else float(node.value(ratio, "ratio")))


def _dropped(node: OnnxNode, x: Tensor, share: float, mask: Any = bool_) -> Sequence[Tensor]:
    if share == 0:
        return _identity(x, mask)
    scale = nn_ops.dropout(broadcast_ops.ones_like(x, float32), 1 - share, seed=node.attr("seed"))
    return [
        arithmetic_ops.multiply(x, arithmetic_ops.cast(scale, x.dtype)),
        arithmetic_ops.cast(arithmetic_ops.greater(scale, 0), mask),
    ]


def _identity(x: Tensor, mask: Any = bool_) -> Sequence[Tensor]:
    return [identity(x), broadcast_ops.ones_like(x, mask)]
