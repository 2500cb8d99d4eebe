"""Optimizers as operators (ai.onnx.preview.training): new values of variables and their slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcflow.graph.graph import Tensor
from hpcflow.onnx.node import Node
from hpcflow.onnx.table import imports
from hpcflow.ops import math

DOMAIN = "ai.onnx.preview.training"
Update = Callable[..., Sequence[Tensor]]


def _updates(name: str, tensors: int) -> Callable[[Update], Update]:
    """Decorator: `update(node, rate, step, *tensors)` is done for each variable of the node."""

    def add(update: Update) -> Update:
        @imports(name, domain=DOMAIN)
        def build(node: Node, rate: Tensor, step: Tensor, *inputs: Tensor) -> list[Tensor]:
            count = len(inputs) // tensors
            made = [update(node, rate, step, *inputs[i::count]) for i in range(count)]
            return [t for column in zip(*made, strict=True) for t in column]

        return update

    return add


def _regularized(node: Node, x: Tensor, g: Tensor) -> Tensor:
    return math.add(math.multiply(x, node.attr("norm_coefficient", 0.0)), g)


@_updates("Adagrad", 3)
def _adagrad(
    node: Node, rate: Tensor, step: Tensor, x: Tensor, g: Tensor, h: Tensor
) -> Sequence[Tensor]:
    decay = math.multiply(math.cast(step, rate.dtype), node.attr("decay_factor", 0.0))
    g = _regularized(node, x, g)
    h = math.add(h, math.square(g))
    size = math.add(math.sqrt(h), node.attr("epsilon", 1e-6))
    shorter = math.divide(rate, math.add(decay, 1.0))
    return math.subtract(x, math.divide(math.multiply(shorter, g), size)), h


@_updates("Momentum", 3)
def _momentum(
    node: Node, rate: Tensor, step: Tensor, x: Tensor, g: Tensor, v: Tensor
) -> Sequence[Tensor]:
    g, alpha = _regularized(node, x, g), node.attr("alpha")
    share = math.where(math.greater(step, 0), node.attr("beta"), 1.0)
    v = math.add(math.multiply(v, alpha), math.multiply(g, math.cast(share, g.dtype)))
    moved = math.add(g, math.multiply(v, alpha)) if node.attr("mode") == "nesterov" else v
    return math.subtract(x, math.multiply(rate, moved)), v


@_updates("Adam", 4)
def _adam(
    node: Node, rate: Tensor, step: Tensor, x: Tensor, g: Tensor, v: Tensor, h: Tensor
) -> Sequence[Tensor]:
    alpha, beta = node.attr("alpha", 0.9), node.attr("beta", 0.999)
    g = _regularized(node, x, g)
    v = math.add(math.multiply(v, alpha), math.multiply(g, 1 - alpha))
    h = math.add(math.multiply(h, beta), math.multiply(math.square(g), 1 - beta))
    t = math.cast(step, rate.dtype)
    late = math.maximum(t, 1.0)
    bias = math.sqrt(math.subtract(1.0, math.pow(beta, late)))
    bias = math.divide(bias, math.subtract(1.0, math.pow(alpha, late)))
    rate = math.multiply(rate, math.where(math.greater(t, 0.0), bias, 1.0))
    size = math.add(math.sqrt(h), node.attr("epsilon", 1e-6))
    x = math.subtract(x, math.multiply(rate, math.divide(v, size)))
    return math.multiply(x, 1 - node.attr("norm_coefficient_post", 0.0)), v, h
