"""ONNX import of optimizers (ai.onnx.preview.training): new values of variables and slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.math import arithmetic_ops

DOMAIN = "ai.onnx.preview.training"
Update = Callable[..., Sequence[Tensor]]


def _updates(name: str, tensors: int) -> Callable[[Update], Update]:
    """Decorator: apply `update(node, rate, step, *tensors)` to each variable of the node."""

    def add(update: Update) -> Update:
        @imports(name, domain=DOMAIN)
        def build(node: OnnxNode, rate: Tensor, step: Tensor, *inputs: Tensor) -> list[Tensor]:
            count = len(inputs) // tensors
            updated = [update(node, rate, step, *inputs[i::count]) for i in range(count)]
            return [t for column in zip(*updated, strict=True) for t in column]

        return update

    return add


def _regularized(node: OnnxNode, x: Tensor, g: Tensor) -> Tensor:
    return arithmetic_ops.add(arithmetic_ops.multiply(x, node.attr("norm_coefficient", 0.0)), g)


@_updates("Adagrad", 3)
def _adagrad(
    node: OnnxNode, rate: Tensor, step: Tensor, x: Tensor, g: Tensor, h: Tensor
) -> Sequence[Tensor]:
    decay = arithmetic_ops.multiply(
        arithmetic_ops.cast(step, rate.dtype), node.attr("decay_factor", 0.0)
    )
    g = _regularized(node, x, g)
    h = arithmetic_ops.add(h, arithmetic_ops.square(g))
    size = arithmetic_ops.add(arithmetic_ops.sqrt(h), node.attr("epsilon", 1e-6))
    shorter = arithmetic_ops.divide(rate, arithmetic_ops.add(decay, 1.0))
    return arithmetic_ops.subtract(
        x, arithmetic_ops.divide(arithmetic_ops.multiply(shorter, g), size)
    ), h


@_updates("Momentum", 3)
def _momentum(
    node: OnnxNode, rate: Tensor, step: Tensor, x: Tensor, g: Tensor, v: Tensor
) -> Sequence[Tensor]:
    g, alpha = _regularized(node, x, g), node.attr("alpha")
    share = arithmetic_ops.where(arithmetic_ops.greater(step, 0), node.attr("beta"), 1.0)
    v = arithmetic_ops.add(
        arithmetic_ops.multiply(v, alpha),
        arithmetic_ops.multiply(g, arithmetic_ops.cast(share, g.dtype)),
    )
    moved = (
        arithmetic_ops.add(g, arithmetic_ops.multiply(v, alpha))
        if node.attr("mode") == "nesterov"
        else v
    )
    return arithmetic_ops.subtract(x, arithmetic_ops.multiply(rate, moved)), v


@_updates("Adam", 4)
def _adam(
    node: OnnxNode, rate: Tensor, step: Tensor, x: Tensor, g: Tensor, v: Tensor, h: Tensor
) -> Sequence[Tensor]:
    alpha, beta = node.attr("alpha", 0.9), node.attr("beta", 0.999)
    g = _regularized(node, x, g)
    v = arithmetic_ops.add(arithmetic_ops.multiply(v, alpha), arithmetic_ops.multiply(g, 1 - alpha))
    h = arithmetic_ops.add(
        arithmetic_ops.multiply(h, beta),
        arithmetic_ops.multiply(arithmetic_ops.square(g), 1 - beta),
    )
    t = arithmetic_ops.cast(step, rate.dtype)
    late = arithmetic_ops.maximum(t, 1.0)
    bias = arithmetic_ops.sqrt(arithmetic_ops.subtract(1.0, arithmetic_ops.pow(beta, late)))
    bias = arithmetic_ops.divide(
        bias, arithmetic_ops.subtract(1.0, arithmetic_ops.pow(alpha, late))
    )
    rate = arithmetic_ops.multiply(
        rate, arithmetic_ops.where(arithmetic_ops.greater(t, 0.0), bias, 1.0)
    )
    size = arithmetic_ops.add(arithmetic_ops.sqrt(h), node.attr("epsilon", 1e-6))
    x = arithmetic_ops.subtract(x, arithmetic_ops.multiply(rate, arithmetic_ops.divide(v, size)))
    return arithmetic_ops.multiply(x, 1 - node.attr("norm_coefficient_post", 0.0)), v, h
