"""Sparse tensor kernels: dense forms, products with dense matrices, sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.errors import RangeError
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.array.gather_kernels import SCATTER_BLOCK, check_indices
from hpcflow.ops.variables.sparse_row_update_kernels import apply, flat_indices


@kernel("SparseToDense", "out")
def _to_dense(xp: Any, node: KernelNode) -> Callable[..., Any]:
    validate = node.attrs["validate"]

    def run(indices: Any, shape: Any, values: Any, default: Any, out: Any) -> None:
        flat, _ = flat_indices(xp, indices, out.shape, "sparse_to_dense")
        if validate and flat.size > 1:
            wrong = xp.flatnonzero(flat[1:] <= flat[:-1])
            if wrong.size:
                at = int(wrong[0]) + 1
                how = "repeated" if int(flat[at]) == int(flat[at - 1]) else "out of order"
                raise RangeError(f"the index {indices[at].tolist()} in row {at} is {how}")
        out[...] = default
        rows = xp.broadcast_to(values, flat.shape)
        apply(xp, "Update", out.reshape(-1, 1), flat, rows.reshape(-1, 1), validate)

    return run


@kernel("SparseTensorDenseMatMul", "out")
def _matmul(xp: Any, node: KernelNode) -> Callable[..., Any]:
    adjoint = node.attrs["adjoint_a"]

    def run(indices: Any, values: Any, shape: Any, b: Any, out: Any) -> None:
        row, column = (indices[:, i] for i in ((1, 0) if adjoint else (0, 1)))
        check_indices(xp, row, out.shape[0], "sparse_tensor_dense_matmul: row")
        check_indices(xp, column, b.shape[0], "sparse_tensor_dense_matmul: column")
        if adjoint and values.dtype.kind == "c":
            values = values.conj()
        out.fill(0)
        step = max(1, SCATTER_BLOCK // max(1, out.shape[1]))
        for i in range(0, values.size, step):
            some = slice(i, i + step)
            products = values[some, None] * b[column[some]]
            apply(xp, "Add", out, row[some], products, False)

    return run


@kernel("SortOrder", "out")
def _sort_order(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(keys: Any, out: Any) -> None:
        out[...] = xp.argsort(keys, kind="stable")

    return run
