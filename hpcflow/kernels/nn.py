"""Kernels of activations, biases and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.kernels.math import number
from hpcflow.kernels.reduce import reducer
from hpcflow.kernels.slicing import check_indices
from hpcflow.kernels.table import Node, kernel

# -- activations


@kernel("Relu", "out", inplace=(0,))
def _relu(xp: Any, node: Node) -> Callable[..., Any]:
    zero = number(xp, 0, node)
    return lambda x, out: xp.maximum(x, zero, out=out)


@kernel("ReluGrad", "out", inplace=(0, 1))
def _relu_grad(xp: Any, node: Node) -> Callable[..., Any]:
    zero = number(xp, 0, node)

    # times a mask: a masked copy takes ten times as long
    return lambda g, y, out: xp.multiply(g, xp.greater(y, zero), out)


@kernel("Relu6", "out", inplace=(0,))
def _relu6(xp: Any, node: Node) -> Callable[..., Any]:
    zero, six = number(xp, 0, node), number(xp, 6, node)

    def run(x: Any, out: Any) -> None:
        xp.maximum(x, zero, out=out)
        xp.minimum(out, six, out=out)

    return run


@kernel("Relu6Grad", "out", inplace=(0, 1))
def _relu6_grad(xp: Any, node: Node) -> Callable[..., Any]:
    zero, six = number(xp, 0, node), number(xp, 6, node)

    def run(g: Any, y: Any, out: Any) -> None:
        inside = xp.logical_and(xp.greater(y, zero), xp.less(y, six))
        xp.multiply(g, inside, out)

    return run


@kernel("Elu", "out")
def _elu(xp: Any, node: Node) -> Callable[..., Any]:
    zero = number(xp, 0, node)

    def run(x: Any, out: Any) -> None:
        xp.minimum(x, zero, out=out)
        xp.expm1(out, out)
        xp.maximum(x, out, out=out)  # expm1(x) >= x

    return run


@kernel("EluGrad", "out", inplace=(1,))
def _elu_grad(xp: Any, node: Node) -> Callable[..., Any]:
    zero, unit = number(xp, 0, node), number(xp, 1, node)

    def run(g: Any, y: Any, out: Any) -> None:
        xp.minimum(y, zero, out=out)
        xp.add(out, unit, out)
        xp.multiply(out, g, out)

    return run


@kernel("Softplus", "out")
def _softplus(xp: Any, node: Node) -> Callable[..., Any]:
    zero = number(xp, 0, node)

    def run(x: Any, out: Any) -> None:  # max(x, 0) + log1p(exp(-|x|))
        xp.absolute(x, out)
        xp.negative(out, out)
        xp.exp(out, out)
        xp.log1p(out, out)
        xp.add(out, xp.maximum(x, zero), out)

    return run


# -- softmax and its logarithm


@kernel("Softmax", "out", inplace=(0,))
def _softmax(xp: Any, node: Node) -> Callable[..., Any]:
    axis, top, total = node.attrs["axis"], reducer(xp, "maximum"), reducer(xp, "add")

    def run(x: Any, out: Any) -> None:
        if out.size:
            xp.subtract(x, top(x, axis, None, None, True), out)
            xp.exp(out, out)
            xp.true_divide(out, total(out, axis, None, None, True), out)

    return run


@kernel("LogSoftmax", "out")
def _log_softmax(xp: Any, node: Node) -> Callable[..., Any]:
    axis, top, total = node.attrs["axis"], reducer(xp, "maximum"), reducer(xp, "add")

    def run(x: Any, out: Any) -> None:
        if out.size:
            shift = top(x, axis, None, None, True)
            xp.exp(xp.subtract(x, shift, out), out)
            logs = xp.log(total(out, axis, None, None, True))
            xp.subtract(x, shift, out)  # again: cheaper than room for the exponentials
            xp.subtract(out, logs, out)

    return run


@kernel("SoftmaxGrad", "out")
def _softmax_grad(xp: Any, node: Node) -> Callable[..., Any]:
    axis, total = node.attrs["axis"], reducer(xp, "add")

    def run(g: Any, y: Any, out: Any) -> None:  # y (g - sum(g y))
        if out.size:
            xp.multiply(g, y, out)
            xp.subtract(g, total(out, axis, None, None, True), out)
            xp.multiply(out, y, out)

    return run


@kernel("LogSoftmaxGrad", "out", inplace=(1,))
def _log_softmax_grad(xp: Any, node: Node) -> Callable[..., Any]:
    axis, total = node.attrs["axis"], reducer(xp, "add")

    def run(g: Any, y: Any, out: Any) -> None:  # g - exp(y) sum(g)
        if out.size:
            xp.exp(y, out)
            xp.multiply(out, total(g, axis, None, None, True), out)
            xp.subtract(g, out, out)

    return run


# -- biases and losses


@kernel("BiasAdd", "ufunc", inplace=(0,))
def _bias_add(xp: Any, node: Node) -> Callable[..., Any]:
    return xp.add


@kernel("SoftmaxCrossEntropy", "out")
def _cross_entropy(xp: Any, node: Node) -> Callable[..., Any]:
    top, total = reducer(xp, "maximum"), reducer(xp, "add")

    def weigh(a: Any, b: Any, out: Any) -> None:
        """The sums of products along the last axis; CuPy's einsum takes no `out`."""
        if xp is np:
            np.einsum("...i,...i->...", a, b, out=out)
        else:
            total(xp.multiply(a, b), -1, None, out)

    def run(logits: Any, labels: Any, loss: Any, grad: Any) -> None:
        if not grad.size:
            loss.fill(0)
            return
        xp.subtract(logits, top(logits, -1, None, None, True), grad)
        weigh(labels, grad, loss)
        xp.exp(grad, grad)
        sums = total(grad, -1, None, None, True)
        xp.true_divide(grad, sums, grad)
        xp.subtract(grad, labels, grad)
        logs = xp.log(sums, sums).reshape(loss.shape)
        xp.subtract(xp.multiply(logs, total(labels, -1, None)), loss, loss)

    return run


@kernel("SparseSoftmaxCrossEntropy", "out")
def _sparse_cross_entropy(xp: Any, node: Node) -> Callable[..., Any]:
    top, total = reducer(xp, "maximum"), reducer(xp, "add")
    unit = number(xp, 1, node)
    starts: dict[int, Any] = {}  # batch size -> where each row begins; one or two sizes occur

    def run(logits: Any, labels: Any, loss: Any, grad: Any) -> None:
        if not loss.size:
            return
        classes = grad.shape[-1]
        check_indices(xp, labels, classes, "label")
        rows = starts.get(loss.size)
        if rows is None:
            rows = starts[loss.size] = xp.arange(loss.size) * classes
        places = xp.add(rows, labels.reshape(-1))
        flat = grad.reshape(-1)
        xp.subtract(logits, top(logits, -1, None, None, True), grad)
        chosen = flat[places].reshape(loss.shape)
        xp.exp(grad, grad)
        sums = total(grad, -1, None, None, True)
        xp.true_divide(grad, sums, grad)
        flat[places] -= unit
        xp.subtract(xp.log(sums, sums).reshape(loss.shape), chosen, loss)

    return run


@kernel("L2Loss", "out")
def _l2_loss(xp: Any, node: Node) -> Callable[..., Any]:
    half = number(xp, 0.5, node)

    def run(x: Any, out: Any) -> None:
        flat = x.reshape(-1)
        xp.multiply(xp.dot(flat, flat), half, out)

    return run


@kernel("InTopK", "out")
def _in_top_k(xp: Any, node: Node) -> Callable[..., Any]:
    k = node.attrs["k"]

    def run(predictions: Any, targets: Any, out: Any) -> None:
        check_indices(xp, targets, predictions.shape[1], "target")
        rows = xp.arange(predictions.shape[0])
        mine = predictions[rows, targets][:, None]
        above = xp.greater(predictions, mine).sum(axis=1) < k
        xp.logical_and(above, xp.isfinite(mine[:, 0]), out)

    return run
