"""Slice kernels: strided and dynamic slices, rows, reverse."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from hpcflow.errors import RangeError, ShapeError
from hpcflow.kernels.cuda_graph_restrictions import READS_VALUES
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.array.dynamic_axis_kernels import listed, normal_axes


def index_of(key: tuple[tuple[Any, ...], ...]) -> tuple[Any, ...]:
    """The index expression of a plain key (see hpcflow.ops.array.index_expression)."""
    kinds: dict[str, Any] = {"rest": lambda: Ellipsis, "new": lambda: None}
    kinds.update(at=lambda i: i, slice=builtins.slice)
    return tuple(kinds[part[0]](*part[1:]) for part in key)


def _index(key: tuple[tuple[Any, ...], ...]) -> Callable[..., tuple[Any, ...]]:
    """The index expression with the values of the scalars that the key refers to."""
    if not any(isinstance(v, tuple) for part in key for v in part):
        fixed = index_of(key)
        return lambda scalars: fixed

    def told(scalars: Any) -> tuple[Any, ...]:
        return index_of(
            tuple(
                tuple(int(scalars[v[1]]) if isinstance(v, tuple) else v for v in part)
                for part in key
            )
        )

    return told


def _get_slice(x: Any, index: tuple[Any, ...]) -> Any:
    try:
        return x[index]
    except IndexError as error:
        raise RangeError(f"an index is outside shape {list(x.shape)}: {error}") from None


@kernel("StridedSlice", "out", moves=True)
def _strided(xp: Any, node: KernelNode) -> Callable[..., Any]:
    index = _index(node.attrs["key"])
    return lambda x, *more: xp.copyto(more[-1], _get_slice(x, index(more)))


@kernel("StridedSliceGrad", "out")
def _strided_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    index = _index(node.attrs["key"])

    def run(g: Any, *more: Any) -> None:
        out = more[-1]
        out.fill(0)
        out[index(more)] = g

    return run


def _window(begin: Any, shape: tuple[int, ...], bounds: tuple[int, ...]) -> tuple[Any, ...]:
    """Slices of `shape` from `begin`.

    Errors: RangeError if they exceed `bounds`.
    """
    starts = begin.tolist()
    if not len(starts) == len(shape) == len(bounds):
        raise ShapeError(
            f"slice: begin {starts} and size {list(shape)} do not fit a tensor of shape "
            f"{list(bounds)}",
            hint="give begin and size one entry for each axis",
        )
    if any(b < 0 or b + n > d for b, n, d in zip(starts, shape, bounds, strict=True)):
        raise RangeError(f"a slice of {list(shape)} from {starts} is outside {list(bounds)}")
    return tuple(slice(b, b + n) for b, n in zip(starts, shape, strict=True))


@kernel("Slice", "out", moves=True, uncaptured=READS_VALUES)
def _slice(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda x, begin, size, out: xp.copyto(out, x[_window(begin, out.shape, x.shape)])


@kernel("SliceGrad", "out", uncaptured=READS_VALUES)
def _slice_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(g: Any, begin: Any, *more: Any) -> None:
        out = more[-1]
        out.fill(0)
        out[_window(begin, g.shape, out.shape)] = g

    return run


@kernel("Rows", "view")
def _rows(xp: Any, node: KernelNode) -> Callable[..., Any]:
    start, stop = node.attrs["start"], node.attrs["stop"]
    return lambda x: x[start:stop]


@kernel("Reverse", "out", moves=True)
def _reverse(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axes = node.attrs["axis"]
    return lambda x, out: xp.copyto(out, xp.flip(x, axes))


@kernel("ReverseTold", "out", moves=True, uncaptured=READS_VALUES)
def _reverse_told(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(x: Any, axes: Any, out: Any) -> None:
        xp.copyto(out, xp.flip(x, tuple(normal_axes(listed(axes), x.ndim))))

    return run
