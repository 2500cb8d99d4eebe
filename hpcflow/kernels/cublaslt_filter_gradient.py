"""Gradients of convolutions by filters as products, by cuBLASLt, where images have few channels.

cuDNN's deterministic float32 kernels for these are slow: a product of the windows, as a matrix that
a generated kernel makes, and the gradient takes a tenth of their time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.codegen import kernel_cache, ptx_codegen, ptx_pooling_codegen
from hpcflow.codegen.max_pooling_codegen import PoolShape
from hpcflow.kernels import cuda_provider
from hpcflow.kernels.cublaslt_matmul import NAME, MatmulPlan, MatmulProblem, planned
from hpcflow.kernels.kernel_registry import KernelNode, fast
from hpcflow.kernels.llvm_max_pooling import pool_shape

FEW_CHANNELS = 4
MAX_ROW = 256  # elements of a window
MAX_BYTES = 128 << 20  # of the matrix of windows


def _windows(node: KernelNode) -> PoolShape:
    """The windows of x over which the filters slide."""
    x, g, w = (s.shape for s in (*node.inputs[:2], node.outputs[0]))
    return pool_shape(node.attrs, x, g, w[:-2])


def _matrix(pool: PoolShape) -> tuple[int, int]:
    """The shape of the matrix of windows."""
    return pool.batch * math.prod(pool.out), pool.channels * math.prod(pool.window)


def _refuses(node: KernelNode) -> str:
    specs = (*node.inputs[:2], node.outputs[0])
    if why := cuda_provider.unsupported_reason(specs, ("float32",)):
        return why
    if node.tf32 or node.attrs["first"] or node.attrs["groups"] != 1:
        return "it is of TF32, with channels first, or of groups"
    rows, cols = _matrix(_windows(node))
    if specs[0].shape[-1] > FEW_CHANNELS or cols > MAX_ROW or 4 * rows * cols > MAX_BYTES:
        return "it has many channels, or large windows"
    plan = planned(_product(node))
    return plan if isinstance(plan, str) else cuda_provider.no_generated_code()


def _product(node: KernelNode) -> MatmulProblem:
    """The product: the matrix of windows, transposed, by the gradient."""
    rows, cols = _matrix(_windows(node))
    count = node.outputs[0].shape[-1]
    shapes = (rows, cols), (rows, count), (cols, count)
    return MatmulProblem("float32", (True, False), *shapes, False, False, False)


def _plan(node: KernelNode) -> MatmulPlan:
    return cuda_provider.plan_or_error(planned(_product(node)))


def _scratch(node: KernelNode) -> list[tuple[Any, tuple[int, ...]]]:
    """The matrix of windows, then the workspace of the product."""
    nbytes = _plan(node).bytes
    return [(np.float32, _matrix(_windows(node))), *([(np.uint8, (nbytes,))] if nbytes else [])]


@fast(NAME, "ConvFilterGrad", "out", on="gpu", refuses=_refuses, scratch=_scratch)
def _filter_gradient(xp: Any, node: KernelNode) -> Callable[..., Any]:
    plan, shape = _plan(node), _matrix(_windows(node))
    text = ptx_pooling_codegen.rows(_windows(node), np.float32)
    run, how = kernel_cache.on_gpu(xp.cuda, text), ptx_codegen.flat(math.prod(shape))

    def call(*arrays: Any, room: Any = ()) -> None:
        x, g = (cuda_provider.aligned(xp, array) for array in arrays[:2])
        matrix = room[0] if room else xp.empty(shape, np.float32)
        run(how.grid, how.block, (x, matrix, how.length))
        address, _held = cuda_provider.workspace(xp, plan.bytes, room[1] if len(room) > 1 else None)
        out = cuda_provider.aligned(xp, arrays[-1])
        plan.run(cuda_provider.stream(xp), address, *(a.data.ptr for a in (matrix, g, out)))
        if out is not arrays[-1]:
            xp.copyto(arrays[-1], out)

    return call
