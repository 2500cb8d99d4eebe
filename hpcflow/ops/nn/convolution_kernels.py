"""Convolution kernels: windows are copied into matrices (im2col), in parts, and multiplied.

Depthwise convolution has no matrix product: it adds up the window elements one after the other,
each for all positions at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.kernels.sliding_window_views import Windows, accumulator_dtype, channels_last, tiles

Part = tuple[slice, slice]  # of the batch, of the first spatial axis
CACHE_BYTES = 1 << 18  # of a part that is traversed for each window element


@kernel("Conv", "out")
def _conv(xp: Any, node: KernelNode) -> Callable[..., Any]:
    attrs = node.attrs
    first, dtype = attrs["first"], accumulator_dtype(node.outputs[0].dtype)

    def run(x: Any, w: Any, out: Any) -> None:
        if not out.size or not w.size:
            out.fill(0)
            return
        x, y, w = channels_last(x, first), channels_last(out, first), w.astype(dtype, copy=False)
        windows = Windows(attrs, x.shape[1:-1], w.shape[:-2], y.shape[1:-1])
        padded, groups = windows.padded(xp, x, 0, dtype), attrs["groups"] or x.shape[-1]
        if groups > 1 and w.shape[-2] == 1:
            _depthwise(xp, windows, padded, w, y)
            return
        matrix = _matrix(w, groups)
        for part, columns in _columns(xp, windows, padded, groups):
            _product(xp, columns, matrix, y[part], groups)

    return run


@kernel("ConvInputGrad", "out")
def _input_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    attrs = node.attrs
    first, dtype = attrs["first"], accumulator_dtype(node.outputs[0].dtype)

    def run(g: Any, w: Any, *more: Any) -> None:
        out = more[-1]
        if not out.size or not g.size:
            out.fill(0)
            return
        g, x, w = channels_last(g, first), channels_last(out, first), w.astype(dtype, copy=False)
        windows = Windows(attrs, x.shape[1:-1], w.shape[:-2], g.shape[1:-1])
        padded = xp.zeros((x.shape[0], *windows.reach, x.shape[-1]), dtype)
        groups = attrs["groups"] or x.shape[-1]
        if groups > 1 and w.shape[-2] == 1:
            _depthwise_input(windows, padded, w, g)
        else:
            _spread(xp, windows, padded, _matrix(w, groups), g, groups)
        windows.back(xp, padded, x)

    return run


@kernel("ConvFilterGrad", "out")
def _filter_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    attrs = node.attrs
    first, dtype = attrs["first"], accumulator_dtype(node.outputs[0].dtype)

    def run(x: Any, g: Any, *more: Any) -> None:
        out = more[-1]
        if not out.size or not g.size:
            out.fill(0)
            return
        x, g = channels_last(x, first), channels_last(g, first)
        windows = Windows(attrs, x.shape[1:-1], out.shape[:-2], g.shape[1:-1])
        padded, groups = windows.padded(xp, x, 0, dtype), attrs["groups"] or x.shape[-1]
        if groups > 1 and out.shape[-2] == 1:
            _depthwise_filter(xp, windows, padded, g, out)
            return
        total: Any = 0
        for part, columns in _columns(xp, windows, padded, groups):
            total = total + xp.matmul(columns.swapaxes(1, 2), _rows(g[part], groups, dtype))
        each = total.reshape(groups, *out.shape[:-1], -1)
        xp.copyto(_grouped(out, groups), xp.moveaxis(each, 0, -2), casting="same_kind")

    return run


# -- matrix products, one per group of channels


def _matrix(w: Any, groups: int) -> Any:
    """The filters [*kernel, channels, filters] as [groups, kernel * channels, filters / groups]."""
    rows = math.prod(w.shape[:-1])
    return w.reshape(rows, groups, -1).transpose(1, 0, 2)


def _grouped(x: Any, groups: int) -> Any:
    """A view of `x` with its last axis divided into groups."""
    return x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)


def _rows(g: Any, groups: int, dtype: Any) -> Any:
    """The values at each position: [groups, positions, channels of a group]."""
    g = g.astype(dtype, copy=False)
    if groups == 1:
        return g.reshape(1, -1, g.shape[-1])
    flat = g.reshape(-1, groups, g.shape[-1] // groups)
    return flat.transpose(1, 0, 2)


def _columns(xp: Any, windows: Windows, padded: Any, groups: int) -> Iterator[tuple[Part, Any]]:
    """The windows as rows of matrices, [groups, positions, kernel * channels], part by part."""
    if windows.plain and groups == 1:
        yield (slice(None), slice(None)), padded.reshape(1, -1, padded.shape[-1])
        return
    view = windows.view(xp, padded, groups)
    lead = 2 + len(windows.out)
    wide_ = math.prod(view.shape[lead:])
    row = groups * math.prod(windows.out[1:]) * wide_
    room = None
    for batch, rows in tiles(padded.shape[0], windows.out[0], row * padded.itemsize):
        piece = view[:, batch, rows]
        if room is None:
            room = xp.empty(piece.size, padded.dtype)  # the first part is the largest
        copy = room[: piece.size].reshape(piece.shape)
        xp.copyto(copy, piece)
        yield (batch, rows), copy.reshape(groups, -1, wide_)


def _product(xp: Any, columns: Any, matrix: Any, y: Any, groups: int) -> None:
    """One part of a convolution, written to `y`: [batch, *out, filters]."""
    if groups == 1 and y.flags.c_contiguous and y.dtype == matrix.dtype:
        xp.matmul(columns[0], matrix[0], out=y.reshape(-1, y.shape[-1]))
        return
    product = xp.matmul(columns, matrix).reshape(groups, *y.shape[:-1], -1)
    xp.copyto(_grouped(y, groups), xp.moveaxis(product, 0, -2), casting="same_kind")


def _spread(xp: Any, windows: Windows, padded: Any, matrix: Any, g: Any, groups: int) -> None:
    """Add the contributions of each position of `g` to its window in the padded input (col2im)."""
    back = matrix.swapaxes(1, 2)
    row = math.prod(windows.out[1:]) * matrix.shape[0] * matrix.shape[1] * padded.itemsize
    target = _grouped(padded, groups)
    for batch, rows in tiles(g.shape[0], windows.out[0], row):
        piece = g[batch, rows]
        columns = xp.matmul(_rows(piece, groups, padded.dtype), back)
        columns = columns.reshape(groups, *piece.shape[:-1], *windows.kernel, -1)
        columns = xp.moveaxis(columns, 0, -2)
        lead = (slice(None),) * (piece.ndim - 1)
        for tap, region in windows.taps(rows):
            at = (*lead, *tap)
            target[batch][region] += columns[at]


# -- depthwise: filters [*kernel, 1, channels * multiplier]


def _depthwise_parts(windows: Windows, padded: Any, y: Any) -> tuple[int, int, Iterator[Part]]:
    """The number of channels, of filters per channel, and the parts of the batch."""
    channels = padded.shape[-1]
    row = math.prod(windows.out[1:]) * y.shape[-1] * padded.itemsize
    count = windows.out[0]
    parts = ((b, r) for b, r in tiles(y.shape[0], count, row, CACHE_BYTES))
    return channels, y.shape[-1] // channels, parts


def _depthwise(xp: Any, windows: Windows, padded: Any, w: Any, y: Any) -> None:
    channels, times, parts = _depthwise_parts(windows, padded, y)
    for batch, rows in parts:
        total: Any = None
        room: Any = None
        for tap, region in windows.taps(rows):
            factor = w[tap].reshape(channels, times)
            x = padded[batch][region][..., None]
            if total is None:
                total = xp.multiply(x, factor)
                room = xp.empty_like(total)
            else:
                xp.multiply(x, factor, room)
                xp.add(total, room, total)
        xp.copyto(y[batch, rows], total.reshape(*total.shape[:-2], -1), casting="same_kind")


def _depthwise_input(windows: Windows, padded: Any, w: Any, g: Any) -> None:
    channels, times, parts = _depthwise_parts(windows, padded, g)
    for batch, rows in parts:
        piece = g[batch, rows].astype(padded.dtype, copy=False)
        piece = piece.reshape(*piece.shape[:-1], channels, times)
        for tap, region in windows.taps(rows):
            product = piece * w[tap].reshape(channels, times)
            padded[batch][region] += product[..., 0] if times == 1 else product.sum(axis=-1)


def _depthwise_filter(xp: Any, windows: Windows, padded: Any, g: Any, out: Any) -> None:
    channels, times, parts = _depthwise_parts(windows, padded, g)
    total = xp.zeros(out.shape, padded.dtype)
    for batch, rows in parts:
        piece = g[batch, rows].astype(padded.dtype, copy=False)
        piece = piece.reshape(*piece.shape[:-1], channels, times)
        ones = xp.ones((1, math.prod(piece.shape[:-2])), padded.dtype)
        product = xp.empty(piece.shape, padded.dtype)
        for tap, region in windows.taps(rows):
            xp.multiply(padded[batch][region][..., None], piece, product)
            total[tap] += xp.matmul(ones, product.reshape(ones.size, -1))
    xp.copyto(out, total, casting="same_kind")
