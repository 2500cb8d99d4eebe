"""How fast products of matrices can be: the best of NumPy's BLAS and oneDNN, nothing else done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REPEATS = 3
Sizes = tuple[int, int, int, int]  # so many products of [rows, summed] and [summed, columns]


def fastest(of: Sizes) -> float:
    """Seconds of these products, the least of some tries."""
    import numpy as np

    products, rows, summed, columns = of
    lead = (products,) if products > 1 else ()
    a, b = np.ones((*lead, rows, summed), np.float32), np.ones((*lead, summed, columns), np.float32)
    out = np.empty((*lead, rows, columns), np.float32)
    ways = [lambda: np.matmul(a, b, out), *_by_onednn(a, b, out)]
    return min(_least(way) for way in ways)


def _least(call: Callable[[], object]) -> float:
    from common import per_call

    call()
    return min(per_call(call, 1) for _ in range(REPEATS))


def _by_onednn(a: Any, b: Any, out: Any) -> list[Callable[[], object]]:
    """The library's product, where it serves one of these sizes."""
    import numpy as np

    from hpcflow.graph.static_shape import Spec
    from hpcflow.kernels.kernel_registry import KernelNode, choose_kernel, kernel_preferences

    specs = [Spec(x.dtype, x.shape) for x in (a, b, out)]
    attrs = {"transpose_a": False, "transpose_b": False}
    node = KernelNode("MatMul", attrs, specs[:2], specs[2:])
    kernel = choose_kernel(node, "cpu", kernel_preferences("onednn")).kernel
    if kernel.provider != "onednn":
        return []
    run = kernel.make(np, node)
    return [lambda: run(a, b, out)]
