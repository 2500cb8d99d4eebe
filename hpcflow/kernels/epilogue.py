"""The plain kernels of products and convolutions that end in a bias and a relu."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hpcflow.kernels.table import Node, find, kernel


def _row(type: str, base: str) -> None:
    @kernel(type, "out")
    def make(xp: Any, node: Node) -> Callable[..., Any]:
        alone = dataclasses.replace(node, type=base, inputs=node.inputs[:2])
        first, relu = find(base, "cpu").make(xp, alone), node.attrs["relu"]

        def run(a: Any, b: Any, bias: Any, out: Any) -> None:
            first(a, b, out)
            xp.add(out, bias, out)
            if relu:
                xp.maximum(out, xp.asarray(0, out.dtype), out=out)

        return run


_row("MatMulBias", "MatMul")
_row("ConvBias", "Conv")
