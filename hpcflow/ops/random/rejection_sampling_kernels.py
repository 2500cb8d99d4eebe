"""Rejection sampling kernels: integers of any range, gamma, Poisson.

The attempt is part of the counter: a rejected element uses the words of its own next attempt, so
that no element depends on its neighbors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpcflow.ops.random.bits_to_numbers_kernels import box_muller, open_unit
from hpcflow.ops.random.philox_kernels import PhiloxWords, product, u64

DOUBLE = np.dtype("f8")
MIN_REJECTION_RATE = 10.0  # smaller Poisson rates invert the distribution function
Four = tuple[Any, Any, Any, Any]  # the words of one attempt
Try = Callable[..., tuple[Any, Any]]  # words and parameters -> numbers, acceptance


def _four(words: PhiloxWords, first: int, count: int) -> Four:
    """The words of the first attempts of the elements from `first` on, one block each."""
    block = words.run(4 * first, 4 * count).reshape(count, 4).T
    return tuple(words.xp.ascontiguousarray(column) for column in block)


def until_taken(
    words: PhiloxWords, attempt: Try, places: Any, begun: tuple[Any, Any], *parameters: Any
) -> Any:
    """The numbers of `begun`, the first attempts, with rejected ones tried again.

    `places` is the position of the first element, or those of all. `parameters` have one element,
    or one for each number.
    """
    xp = words.xp
    draws, accept = begun
    pending, tries = xp.nonzero(~accept)[0], 0
    while pending.size:
        tries += 1
        blocks = pending.astype(u64) + u64(places) if isinstance(places, int) else places[pending]
        arguments = (xp.broadcast_to(p, draws.shape)[pending] for p in parameters)
        numbers, accept = attempt(words.at(blocks, tries), *arguments)
        draws[pending] = xp.where(accept, numbers, draws[pending])
        pending = pending[~accept]
    return draws


# -- integers: D. Lemire, "Fast random integer generation in an interval", ACM Transactions on
# Modeling and Computer Simulation 29 (2019)


def uniform_integers(words: PhiloxWords, first: int, count: int, span: Any) -> Any:
    """Unbiased uniform integers below `span`; `span` is uint64 with 1 or `count` elements.

    A span of 0 stands for 2**64.
    """
    bits = words.run(first, count)
    full_range = span == 0
    if full_range.all():
        return bits
    excess = (u64(0) - span) % words.xp.where(
        full_range, u64(1), span
    )  # remainder of 2**64 by the span
    high, low = _below(bits, span)
    if not excess.any() and not full_range.any():
        return high

    def attempt(four: Four, span: Any, excess: Any, full_range: Any) -> tuple[Any, Any]:
        high, low = product(four[0], span)
        return words.xp.where(full_range, four[0], high), low >= excess

    if full_range.any():
        high = words.xp.where(full_range, bits, high)
    return until_taken(words, attempt, first, (high, low >= excess), span, excess, full_range)


def _below(bits: Any, span: Any) -> tuple[Any, Any]:
    """`product`, optimized for one span of at most 32 bits."""
    if span.size > 1 or int(span[0]) >> 32:
        return product(bits, span)
    upper, lower = bits >> u64(32), bits & u64(0xFFFFFFFF)
    upper *= span
    lower *= span
    lower >>= u64(32)
    upper += lower
    upper >>= u64(32)
    return upper, bits * span


# -- gamma: G. Marsaglia and W. W. Tsang, "A simple method for generating gamma variables", ACM
# Transactions on Mathematical Software 26 (2000)


def gamma(words: PhiloxWords, first: int, count: int, alpha: Any) -> Any:
    """Gamma numbers of shape `alpha`, float64 with 1 or `count` elements, in float64."""
    xp = words.xp
    small = alpha < 1

    def attempt(four: Four, d: Any) -> tuple[Any, Any]:
        x = box_muller(xp, four[0], four[1], DOUBLE)[0]
        v = 1 + x / xp.sqrt(9 * d)
        inside = v > 0
        v = xp.where(inside, v * v * v, 1.0)
        square, u = x * x, open_unit(four[2])
        accept = u < 1 - 0.0331 * square * square  # implied by the exact test, and faster
        check = xp.nonzero(inside & ~accept)[0]
        v_, d_ = v[check], xp.broadcast_to(d, v.shape)[check]
        accept[check] = xp.log(u[check]) < 0.5 * square[check] + d_ - d_ * v_ + d_ * xp.log(v_)
        return d * v, inside & accept

    four = _four(words, first, count)
    d = xp.where(small, alpha + 1, alpha) - 1 / 3
    draws = until_taken(words, attempt, first, attempt(four, d), d)
    if not small.any():
        return draws
    power = xp.log(open_unit(four[3])) / xp.where(small, alpha, 1.0)
    return draws * xp.exp(xp.where(small, power, 0.0))  # alpha + 1, times u**(1 / alpha)


# -- Poisson: small rates by inversion; large ones by W. Hoermann, "The transformed rejection
# method for generating Poisson random variables", Insurance: Mathematics and Economics 12 (1993)


def poisson(words: PhiloxWords, first: int, count: int, rate: Any) -> Any:
    """Poisson numbers of `rate`, float64 with 1 or `count` elements, in float64."""
    xp = words.xp
    many = xp.nonzero(rate >= MIN_REJECTION_RATE)[0]
    if rate.size == 1 and many.size:
        begun = _poisson_by_rejection(xp, _four(words, first, count), rate)
        return until_taken(words, partial(_poisson_by_rejection, xp), first, begun, rate)
    four = _four(words, first, count)
    draws = _poisson_by_inversion(
        xp, open_unit(four[0]), xp.where(rate < MIN_REJECTION_RATE, rate, 0.0)
    )
    if many.size:
        places, rates = many.astype(u64) + u64(first), rate[many]
        begun = _poisson_by_rejection(xp, tuple(w[many] for w in four), rates)
        draws[many] = until_taken(words, partial(_poisson_by_rejection, xp), places, begun, rates)
    return draws


def _poisson_by_inversion(xp: Any, u: Any, rate: Any) -> Any:
    """The first number at which the cumulative probability reaches `u`."""
    draws = xp.zeros(u.shape, DOUBLE)
    p = xp.exp(-rate)
    total, k = p, 0
    active = u > total
    while active.any():
        k += 1
        draws += active
        p = p * rate / k
        total = total + p
        active &= (u > total) & (p > 1e-20)
    return draws


def _poisson_by_rejection(xp: Any, four: Any, rate: Any) -> tuple[Any, Any]:
    """One attempt for each element."""
    b = 0.931 + 2.53 * xp.sqrt(rate)
    a = -0.059 + 0.02483 * b
    u, v = open_unit(four[0]) - 0.5, open_unit(four[1])
    us = 0.5 - xp.abs(u)
    inside = us > 0
    us = xp.where(inside, us, 1.0)
    k = xp.floor((2 * a / us + b) * u + rate + 0.43)
    surely = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    never = (k < 0) | ((us < 0.013) & (v > us)) | ~inside
    k = xp.maximum(k, 0.0)
    check = xp.nonzero(~(surely | never))[0]
    a, b, rate = (xp.broadcast_to(values, k.shape)[check] for values in (a, b, rate))
    us, v, n = us[check], v[check], k[check]
    height = xp.log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b))
    surely[check] = height <= n * xp.log(rate) - rate - _log_factorial(xp, n)
    return k, surely & ~never


_TABLE = [math.lgamma(n + 1) for n in range(16)]
_HALF_LOG = 0.5 * math.log(2 * math.pi)


def _log_factorial(xp: Any, n: Any) -> Any:
    """log(n!) of integers: small ones by a table, others by Stirling's series."""
    z = xp.maximum(n, 15.0) + 1
    w = 1 / (z * z)
    tail = (((w / -1680 + 1 / 1260) * w - 1 / 360) * w + 1 / 12) / z
    large = (z - 0.5) * xp.log(z) - z + _HALF_LOG + tail
    small = xp.asarray(_TABLE)[xp.minimum(n, 15.0).astype(np.int64)]
    return xp.where(n < 16, small, large)
