"""Kernels that take tensors apart and put them together."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import RangeError
from hpcflow.kernels.table import Node, kernel

SCATTER_BLOCK = 1 << 18  # elements whose places are computed at a time


def check_indices(xp: Any, indices: Any, size: int, what: str) -> None:
    """RangeError unless `indices` lie in [0, size); a GPU is waited for, but nothing wraps."""
    if not indices.size:
        return
    if xp is not np:
        if not bool(((indices >= 0) & (indices < size)).all()):
            host = indices if isinstance(indices, np.ndarray) else indices.get()
            check_indices(np, host, size, what)
        return
    indices = np.asarray(indices)
    unsigned = indices.view(f"u{indices.dtype.itemsize}")  # negative ones become large: one pass
    if unsigned.max() >= size:
        wrong = indices[unsigned >= size]
        raise RangeError(
            f"{what} {wrong.flat[0]} is outside [0, {size}) ({wrong.size} of {indices.size} are)"
        )


def index_of(key: tuple[tuple[Any, ...], ...]) -> tuple[Any, ...]:
    """The index expression of a plain key (see hpcflow.ops.slicing)."""
    kinds: dict[str, Any] = {"rest": lambda: Ellipsis, "new": lambda: None}
    kinds.update(at=lambda i: i, slice=builtins.slice)
    return tuple(kinds[part[0]](*part[1:]) for part in key)


@kernel("StridedSlice", "out")
def _strided(xp: Any, node: Node) -> Callable[..., Any]:
    index = index_of(node.attrs["key"])
    return lambda x, out: xp.copyto(out, x[index])


@kernel("StridedSliceGrad", "out")
def _strided_grad(xp: Any, node: Node) -> Callable[..., Any]:
    index = index_of(node.attrs["key"])

    def run(g: Any, *more: Any) -> None:
        out = more[-1]
        out.fill(0)
        out[index] = g

    return run


def _window(begin: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(slice(b, b + n) for b, n in zip(begin.tolist(), shape, strict=True))


@kernel("Slice", "out")
def _slice(xp: Any, node: Node) -> Callable[..., Any]:
    return lambda x, begin, size, out: xp.copyto(out, x[_window(begin, out.shape)])


@kernel("SliceGrad", "out")
def _slice_grad(xp: Any, node: Node) -> Callable[..., Any]:
    def run(g: Any, begin: Any, shape: Any, out: Any) -> None:
        out.fill(0)
        out[_window(begin, g.shape)] = g

    return run


# -- gather and one_hot


@kernel("Gather", "out")
def _gather(xp: Any, node: Node) -> Callable[..., Any]:
    axis = node.attrs["axis"]

    def run(params: Any, indices: Any, out: Any) -> None:
        check_indices(xp, indices, params.shape[axis], "gather: index")
        if xp is not np:
            xp.take(params, indices, axis, out)
        elif params.size:  # the mode that raises would copy through a buffer
            xp.take(params, indices, axis, out=out, mode="clip")

    return run


@kernel("GatherGrad", "out")
def _gather_grad(xp: Any, node: Node) -> Callable[..., Any]:
    axis = node.attrs["axis"]

    def run(g: Any, indices: Any, *more: Any) -> None:
        out = more[-1]
        out.fill(0)
        if not g.size:
            return
        at = axis % out.ndim
        check_indices(xp, indices, out.shape[at], "rows: index")
        outer, inner = math.prod(out.shape[:at]), math.prod(out.shape[at + 1 :])
        rows = g.reshape(outer, indices.size, inner)
        starts = xp.arange(outer)[:, None, None] * out.shape[at] + indices.reshape(-1)[:, None]
        step = max(1, SCATTER_BLOCK // (outer * inner))
        for i in range(0, indices.size, step):  # one element at a time is add.at's fast path
            places = starts[:, i : i + step] * inner + xp.arange(inner)
            xp.add.at(out.reshape(-1), places.reshape(-1), rows[:, i : i + step].reshape(-1))

    return run


@kernel("OneHot", "out")
def _one_hot(xp: Any, node: Node) -> Callable[..., Any]:
    attrs, rank = node.attrs, len(node.outputs[0].shape)
    axis = attrs["axis"] % rank
    sizes = [1] * rank
    sizes[axis] = attrs["depth"]
    classes = xp.arange(attrs["depth"]).reshape(sizes)

    def run(indices: Any, out: Any) -> None:
        out.fill(attrs["off_value"])
        hit = xp.equal(xp.expand_dims(indices, axis), classes)
        xp.copyto(out, xp.asarray(attrs["on_value"], out.dtype), where=hit)

    return run


# -- joining and parting


@kernel("Concat", "out")
def _concat(xp: Any, node: Node) -> Callable[..., Any]:
    axis = node.attrs["axis"]
    return lambda *args: xp.concatenate(args[:-1], axis, args[-1])


def _along(axis: int, rank: int, what: Any) -> tuple[Any, ...]:
    return (slice(None),) * (axis % rank) + (what,)


@kernel("Split", "out")
def _split(xp: Any, node: Node) -> Callable[..., Any]:
    axis, parts = node.attrs["axis"], len(node.outputs)

    def run(x: Any, *more: Any) -> None:
        start = 0
        for out in more[-parts:]:
            stop = start + out.shape[axis]
            xp.copyto(out, x[_along(axis, x.ndim, slice(start, stop))])
            start = stop

    return run


@kernel("Pack", "out")
def _pack(xp: Any, node: Node) -> Callable[..., Any]:
    axis = node.attrs["axis"]

    def run(*args: Any) -> None:
        out = args[-1]
        for i, x in enumerate(args[:-1]):
            out[_along(axis, out.ndim, i)] = x

    return run


@kernel("Unpack", "out")
def _unpack(xp: Any, node: Node) -> Callable[..., Any]:
    axis = node.attrs["axis"]

    def run(x: Any, *outs: Any) -> None:
        for i, out in enumerate(outs):
            xp.copyto(out, x[_along(axis, x.ndim, i)])

    return run


@kernel("Pad", "out")
def _pad(xp: Any, node: Node) -> Callable[..., Any]:
    before = [a for a, _ in node.attrs["paddings"]]
    value = node.attrs["value"]

    def run(x: Any, out: Any) -> None:
        out.fill(value)
        out[tuple(slice(a, a + n) for a, n in zip(before, x.shape, strict=True))] = x

    return run


def _tiles(shape: tuple[int, ...], times: tuple[int, ...]) -> list[int]:
    return [n for pair in zip(times, shape, strict=True) for n in pair]


@kernel("Tile", "out")
def _tile(xp: Any, node: Node) -> Callable[..., Any]:
    times = node.attrs["multiples"]

    def run(x: Any, out: Any) -> None:
        once = x.reshape(_tiles(x.shape, (1,) * x.ndim))
        xp.copyto(out.reshape(_tiles(x.shape, times)), once)

    return run


@kernel("TileGrad", "out")
def _tile_grad(xp: Any, node: Node) -> Callable[..., Any]:
    times = node.attrs["multiples"]

    def run(g: Any, out: Any) -> None:
        axes = tuple(range(0, 2 * len(times), 2))
        g.reshape(_tiles(out.shape, times)).sum(axes, out=out)

    return run
