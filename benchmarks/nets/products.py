"""How fast products of given sizes can be: the best of NumPy's BLAS and oneDNN, nothing else done.

A convolution counts as the product of the matrix of its windows with that of its filters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

TYPES = {
    *("MatMul", "MatMulBias", "PackedMatMul"),
    *("Conv", "ConvBias", "ConvInputGrad", "ConvFilterGrad"),
}
REPEATS = 3


class Sizes(NamedTuple):
    """So many products of [rows, summed] and [summed, columns]."""

    products: int
    rows: int
    summed: int
    columns: int


def sizes(row: dict[str, Any]) -> Sizes:
    """Of an operation in a profile; it is one of `TYPES`."""
    first, second, (*_, rows, columns) = row["inputs"][0], row["inputs"][1], row["outputs"][0]
    if row["type"] in ("Conv", "ConvBias"):
        pixels = math.prod(row["outputs"][0][:-1])
        return Sizes(1, pixels, math.prod(second[:-1]), second[-1])
    if row["type"] == "ConvInputGrad":
        return Sizes(1, math.prod(first[:-1]), second[-1], math.prod(second[:-1]))
    if row["type"] == "ConvFilterGrad":
        filters = math.prod(row["outputs"][0][:-1])
        return Sizes(1, filters, math.prod(second[:-1]), columns)
    size = math.prod(row["outputs"][0])
    summed = math.prod(first) * columns // size
    return Sizes(size // (rows * columns), rows, summed, columns)


def fastest(of: Sizes) -> float:
    """Seconds of these products, the least of some tries."""
    import numpy as np

    lead = (of.products,) if of.products > 1 else ()
    a = np.ones((*lead, of.rows, of.summed), np.float32)
    b = np.ones((*lead, of.summed, of.columns), np.float32)
    out = np.empty((*lead, of.rows, of.columns), np.float32)
    ways = [lambda: np.matmul(a, b, out), *_by_onednn(a, b, out)]
    return min(_least(way) for way in ways)


def _least(call: Callable[[], object]) -> float:
    from common import per_call

    call()
    return min(per_call(call, 1) for _ in range(REPEATS))


def _by_onednn(a: Any, b: Any, out: Any) -> list[Callable[[], object]]:
    """The library's product, where it serves one of these sizes."""
    import numpy as np

    from hpcflow.graph.shape import Spec
    from hpcflow.kernels.table import Node, choose, wish

    specs = [Spec(x.dtype, x.shape) for x in (a, b, out)]
    attrs = {"transpose_a": False, "transpose_b": False}
    node = Node("MatMul", attrs, specs[:2], specs[2:])
    kernel = choose(node, "cpu", wish("onednn")).kernel
    if kernel.provider != "onednn":
        return []
    run = kernel.make(np, node)
    return [lambda: run(a, b, out)]
