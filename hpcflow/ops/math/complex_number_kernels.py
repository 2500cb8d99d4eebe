"""Complex number kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.kernels.kernel_registry import KernelNode, kernel


@kernel("Complex", "out")
def _complex(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(x: Any, y: Any, out: Any) -> None:
        xp.copyto(out.real, x)
        xp.copyto(out.imag, y)

    return run


@kernel("Real", "out")
def _real(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda x, out: xp.copyto(out, x.real)


@kernel("Imag", "out")
def _imag(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda x, out: xp.copyto(out, x.imag)


@kernel("Angle", "out")
def _angle(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda x, out: xp.arctan2(x.imag, x.real, out)


@kernel("ComplexAbs", "out")
def _abs(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda x, out: xp.absolute(x, out)
