"""Pooling kernels: each window element in turn, for many windows at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.kernels.sliding_window_views import Windows, accumulator_dtype, channels_last, tiles

CACHE_BYTES = 1 << 18  # of outputs that are traversed for each window element
Part = tuple[slice, slice]  # of the batch, of the first spatial axis


def _lowest(dtype: Any) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _windows(node: KernelNode, x: Any, y: Any) -> tuple[Windows, Any, Any]:
    """The windows, and both arrays with channels last."""
    a, b = (channels_last(t, node.attrs["first"]) for t in (x, y))
    return Windows(node.attrs, a.shape[1:-1], node.attrs["window"], b.shape[1:-1]), a, b


def _parts(windows: Windows, y: Any) -> Iterator[Part]:
    row = math.prod(windows.out[1:]) * y.shape[-1] * y.itemsize
    return tiles(y.shape[0], windows.out[0], row, CACHE_BYTES)


@kernel("MaxPool", "out")
def _max_pool(xp: Any, node: KernelNode) -> Callable[..., Any]:
    first = node.attrs["first"]

    def run(x: Any, out: Any) -> None:
        if not out.size:
            return
        windows, x, out = _windows(node, x, out)
        padded = windows.padded(xp, x, _lowest(x.dtype), x.dtype, first)
        for batch, rows in _parts(windows, out):
            best, here = out[batch, rows], padded[batch]
            for i, (_, region) in enumerate(windows.taps(rows)):
                if i:
                    xp.maximum(best, here[region], out=best)
                else:
                    xp.copyto(best, here[region])

    return run


@kernel("MaxPoolWithArgmax", "out")
def _max_pool_with_argmax(xp: Any, node: KernelNode) -> Callable[..., Any]:
    first, batched = node.attrs["first"], node.attrs["include_batch"]

    def run(x: Any, out: Any, places: Any) -> None:
        if not out.size:
            return
        windows, x, out = _windows(node, x, out)
        places = channels_last(places, first)
        padded = windows.padded(xp, x, _lowest(x.dtype), x.dtype, first)
        for batch, rows in _parts(windows, out):
            best, place, here = out[batch, rows], places[batch, rows], padded[batch]
            best.fill(_lowest(x.dtype))
            place.fill(-1)
            for tap, region in windows.taps(rows):
                value, valid = here[region], windows.valid(xp, tap, rows)
                better = xp.logical_or(xp.greater(value, best), xp.less(place, 0))
                if value.dtype.kind == "f":  # NaN is the largest, as in maximum
                    nan = xp.logical_and(xp.isnan(value), xp.logical_not(xp.isnan(best)))
                    better = xp.logical_or(better, nan)
                if valid is not None:
                    better = xp.logical_and(better, valid)
                xp.copyto(best, xp.where(better, value, best))
                xp.copyto(place, xp.where(better, _flat(xp, windows, x, tap, rows, first), place))
        if batched:
            starts = xp.arange(x.shape[0]) * math.prod(x.shape[1:])
            places += starts.reshape(-1, *(1,) * (places.ndim - 1)).astype(places.dtype)

    return run


def _flat(xp: Any, windows: Windows, x: Any, tap: Any, rows: slice, first: bool) -> Any:
    """The flat index in its sample of a window element: [*out, channels]."""
    total = 0
    for size, at in zip(windows.space, windows.places(xp, tap, rows), strict=True):
        total = total * size + at
    channels = xp.arange(x.shape[-1])
    if first:
        return total + channels * math.prod(windows.space)
    return total * x.shape[-1] + channels


def _hits(xp: Any, windows: Windows, x: Any, y: Any, rows: slice) -> Iterator[tuple[Any, Any]]:
    """Where each window element is the first maximum."""
    claimed = xp.zeros(y.shape, bool)
    for tap, region in windows.taps(rows):
        hit = xp.equal(x[region], y)
        valid = windows.valid(xp, tap, rows)
        if valid is not None:
            hit = xp.logical_and(hit, valid)
        hit = xp.greater(hit, claimed)
        claimed = xp.logical_or(claimed, hit)
        yield region, hit


@kernel("MaxPoolGrad", "out")
def _max_pool_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    first = node.attrs["first"]

    def run(x: Any, y: Any, g: Any, out: Any) -> None:
        if not y.size:
            out.fill(0)
            return
        windows, x, y = _windows(node, x, y)
        g, out = channels_last(g, first), channels_last(out, first)
        padded = windows.padded(xp, x, _lowest(x.dtype), x.dtype, first)
        back, zero = windows.empty(xp, x, x.dtype, first), xp.zeros((), x.dtype)
        back.fill(0)
        for batch, rows in _parts(windows, y):
            piece, target = g[batch, rows], back[batch]
            for region, hit in _hits(xp, windows, padded[batch], y[batch, rows], rows):
                target[region] += xp.where(hit, piece, zero)
        windows.back(xp, back, out)

    return run


@kernel("MaxPoolGradGrad", "out")
def _max_pool_grad_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    first = node.attrs["first"]

    def run(x: Any, y: Any, gg: Any, out: Any) -> None:
        out.fill(0)
        if not out.size:
            return
        windows, x, y = _windows(node, x, y)
        gg, out = channels_last(gg, first), channels_last(out, first)
        padded = windows.padded(xp, x, _lowest(x.dtype), x.dtype, first)
        there, zero = windows.padded(xp, gg, 0, gg.dtype, first), xp.zeros((), gg.dtype)
        for batch, rows in _parts(windows, y):
            for region, hit in _hits(xp, windows, padded[batch], y[batch, rows], rows):
                out[batch, rows] += xp.where(hit, there[batch][region], zero)

    return run


def _divisor(xp: Any, node: KernelNode, windows: Windows, dtype: Any) -> Any:
    if node.attrs["count_include_pad"]:
        return xp.asarray(math.prod(windows.kernel), dtype)
    return windows.counts(xp, dtype)


@kernel("AvgPool", "out")
def _avg_pool(xp: Any, node: KernelNode) -> Callable[..., Any]:
    first, dtype = node.attrs["first"], accumulator_dtype(node.outputs[0].dtype)

    def run(x: Any, out: Any) -> None:
        if not out.size:
            return
        windows, x, out = _windows(node, x, out)
        padded = windows.padded(xp, x, 0, dtype, first)
        divisor = _divisor(xp, node, windows, dtype)
        for batch, rows in _parts(windows, out):
            here, total = padded[batch], None
            for _, region in windows.taps(rows):
                total = here[region].copy() if total is None else xp.add(total, here[region], total)
            share = divisor[rows] if divisor.ndim else divisor
            xp.copyto(out[batch, rows], xp.true_divide(total, share), casting="same_kind")

    return run


@kernel("AvgPoolGrad", "out")
def _avg_pool_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    first, dtype = node.attrs["first"], accumulator_dtype(node.outputs[0].dtype)

    def run(g: Any, *more: Any) -> None:
        if not g.size:
            more[-1].fill(0)
            return
        windows, out, g = _windows(node, more[-1], g)
        shares = xp.true_divide(g, _divisor(xp, node, windows, dtype))
        back = windows.empty(xp, out, dtype, first)
        back.fill(0)
        for batch, rows in _parts(windows, g):
            piece, target = shares[batch, rows], back[batch]
            for _, region in windows.taps(rows):
                target[region] += piece
        windows.back(xp, back, out)

    return run
