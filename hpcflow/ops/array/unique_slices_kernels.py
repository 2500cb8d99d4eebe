"""Unique slices kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.kernels.kernel_registry import KernelNode, kernel


@kernel("DistinctSlices", "new")
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
