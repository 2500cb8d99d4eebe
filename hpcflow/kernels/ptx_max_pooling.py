"""Generated max pooling kernels on GPUs: one launch each, with no atomic additions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.codegen import kernel_cache, ptx_codegen, ptx_pooling_codegen
from hpcflow.codegen.llvm_builder import storage_type_of, value_type
from hpcflow.kernels import cuda_provider
from hpcflow.kernels.kernel_registry import KernelNode, fast
from hpcflow.kernels.llvm_max_pooling import pool_of

MAX_WINDOW_ELEMENTS = 64  # elements of a window: the generated code has lines for each
MAX_GRADIENT_ELEMENTS = 25  # for gradients it has lines for each pair


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
    text = ptx_pooling_codegen.largest(pool_of(node), node.outputs[0].dtype)
    return _launcher(xp, node, text)


def _refuses_gradient(node: KernelNode) -> str:
    large = np.prod(node.attrs["window"]) > MAX_GRADIENT_ELEMENTS
    return "its windows are large" if large else _refuses(node)


@fast("llvm", "MaxPoolGrad", "out", on="gpu", refuses=_refuses_gradient)
def _max_pool_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    text = ptx_pooling_codegen.gradient(pool_of(node), node.outputs[0].dtype)
    return _launcher(xp, node, text)
