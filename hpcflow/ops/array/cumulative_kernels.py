"""Cumulative op kernels: cumulative sums and products, top_k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.kernels.kernel_registry import KernelNode, kernel


def _along(node: KernelNode, x: Any, out: Any) -> tuple[Any, Any]:
    """Views with the scan axis first and in forward direction."""
    x, out = (_first(t, node.attrs["axis"]) for t in (x, out))
    return (x[::-1], out[::-1]) if node.attrs["reverse"] else (x, out)


def _first(x: Any, axis: int) -> Any:
    """`x` with `axis` first; for arrays of NumPy and CuPy."""
    order = [axis % x.ndim, *(i for i in range(x.ndim) if i != axis % x.ndim)]
    return x.transpose(order)


def _scan(type: str, scan: Callable[[Any, Any], Any], start: float) -> None:
    """The kernel of `scan(xp, x)`, a cumulative function along the first axis."""

    @kernel(type, "out")
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        exclusive = node.attrs["exclusive"]

        def run(x: Any, out: Any) -> None:
            if not out.size:
                return
            x, out = _along(node, x, out)
            if exclusive:
                out[:1] = start
                if len(x) > 1:
                    out[1:] = scan(xp, x[:-1])
            else:
                xp.copyto(out, scan(xp, x))

        return run


def _log_sums(xp: Any, x: Any) -> Any:
    """Cumulative log(sum(exp)): combines elements 1, 2, 4, ... apart, in log n steps."""
    step, x = 1, x.copy()
    while step < len(x):
        x[step:] = xp.logaddexp(x[step:], x[:-step].copy())
        step *= 2
    return x


_scan("Cumsum", lambda xp, x: xp.cumsum(x, axis=0, dtype=x.dtype), 0)
_scan("Cumprod", lambda xp, x: xp.cumprod(x, axis=0, dtype=x.dtype), 1)
_scan("CumulativeLogSumExp", _log_sums, -np.inf)


PARTIAL_SORT_RATIO = 16  # if k is so many times smaller than n: select before sorting


@kernel("TopK", "out")
def _top_k(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(x: Any, *more: Any) -> None:
        values, indices = more[-2:]
        k = values.shape[-1]
        if xp is np and 0 < k * PARTIAL_SORT_RATIO <= x.shape[-1]:
            for lead in np.ndindex(x.shape[:-1]):
                _pick(x[lead], k, values[lead], indices[lead])
            return
        last = x.shape[-1] - 1
        order = xp.argsort(x[..., ::-1], axis=-1, kind="stable")  # reversed: first of ties wins
        xp.copyto(indices, last - order[..., ::-1][..., :k], casting="same_kind")
        xp.copyto(values, xp.take_along_axis(x, indices, axis=-1))

    return run


def _pick(x: Any, k: int, values: Any, indices: Any) -> None:
    """The `k` largest elements of a vector, without a full sort."""
    last = np.partition(x, x.size - k)[x.size - k]  # NaN sort to the end, as the largest
    if last == last:
        above = np.flatnonzero(~(x <= last))
        equal = np.flatnonzero(x == last)[: k - above.size]
    else:
        above, equal = np.flatnonzero(x != x)[:k], np.zeros(0, np.int64)
    top = np.concatenate([above, equal])
    order = top.size - 1 - np.argsort(x[top][::-1], kind="stable")[::-1]
    np.copyto(indices, top[order], casting="same_kind")
    np.take(x, indices, out=values)
