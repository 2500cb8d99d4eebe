"""Special function kernels: the error function, vectorized, and shared helpers.

NumPy has no special functions. Each function has a rational approximation for each range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.codegen.vector_math import ERF_ABOVE, ERF_BELOW, ERF_END
from hpcflow.kernels.cuda_graph_restrictions import SIZE_FROM_VALUES
from hpcflow.kernels.kernel_registry import KernelNode, kernel

Numbers = tuple[float, ...]
Function = Callable[[Any, Any], Any]  # of the array module and a vector


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """A polynomial by Horner's scheme, highest power first."""
    total = x * 0 + coefficients[0]
    for c in coefficients[1:]:
        total = total * x + c
    return total


def pieces(xp: Any, x: Any, parts: Sequence[tuple[Any, Function]]) -> Any:
    """Each function applied to the elements of `x` under its mask."""
    out = xp.full(x.shape, np.nan, x.dtype)
    for mask, function in parts:
        out[mask] = function(xp, x[mask])
    return out


def in_double(type: str, function: Callable[..., Any]) -> None:
    """Add the kernel of a function of float64 vectors; other dtypes are converted."""

    @kernel(type, "out", uncaptured=SIZE_FROM_VALUES)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        def run(*args: Any) -> None:
            *inputs, out = args
            vectors = [xp.broadcast_to(x, out.shape).ravel().astype("f8") for x in inputs]
            xp.copyto(out, function(xp, *vectors).reshape(out.shape), casting="same_kind")

        return run


# -- error function: W. J. Cody, Math. Comp. 23 (1969) 631, coefficients of his CALERF

_A: Numbers = (
    0.185777706184603153, 3.16112374387056560, 113.864154151050156, 377.485237685302021,
    3209.37758913846947,
)  # fmt: skip
_B = (1.0, 23.6012909523441209, 244.024637934444173, 1282.61652607737228, 2844.23683343917062)
_C: Numbers = (
    2.15311535474403846e-8, 0.564188496988670089, 8.88314979438837594, 66.1191906371416295,
    298.635138197400131, 881.952221241769090, 1712.04761263407058, 2051.07837782607147,
    1230.33935479799725,
)  # fmt: skip
_D: Numbers = (
    1.0, 15.7449261107098347, 117.693950891312499, 537.181101862009858, 1621.38957456669019,
    3290.79923573345963, 4362.61909014324716, 3439.36767414372164, 1230.33935480374942,
)  # fmt: skip
_P: Numbers = (
    0.0163153871373020978, 0.305326634961232344, 0.360344899949804439, 0.125781726111229246,
    0.0160837851487422766, 6.58749161529837803e-4,
)  # fmt: skip
_Q: Numbers = (
    1.0, 2.56852019228982242, 1.87295284992346047, 0.527905102951428412, 0.0605183413124413191,
    2.33520497626869185e-3,
)  # fmt: skip


def _erf_small(xp: Any, x: Any) -> Any:
    z = x * x
    return x * polynomial(z, _A) / polynomial(z, _B)


def _bell(xp: Any, y: Any) -> Any:
    """exp(-y y), with the exponent split in two to limit the rounding error."""
    cut = xp.trunc(y * 16) / 16
    return xp.exp(-cut * cut) * xp.exp((cut - y) * (cut + y))


def _erfc_middle(xp: Any, y: Any) -> Any:
    return _bell(xp, y) * polynomial(y, _C) / polynomial(y, _D)


def _erfc_far(xp: Any, y: Any) -> Any:
    y = xp.minimum(y, 30.0)  # it is 0 from 27 on
    z = 1 / (y * y)
    return _bell(xp, y) * (1 / math.sqrt(math.pi) - z * polynomial(z, _P) / polynomial(z, _Q)) / y


def _erfc_of_large(xp: Any, y: Any) -> Any:
    """erfc for numbers above 0.46875."""
    return pieces(xp, y, [(y <= 4, _erfc_middle), (~(y <= 4), _erfc_far)])


def _erf(xp: Any, x: Any) -> Any:
    small = xp.abs(x) <= 0.46875
    large = lambda xp, x: xp.copysign(1 - _erfc_of_large(xp, xp.abs(x)), x)  # noqa: E731
    return pieces(xp, x, [(small, _erf_small), (~small, large)])


def _erfc(xp: Any, x: Any) -> Any:
    small = xp.abs(x) <= 0.46875

    def large(xp: Any, x: Any) -> Any:
        tail = _erfc_of_large(xp, xp.abs(x))
        return xp.where(x < 0, 2 - tail, tail)

    return pieces(xp, x, [(small, lambda xp, x: 1 - _erf_small(xp, x)), (~small, large)])


in_double("Erfc", _erfc)

# networks use erf often: no ranges in 32 bits


@kernel("Erf", "out")
def _erf_kernel(xp: Any, node: KernelNode) -> Callable[..., Any]:
    if node.outputs[0].dtype.itemsize == 8:

        def exact(x: Any, out: Any) -> None:
            xp.copyto(out, _erf(xp, x.ravel()).reshape(out.shape))

        return exact
    upper, lower = ([np.float32(c) for c in terms] for terms in (ERF_ABOVE, ERF_BELOW))
    bound = np.float32(ERF_END)

    def run(x: Any, out: Any) -> None:
        x = xp.minimum(xp.maximum(x.astype("f4", copy=False), -bound), bound)
        z = x * x
        xp.copyto(out, x * polynomial(z, upper) / polynomial(z, lower), casting="same_kind")

    return run
