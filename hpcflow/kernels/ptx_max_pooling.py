"""Generated max pooling kernels on GPUs: one launch each, with no atomic additions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.codegen import kernel_cache, ptx_codegen, ptx_pooling_codegen
from hpcflow.codegen.llvm_builder import storage_type_of, value_type
from hpcflow.codegen.ptx_pooling_codegen import PoolShape
from hpcflow.kernels import cuda_provider
from hpcflow.kernels.kernel_registry import KernelNode, fast
from hpcflow.kernels.sliding_window_views import Windows

MAX_WINDOW_ELEMENTS = 64  # elements of a window: the generated code has lines for each
MAX_GRADIENT_ELEMENTS = 25  # for gradients it has lines for each pair


def _pool(node: KernelNode) -> PoolShape:
    """The pooling of x, input 0, to y: the output, or input 1 of a gradient."""
    x, y = node.inputs[0].shape, (*node.inputs, node.outputs[0])[1].shape
    attrs, first = node.attrs, bool(node.attrs["first"])
    space, out = (tuple(shape[2:] if first else shape[1:-1]) for shape in (x, y))
    window, strides, dilations = (tuple(attrs[k]) for k in ("window", "strides", "dilations"))
    before = tuple(Windows(attrs, space, window, out).before)
    channels = x[1] if first else x[-1]
    return PoolShape(x[0], space, channels, out, window, strides, dilations, before, first)


def _refuses(node: KernelNode) -> str:
    specs = (*node.inputs, *node.outputs)
    storage = storage_type_of(specs[0].dtype)
    if storage is None or value_type(storage) not in ("float", "double"):
        return f"its arrays are {specs[0].dtype}"
    if any(s.shape is None or None in s.shape for s in specs):
        return "its sizes are known only in the step"
    if any(0 in s.shape for s in specs):
        return "it is empty"
    if np.prod(node.attrs["window"]) > MAX_WINDOW_ELEMENTS:
        return "its windows are large"
    return cuda_provider.no_generated_code()


def _launcher(xp: Any, node: KernelNode, text: str) -> Callable[..., Any]:
    """The call of a kernel with a thread for each element of the result."""
    size = int(np.prod(node.outputs[0].shape))
    run, how = kernel_cache.on_gpu(xp.cuda, text), ptx_codegen.flat(size)

    def call(*arrays: Any) -> None:
        *inputs, out = arrays
        run(how.grid, how.block, (*cuda_provider.dense(xp, *inputs), out, size))

    return call


@fast("llvm", "MaxPool", "out", on="gpu", refuses=_refuses, exact=True)
def _max_pool(xp: Any, node: KernelNode) -> Callable[..., Any]:
    text = ptx_pooling_codegen.largest(_pool(node), node.outputs[0].dtype)
    return _launcher(xp, node, text)


def _refuses_gradient(node: KernelNode) -> str:
    large = np.prod(node.attrs["window"]) > MAX_GRADIENT_ELEMENTS
    return "its windows are large" if large else _refuses(node)


@fast("llvm", "MaxPoolGrad", "out", on="gpu", refuses=_refuses_gradient)
def _max_pool_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    text = ptx_pooling_codegen.gradient(_pool(node), node.outputs[0].dtype)
    return _launcher(xp, node, text)
