"""Neural network kernels: activations, biases and losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.array.gather_kernels import check_indices
from hpcflow.ops.math.arithmetic_kernels import number
from hpcflow.ops.math.reduction_kernels import by_rows, reducer

_NO_ROOM = (None, None, None)

# -- activations


@kernel("Relu", "out", inplace=(0,))
def _relu(xp: Any, node: KernelNode) -> Callable[..., Any]:
    zero = number(xp, 0, node)
    return lambda x, out: xp.maximum(x, zero, out=out)


def _mask(node: KernelNode) -> list[tuple[Any, tuple[int, ...]]]:
    return [("bool", node.outputs[0].shape)]


def _output_scratch(node: KernelNode) -> list[tuple[Any, tuple[int, ...]]]:
    return [(node.outputs[0].dtype, node.outputs[0].shape)]


@kernel("ReluGrad", "out", inplace=(0, 1), scratch=_mask)
def _relu_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    zero = number(xp, 0, node)

    def run(g: Any, y: Any, out: Any, room: Any = (None,)) -> None:
        # times a mask: a masked copy is ten times slower
        xp.multiply(g, xp.greater(y, zero, out=room[0]), out)

    return run


@kernel("Relu6", "out", inplace=(0,))
def _relu6(xp: Any, node: KernelNode) -> Callable[..., Any]:
    zero, six = number(xp, 0, node), number(xp, 6, node)

    def run(x: Any, out: Any) -> None:
        xp.maximum(x, zero, out=out)
        xp.minimum(out, six, out=out)

    return run


@kernel("Relu6Grad", "out", inplace=(0, 1), scratch=lambda node: 2 * _mask(node))
def _relu6_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    zero, six = number(xp, 0, node), number(xp, 6, node)

    def run(g: Any, y: Any, out: Any, room: Any = (None, None)) -> None:
        above, below = xp.greater(y, zero, out=room[0]), xp.less(y, six, out=room[1])
        xp.multiply(g, xp.logical_and(above, below, out=room[0]), out)

    return run


@kernel("Elu", "out")
def _elu(xp: Any, node: KernelNode) -> Callable[..., Any]:
    zero = number(xp, 0, node)

    def run(x: Any, out: Any) -> None:
        xp.minimum(x, zero, out=out)
        xp.expm1(out, out)
        xp.maximum(x, out, out=out)  # expm1(x) >= x

    return run


@kernel("EluGrad", "out", inplace=(1,))
def _elu_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    zero, unit = number(xp, 0, node), number(xp, 1, node)

    def run(g: Any, y: Any, out: Any) -> None:
        xp.minimum(y, zero, out=out)
        xp.add(out, unit, out)
        xp.multiply(out, g, out)

    return run


@kernel("Softplus", "out", scratch=_output_scratch)
def _softplus(xp: Any, node: KernelNode) -> Callable[..., Any]:
    zero = number(xp, 0, node)

    def run(x: Any, out: Any, room: Any = (None,)) -> None:  # max(x, 0) + log1p(exp(-|x|))
        xp.absolute(x, out)
        xp.negative(out, out)
        xp.exp(out, out)
        xp.log1p(out, out)
        xp.add(out, xp.maximum(x, zero, out=room[0]), out)

    return run


# -- softmax and log-softmax


@kernel("Softmax", "out", inplace=(0,), scratch=by_rows(1))
def _softmax(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis, top, total = node.attrs["axis"], reducer(xp, "maximum"), reducer(xp, "add")

    def run(x: Any, out: Any, room: Any = (None,)) -> None:
        if out.size:
            xp.subtract(x, top(x, axis, None, room[0], True), out)
            xp.exp(out, out)
            xp.true_divide(out, total(out, axis, None, room[0], True), out)

    return run


@kernel("LogSoftmax", "out", scratch=by_rows(2))
def _log_softmax(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis, top, total = node.attrs["axis"], reducer(xp, "maximum"), reducer(xp, "add")

    def run(x: Any, out: Any, room: Any = (None, None)) -> None:
        if out.size:
            shift = top(x, axis, None, room[0], True)
            xp.exp(xp.subtract(x, shift, out), out)
            logs = xp.log(total(out, axis, None, room[1], True), out=room[1])
            xp.subtract(x, shift, out)  # recomputed: cheaper than a buffer for the exponentials
            xp.subtract(out, logs, out)

    return run


@kernel("SoftmaxGrad", "out", scratch=by_rows(1))
def _softmax_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis, total = node.attrs["axis"], reducer(xp, "add")

    def run(g: Any, y: Any, out: Any, room: Any = (None,)) -> None:  # y (g - sum(g y))
        if out.size:
            xp.multiply(g, y, out)
            xp.subtract(g, total(out, axis, None, room[0], True), out)
            xp.multiply(out, y, out)

    return run


@kernel("LogSoftmaxGrad", "out", inplace=(1,), scratch=by_rows(1))
def _log_softmax_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis, total = node.attrs["axis"], reducer(xp, "add")

    def run(g: Any, y: Any, out: Any, room: Any = (None,)) -> None:  # g - exp(y) sum(g)
        if out.size:
            xp.exp(y, out)
            xp.multiply(out, total(g, axis, None, room[0], True), out)
            xp.subtract(g, out, out)

    return run


# -- biases and losses


@kernel("BiasAdd", "ufunc", inplace=(0,))
def _bias_add(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return xp.add


@kernel(
    "SoftmaxCrossEntropy", "out", scratch=lambda node: [*by_rows(1)(node), *_output_scratch(node)]
)
def _cross_entropy(xp: Any, node: KernelNode) -> Callable[..., Any]:
    top, total = reducer(xp, "maximum"), reducer(xp, "add")

    def weigh(a: Any, b: Any, out: Any) -> None:
        """The sums of products along the last axis; CuPy's einsum has no `out`."""
        if xp is np:
            np.einsum("...i,...i->...", a, b, out=out)
        else:
            total(xp.multiply(a, b), -1, None, out)

    def run(logits: Any, labels: Any, loss: Any, grad: Any, room: Any = (None, None)) -> None:
        if not grad.size:
            loss.fill(0)
            return
        xp.subtract(logits, top(logits, -1, None, room[0], True), grad)
        weigh(labels, grad, loss)
        xp.exp(grad, grad)
        sums = total(grad, -1, None, room[0], True)
        xp.true_divide(grad, sums, grad)
        xp.subtract(grad, labels, grad)
        logs = xp.log(sums, sums).reshape(loss.shape)
        weight = total(labels, -1, None, room[1])
        xp.subtract(xp.multiply(logs, weight, out=room[1]), loss, loss)

    return run


def _of_classes(node: KernelNode) -> list[tuple[Any, tuple[int, ...]]]:
    loss = node.outputs[0]
    count = (math.prod(loss.shape),)
    return [*by_rows(1)(node), ("int64", count), (loss.dtype, count)]


@kernel("SparseSoftmaxCrossEntropy", "out", scratch=_of_classes)
def _sparse_cross_entropy(xp: Any, node: KernelNode) -> Callable[..., Any]:
    top, total = reducer(xp, "maximum"), reducer(xp, "add")
    unit = number(xp, 1, node)
    mode = {"mode": "clip"} if xp is np else {}  # NumPy buffers `out` in mode "raise"
    starts: dict[int, Any] = {}  # batch size -> start of each row; there are one or two sizes

    def picked(flat: Any, places: Any, out: Any) -> Any:
        return xp.take(flat, places, 0, out, **mode)

    def run(logits: Any, labels: Any, loss: Any, grad: Any, room: Any = _NO_ROOM) -> None:
        if not loss.size:
            return
        row, index_buffer, values = room
        classes = grad.shape[-1]
        check_indices(xp, labels, classes, "label")
        rows = starts.get(loss.size)
        if rows is None:
            rows = starts[loss.size] = xp.arange(loss.size) * classes
        places = xp.empty(loss.size, "int64") if index_buffer is None else index_buffer
        xp.copyto(places, labels.reshape(-1))  # first, since an addition would copy widened values
        xp.add(places, rows, places)
        flat = grad.reshape(-1)
        xp.subtract(logits, top(logits, -1, None, row, True), grad)
        chosen = picked(flat, places, values)
        xp.exp(grad, grad)
        sums = total(grad, -1, None, row, True)
        xp.true_divide(grad, sums, grad)
        xp.subtract(xp.log(sums, sums).reshape(loss.shape), chosen.reshape(loss.shape), loss)
        chosen = picked(flat, places, values)
        flat[places] = xp.subtract(chosen, unit, out=chosen)

    return run


@kernel("L2Loss", "out")
def _l2_loss(xp: Any, node: KernelNode) -> Callable[..., Any]:
    half = number(xp, 0.5, node)

    def run(x: Any, out: Any) -> None:
        flat = x.reshape(-1)  # CUDA graphs cannot hold CuPy's dot
        total = xp.dot(flat, flat) if xp is np else xp.sum(xp.square(flat))
        xp.multiply(total, half, out)

    return run


@kernel("InTopK", "out")
def _in_top_k(xp: Any, node: KernelNode) -> Callable[..., Any]:
    static_k = node.attrs["k"]

    def run(predictions: Any, targets: Any, *more: Any) -> None:
        k, out = (static_k, *more) if static_k is not None else more
        check_indices(xp, targets, predictions.shape[1], "target")
        rows = xp.arange(predictions.shape[0])
        target_scores = predictions[rows, targets][:, None]
        above = xp.greater(predictions, target_scores).sum(axis=1) < k
        xp.logical_and(above, xp.isfinite(predictions).all(axis=1), out)

    return run
