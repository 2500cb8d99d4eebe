"""Axes in an order that only the step knows; vectors of axes and sizes lie on the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.kernels.table import Node, kernel


@kernel("TransposeBy", "new")
def _transpose_by(xp: Any, node: Node) -> Callable[..., Any]:
    def run(x: Any, perm: Any) -> Any:
        order = perm.tolist()
        if sorted(order) != list(range(x.ndim)):
            raise ShapeError(f"perm {order} does not name each of {x.ndim} axes once")
        return x.transpose(order).copy()

    return run


@kernel("AxesLast", "new")
def _axes_last(xp: Any, node: Node) -> Callable[..., Any]:
    def run(axes: Any, sizes: Any) -> Any:
        rank, given = sizes.size, axes.reshape(-1).tolist()
        last = [a % rank if -rank <= a < rank else None for a in given]
        if None in last or len(set(last)) < len(last):
            raise ShapeError(f"axes {given} are out of range for rank {rank}, or named twice")
        others = [a for a in range(rank) if a not in last]
        found = sizes.tolist()
        rows = math.prod(found[a] for a in others)
        columns = math.prod(found[a] for a in range(rank) if a in last)
        parts = (
            [*others, *sorted(a for a in last if a is not None)],
            [rows, columns],
            [found[a] for a in others],
            [found[a] if a in others else 1 for a in range(rank)],
        )
        return tuple(xp.asarray(np.array(part, np.int32)) for part in parts)

    return run


@kernel("SizesWith", "new")
def _sizes_with(xp: Any, node: Node) -> Callable[..., Any]:
    def run(sizes: Any, axis: Any, more: Any) -> Any:
        found, rank = sizes.tolist(), sizes.size
        at = int(axis)
        if not -rank <= at < rank:
            raise ShapeError(f"axis {at} is out of range for rank {rank}")
        at %= rank
        return xp.asarray(np.array([*found[:at], *more.tolist(), *found[at + 1 :]], np.int32))

    return run
