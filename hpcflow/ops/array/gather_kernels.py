"""Gather kernels: gather, one_hot, and adding rows by index."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import RangeError
from hpcflow.kernels.kernel_registry import KernelNode, kernel

SCATTER_BLOCK = 1 << 18  # elements per block of computed indices


def check_indices(xp: Any, indices: Any, size: int, label: str) -> None:
    """Check that `indices` are in [0, size); on a GPU this synchronizes.

    Errors: RangeError if not.
    """
    if not indices.size:
        return
    if xp is not np:
        if not bool(((indices >= 0) & (indices < size)).all()):
            host = indices if isinstance(indices, np.ndarray) else indices.get()
            check_indices(np, host, size, label)
        return
    indices = np.asarray(indices)
    unsigned = indices.view(f"u{indices.dtype.itemsize}")  # negative becomes large: one comparison
    end = min(size, np.iinfo(indices.dtype).max + 1)  # the dtype may not hold `size`
    if unsigned.max() >= end:
        wrong = indices[unsigned >= end]
        raise RangeError(
            f"{label} {wrong.flat[0]} is outside [0, {size}) ({wrong.size} of {indices.size} are)",
            hint=f"count from 0, and have values for more than {size}, or check the data",
        )


@kernel("Gather", "out", moves=True)
def _gather(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis, batch = node.attrs["axis"], node.attrs.get("batch_dims", 0)

    def run(params: Any, indices: Any, out: Any) -> None:
        check_indices(xp, indices, params.shape[axis], "gather: index")
        if batch:
            _gather_batches(xp, params, indices, out, axis % params.ndim, batch)
        elif xp is not np:
            xp.take(params, indices, axis, out)
        elif params.size:  # mode "raise" would copy through a buffer
            xp.take(params, indices, axis, out=out, mode="clip")

    return run


def _gather_batches(xp: Any, params: Any, indices: Any, out: Any, axis: int, batch: int) -> None:
    shape = params.shape
    groups, middle = math.prod(shape[:batch]), math.prod(shape[batch:axis])
    inner, count = math.prod(shape[axis + 1 :]), math.prod(indices.shape[batch:])
    table = params.reshape(groups, middle, shape[axis], inner)
    first, second = xp.arange(groups)[:, None, None], xp.arange(middle)[None, :, None]
    gathered = table[first, second, indices.reshape(groups, 1, count)]
    xp.copyto(out, gathered.reshape(out.shape))


@kernel("GatherGrad", "out")
def _gather_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis, batch = node.attrs["axis"], node.attrs.get("batch_dims", 0)

    def run(g: Any, indices: Any, *more: Any) -> None:
        out = more[-1]
        out.fill(0)
        if not g.size:
            return
        at = axis % out.ndim
        check_indices(xp, indices, out.shape[at], "gather: index")
        groups, middle = math.prod(out.shape[:batch]), math.prod(out.shape[batch:at])
        inner = math.prod(out.shape[at + 1 :])
        lead = xp.arange(groups * middle).reshape(groups, middle, 1) * out.shape[at]
        rows = lead + indices.reshape(groups, 1, -1)
        add_rows(xp, out.reshape(-1, inner), rows.reshape(-1), g.reshape(-1, inner))

    return run


def add_rows(xp: Any, out: Any, rows: Any, values: Any) -> None:
    """`out[rows[i]] += values[i]` for each i; on a CPU equal rows are added in order."""
    flat, within = out.reshape(-1), xp.arange(out.shape[1])
    step = max(1, SCATTER_BLOCK // max(1, out.shape[1]))
    for i in range(0, len(rows), step):  # add.at is fast for single elements
        places = rows[i : i + step, None] * out.shape[1] + within
        add_at(xp, flat, places.reshape(-1), values[i : i + step].reshape(-1))


def add_at(xp: Any, out: Any, places: Any, values: Any) -> None:
    """`out[places[i]] += values[i]` for each i, along the first axis.

    CuPy adds by atomic operations, in an order that is not fixed, and neither complex numbers nor
    integers of 8 and 16 bits.
    """
    if xp is np or out.dtype.kind not in "ciu":
        xp.add.at(out, places, values)
    elif out.dtype.kind == "c":
        xp.add.at(out.real, places, values.real)
        xp.add.at(out.imag, places, values.imag)
    else:
        total = xp.zeros(out.shape, np.int64)
        xp.add.at(total, places, values.astype(np.int64))
        xp.add(out, total.astype(out.dtype), out)


@kernel("OneHot", "out", moves=True)
def _one_hot(xp: Any, node: KernelNode) -> Callable[..., Any]:
    attrs = node.attrs

    def run(indices: Any, *more: Any) -> None:
        out = more[-1]
        sizes = [1] * out.ndim
        sizes[attrs["axis"]] = out.shape[attrs["axis"]]
        classes = xp.arange(out.shape[attrs["axis"]]).reshape(sizes)
        out.fill(attrs["off_value"])
        hit = xp.equal(xp.expand_dims(indices, attrs["axis"]), classes)
        xp.copyto(out, xp.asarray(attrs["on_value"], out.dtype), where=hit)

    return run
