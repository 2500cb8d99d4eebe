"""Matrix diagonal kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hpcflow.kernels.kernel_registry import KernelNode, kernel


def diagonal(xp: Any, x: Any) -> Any:
    """The index of the diagonal in the last two axes."""
    places = xp.arange(min(x.shape[-2:]))
    return (..., places, places)


@kernel("MatrixDiag", "out", moves=True)
def _diag(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(x: Any, out: Any) -> None:
        out.fill(0)
        out[diagonal(xp, out)] = x

    return run


@kernel("MatrixDiagPart", "out", moves=True)
def _diag_part(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda x, out: xp.copyto(out, x[diagonal(xp, x)])


@kernel("MatrixSetDiag", "out", inplace=(0,), moves=True)
def _set_diag(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(x: Any, d: Any, out: Any) -> None:
        xp.copyto(out, x)
        out[diagonal(xp, out)] = d

    return run


@kernel("MatrixBandPart", "out", moves=True)
def _band(xp: Any, node: KernelNode) -> Callable[..., Any]:
    lower, upper = node.attrs["num_lower"], node.attrs["num_upper"]

    @functools.lru_cache(1)  # the sizes seldom change
    def band(rows: int, columns: int) -> Any:
        below = xp.arange(rows)[:, None] - xp.arange(columns)
        inside = xp.ones(below.shape, bool)
        if lower >= 0:
            inside &= below <= lower
        if upper >= 0:
            inside &= -below <= upper
        return inside

    def run(x: Any, out: Any) -> None:
        out[...] = 0
        xp.copyto(out, x, where=band(*x.shape[-2:]))

    return run
