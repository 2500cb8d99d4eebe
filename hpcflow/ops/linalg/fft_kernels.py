"""Fourier transform kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.kernels.cuda_graph_restrictions import CALLS_CUFFT
from hpcflow.kernels.kernel_registry import KernelNode, kernel


def _axes(node: KernelNode) -> tuple[int, ...]:
    return tuple(range(-node.attrs["rank"], 0))


@kernel("Fft", "out")
def _fft(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axes = _axes(node)
    transform = xp.fft.ifftn if node.attrs["inverse"] else xp.fft.fftn

    def run(x: Any, out: Any) -> None:
        if out.size:  # NumPy 1 computes in double precision
            xp.copyto(out, transform(x, axes=axes), casting="same_kind")

    return run


@kernel("Rfft", "out", uncaptured=CALLS_CUFFT)
def _rfft(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axes = _axes(node)

    def run(x: Any, out: Any) -> None:
        if x.size:
            xp.copyto(out, xp.fft.rfftn(x, axes=axes), casting="same_kind")
        else:
            out.fill(0)

    return run


@kernel("Irfft", "out", uncaptured=CALLS_CUFFT)
def _irfft(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axes = _axes(node)

    def run(x: Any, length: Any, out: Any) -> None:
        if out.size:
            sizes = [*x.shape[len(x.shape) - len(axes) : -1], out.shape[-1]]
            xp.copyto(out, xp.fft.irfftn(x, sizes, axes), casting="same_kind")

    return run
