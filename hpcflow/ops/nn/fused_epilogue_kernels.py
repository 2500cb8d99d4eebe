"""Fused epilogue kernels: ops with a bias, a relu, or their gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hpcflow.kernels.cuda_graph_restrictions import CALLS_CUBLAS
from hpcflow.kernels.kernel_registry import KernelNode, find_plain_kernel, kernel


def _row(type: str, base: str, uncaptured: str = "") -> None:
    @kernel(type, "out", uncaptured=uncaptured)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        alone = dataclasses.replace(node, type=base, inputs=node.inputs[:2])
        first, relu = find_plain_kernel(base, "cpu").make(xp, alone), node.attrs["relu"]

        def run(a: Any, b: Any, bias: Any, out: Any) -> None:
            first(a, b, out)
            xp.add(out, bias, out)
            if relu:
                xp.maximum(out, xp.asarray(0, out.dtype), out=out)

        return run


_row("MatMulBias", "MatMul", CALLS_CUBLAS)
_row("ConvBias", "Conv")


@kernel("MaxPoolReluGrad", "out")
def _pool_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    alone = dataclasses.replace(node, type="MaxPoolGrad", outputs=node.outputs[:1])
    back, bias = find_plain_kernel("MaxPoolGrad", "cpu").make(xp, alone), node.attrs["bias"]

    def run(x: Any, y: Any, g: Any, out: Any, *total: Any) -> None:
        back(x, y, g, out)
        xp.multiply(out, xp.greater(x, xp.asarray(0, x.dtype)), out)
        if bias:
            xp.copyto(total[0], out.sum(axis=(0, 1, 2)))

    return run
