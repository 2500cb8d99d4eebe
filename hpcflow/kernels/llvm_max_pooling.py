"""Generated max pooling kernels: one pass over the data in memory order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.codegen import kernel_cache, max_pooling_codegen
from hpcflow.codegen.max_pooling_codegen import PoolShape
from hpcflow.codegen.python_call_abi import as_contiguous
from hpcflow.kernels.kernel_registry import KernelNode, fast
from hpcflow.kernels.sliding_window_views import Windows

MAX_WINDOW_ELEMENTS = 25  # elements of a window: the generated code has lines for each


def pool_of(node: KernelNode) -> PoolShape:
    """The pooling of x, input 0, to y: the output, or input 1 of a gradient."""
    x, y = node.inputs[0].shape, (*node.inputs, node.outputs[0])[1].shape
    return pool_shape(node.attrs, x, y, node.attrs["window"])


def pool_shape(
    attrs: Mapping[str, Any], x: Sequence[int], y: Sequence[int], window: Sequence[int]
) -> PoolShape:
    """The windows that slide over x, an element of y for each; `attrs` say how."""
    first, sizes = bool(attrs["first"]), tuple(window)
    space, out = (tuple(shape[2:] if first else shape[1:-1]) for shape in (x, y))
    strides, dilations = tuple(attrs["strides"]), tuple(attrs["dilations"])
    before = tuple(Windows(dict(attrs), space, sizes, out).before)
    channels = x[1] if first else x[-1]
    return PoolShape(x[0], space, channels, out, sizes, strides, before, dilations, first)


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
    pool = pool_of(node)
    steps = zip(pool.space, pool.out, pool.window, pool.strides, pool.before, strict=True)
    if any(b >= k or (o - 1) * s - b >= n for n, o, k, s, b in steps):
        return "some of its windows have nothing but padding"
    return "" if pool.window[0] * pool.window[1] <= MAX_WINDOW_ELEMENTS else "its windows are large"


@fast("llvm", "MaxPool", "out", on="cpu", refuses=_refuses, exact=True)
def _max_pool(xp: Any, node: KernelNode) -> Callable[..., Any]:
    run = kernel_cache.builtin(max_pooling_codegen.largest(pool_of(node)))
    return lambda x, out: run(as_contiguous(x), out)


def _refuses_gradient(node: KernelNode) -> str:
    why = _refuses(node)
    return why or ("" if pool_of(node).windows_disjoint else "its windows share elements")


@fast("llvm", "MaxPoolGrad", "out", on="cpu", refuses=_refuses_gradient, exact=True)
def _max_pool_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    run = kernel_cache.builtin(max_pooling_codegen.gradient(pool_of(node)))
    return lambda x, y, g, out: run(as_contiguous(x), as_contiguous(y), as_contiguous(g), out)


@fast("llvm", "MaxPoolReluGrad", "out", on="cpu", refuses=_refuses)
def _max_pool_relu_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    bias = node.attrs["bias"]
    run = kernel_cache.builtin(max_pooling_codegen.gradient(pool_of(node), True, bias))
    return lambda x, y, g, *outs: run(as_contiguous(x), as_contiguous(y), as_contiguous(g), *outs)
