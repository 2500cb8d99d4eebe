"""Broadcast kernels: fill, broadcast_to, and sums that invert broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.math.reduction_kernels import reducer


@kernel("Fill", "out", moves=True)
def _fill(xp: Any, node: KernelNode) -> Callable[..., Any]:
    if "value" in node.attrs:
        value = node.attrs["value"]
        return lambda *args: args[-1].fill(value)
    return lambda value, *more: xp.copyto(more[-1], value)


@kernel("ZerosLike", "out", moves=True)
def _zeros_like(xp: Any, node: KernelNode) -> Callable[..., Any]:
    zero: Any = b"" if node.outputs[0].dtype.kind == "O" else 0
    return lambda x, out: out.fill(zero)


@kernel("OnesLike", "out", moves=True)
def _ones_like(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda x, out: out.fill(1)


@kernel("BroadcastTo", "out", moves=True)
def _broadcast_to(xp: Any, node: KernelNode) -> Callable[..., Any]:
    if len(node.inputs) == 1 or node.inputs[1].value is not None:
        return lambda x, *more: xp.copyto(more[-1], x)

    def run(x: Any, shape: Any, out: Any) -> None:
        if (target := shape.tolist()) != list(out.shape):
            raise ShapeError(f"{list(x.shape)} cannot be broadcast to {target}")
        xp.copyto(out, x)

    return run


@kernel("SumToShape", "out")
def _sum_to_shape(xp: Any, node: KernelNode) -> Callable[..., Any]:
    total = reducer(xp, "add")

    def run(x: Any, *more: Any) -> None:
        out = more[-1]
        lead = x.ndim - out.ndim
        pairs = zip(x.shape[lead:], out.shape, strict=True)
        axes = tuple(i + lead for i, (x_size, out_size) in enumerate(pairs) if x_size != out_size)
        if lead or axes:
            expanded = out.reshape((1,) * lead + out.shape)
            total(x, (*range(lead), *axes), None, expanded, True)
        else:
            xp.copyto(out, x)

    return run
