"""Normalization and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.graph.dtypes import bool_, float32
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.dtypes import from_onnx
from hpcflow.onnx.node import Node
from hpcflow.onnx.table import imports
from hpcflow.ops import broadcast, math, nn, reduce
from hpcflow.ops.array import identity, reshape
from hpcflow.ops.join import pad
from hpcflow.ops.slicing import getitem


def _along(x: Tensor, like: Tensor, rank: int) -> Tensor:
    """A number for each channel, axis 1, to be broadcast with a tensor of `rank`."""
    return reshape(math.cast(x, like.dtype), [-1] + [1] * (rank - 2))


@imports("BatchNormalization")
def _batch_norm(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Sequence[Tensor]:
    rank, epsilon = node.rank(x), node.attr("epsilon", 1e-5)
    outputs = []
    if node.attr("training_mode", 0) or _trains(node):
        axes = (0, *range(2, rank))
        now = reduce.reduce_mean(x, axes)
        spread = reduce.reduce_mean(math.square(math.subtract(x, _along(now, x, rank))), axes)
        share = node.attr("momentum", 0.9)
        for old, new in ((mean, now), (variance, spread)):
            new = math.cast(new, old.dtype)
            outputs.append(math.add(math.multiply(old, share), math.multiply(new, 1 - share)))
        mean, variance = now, spread
    gain = math.multiply(scale, math.rsqrt(math.add(math.cast(variance, scale.dtype), epsilon)))
    centered = math.subtract(x, _along(mean, x, rank))
    y = math.add(math.multiply(centered, _along(gain, x, rank)), _along(bias, x, rank))
    return [y, *outputs]


@imports("InstanceNormalization")
def _instance_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    rank = node.rank(x)
    centered, deviation = _standard(x, tuple(range(2, rank)), node.attr("epsilon", 1e-5))
    y = math.multiply(centered, math.multiply(deviation, _along(scale, x, rank)))
    return math.add(y, _along(bias, x, rank))


def _standard(x: Tensor, axes: tuple[int, ...], epsilon: float) -> tuple[Tensor, Tensor]:
    """`x` less its mean over `axes`, and one over its standard deviation."""
    centered = math.subtract(x, reduce.reduce_mean(x, axes, True))
    variance = reduce.reduce_mean(math.square(centered), axes, True)
    return centered, math.rsqrt(math.add(variance, epsilon))


@imports("LayerNormalization")
def _layer_norm(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Sequence[Tensor]:
    rank = node.rank(x)
    axes = tuple(range(node.attr("axis", -1) % rank, rank))
    wide = math.cast(x, from_onnx(node.attr("stash_type", 1)))
    mean = reduce.reduce_mean(wide, axes, True)
    centered = math.subtract(wide, mean)
    variance = reduce.reduce_mean(math.square(centered), axes, True)
    inverse = math.rsqrt(math.add(variance, node.attr("epsilon", 1e-5)))
    y = math.multiply(math.cast(math.multiply(centered, inverse), x.dtype), scale)
    return [y if bias is None else math.add(y, bias), mean, inverse]


@imports("LpNormalization")
def _lp_norm(node: Node, x: Tensor) -> Tensor:
    axis = node.attr("axis", -1)
    if node.attr("p", 2) == 1:
        size = reduce.reduce_sum(math.abs(x), axis, True)
    else:
        size = math.sqrt(reduce.reduce_sum(math.square(x), axis, True))
    none = math.equal(size, 0)
    return math.where(none, 0.0, math.divide(x, math.where(none, 1.0, size)))


@imports("LRN")
def _local_response(node: Node, x: Tensor) -> Tensor:
    """Squares are summed over `size` neighbouring channels."""
    size, channels, rank = node.attr("size"), node.known(x)[1], node.rank(x)
    before = (size - 1) // 2
    widened = pad(math.square(x), [(0, 0), (before, size - 1 - before), *[(0, 0)] * (rank - 2)])
    parts = [getitem(widened, (slice(None), slice(o, o + channels))) for o in range(size)]
    scaled = math.multiply(math.add_n(parts), node.attr("alpha", 1e-4) / size)
    power = math.pow(math.add(scaled, node.attr("bias", 1.0)), node.attr("beta", 0.75))
    return math.divide(x, power)


def _trains(node: Node) -> bool:
    """Whether a node of opset 6 is one of training: later ones do not say so by this attribute."""
    return node.version < 7 and not node.attr("is_test", 0)


@imports("Dropout")
def _dropout_by_attribute(node: Node, x: Tensor) -> Sequence[Tensor]:
    mask = bool_ if node.version >= 10 else x.dtype
    return _dropped(node, x, node.attr("ratio", 0.5), mask) if _trains(node) else _kept(x, mask)


@imports("Dropout", since=12)
def _dropout(
    node: Node, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> Sequence[Tensor]:
    if training is None or not node.value(training, "training_mode"):
        return _kept(x)
    return _dropped(node, x, 0.5 if ratio is None else float(node.value(ratio, "ratio")))


def _dropped(node: Node, x: Tensor, share: float, mask: Any = bool_) -> Sequence[Tensor]:
    if share == 0:
        return _kept(x, mask)
    kept = nn.dropout(broadcast.ones_like(x, float32), 1 - share, seed=node.attr("seed"))
    return [math.multiply(x, math.cast(kept, x.dtype)), math.cast(math.greater(kept, 0), mask)]


def _kept(x: Tensor, mask: Any = bool_) -> Sequence[Tensor]:
    return [identity(x), broadcast.ones_like(x, mask)]
