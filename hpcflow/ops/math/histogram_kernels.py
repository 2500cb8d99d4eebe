"""Histogram kernel: bincount."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.errors import RangeError
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.array.gather_kernels import add_at


@kernel("Bincount", "new")
def _bincount(xp: Any, node: KernelNode) -> Callable[..., Any]:
    low, high = node.attrs["minlength"], node.attrs["maxlength"]
    dtype = node.outputs[0].dtype

    def run(numbers: Any, *weights: Any) -> Any:
        flat, flat_weights = numbers.reshape(-1), [w.reshape(-1) for w in weights]
        if flat.size and flat.min() < 0:
            raise RangeError(f"bincount counts integers of 0 or more, not {flat.min()}")
        count = max(low, int(flat.max()) + 1 if flat.size else 0)
        if high is not None and count > high:
            count, in_range = high, flat < high
            flat, flat_weights = flat[in_range], [w[in_range] for w in flat_weights]
        if flat_weights:  # in the dtype of the weights: NumPy would sum integers as floats
            out = xp.zeros(count, dtype)
            add_at(xp, out, flat.astype("i8"), flat_weights[0])
            return out
        return xp.bincount(flat.astype("i8"), minlength=count).astype(dtype)

    return run
