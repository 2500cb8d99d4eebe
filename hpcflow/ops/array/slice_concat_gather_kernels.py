"""Slice, concat and gather kernels."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import RangeError, ShapeError
from hpcflow.kernels.kernel_registry import KernelNode, kernel

SCATTER_BLOCK = 1 << 18  # elements per block of computed indices


def check_indices(xp: Any, indices: Any, size: int, what: str) -> None:
    """Check that `indices` are in [0, size); on a GPU this synchronizes.

    Errors: RangeError if not.
    """
    if not indices.size:
        return
    if xp is not np:
        if not bool(((indices >= 0) & (indices < size)).all()):
            host = indices if isinstance(indices, np.ndarray) else indices.get()
            check_indices(np, host, size, what)
        return
    indices = np.asarray(indices)
    unsigned = indices.view(f"u{indices.dtype.itemsize}")  # negative becomes large: one comparison
    end = min(size, np.iinfo(indices.dtype).max + 1)  # the dtype may not hold `size`
    if unsigned.max() >= end:
        wrong = indices[unsigned >= end]
        raise RangeError(
            f"{what} {wrong.flat[0]} is outside [0, {size}) ({wrong.size} of {indices.size} are)"
        )


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


def _taken(x: Any, index: tuple[Any, ...]) -> Any:
    try:
        return x[index]
    except IndexError as error:
        raise RangeError(f"an index is outside shape {list(x.shape)}: {error}") from None


@kernel("StridedSlice", "out", moves=True)
def _strided(xp: Any, node: KernelNode) -> Callable[..., Any]:
    index = _index(node.attrs["key"])
    return lambda x, *more: xp.copyto(more[-1], _taken(x, index(more)))


@kernel("StridedSliceGrad", "out")
def _strided_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    index = _index(node.attrs["key"])

    def run(g: Any, *more: Any) -> None:
        out = more[-1]
        out.fill(0)
        out[index(more)] = g

    return run


def _window(begin: Any, shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[Any, ...]:
    """Slices of `shape` from `begin`.

    Errors: RangeError if they exceed `whole`.
    """
    starts = begin.tolist()
    if not len(starts) == len(shape) == len(whole):
        raise ShapeError(
            f"slice: begin {starts} and size {list(shape)} do not fit a tensor of shape "
            f"{list(whole)}",
            hint="give begin and size one entry for each axis",
        )
    if any(b < 0 or b + n > d for b, n, d in zip(starts, shape, whole, strict=True)):
        raise RangeError(f"a slice of {list(shape)} from {starts} is outside {list(whole)}")
    return tuple(slice(b, b + n) for b, n in zip(starts, shape, strict=True))


@kernel("Slice", "out", moves=True)
def _slice(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda x, begin, size, out: xp.copyto(out, x[_window(begin, out.shape, x.shape)])


@kernel("SliceGrad", "out")
def _slice_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(g: Any, begin: Any, shape: Any, out: Any) -> None:
        out.fill(0)
        out[_window(begin, g.shape, out.shape)] = g

    return run


# -- gather and one_hot


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
    whole = params.reshape(groups, middle, shape[axis], inner)
    first, second = xp.arange(groups)[:, None, None], xp.arange(middle)[None, :, None]
    taken = whole[first, second, indices.reshape(groups, 1, count)]
    xp.copyto(out, taken.reshape(out.shape))


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


# -- concatenation and split


@kernel("Concat", "out", moves=True)
def _concat(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis = node.attrs["axis"]
    return lambda *args: xp.concatenate(args[:-1], axis, args[-1])


def _along(axis: int, rank: int, what: Any) -> tuple[Any, ...]:
    return (slice(None),) * (axis % rank) + (what,)


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
            out[_along(axis, out.ndim, i)] = x

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
