"""Gamma kernels: lgamma, digamma, zeta, polygamma, incomplete gamma and beta, in float64.

Near 1 and 2 they use the rational approximations of Boost.Math (J. Maddock), elsewhere a recurrence
to large arguments and the asymptotic series (Abramowitz & Stegun 6.1.41, 6.3.18, 23.2).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpcflow.ops.math.special_function_kernels import Numbers, in_double, pieces, polynomial

SHIFT = 10.0  # from here the asymptotic series are fully accurate
MOST_STEPS = 10000  # of a sum or a continued fraction
EPS = 2.0**-53


def shifted(xp: Any, x: Any, step: Any) -> Any:
    """`x` shifted by integers to at least 10; `step(z, low)` is called with each intermediate z."""
    z = x
    for _ in range(int(SHIFT)):
        low = z < SHIFT
        step(z, low)
        z = xp.where(low, z + 1, z)
    return z


# -- lgamma

_NEAR_1: Numbers = (
    -0.100346687696279557415e-2, -0.240149820648571559892e-1, -0.158413586390692192217,
    -0.406567124211938417342, -0.414983358359495381969, -0.0969117530159521214579,
    0.490622454069039543534e-1,
)  # fmt: skip
_BELOW_1: Numbers = (
    0.195768102601107189171e-2, 0.577039722690451849648e-1, 0.507137738614363510846,
    1.91415588274426679201, 3.48739585360723852576, 3.02349829846463038743, 1.0,
)  # fmt: skip
_TO_2: Numbers = (
    0.431171342679297331241e-3, -0.850535976868336437746e-2, 0.542809694055053558157e-1,
    -0.142440390738631274135, 0.144216267757192309184, -0.292329721830270012337e-1,
)  # fmt: skip
_BELOW_TO_2: Numbers = (
    -0.827193521891290553639e-6, -0.100666795539143372762e-2, 0.25582797155975869989e-1,
    -0.220095151814995745555, 0.846973248876495016101, -1.50169356054485044494, 1.0,
)  # fmt: skip
_TO_3: Numbers = (
    -0.324588649825948492091e-4, -0.541009869215204396339e-3, -0.259453563205438108893e-3,
    0.172491608709613993966e-1, 0.494103151567532234274e-1, 0.25126649619989678683e-1,
    -0.180355685678449379109e-1,
)  # fmt: skip
_BELOW_TO_3: Numbers = (
    -0.223352763208617092964e-6, 0.224936291922115757597e-3, 0.82130967464889339326e-2,
    0.988504251128010129477e-1, 0.541391432071720958364, 1.48019669424231326694,
    1.96202987197795200688, 1.0,
)  # fmt: skip
_STIRLING = (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)


def _lgamma_1(xp: Any, x: Any) -> Any:
    z = x - 1
    return z * (x - 2) * (0.52815341949462890625 + polynomial(z, _NEAR_1) / polynomial(z, _BELOW_1))


def _lgamma_2(xp: Any, x: Any) -> Any:
    z = 2 - x
    ratio = polynomial(z, _TO_2) / polynomial(z, _BELOW_TO_2)
    return (x - 2) * (x - 1) * (0.452017307281494140625 + ratio)


def _lgamma_3(xp: Any, x: Any) -> Any:
    z = x - 2
    ratio = polynomial(z, _TO_3) / polynomial(z, _BELOW_TO_3)
    return z * (x + 1) * (0.158963680267333984375 + ratio)


def _lgamma_large(xp: Any, x: Any) -> Any:
    product = xp.ones_like(x)

    def step(z: Any, low: Any) -> None:
        product[...] = xp.where(low, product * z, product)

    z = shifted(xp, x, step)
    tail = polynomial(1 / (z * z), _STIRLING) / z
    half_log_pi = 0.5 * math.log(2 * math.pi) - 0.5
    return (z - 0.5) * (xp.log(z) - 1) + half_log_pi + tail - xp.log(product)


def _lgamma_positive(xp: Any, x: Any) -> Any:
    tiny = x < 1
    z = xp.where(tiny, x + 1, x)
    cuts = [(z <= 1.5, _lgamma_1), ((z > 1.5) & (z <= 2), _lgamma_2)]
    cuts += [((z > 2) & (z <= 3), _lgamma_3), (z > 3, _lgamma_large)]
    return pieces(xp, z, cuts) - xp.log(xp.where(tiny, x, 1.0))


def sin_pi(xp: Any, x: Any) -> Any:
    """|sin(pi x)|, exactly 0 at integers."""
    part = x - xp.floor(x)
    return xp.sin(math.pi * xp.minimum(part, 1 - part))


def _lgamma_negative(xp: Any, x: Any) -> Any:
    y = xp.minimum(-x, 1e300)  # from 2**53 all are integers: infinity
    return math.log(math.pi) - xp.log(y) - xp.log(sin_pi(xp, y)) - _lgamma_positive(xp, y)


def lgamma(xp: Any, x: Any) -> Any:
    """log |gamma(x)|."""
    return pieces(xp, x, [(x >= 0, _lgamma_positive), (x < 0, _lgamma_negative)])


# -- digamma: its root is in [1, 2]; the approximation has it as a factor

_ROOT = (1569415565.0 / 2**30, 381566830.0 / 2**60, 9.016312093258695918615325266959189453125e-20)
_PSI: Numbers = (
    -0.0020713321167745952, -0.045251321448739056, -0.28919126444774784, -0.65031853770896507,
    -0.32555031186804491, 0.25479851061131551,
)  # fmt: skip
_BELOW_PSI: Numbers = (
    -0.55789841321675513e-6, 0.0021284987017821144, 0.054151797245674225, 0.43593529692665969,
    1.4606242909763515, 2.0767117023730469, 1.0,
)  # fmt: skip
_PSI_TAIL = (1 / 12, -691 / 32760, 5 / 660, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


def _digamma_near_root(xp: Any, x: Any) -> Any:
    g = x - _ROOT[0] - _ROOT[1] - _ROOT[2]
    z = x - 1
    return g * (0.99558162689208984375 + polynomial(z, _PSI) / polynomial(z, _BELOW_PSI))


def _digamma_large(xp: Any, x: Any) -> Any:
    total = xp.zeros_like(x)

    def step(z: Any, low: Any) -> None:
        total[...] = xp.where(low, total + 1 / z, total)

    z = shifted(xp, x, step)
    y = 1 / (z * z)
    return xp.log(z) - 0.5 / z - y * polynomial(y, _PSI_TAIL) - total


def _digamma_positive(xp: Any, x: Any) -> Any:
    tiny = x < 1
    z = xp.where(tiny, x + 1, x)
    psi = pieces(xp, z, [(z <= 2, _digamma_near_root), (z > 2, _digamma_large)])
    return psi - xp.where(tiny, 1 / x, 0.0)


def _digamma_negative(xp: Any, x: Any) -> Any:
    part = x - xp.floor(x)
    cotangent = xp.cos(math.pi * part) / xp.sin(math.pi * xp.where(part == 0, 0.5, part))
    psi = _digamma_positive(xp, 1 - x) - math.pi * cotangent
    return xp.where(part == 0, np.nan, psi)  # a pole with two signs


def digamma(xp: Any, x: Any) -> Any:
    """The derivative of lgamma; NaN at its poles, infinite at 0."""
    with np.errstate(all="ignore"):
        parts = [(x > 0, _digamma_positive), (x < 0, _digamma_negative)]
        return pieces(xp, x, [*parts, (x == 0, lambda xp, z: -1 / z)])


# -- zeta and polygamma: Euler-Maclaurin summation

_BERNOULLI: Numbers = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
    -174611 / 330, 854513 / 138, -236364091 / 2730,
)  # fmt: skip


def _zeta(xp: Any, s: Any, q: Any) -> Any:
    """Hurwitz zeta for s > 1, q not a pole; for negative q >= -10000 only integer s."""
    total, z = xp.zeros_like(q), q
    enough = SHIFT + xp.minimum(s, MOST_STEPS) / 2  # terms decrease while s < 2 pi z
    for _ in range(2 * MOST_STEPS):
        low = z < enough
        if not xp.any(low):
            break
        total = xp.where(low, total + xp.where(low, z, 1.0) ** -s, total)
        z = xp.where(low, z + 1, z)
    power = z**-s
    total = total + power * (z / (s - 1) + 0.5)
    factor, power = s, power / z
    for k, number in enumerate(_BERNOULLI, 1):
        total = total + number / math.factorial(2 * k) * factor * power
        factor, power = factor * (s + (2 * k - 1)) * (s + 2 * k), power / (z * z)
    return total


def zeta(xp: Any, s: Any, q: Any) -> Any:
    """Hurwitz zeta: infinite at poles, NaN for s < 1 and for complex powers."""
    with np.errstate(all="ignore"):
        pole = (s == 1) | ((q <= 0) & (q == xp.floor(q)))
        outside = ~(s >= 1) | ~(q >= -MOST_STEPS) | ((q < 0) & (s != xp.floor(s)))
        plain = pole | outside
        value = _zeta(xp, xp.where(plain, 2.0, s), xp.where(plain | xp.isinf(q), 1.0, q))
        value = xp.where(xp.isinf(q), 0.0, value)
        return xp.where(outside, np.nan, xp.where(pole, np.inf, value))


def polygamma(xp: Any, n: Any, x: Any) -> Any:
    """The derivative of digamma of order n; NaN unless n is an integer."""
    with np.errstate(all="ignore"):
        fits = (n >= 0) & (n == xp.floor(n))
        order = xp.where(fits, n, 1.0)
        sign = xp.where(order % 2 == 0, -1.0, 1.0)
        high = sign * xp.exp(lgamma(xp, order + 1)) * zeta(xp, xp.maximum(order, 1.0) + 1, x)
        return xp.where(fits, xp.where(order == 0, digamma(xp, x), high), np.nan)


# -- incomplete gamma: series for small x, continued fraction for large (Numerical Recipes 6.2)


def _prefactor(xp: Any, a: Any, x: Any) -> Any:
    return xp.exp(a * xp.log(x) - x - lgamma(xp, a))


def _lower_series(xp: Any, a: Any, x: Any) -> Any:
    term = 1 / a
    total, n = term, a
    for _ in range(MOST_STEPS):
        n = n + 1
        term = term * x / n
        total = total + term
        if not xp.any(term > total * EPS):
            break
    return total * _prefactor(xp, a, x)


def _upper_fraction(xp: Any, a: Any, x: Any) -> Any:
    b = x + 1 - a
    c, d = xp.full_like(x, 1e300), 1 / b
    value = d
    for i in range(1, MOST_STEPS):
        an = i * (a - i)
        b = b + 2
        d = 1 / _not_zero(xp, an * d + b)
        c = _not_zero(xp, b + an / c)
        change = d * c
        value = value * change
        if not xp.any(xp.abs(change - 1) > 2 * EPS):
            break
    return value * _prefactor(xp, a, x)


def _not_zero(xp: Any, x: Any) -> Any:
    return xp.where(xp.abs(x) < 1e-300, 1e-300, x)


def _incomplete(xp: Any, a: Any, x: Any, upper: bool) -> Any:
    with np.errstate(all="ignore"):
        inside = (a > 0) & (x > 0) & ~xp.isinf(x) & ~xp.isinf(a)
        series = inside & (x < a + 1)
        out = xp.where((a > 0) & (x >= 0), xp.where(xp.isinf(x) ^ upper, 1.0, 0.0), np.nan)
        lower = _lower_series(xp, a[series], x[series])
        out[series] = 1 - lower if upper else lower
        fraction = inside & ~series
        higher = _upper_fraction(xp, a[fraction], x[fraction])
        out[fraction] = higher if upper else 1 - higher
        return out


# -- its derivative by a: the same series and fraction by forward differentiation


def _lower_slope(xp: Any, a: Any, x: Any) -> Any:
    term, slope = 1 / a, -1 / (a * a)
    total, total_slope, n = term, slope, a
    for _ in range(MOST_STEPS):
        n = n + 1
        slope = (slope - term / n) * x / n
        term = term * x / n
        total, total_slope = total + term, total_slope + slope
        if not xp.any(xp.abs(slope) > xp.abs(total_slope) * EPS):
            break
    front = _prefactor(xp, a, x)
    return front * (total_slope + total * (xp.log(x) - digamma(xp, a)))


def _upper_slope(xp: Any, a: Any, x: Any) -> Any:
    b = x + 1 - a
    c, d = xp.full_like(x, 1e300), 1 / b
    c_slope, d_slope = xp.zeros_like(x), d * d
    value, slope = d, d_slope
    for i in range(1, MOST_STEPS):
        an = i * (a - i)
        b = b + 2
        below_slope = i * d + an * d_slope - 1
        d = 1 / _not_zero(xp, an * d + b)
        d_slope = -below_slope * d * d
        c_slope = i / c - an * c_slope / (c * c) - 1
        c = _not_zero(xp, b + an / c)
        change, change_slope = d * c, d_slope * c + d * c_slope
        value, slope = value * change, slope * change + value * change_slope
        if not xp.any((xp.abs(change - 1) > 2 * EPS) | (xp.abs(change_slope) > 2 * EPS)):
            break
    front = _prefactor(xp, a, x)
    return front * (slope + value * (xp.log(x) - digamma(xp, a)))


def _incomplete_slope(xp: Any, a: Any, x: Any) -> Any:
    """The derivative of the lower incomplete gamma function by its first argument."""
    with np.errstate(all="ignore"):
        inside = (a > 0) & (x > 0) & ~xp.isinf(x) & ~xp.isinf(a)
        series = inside & (x < a + 1)
        out = xp.where((a > 0) & (x >= 0), 0.0, np.nan)
        out[series] = _lower_slope(xp, a[series], x[series])
        fraction = inside & ~series
        out[fraction] = -_upper_slope(xp, a[fraction], x[fraction])
        return out


# -- incomplete beta: continued fraction, on the side where it converges (Numerical Recipes 6.4)


def _beta_fraction(xp: Any, a: Any, b: Any, x: Any) -> Any:
    c, d = xp.ones_like(x), 1 / _not_zero(xp, 1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, MOST_STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _not_zero(xp, 1 + term * d)
            c = _not_zero(xp, 1 + term / c)
            value = value * (d * c)
        if not xp.any(xp.abs(d * c - 1) > 2 * EPS):
            break
    return value


def _betainc(xp: Any, a: Any, b: Any, x: Any) -> Any:
    with np.errstate(all="ignore"):
        valid = (a > 0) & (b > 0) & (x >= 0) & (x <= 1)
        a, b = xp.where(valid, a, 1.0), xp.where(valid, b, 1.0)
        turned = x > (a + 1) / (a + b + 2)
        p, q = xp.where(turned, b, a), xp.where(turned, a, b)
        y = xp.where(valid, xp.where(turned, 1 - x, x), 0.5)
        scale = lgamma(xp, a + b) - lgamma(xp, a) - lgamma(xp, b)
        front = xp.exp(p * xp.log(y) + q * xp.log1p(-y) + scale) / p
        value = front * _beta_fraction(xp, p, q, y)
        return xp.where(valid, xp.where(turned, 1 - value, value), np.nan)


in_double("Lgamma", lgamma)
in_double("Digamma", digamma)
in_double("Zeta", zeta)
in_double("Polygamma", polygamma)
in_double("Igamma", lambda xp, a, x: _incomplete(xp, a, x, False))
in_double("Igammac", lambda xp, a, x: _incomplete(xp, a, x, True))
in_double("IgammaGradA", _incomplete_slope)
in_double("Betainc", _betainc)
