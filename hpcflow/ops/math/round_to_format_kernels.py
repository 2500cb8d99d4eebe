"""Round-to-format kernel: rounds to a narrower floating-point format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.kernels.kernel_registry import KernelNode, kernel


@kernel("RoundToFormat", "out")
def _round_to_format(xp: Any, node: KernelNode) -> Callable[..., Any]:
    digits, lowest = node.attrs["digits"], node.attrs["lowest"]
    largest, negative_zero = node.attrs["largest"], node.attrs["negative_zero"]
    dtype = node.outputs[0].dtype
    beyond = {"inf": float("inf"), "nan": float("nan"), "largest": largest}[node.attrs["beyond"]]
    one = xp.asarray(1, dtype)

    def run(x: Any, out: Any) -> None:
        _, exponent = xp.frexp(x)  # |x| = significand * 2 ** exponent, significand in [0.5, 1)
        step = xp.ldexp(one, xp.maximum(exponent - 1, lowest) - (digits - 1))
        near = xp.rint(x / step) * step
        near = xp.where(xp.abs(near) > largest, xp.copysign(xp.asarray(beyond, dtype), x), near)
        if not negative_zero:
            near = near + 0.0  # -0 + 0 is 0
        xp.copyto(out, xp.where(xp.isnan(x), x, near))

    return run
