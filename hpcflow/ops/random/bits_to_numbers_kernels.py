"""Conversion of random words to numbers: uniform, normal, truncated normal, integer.

The conversion is elementwise without rejection. The order of operations is fixed, and sine and
cosine are polynomials, so that array modules differ only by their logarithms: uniform numbers and
integers are bitwise equal. Floats of at most 32 bits use half a word per element, wider ones a
word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.ops.random.philox_kernels import PhiloxWords, u64

# sin(x) and cos(x) for |x| <= pi/4 as x + x z S(z) and 1 - z/2 + z**2 C(z), z = x**2: float32
# coefficients from Cephes (S. Moshier), float64 from fdlibm (Sun Microsystems)
_SIN = {
    4: (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1),
    8: (
        1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
        -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01,
    ),
}  # fmt: skip
_COS = {
    4: (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2),
    8: (
        -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
        2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02,
    ),
}  # fmt: skip

# erfinv(x) = x P(w - shift), w = -log(1 - x**2), for w below 5 and 6.25: M. Giles, "Approximating
# the erfinv function", GPU Computing Gems Jade Edition, 2011
_ERFINV = {
    4: (
        2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
        -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
    ),
    8: (
        -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18,
        1.115787767802518096e-17, -1.333171662854620906e-16, 2.0972767875968561637e-17,
        6.6376381343583238325e-15, -4.0545662729752068639e-14, -8.1519341976054721522e-14,
        2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
        1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08,
        4.2347877827932403518e-07, -1.3654692000834678645e-06, -1.3882523362786468719e-05,
        0.0001867342080340571352, -0.00074070253416626697512, -0.0060336708714301490533,
        0.24015818242558961693, 1.6536545626831027356,
    ),
}  # fmt: skip
_SHIFT = {4: 2.5, 8: 3.125}
_INSIDE = math.erf(math.sqrt(2))  # probability within two standard deviations


def _horner(x: Any, coefficients: Sequence[float]) -> Any:
    total = x * coefficients[0]
    for c in coefficients[1:-1]:
        total += c
        total *= x
    total += coefficients[-1]
    return total


def real(dtype: np.dtype) -> np.dtype:
    """The dtype of computations for numbers of `dtype`."""
    return np.dtype("f8" if dtype.itemsize > 4 else "f4")


def _bits(words: PhiloxWords, wide: bool, first: int, count: int) -> Any:
    """The bits of elements from `first` on: words, or halves of words, low half first."""
    if wide:
        return words.run(first, count)
    skipped = first % 2
    halves = words.run(first // 2, (skipped + count + 1) // 2).view(np.uint32)
    return halves[skipped : skipped + count]


def open_unit(bits: Any) -> Any:
    """Uniform in (0, 1], for logarithms, from words or halves; 1 only by rounding."""
    if bits.dtype.itemsize == 8:
        return ((bits >> u64(11)).astype("f8") + 0.5) * 2.0**-53
    return (bits.astype("f4") + 0.5) * 2.0**-32


def unit(words: PhiloxWords, first: int, count: int, dtype: np.dtype, digits: int) -> Any:
    """Uniform in [0, 1): uses as many upper bits as `dtype` has digits, so that 1 does not occur.

    The result is float32 for narrower types, which represent it exactly.
    """
    bits = _bits(words, dtype.itemsize > 4, first, count)
    width = 8 * bits.dtype.itemsize
    fractions = (bits >> bits.dtype.type(width - digits)).astype(real(dtype))
    fractions *= 2.0**-digits
    return fractions


def circle(xp: Any, bits: Any, dtype: np.dtype) -> tuple[Any, Any]:
    """Cosine and sine of a uniform angle.

    Two bits choose the quadrant around one of the four half-axes, the others the angle from it.
    """
    width = dtype.itemsize
    signed = bits.view(np.int64 if width == 8 else np.int32)
    x = (signed >> 2).astype(dtype)
    x *= math.pi / 4 * 2.0 ** (3 - 8 * width)
    z = x * x
    sine = _horner(z, _SIN[width])
    sine *= z
    sine += 1
    sine *= x
    cosine = _horner(z, _COS[width])
    cosine *= z
    cosine -= 0.5
    cosine *= z
    cosine += 1
    cosine *= 1 - (signed & 2).astype(dtype)
    turned = (signed & 1).astype(bool)
    return xp.where(turned, sine, cosine), xp.where(turned, cosine, sine)


def box_muller(xp: Any, radius: Any, angle: Any, dtype: np.dtype) -> tuple[Any, Any]:
    """Two independent normal numbers from two words each, or two halves of words."""
    r = xp.log(open_unit(radius))
    r *= -2
    r = xp.sqrt(r)
    x, y = circle(xp, angle, dtype)
    x *= r
    y *= r
    return x, y


def normal(words: PhiloxWords, first: int, count: int, dtype: np.dtype) -> Any:
    """Standard normal numbers by the Box-Muller method; an even element and the next form a pair.

    Array modules differ by half the difference of their logarithms: at most 4 ulp.
    """
    even = first % 2
    pairs = (even + count + 1) // 2
    f, xp = real(dtype), words.xp
    bits = _bits(words, f.itemsize > 4, first - even, 2 * pairs).reshape(pairs, 2)
    both = xp.empty((pairs, 2), f)
    x, y = box_muller(xp, xp.ascontiguousarray(bits[:, 0]), xp.ascontiguousarray(bits[:, 1]), f)
    both[:, 0], both[:, 1] = x, y
    return both.reshape(-1)[even : even + count]


def cut_normal(words: PhiloxWords, first: int, count: int, dtype: np.dtype) -> Any:
    """Normal numbers between -2 and 2, by the inverse distribution function.

    Array modules differ as in `normal`.
    """
    f, xp = real(dtype), words.xp
    bits = _bits(words, f.itemsize > 4, first, count)
    width = 8 * f.itemsize
    x = (bits.view(np.int64 if width == 64 else np.int32)).astype(f)
    x += 0.5
    x *= _INSIDE * 2.0 ** (1 - width)
    w = xp.log((1 - x) * (1 + x))
    w *= -1
    w -= _SHIFT[f.itemsize]
    x *= _horner(w, _ERFINV[f.itemsize])
    x *= math.sqrt(2)
    return xp.clip(x, -2, 2)
