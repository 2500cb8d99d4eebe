"""Normalization kernels: mean 0 and variance 1 over given axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.kernels.sliding_window_views import accumulator_dtype


def _summer(xp: Any, axis: tuple[int, ...]) -> Callable[[Any], Any]:
    """The sum over `axis`, with keepdims."""

    def run(x: Any) -> Any:
        axes = sorted(a % x.ndim for a in axis)
        out_shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
        if xp is np and axes == list(range(len(axes))) and len(axes) < x.ndim:
            rows = x.reshape(int(np.prod(x.shape[: len(axes)])), -1)  # faster and more accurate
            return xp.matmul(xp.ones(rows.shape[0], x.dtype), rows).reshape(out_shape)
        return x.sum(axis=tuple(axes)).reshape(out_shape)

    return run


@kernel("Normalize", "out")
def _normalize(xp: Any, node: KernelNode) -> Callable[..., Any]:
    total, dtype = _summer(xp, node.attrs["axis"]), accumulator_dtype(node.outputs[0].dtype)
    epsilon = xp.asarray(node.attrs["epsilon"], dtype)

    def run(x: Any, y: Any, mean: Any, variance: Any) -> None:
        if not x.size:
            mean.fill(0)
            variance.fill(0)
            return
        count = xp.asarray(x.size // mean.size, dtype)
        centered = y if y.dtype == dtype else xp.empty(y.shape, dtype)
        x = x.astype(dtype, copy=False)
        xp.true_divide(total(x), count, mean)
        xp.subtract(x, mean, centered)
        xp.true_divide(total(xp.multiply(centered, centered)), count, variance)
        xp.multiply(centered, _scale(xp, variance, epsilon), centered)
        if centered is not y:
            xp.copyto(y, centered, casting="same_kind")

    return run


@kernel("NormalizeGrad", "out")
def _normalize_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    total, dtype = _summer(xp, node.attrs["axis"]), accumulator_dtype(node.outputs[0].dtype)
    epsilon = xp.asarray(node.attrs["epsilon"], dtype)

    def run(g: Any, y: Any, variance: Any, out: Any) -> None:  # r (g - mean(g) - y mean(g y))
        if not out.size:
            return
        count = xp.asarray(out.size // variance.size, dtype)
        g, y = g.astype(dtype, copy=False), y.astype(dtype, copy=False)
        back = out if out.dtype == dtype else xp.empty(out.shape, dtype)
        xp.multiply(g, y, back)
        xp.multiply(y, total(back) / count, back)
        xp.add(back, total(g) / count, back)
        xp.subtract(g, back, back)
        xp.multiply(back, _scale(xp, variance, epsilon), back)
        if back is not out:
            xp.copyto(out, back, casting="same_kind")

    return run


def _scale(xp: Any, variance: Any, epsilon: Any) -> Any:
    return xp.reciprocal(xp.sqrt(variance + epsilon))
