"""Generated max pooling kernels: one pass over the data in memory order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.codegen import kernel_cache, max_pooling_codegen
from hpcflow.codegen.python_call_abi import as_contiguous
from hpcflow.kernels.kernel_registry import KernelNode, fast
from hpcflow.kernels.sliding_window_views import Windows

MAX_WINDOW_ELEMENTS = 25  # elements of a window: the generated code has lines for each


def _pool(node: KernelNode) -> max_pooling_codegen.PoolShape:
    """The pooling of x, input 0, to y: the output, or input 1 of a gradient."""
    x, y = node.inputs[0].shape, (*node.inputs, node.outputs[0])[1].shape
    window, strides = tuple(node.attrs["window"]), tuple(node.attrs["strides"])
    space, out = tuple(x[1:3]), tuple(y[1:3])
    before = Windows(node.attrs, space, window, out).before
    return max_pooling_codegen.PoolShape(x[0], space, x[3], out, window, strides, before)


def _refuses(node: KernelNode) -> str:
    specs, attrs = (*node.inputs, *node.outputs), node.attrs
    if any(s.dtype != np.float32 for s in specs):
        return "its arrays are not of float32"
    if attrs["first"] or len(attrs["window"]) != 2 or any(d != 1 for d in attrs["dilations"]):
        return "it is not over two axes with channels last and windows without gaps"
    if any(s.shape is None or None in s.shape for s in specs):
        return "its sizes are known only in the step"
    if any(0 in s.shape for s in specs):
        return "it is empty"
    pool = _pool(node)
    steps = zip(pool.space, pool.out, pool.window, pool.strides, pool.before, strict=True)
    if any(b >= k or (o - 1) * s - b >= n for n, o, k, s, b in steps):
        return "some of its windows have nothing but padding"
    return "" if pool.window[0] * pool.window[1] <= MAX_WINDOW_ELEMENTS else "its windows are large"


@fast("llvm", "MaxPool", "out", on="cpu", refuses=_refuses, exact=True)
def _max_pool(xp: Any, node: KernelNode) -> Callable[..., Any]:
    run = kernel_cache.builtin(max_pooling_codegen.largest(_pool(node)))
    return lambda x, out: run(as_contiguous(x), out)


def _refuses_gradient(node: KernelNode) -> str:
    why = _refuses(node)
    return why or ("" if _pool(node).windows_disjoint else "its windows share elements")


@fast("llvm", "MaxPoolGrad", "out", on="cpu", refuses=_refuses_gradient, exact=True)
def _max_pool_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    run = kernel_cache.builtin(max_pooling_codegen.gradient(_pool(node)))
    return lambda x, y, g, out: run(as_contiguous(x), as_contiguous(y), as_contiguous(g), out)


@fast("llvm", "MaxPoolReluGrad", "out", on="cpu", refuses=_refuses)
def _max_pool_relu_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    bias = node.attrs["bias"]
    run = kernel_cache.builtin(max_pooling_codegen.gradient(_pool(node), True, bias))
    return lambda x, y, g, *outs: run(as_contiguous(x), as_contiguous(y), as_contiguous(g), *outs)
