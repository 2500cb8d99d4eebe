"""Sparse row update kernels: rows of variables, and sums of rows with equal indices.

Rows with equal indices are applied in order, so that results are deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.kernels.cuda_graph_restrictions import READS_VALUES, SIZE_FROM_VALUES
from hpcflow.kernels.kernel_registry import KernelNode, TiledUpdate, kernel
from hpcflow.ops.array.gather_kernels import SCATTER_BLOCK, check_indices
from hpcflow.ops.math.arithmetic_kernels import truncated

UFUNCS = {
    **{"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide"},
    **{"Min": "minimum", "Max": "maximum"},
}


def runs(xp: Any, indices: Any) -> tuple[Any, Any]:
    """A stable order that sorts `indices`, and the start of each run of equal ones in it."""
    order = xp.argsort(indices, kind="stable")
    there = indices[order]
    first = xp.ones(indices.shape, bool)
    first[1:] = there[1:] != there[:-1]
    return order, first


def levels(xp: Any, indices: Any) -> Iterator[Any]:
    """Groups of positions in `indices` without repeated indices, in order."""
    order, first = runs(xp, indices)
    if bool(first.all()):
        yield order
        return
    starts = xp.flatnonzero(first)
    places = xp.arange(indices.size)
    number = places - starts[xp.cumsum(first) - 1]  # number of earlier equals
    by_level = order[xp.argsort(number, kind="stable")]
    at = 0
    for count in xp.bincount(number).tolist():
        yield by_level[at : at + count]
        at += count


def apply(xp: Any, type: str, table: Any, indices: Any, rows: Any, distinct: bool) -> None:
    """Update the rows `indices` of `table` [size, width] by `rows` [n, width]."""
    for _ in changes(xp, type, table, indices, rows, distinct):
        pass


def changes(
    xp: Any, type: str, table: Any, indices: Any, rows: Any, distinct: bool
) -> Iterator[None]:
    """The same in blocks of rows, as a generator; on a GPU in one block."""
    if not indices.size or not rows.size:
        return
    if type == "Update":
        if not distinct:
            order, first = runs(xp, indices)
            last = xp.ones(indices.shape, bool)
            last[:-1] = first[1:]
            latest = order[last]
            indices, rows = indices[latest], rows[latest]
        for some in _blocks(xp, indices, table):
            table[indices[some]] = rows[some]
            yield
        return
    if type == "Div" and table.dtype.kind in "iu":
        for some in levels(xp, indices):
            at = indices[some]
            table[at] = truncated(xp, table[at], rows[some])
            yield
        return
    ufunc = getattr(xp, UFUNCS[type])
    if distinct:
        for some in _blocks(xp, indices, table):
            at = indices[some]
            table[at] = ufunc(table[at], rows[some])
            yield
    elif xp is np:
        yield from _one_by_one(ufunc, table, indices, rows)
    else:
        for some in levels(xp, indices):
            at = indices[some]
            table[at] = ufunc(table[at], rows[some])


def _blocks(xp: Any, indices: Any, table: Any) -> Iterator[slice]:
    """Blocks of rows."""
    step = max(1, SCATTER_BLOCK // table.shape[1]) if xp is np else indices.size
    for i in range(0, indices.size, step):
        yield slice(i, i + step)


def _one_by_one(ufunc: Any, table: Any, indices: Any, rows: Any) -> Iterator[None]:
    """Single elements in order: the fast path of `ufunc.at`, three times faster than rows."""
    width = table.shape[1]
    flat, within = table.reshape(-1), np.arange(width)
    starts = indices.astype(np.int64) * width
    for some in _blocks(np, indices, table):
        places = starts[some, None] + within
        ufunc.at(flat, places.reshape(-1), rows[some].reshape(-1))
        yield


def shaped(xp: Any, updates: Any, count: int, width: int, need: tuple[int, ...]) -> Any:
    """`updates` as [count, width]; a scalar is broadcast."""
    if updates.shape == ():
        return xp.broadcast_to(updates, (count, width))
    if updates.shape != need:
        raise ShapeError(f"updates have shape {list(updates.shape)}; the indices need {list(need)}")
    return updates.reshape(count, width)


def _scatter(type: str) -> None:
    @kernel(f"Scatter{type}", "update", tiles=True)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        distinct = bool(node.attrs.get("distinct"))

        def tiles(var: Any, indices: Any, updates: Any, *scale: Any) -> Iterator[None]:
            check_indices(xp, indices, var.shape[0], "scatter: index")
            updates = updates * scale[0] if scale else updates
            width = math.prod(var.shape[1:])
            rows = shaped(xp, updates, indices.size, width, (*indices.shape, *var.shape[1:]))
            if width:
                table = var.reshape(var.shape[0], width)
                yield from changes(xp, type, table, indices.reshape(-1), rows, distinct)

        return TiledUpdate(tiles)


def _scatter_nd(type: str) -> None:
    @kernel(f"ScatterNd{type}", "update")
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        def run(var: Any, indices: Any, updates: Any) -> None:
            flat, depth = flat_indices(xp, indices, var.shape)
            outer, width = math.prod(var.shape[:depth]), math.prod(var.shape[depth:])
            need = (*indices.shape[:-1], *var.shape[depth:])
            rows = shaped(xp, updates, flat.size, width, need)
            if width:
                apply(xp, type, var.reshape(outer, width), flat, rows, False)

        return run


def flat_indices(
    xp: Any, indices: Any, shape: tuple[int, ...], op_name: str = "scatter_nd"
) -> tuple[Any, int]:
    """Index vectors [..., k] into the first k axes of `shape` as flat numbers, and k."""
    depth = indices.shape[-1]
    if depth > len(shape):
        raise ShapeError(
            f"index vectors of length {depth} do not fit a tensor of shape {list(shape)}"
        )
    count = math.prod(indices.shape[:-1])
    columns = indices.reshape(count, depth)
    flat = xp.zeros(count, np.int64)
    for axis in range(depth):
        check_indices(xp, columns[:, axis], shape[axis], f"{op_name}: along axis {axis} index")
        flat = flat * shape[axis] + columns[:, axis]
    return flat, depth


for _type in ("Update", *UFUNCS):
    _scatter(_type)
for _type in ("Update", "Add", "Sub"):
    _scatter_nd(_type)


@kernel("ReadRows", "out", moves=True)
def _read_rows(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(var: Any, indices: Any, out: Any) -> None:
        check_indices(xp, indices, var.shape[0], "rows: index")
        if xp is not np:
            xp.take(var, indices, 0, out)
        elif out.size:
            np.take(var, indices, 0, out=out, mode="clip")

    return run


@kernel("SumEqualRows", "new", uncaptured=SIZE_FROM_VALUES)
def _sum_equal_rows(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda values, indices: equal_rows_summed(xp, values, indices)


def check_rows(values: Any, indices: Any) -> None:
    """Check that there is an index for each row. Errors: ShapeError."""
    if values.shape[:1] != indices.shape:
        raise ShapeError(f"{indices.size} indices do not fit rows of shape {list(values.shape)}")


def equal_rows_summed(xp: Any, values: Any, indices: Any) -> tuple[Any, Any, Any]:
    """Unique sorted indices, the sum of the rows of each, and the position of each row's sum."""
    check_rows(values, indices)
    order, first = runs(xp, indices)
    starts = order[first]
    inverse = xp.empty(indices.shape, np.int64)
    inverse[order] = xp.cumsum(first) - 1
    if starts.size == indices.size:
        return values[order], indices[order], inverse
    summed = xp.zeros((int(starts.size), *values.shape[1:]), values.dtype)
    width = math.prod(values.shape[1:])
    if width:
        table, rows = summed.reshape(-1, width), values.reshape(-1, width)
        apply(xp, "Add", table, inverse, rows, False)
    return summed, indices[starts], inverse


@kernel("AddEntries", "out")
def _add_entries(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(indices: Any, values: Any, out: Any) -> None:
        check_indices(xp, indices, out.size, "entries: index")
        out.fill(0)
        apply(xp, "Add", out.reshape(-1, 1), indices, values[:, None], False)

    return run


@kernel("PieceRows", "new", moves=True, uncaptured=READS_VALUES)
def _piece_rows(xp: Any, node: KernelNode) -> Callable[..., Any]:
    start, stop, size = (node.attrs[name] for name in ("start", "stop", "size"))

    def run(indices: Any, *values: Any) -> tuple[Any, ...]:
        check_indices(xp, indices, size, "rows: index")
        flat = indices.reshape(-1)
        at = xp.flatnonzero((flat >= start) & (flat < stop))
        local = (flat[at] - start).astype(indices.dtype)
        if not values:
            return local, at
        rows = values[0].shape[indices.ndim :]
        return local, at, values[0].reshape(flat.size, *rows)[at]

    return run


@kernel("JoinRows", "out", moves=True)
def _join_rows(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(indices: Any, *args: Any) -> None:
        out, pieces = args[-1], len(args) // 2
        rows = out.reshape(indices.size, *out.shape[indices.ndim :])
        for at, values in zip(args[:pieces], args[pieces:-1], strict=True):
            rows[at] = values

    return run
