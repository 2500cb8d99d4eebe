"""Reduction kernels, and kernels of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.kernels.kernel_registry import KernelNode, Scratch, kernel

_METHODS = {
    **{"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"},
    **{"logical_or": "any", "logical_and": "all"},
}


def reducer(xp: Any, ufunc: str) -> Callable[..., Any]:
    """`f(x, axis, dtype, out, keepdims)`: NumPy's ufunc.reduce, or CuPy's equivalent."""
    if xp is np:
        return getattr(np, ufunc).reduce
    function = getattr(xp, _METHODS[ufunc])

    def run(x: Any, axis: Any, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any:
        if ufunc == "minimum" and out is not None:  # CuPy 14.2 takes `out` of min for a dtype
            xp.copyto(out, function(x, axis=axis, keepdims=keepdims))
            return out
        return function(x, axis=axis, out=out, keepdims=keepdims)

    return run


def _plain(type: str, ufunc: str) -> None:
    @kernel(type, "out")
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        reduce, axis, keep = reducer(xp, ufunc), node.attrs["axis"], node.attrs["keepdims"]
        return lambda x, out: reduce(x, axis, None, out, keep)


for _type, _ufunc in (("Sum", "add"), ("Prod", "multiply"), ("Any", "logical_or")):
    _plain(_type, _ufunc)
_plain("All", "logical_and")


def _extreme(type: str, ufunc: str, worst: float) -> None:
    @kernel(type, "out")
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        reduce, axis, keep = reducer(xp, ufunc), node.attrs["axis"], node.attrs["keepdims"]
        dtype = node.outputs[0].dtype
        if dtype.kind == "f":
            empty = worst
        else:
            empty = np.iinfo(dtype).min if worst < 0 else np.iinfo(dtype).max

        def run(x: Any, out: Any) -> None:
            if x.size:
                reduce(x, axis, None, out, keep)
            else:
                out.fill(empty)

        return run


_extreme("Max", "maximum", -np.inf)
_extreme("Min", "minimum", np.inf)


@kernel("Mean", "out")
def _mean(xp: Any, node: KernelNode) -> Callable[..., Any]:
    total, axis, keep = reducer(xp, "add"), node.attrs["axis"], node.attrs["keepdims"]
    is_integer = node.outputs[0].dtype.kind in "iu"
    empty = node.attrs.get("empty", 0 if is_integer else np.nan)

    def run(x: Any, out: Any) -> None:
        if not x.size:
            out.fill(empty)
            return
        count = x.size // out.size
        if is_integer:  # summed in 64 bits, as in TensorFlow: small integers would overflow
            wide = xp.uint64 if out.dtype.kind == "u" else xp.int64
            sums = xp.sum(x, axis=axis, dtype=wide, keepdims=keep)
            out[...] = xp.sign(sums) * (xp.abs(sums) // wide(count))
        else:
            total(x, axis, None, out, keep)
            xp.true_divide(out, count, out)

    return run


def by_rows(count: int) -> Scratch:
    """`count` scratch arrays with one element for each row reduced along `axis`."""

    def scratch(node: KernelNode) -> list[tuple[Any, tuple[int, ...]]]:
        x = node.inputs[0]
        return [(x.dtype, kept_shape(x.shape, node.attrs.get("axis", -1)))] * count

    return scratch


def _of_exponentials(node: KernelNode) -> list[tuple[Any, tuple[int, ...]]]:
    x, (row,) = node.inputs[0], by_rows(1)(node)
    return [row, ("bool", row[1]), (x.dtype, x.shape)]


@kernel("LogSumExp", "out", scratch=_of_exponentials)
def _log_sum_exp(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis, keep = node.attrs["axis"], node.attrs["keepdims"]
    largest, total = reducer(xp, "maximum"), reducer(xp, "add")

    def run(x: Any, out: Any, room: Any = (None, None, None)) -> None:
        if not x.size:
            out.fill(-np.inf)
            return
        top = xp.asarray(largest(x, axis, None, room[0], True))
        finite = xp.asarray(xp.isfinite(top, out=room[1]))
        xp.copyto(top, 0, where=xp.logical_not(finite, finite))
        shifted = xp.asarray(xp.subtract(x, top, out=room[2]))
        total(xp.exp(shifted, shifted), axis, None, out, keep)
        xp.log(out, out)
        xp.add(out, top.reshape(out.shape), out)

    return run


# -- gradients


def kept_shape(shape: tuple[int, ...], axis: Any) -> tuple[int, ...]:
    """`shape` with size 1 along `axis`."""
    axes = range(len(shape)) if axis is None else np.atleast_1d(axis) % max(1, len(shape))
    return tuple(1 if i in axes else d for i, d in enumerate(shape))


@kernel("SumGrad", "out")
def _sum_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis = node.attrs["axis"]
    return lambda g, *more: xp.copyto(more[-1], g.reshape(kept_shape(more[-1].shape, axis)))


@kernel("MeanGrad", "out", scratch=lambda node: [(node.inputs[0].dtype, node.inputs[0].shape)])
def _mean_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis = node.attrs["axis"]

    def run(g: Any, *more: Any, room: Any = (None,)) -> None:
        out = more[-1]
        if out.size:
            expanded = kept_shape(out.shape, axis)
            each = xp.true_divide(g, out.size // math.prod(expanded), out=room[0])
            xp.copyto(out, each.reshape(expanded))

    return run


@kernel("ExtremeGrad", "out")
def _extreme_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis, total = node.attrs["axis"], reducer(xp, "add")

    def run(g: Any, x: Any, y: Any, out: Any) -> None:
        if out.size:
            expanded = kept_shape(out.shape, axis)
            xp.copyto(out, xp.equal(x, y.reshape(expanded)))
            count = xp.maximum(total(out, axis, None, None, True), 1)  # 0 only with a NaN
            share = xp.true_divide(g.reshape(expanded), count)
            xp.multiply(out, share, out)

    return run


@kernel("ProdGrad", "out")
def _prod_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis = node.attrs["axis"]

    def run(g: Any, x: Any, out: Any) -> None:
        if not out.size:
            return
        rank = x.ndim
        axes = range(rank) if axis is None else [int(a) % rank for a in np.atleast_1d(axis)]
        order = [i for i in range(rank) if i not in axes] + list(axes)
        turned = x.transpose(order)
        rows = turned.reshape(out.size // math.prod(x.shape[a] for a in axes), -1)
        before, after = xp.ones_like(rows), xp.ones_like(rows)
        before[:, 1:] = xp.cumprod(rows[:, :-1], axis=1)
        after[:, :-1] = xp.cumprod(rows[:, :0:-1], axis=1)[:, ::-1]
        products = (before * after).reshape(turned.shape)
        turned_g = g.reshape(kept_shape(x.shape, axis)).transpose(order)
        xp.multiply(products, turned_g, out.transpose(order))

    return run


# -- argmax and argmin


def _position(type: str, method: str) -> None:
    @kernel(type, "out")
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        axis, function = node.attrs["axis"], getattr(xp, method)
        worst = -np.inf if method == "argmax" else np.inf

        def found(x: Any) -> Any:
            """NumPy returns the first NaN; TensorFlow ignores NaN."""
            at = function(x, axis)
            if x.dtype.kind != "f":
                return at
            if (
                xp is np
                and not np.isnan(np.take_along_axis(x, np.expand_dims(at, axis), axis)).any()
            ):
                return at
            return function(xp.where(xp.isnan(x), x.dtype.type(worst), x), axis)

        return lambda x, out: xp.copyto(out, found(x), casting="unsafe")


_position("ArgMax", "argmax")
_position("ArgMin", "argmin")
