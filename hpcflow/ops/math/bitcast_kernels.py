"""Bitcast kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.kernels.kernel_registry import KernelNode, kernel


@kernel("Bitcast", "new")
def _bitcast(xp: Any, node: KernelNode) -> Callable[..., Any]:
    dtype, have = node.attrs["dtype"], node.inputs[0].dtype.itemsize

    def run(x: Any) -> Any:
        lead = x.shape
        if have > dtype.itemsize:
            lead = (*lead, have // dtype.itemsize)
        elif have < dtype.itemsize:
            lead = lead[:-1]
        flat = xp.ascontiguousarray(x).reshape(-1)
        return xp.array(flat.view(dtype).reshape(lead))

    return run
