"""Where and unique kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import RangeError
from hpcflow.kernels.cuda_graph_restrictions import READS_VALUES, SIZE_FROM_VALUES
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.array.gather_kernels import check_indices


@kernel("Where", "new", uncaptured=SIZE_FROM_VALUES)
def _where(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(condition: Any) -> Any:
        if condition.ndim == 0:
            return xp.zeros((int(condition), 0), np.int64)
        return xp.stack(xp.nonzero(condition), -1).astype(np.int64, copy=False)

    return run


@kernel("FirstInRow", "out")
def _first(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(x: Any, out: Any) -> None:
        order = xp.argsort(x, -1, kind="stable")
        ordered = xp.take_along_axis(x, order, -1)
        first = xp.ones(x.shape, bool)
        first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
        out[...] = xp.take_along_axis(first, xp.argsort(order, -1), -1)

    return run


@kernel("Unique", "new", uncaptured=SIZE_FROM_VALUES)
def _unique(xp: Any, node: KernelNode) -> Callable[..., Any]:
    dtype = node.attrs["dtype"]

    def run(x: Any) -> Any:
        values, first, inverse, counts = xp.unique(
            x, return_index=True, return_inverse=True, return_counts=True
        )
        order = xp.argsort(first)  # in order of first occurrence
        place = xp.empty(order.shape, dtype)
        place[order] = xp.arange(order.size, dtype=dtype)
        outputs = values[order], place[inverse.reshape(-1)]
        return (*outputs, counts[order].astype(dtype)) if node.attrs["counts"] else outputs

    return run


@kernel("ListDiff", "new", uncaptured=SIZE_FROM_VALUES)
def _list_diff(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(x: Any, y: Any) -> Any:
        places = xp.flatnonzero(xp.logical_not(xp.isin(x, y)))
        return x[places], places.astype(node.attrs["dtype"])

    return run


@kernel("InvertPermutation", "out", uncaptured=READS_VALUES)
def _invert(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(x: Any, out: Any) -> None:
        check_indices(xp, x, x.size, "invert_permutation: element")
        counts = xp.bincount(x.astype(np.int64), minlength=x.size)
        if x.size and int(counts.max()) > 1:
            twice = int(xp.argmax(counts))
            raise RangeError(f"invert_permutation: {twice} occurs {int(counts[twice])} times")
        out[x] = xp.arange(x.size, dtype=out.dtype)

    return run


@kernel("SearchSorted", "out")
def _search(xp: Any, node: KernelNode) -> Callable[..., Any]:
    side = "right" if node.attrs["right"] else "left"

    def run(row: Any, values: Any, out: Any) -> None:
        count = math.prod(row.shape[:-1])
        rows = row.reshape(count, row.shape[-1])
        queries, places = (x.reshape(count, x.shape[-1]) for x in (values, out))
        for i in range(count):
            places[i] = xp.searchsorted(rows[i], queries[i], side)

    return run


@kernel("DistinctSlices", "new", uncaptured=SIZE_FROM_VALUES)
def _distinct(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis, in_order = node.attrs["axis"], node.attrs["sorted"]

    def run(x: Any) -> Any:
        rows = xp.moveaxis(x, axis, 0)
        flat = rows.reshape(len(rows), -1) if rows.size else rows.reshape(len(rows), 0)
        order = xp.lexsort(flat.T[::-1]) if flat.shape[1] else xp.arange(len(rows))
        same = (flat[order][1:] == flat[order][:-1]).all(1)
        starts = xp.concatenate((xp.ones(min(len(rows), 1), bool), ~same))
        group = xp.cumsum(starts) - 1  # group number of each sorted slice
        which = xp.empty(len(rows), np.int64)
        which[order] = group
        first = order[starts].astype(np.int64)  # lexsort keeps the order of equal slices
        if not in_order:
            places = xp.argsort(first)
            rank = xp.empty_like(places)
            rank[places] = xp.arange(len(places))
            first, which = first[places], rank[which]
        count = xp.bincount(which, minlength=len(first)).astype(np.int64)
        return xp.moveaxis(rows[first], 0, axis), first, which.astype(np.int64), count

    return run
