"""Generated gather and scatter kernels of rows: gather, in-place update, segment reduction.

They are bitwise equal to the plain kernels, row by row in the order of the indices, except segment
sums, which NumPy adds in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hpcflow.codegen import row_gather_scatter_codegen
from hpcflow.codegen.fused_loop_ir import FULL
from hpcflow.codegen.kernel_cache import builtin
from hpcflow.codegen.python_call_abi import as_contiguous
from hpcflow.errors import ShapeError
from hpcflow.kernels.kernel_registry import KernelNode, TiledUpdate, fast
from hpcflow.ops.array.gather_kernels import SCATTER_BLOCK, check_indices
from hpcflow.ops.array.segment_kernels import empty_result
from hpcflow.ops.variables.sparse_row_update_kernels import (
    UFUNCS,
    check_rows,
    equal_rows_summed,
    shaped,
)


def _moves(node: KernelNode) -> str:
    """Why generated code cannot gather rows of the table, the first input; "" if it can."""
    dtype, indices = node.outputs[0].dtype, node.inputs[1].dtype
    if dtype.hasobject or dtype.itemsize not in (1, 2, 4, 8, 16):
        return f"elements of {dtype}"
    return "" if indices.name in row_gather_scatter_codegen.INDICES else f"indices of {indices}"


def _changes(node: KernelNode, dtype: np.dtype) -> str:
    """Why generated code cannot update rows of that dtype; "" if it can."""
    indices = node.inputs[1].dtype
    if dtype.name not in row_gather_scatter_codegen.DTYPES:
        return f"elements of {dtype}"
    return "" if indices.name in row_gather_scatter_codegen.INDICES else f"indices of {indices}"


def _lines(shape: tuple[int | None, ...], itemsize: int) -> int:
    """The cache lines to prefetch of a row of that shape; of unknown size, those of a short one."""
    known = None not in shape
    return row_gather_scatter_codegen.lines_of(math.prod(shape) * itemsize) if known else 4  # type: ignore[arg-type]


# -- gather


@fast("llvm", "ReadRows", "out", on="cpu", refuses=_moves, exact=True)
def _read_rows(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return _make_gather(node, 0, tuple(node.attrs["shape"][1:]), "rows: index")


def _no_gather(node: KernelNode) -> str:
    if node.attrs.get("batch_dims", 0):
        return "indices of each of a batch"
    return "a table of unknown rank" if node.inputs[0].shape is None else _moves(node)


@fast("llvm", "Gather", "out", on="cpu", refuses=_no_gather, exact=True)
def _gather(xp: Any, node: KernelNode) -> Callable[..., Any]:
    shape = node.inputs[0].shape
    axis = node.attrs["axis"] % len(shape)
    return _make_gather(node, axis, shape[axis + 1 :], "gather: index")


def _make_gather(
    node: KernelNode, axis: int, row: tuple[int | None, ...], label: str
) -> Callable[..., Any]:
    size, index = node.outputs[0].dtype.itemsize, node.inputs[1].dtype.name
    take = builtin(row_gather_scatter_codegen.gather_kernel(size, index, axis, _lines(row, size)))

    def run(table: Any, indices: Any, out: Any) -> None:
        if take(as_contiguous(table), as_contiguous(indices), out):
            check_indices(np, indices, table.shape[axis], label)

    return run


# -- scatter


def _scatter(kind: str) -> None:
    def refuses(node: KernelNode) -> str:
        dtype = np.dtype(node.attrs["dtype"])
        if kind == "Div" and dtype.kind in "iu":
            return "integers are divided and cut"
        return _changes(node, dtype)

    @fast("llvm", f"Scatter{kind}", "update", on="cpu", refuses=refuses, tiles=True, exact=True)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        dtype, index = np.dtype(node.attrs["dtype"]), node.inputs[1].dtype.name
        lines = _lines(tuple(node.attrs["shape"][1:]), dtype.itemsize)
        is_scaled = len(node.inputs) > 3
        change = builtin(
            row_gather_scatter_codegen.change(kind, dtype.name, index, 0, lines, scaled=is_scaled)
        )

        def tiles(var: Any, indices: Any, updates: Any, *scale: Any) -> Iterator[None]:
            width = math.prod(var.shape[1:])
            need = (*indices.shape, *var.shape[1:])
            rows = as_contiguous(shaped(np, updates, indices.size, width, need))
            at, factor = as_contiguous(indices).reshape(-1), [as_contiguous(x) for x in scale]
            step = max(1, SCATTER_BLOCK // max(1, width))
            if at.size > step:  # no row is updated if any index is out of range
                check_indices(np, at, var.shape[0], "scatter: index")
            for i in range(0, at.size, step):
                if change(var, at[i : i + step], rows[i : i + step], *factor):
                    check_indices(np, at, var.shape[0], "scatter: index")
                yield

        return TiledUpdate(tiles)


for _how in ("Update", *UFUNCS):
    _scatter(_how)


# -- reductions


def _no_grad(node: KernelNode) -> str:
    if node.attrs.get("batch_dims", 0):
        return "indices of each of a batch"
    if node.outputs[0].shape is None:
        return "a table of unknown rank"
    return _changes(node, node.outputs[0].dtype)


@fast("llvm", "GatherGrad", "out", on="cpu", refuses=_no_grad, exact=True)
def _gather_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    dtype, shape = node.outputs[0].dtype, node.outputs[0].shape
    axis = node.attrs["axis"] % len(shape)
    lines = _lines(shape[axis + 1 :], dtype.itemsize)
    add = builtin(
        row_gather_scatter_codegen.change("Add", dtype.name, node.inputs[1].dtype.name, axis, lines)
    )

    def run(g: Any, indices: Any, *more: Any) -> None:
        out = more[-1]
        out.fill(0)
        g = g.reshape((*out.shape[:axis], *indices.shape, *out.shape[axis + 1 :]))
        if add(out, as_contiguous(indices), as_contiguous(g)):
            check_indices(np, indices, out.shape[axis], "gather: index")

    return run


def _segments(kind: str, update_kind: str) -> None:
    def refuses(node: KernelNode) -> str:
        if node.inputs[1].shape is None:
            return "indices of unknown rank"
        return _changes(node, node.outputs[0].dtype)

    exact = update_kind != "Add"

    @fast("llvm", f"UnsortedSegment{kind}", "out", on="cpu", refuses=refuses, exact=exact)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        dtype, shape = node.outputs[0].dtype, node.outputs[0].shape
        lines = _lines((None,) if shape is None else shape[1:], dtype.itemsize)
        text = row_gather_scatter_codegen.change(
            update_kind, dtype.name, node.inputs[1].dtype.name, 0, lines, skips=True
        )
        change = builtin(text)
        empty = node.attrs.get("empty", empty_result(UFUNCS[update_kind], dtype))

        def run(data: Any, ids: Any, num: Any, out: Any) -> None:
            out.fill(empty)  # of Max and Min it is finite: the result for infinities alone, too
            data = data.reshape((*ids.shape, *out.shape[1:]))
            if change(out, as_contiguous(ids), as_contiguous(data)):
                check_indices(np, ids[ids >= 0], out.shape[0], "segment number")

        return run


for _kind, _update in (("Sum", "Add"), ("Prod", "Mul"), ("Max", "Max"), ("Min", "Min")):
    _segments(_kind, _update)


def _no_sum(node: KernelNode) -> str:
    return _changes(node, node.inputs[0].dtype)


@fast("llvm", "SumEqualRows", "new", on="cpu", refuses=_no_sum, exact=True)
def _sum_equal_rows(xp: Any, node: KernelNode) -> Callable[..., Any]:
    values, index = node.inputs[0], node.inputs[1].dtype.name
    lines = _lines((None,) if values.shape is None else values.shape[1:], values.dtype.itemsize)
    grouped = builtin(row_gather_scatter_codegen.group(index))
    add = builtin(row_gather_scatter_codegen.change("Add", values.dtype.name, "int64", 0, lines))
    take = builtin(
        row_gather_scatter_codegen.gather_kernel(values.dtype.itemsize, "int64", 0, lines)
    )

    def run(values: Any, indices: Any) -> tuple[Any, Any, Any]:
        check_rows(values, indices)
        keys = sort_keys(indices)
        if keys is None:
            return equal_rows_summed(np, values, indices)
        unique, inverse = np.empty_like(indices), np.empty(indices.shape, np.int64)
        grouped(keys, unique, inverse)
        count = int(inverse[keys[-1] & LOW]) + 1
        if count == indices.size:
            summed = np.empty(values.shape, values.dtype)
            take(as_contiguous(values), keys & LOW, summed)
        else:
            summed = np.zeros((count, *values.shape[1:]), values.dtype)
            add(summed, inverse, as_contiguous(values))
        return summed, unique[:count], inverse

    return run


LOW = (1 << 32) - 1


def sort_keys(indices: np.ndarray) -> np.ndarray | None:
    """The sorted keys: index and, in the lower 32 bits, position; None if these need more bits."""
    if not indices.size or indices.size > LOW or indices.min() < 0 or indices.max() > LOW >> 1:
        return None
    keys = indices.astype(np.int64)
    keys <<= 32
    keys |= np.arange(indices.size)
    keys.sort()
    return keys


# -- formulas


def _formula(tables: int) -> None:
    @fast("llvm", f"UpdateRows{tables}", "update", on="cpu", exact=True)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        body = node.attrs["body"]
        change = builtin(node.attrs["text"])
        full = [
            tables + 1 + k for k, operand in enumerate(body.operands) if operand.mapping == FULL
        ]

        def run(*arrays: Any) -> None:
            buffers = [*arrays[:tables], *map(as_contiguous, arrays[tables:])]
            first, indices = buffers[0], buffers[tables]
            for i in full:
                if buffers[i].shape != (*indices.shape, *first.shape[1:]):
                    raise ShapeError(
                        f"updates have shape {list(buffers[i].shape)}; the indices need "
                        f"{[*indices.shape, *first.shape[1:]]}"
                    )
            if change(*buffers):
                check_indices(np, indices, first.shape[0], "scatter: index")

        return run


for _tables in range(1, 7):
    _formula(_tables)
