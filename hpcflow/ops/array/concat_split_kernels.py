"""Concat and split kernels: concat, split, pack, unpack, pad, tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.kernels.kernel_registry import KernelNode, kernel


@kernel("Concat", "out", moves=True)
def _concat(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis = node.attrs["axis"]
    return lambda *args: xp.concatenate(args[:-1], axis, args[-1])


def _along(axis: int, rank: int, index: Any) -> tuple[Any, ...]:
    return (slice(None),) * (axis % rank) + (index,)


@kernel("Split", "out", moves=True)
def _split(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis, parts = node.attrs["axis"], len(node.outputs)

    def run(x: Any, *more: Any) -> None:
        start = 0
        for out in more[-parts:]:
            stop = start + out.shape[axis]
            xp.copyto(out, x[_along(axis, x.ndim, slice(start, stop))])
            start = stop

    return run


@kernel("Pack", "out", moves=True)
def _pack(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis = node.attrs["axis"]

    def run(*args: Any) -> None:
        out = args[-1]
        for i, x in enumerate(args[:-1]):
            # The ellipsis: a scalar of dtype object is copied, not put there as an array.
            place = (*_along(axis, out.ndim, i), ...)
            out[place] = x

    return run


@kernel("Unpack", "out", moves=True)
def _unpack(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis = node.attrs["axis"]

    def run(x: Any, *outs: Any) -> None:
        for i, out in enumerate(outs):
            xp.copyto(out, x[_along(axis, x.ndim, i)])

    return run


@kernel("Pad", "out", moves=True)
def _pad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    paddings, value = node.attrs["paddings"], node.attrs["value"]

    def run(x: Any, *more: Any) -> None:
        out = more[-1]
        pairs = paddings if len(more) == 1 else more[0].reshape(-1, 2).tolist()
        out.fill(value)
        out[tuple(slice(a, a + n) for (a, _), n in zip(pairs, x.shape, strict=True))] = x

    return run


def _tiles(shape: tuple[int, ...], times: tuple[int, ...]) -> list[int]:
    return [n for pair in zip(times, shape, strict=True) for n in pair]


@kernel("Tile", "out", moves=True)
def _tile(xp: Any, node: KernelNode) -> Callable[..., Any]:
    times = node.attrs["multiples"]

    def run(x: Any, out: Any) -> None:
        once = x.reshape(_tiles(x.shape, (1,) * x.ndim))
        xp.copyto(out.reshape(_tiles(x.shape, times)), once)

    return run


@kernel("TileGrad", "out")
def _tile_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    times = node.attrs["multiples"]

    def run(g: Any, out: Any) -> None:
        axes = tuple(range(0, 2 * len(times), 2))
        g.reshape(_tiles(out.shape, times)).sum(axes, out=out)

    return run
