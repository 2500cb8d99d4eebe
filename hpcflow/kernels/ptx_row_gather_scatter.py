"""Generated gather and scatter kernels of rows on GPUs; rows are updated in the order of indices.

The host learns of indices outside of the table when it waits for the GPU next (`WrongIndex`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.codegen import kernel_cache, ptx_codegen, ptx_row_codegen
from hpcflow.codegen.llvm_builder import storage_type_of
from hpcflow.codegen.row_gather_scatter_codegen import INDICES
from hpcflow.kernels import cuda_provider
from hpcflow.kernels.kernel_registry import KernelNode, fast
from hpcflow.ops.variables.sparse_row_update_kernels import UFUNCS, shaped

MAX_COMPARED = 1 << 13  # indices that may be equal: a block for each compares it with all others


def _refuses(node: KernelNode, shape: Any, dtype: np.dtype) -> str:
    indices = node.inputs[1]
    if dtype.hasobject or dtype.itemsize not in (1, 2, 4, 8):
        return f"elements of {dtype}"
    if indices.dtype.name not in INDICES:
        return f"indices of {indices.dtype}"
    if any(s is None or None in s for s in (shape, indices.shape)):
        return "its sizes are known only in the step"
    if not math.prod(shape) or not math.prod(indices.shape):
        return "it is empty"
    return cuda_provider.no_generated_code()


# -- gather


def _refuses_read(node: KernelNode) -> str:
    return _refuses(node, node.attrs["shape"], node.outputs[0].dtype)


def _refuses_gather(node: KernelNode) -> str:
    if node.attrs.get("batch_dims", 0) or node.attrs["axis"] != 0:
        return "it is along another axis than the first"
    return _refuses(node, node.inputs[0].shape, node.outputs[0].dtype)


@fast("llvm", "ReadRows", "out", on="gpu", refuses=_refuses_read, exact=True)
def _read_rows(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return _gather_kernel(xp, node, node.attrs["shape"], "rows: index")


@fast("llvm", "Gather", "out", on="gpu", refuses=_refuses_gather, exact=True)
def _gather(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return _gather_kernel(xp, node, node.inputs[0].shape, "gather: index")


def _gather_kernel(xp: Any, node: KernelNode, shape: Any, label: str) -> Callable[..., Any]:
    rows, width, index = shape[0], math.prod(shape[1:]), node.inputs[1]
    size = math.prod(index.shape) * width
    text = ptx_row_codegen.gather(node.outputs[0].dtype.itemsize, index.dtype.name, rows, width)
    run, how = kernel_cache.on_gpu(xp.cuda, text), ptx_codegen.flat(size)
    wrong = cuda_provider.WrongIndex(xp, label, rows)

    def call(table: Any, indices: Any, out: Any) -> None:
        table, indices = cuda_provider.dense(xp, table, indices)
        run(how.grid, how.block, (table, indices, out, wrong.address, size))

    call.wrong_index = wrong  # type: ignore[attr-defined]
    return call


# -- scatter


def _scatter(kind: str) -> None:
    def distinct(node: KernelNode) -> bool:
        return bool(node.attrs.get("distinct"))

    def refuses(node: KernelNode) -> str:
        dtype = np.dtype(node.attrs["dtype"])
        if storage_type_of(dtype) in (None, "i1") or (kind == "Div" and dtype.kind in "iu"):
            return f"elements of {dtype}"
        why = _refuses(node, node.attrs["shape"], dtype)
        if why or distinct(node) or math.prod(node.inputs[1].shape) <= MAX_COMPARED:
            return why
        return f"more than {MAX_COMPARED} indices, which may be equal"

    @fast("llvm", f"Scatter{kind}", "update", on="gpu", refuses=refuses, exact=True)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        shape, index = node.attrs["shape"], node.inputs[1]
        rows, width, count = shape[0], math.prod(shape[1:]), math.prod(index.shape)
        dtype, scaled = np.dtype(node.attrs["dtype"]), len(node.inputs) > 3
        text = ptx_row_codegen.scatter(
            kind, dtype, index.dtype.name, rows, width, distinct(node), scaled
        )
        assert text is not None
        run = kernel_cache.on_gpu(xp.cuda, text)
        wrong = cuda_provider.WrongIndex(xp, "scatter: index", rows)

        def call(var: Any, indices: Any, updates: Any, *scale: Any) -> None:
            need = (*indices.shape, *shape[1:])
            arrays = cuda_provider.dense(
                xp, indices, shaped(xp, updates, count, width, need), *scale
            )
            block = (ptx_codegen.THREADS, 1)
            run((count, 1), block, (var, *arrays, wrong.address, count))

        call.wrong_index = wrong  # type: ignore[attr-defined]
        return call


for _kind in ("Update", *UFUNCS):
    _scatter(_kind)
