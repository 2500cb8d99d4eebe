"""Cases of trigonometry, rounding, remainders, bits, special functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special as sp

from tests.ops.cases import CASES, I32, I64, PAIRS, Case, f, n, pos
from tests.ops.cases_math import binary, unary

UINT8 = np.dtype("u1")


def _within(low: float, high: float) -> Any:
    return lambda *s: f(*s, low=low, high=high)


_inner = _within(-0.9, 0.9)
unary("Tan", lambda x: np.sin(x) / np.cos(x), _within(-1.3, 1.3))
unary("Asin", lambda x: np.arctan2(x, np.sqrt(1 - x * x)), _inner)
unary("Acos", lambda x: np.arctan2(np.sqrt(1 - x * x), x), _inner)
unary("Atan", lambda x: np.imag(np.log(1 + 1j * x)))
unary("Sinh", lambda x: (np.exp(x) - np.exp(-x)) / 2)
unary("Cosh", lambda x: (np.exp(x) + np.exp(-x)) / 2)
unary("Asinh", lambda x: np.log(x + np.sqrt(x * x + 1)))
unary("Acosh", lambda x: np.log(x + np.sqrt(x * x - 1)), _within(1.2, 4))
unary("Atanh", lambda x: np.log((1 + x) / (1 - x)) / 2, _inner)
unary("Expm1", lambda x: sp.expm1(x))
unary("Reciprocal", lambda x: x**-1.0, pos)
unary("Ceil", lambda x: -np.floor(-x))
unary("Floor", lambda x: x - np.mod(x, 1))
unary("Rint", lambda x: np.trunc(x + np.copysign(0.5, x)))
binary("Atan2", lambda y, x: np.angle(x + 1j * y))
binary("SquaredDifference", lambda x, y: x * x - 2 * x * y + y * y)
binary("SquaredDifference", lambda x, y: x * x - 2 * x * y + y * y, n, dtypes=(I32,))
binary("NextAfter", lambda x, y: x + np.sign(y - x) * np.abs(np.spacing(x)))
binary("TruncateMod", lambda x, y: x - np.trunc(x / y) * y, _within(-9, 9), pos)
_nonzero = lambda *s: lambda rng, d: (rng.integers(1, 5, s) * rng.choice([-1, 1], s)).astype(d)  # noqa: E731
binary("TruncateMod", lambda x, y: x - np.trunc(x / y) * y, n, _nonzero, dtypes=(I32,))
binary("TruncateDiv", lambda x, y: np.trunc(x / y), n, _nonzero, dtypes=(I32, I64))
binary("DivNoNan", lambda x, y: np.where(y == 0, 0, x / np.where(y == 0, 1, y)), f, pos)
binary("MulNoNan", lambda x, y: x * y)


def _odd(*shape: int) -> Any:
    """Numbers with some infinities and NaNs."""

    def make(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        x = rng.standard_normal(shape)
        return (
            np.where(x > 0.5, [np.inf], np.where(x < -0.5, [np.nan], x))
            .reshape(shape)
            .astype(dtype)
        )

    return make


unary("IsNan", lambda x: x != x, _odd)
unary("IsInf", lambda x: np.abs(np.nan_to_num(x, nan=0)) > 1e300, _odd)
unary("IsFinite", lambda x: np.abs(np.nan_to_num(x, nan=np.inf)) < 1e300, _odd)


# -- vectors in space, bits


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    signs = np.zeros((3, 3, 3))
    for i in range(3):
        signs[i, (i + 1) % 3, (i + 2) % 3], signs[i, (i + 2) % 3, (i + 1) % 3] = 1, -1
    return np.einsum("ijk,...j,...k->...i", signs, a, b)


CASES += [Case("Cross", [f(*s, 3), f(*s, 3)], _cross) for s in [(), (4,), (2, 3), (0,)]]
CASES.append(Case("Cross", [n(2, 3), n(2, 3)], _cross, dtypes=(I32,)))

_byte = lambda *s: n(*s, low=0, high=256, dtype=UINT8)  # noqa: E731


def _by_bits(rule: Any) -> Any:
    """Of bytes, bit by bit."""

    def oracle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = np.broadcast_arrays(x, y)
        return sum(rule(x // 2**k % 2 + 0, y // 2**k % 2 + 0) * 2**k for k in range(8))  # type: ignore[return-value]

    return oracle


binary("BitwiseAnd", _by_bits(lambda a, b: a * b), _byte, dtypes=(UINT8,))
binary("BitwiseOr", _by_bits(lambda a, b: np.maximum(a, b)), _byte, dtypes=(UINT8,))
binary("BitwiseXor", _by_bits(lambda a, b: (a + b) % 2), _byte, dtypes=(UINT8,))
_few = lambda *s: n(*s, low=0, high=6)  # noqa: E731
binary("LeftShift", lambda x, y: x * 2**y, n, _few, dtypes=(I32, I64))
binary("RightShift", lambda x, y: np.floor(x / 2**y), n, _few, dtypes=(I32, I64))
unary("Invert", lambda x: -x - 1, n, dtypes=(I32, I64))
unary("Invert", lambda x: 255 - x, _byte, dtypes=(UINT8,))

# -- special functions

unary("Erf", sp.erf, _within(-5, 5))
unary("Erfc", sp.erfc, _within(-5, 8))


def _gammainc_slope(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The derivative of gammainc by `a`: differences of fourth order."""
    h = 1e-3
    near = sp.gammainc(a + h, x) - sp.gammainc(a - h, x)
    far = sp.gammainc(a + 2 * h, x) - sp.gammainc(a - 2 * h, x)
    return np.asarray((8 * near - far) / (12 * h))


_NO_FORMULA = "None, as in TensorFlow: a derivative without a formula"
unary("Lgamma", sp.gammaln, _within(0.2, 30))
unary("Lgamma", sp.gammaln, _within(-7.1, 2.1))
unary("Digamma", sp.digamma, _within(0.2, 30))
unary("Digamma", sp.digamma, _within(-4.1, 2.1))
_orders = lambda *s: n(*s, low=0, high=5)  # noqa: E731
binary(
    "Polygamma",
    lambda k, x: sp.polygamma(k.astype(int), x),
    _orders,
    _within(0.5, 12),
    still={0: _NO_FORMULA},
)
binary("Zeta", sp.zeta, _within(1.5, 9), _within(0.5, 12), still={0: _NO_FORMULA})
binary("Igamma", sp.gammainc, _within(0.3, 20), _within(0.3, 20))
binary("Igammac", sp.gammaincc, _within(0.3, 20), _within(0.3, 20))
binary("IgammaGradA", _gammainc_slope, _within(0.3, 20), _within(0.3, 20))
CASES += [
    Case(
        "Betainc",
        [f(*s, low=0.5, high=9), f(*t, low=0.5, high=9), f(*s, low=0.1, high=0.9)],
        sp.betainc,
        still=dict.fromkeys((0, 1), _NO_FORMULA),
    )
    for s, t in PAIRS
]
