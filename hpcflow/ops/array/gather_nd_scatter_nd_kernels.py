"""Gather_nd and scatter_nd kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.array.gather_kernels import add_rows
from hpcflow.ops.variables.sparse_row_update_kernels import flat_indices


def _places(xp: Any, indices: Any, table: Any, label: str = "scatter_nd") -> tuple[Any, Any]:
    """The flat slice number of each index vector, and `table` as a matrix of slices.

    Errors: RangeError for an index outside.
    """
    rows, depth = flat_indices(xp, indices, table.shape, label)
    count = math.prod(table.shape[:depth])
    return rows, table.reshape(count, math.prod(table.shape[depth:]))


@kernel("GatherNd", "out", moves=True)
def _gather_nd(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(params: Any, indices: Any, out: Any) -> None:
        rows, table = _places(xp, indices, params, "gather_nd")
        if out.size:
            xp.copyto(out, table[rows].reshape(out.shape))

    return run


@kernel("ScatterNd", "out")
def _scatter_nd(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(indices: Any, updates: Any, *more: Any) -> None:
        out = more[-1]
        out.fill(b"" if out.dtype == object else 0)
        _add(xp, indices, updates, out)

    return run


def _add(xp: Any, indices: Any, updates: Any, out: Any) -> None:
    rows, table = _places(xp, indices, out)
    if updates.size:
        add_rows(xp, table, rows, updates.reshape(-1, table.shape[1]))


@kernel("TensorScatterAdd", "out", inplace=(0,))
def _tensor_scatter_add(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(tensor: Any, indices: Any, updates: Any, out: Any) -> None:
        xp.copyto(out, tensor)
        _add(xp, indices, updates, out)

    return run


@kernel("TensorScatterUpdate", "out", inplace=(0,))
def _tensor_scatter_update(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(tensor: Any, indices: Any, updates: Any, out: Any) -> None:
        xp.copyto(out, tensor)
        rows, table = _places(xp, indices, out)
        if not updates.size:
            return
        last = xp.full(table.shape[0], -1)  # the last of the updates with equal indices
        xp.maximum.at(last, rows, xp.arange(rows.size))
        is_last = last[rows] == xp.arange(rows.size)
        table[rows[is_last]] = updates.reshape(-1, table.shape[1])[is_last]

    return run
