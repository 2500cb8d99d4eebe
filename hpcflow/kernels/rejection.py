"""Numbers that are drawn by trying: whole ones of any range, gamma, Poisson.

The attempt is part of the counter: an element that was refused takes the words of its own next
attempt, so none depends on its neighbors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpcflow.kernels.gamma import lgamma
from hpcflow.kernels.numbers import box_muller, open_unit
from hpcflow.kernels.philox import Words, product, u64

DOUBLE = np.dtype("f8")
FEW = 10.0  # below it a Poisson number is looked up in its distribution
Four = tuple[Any, Any, Any, Any]  # the words of one attempt
Try = Callable[..., tuple[Any, Any]]  # of words and parameters: numbers, and whether they are taken


def _four(words: Words, first: int, count: int) -> Four:
    """The words of the first attempts of the elements from `first` on, a block each."""
    block = words.run(4 * first, 4 * count).reshape(count, 4).T
    return tuple(words.xp.ascontiguousarray(column) for column in block)


def until_taken(
    words: Words, attempt: Try, places: Any, begun: tuple[Any, Any], *parameters: Any
) -> Any:
    """The numbers of `begun`, what the first attempts gave, with the refused ones tried again.

    `places` is that of the first element, or those of all. `parameters` have one element, or one
    for each number.
    """
    xp = words.xp
    found, taken = begun
    left, tries = xp.nonzero(~taken)[0], 0
    while left.size:
        tries += 1
        blocks = left.astype(u64) + u64(places) if isinstance(places, int) else places[left]
        own = (xp.broadcast_to(p, found.shape)[left] for p in parameters)
        numbers, taken = attempt(words.at(blocks, tries), *own)
        found[left] = xp.where(taken, numbers, found[left])
        left = left[~taken]
    return found


# -- whole numbers: D. Lemire, "Fast random integer generation in an interval", ACM Transactions on
#    Modeling and Computer Simulation 29 (2019)


def whole(words: Words, first: int, count: int, span: Any) -> Any:
    """Uniform whole numbers below `span`, without bias; `span` is uint64 of 1 or `count` elements.

    A span of 0 stands for 2**64.
    """
    every = span == 0
    rest = (u64(0) - span) % words.xp.where(every, u64(1), span)  # of 2**64 by the span

    def attempt(four: Four, span: Any, rest: Any, every: Any) -> tuple[Any, Any]:
        high, low = product(four[0], span)
        return words.xp.where(every, four[0], high), low >= rest

    bits = words.run(first, count)
    begun = attempt((bits, bits, bits, bits), span, rest, every)
    return until_taken(words, attempt, first, begun, span, rest, every)


# -- gamma: G. Marsaglia and W. W. Tsang, "A simple method for generating gamma variables", ACM
#    Transactions on Mathematical Software 26 (2000)


def gamma(words: Words, first: int, count: int, alpha: Any) -> Any:
    """Gamma numbers of shape `alpha`, float64 of 1 or `count` elements, in float64."""
    xp = words.xp
    small = alpha < 1

    def attempt(four: Four, d: Any) -> tuple[Any, Any]:
        x = box_muller(xp, four[0], four[1], DOUBLE)[0]
        v = 1 + x / xp.sqrt(9 * d)
        inside = v > 0
        v = xp.where(inside, v, 1.0) ** 3
        limit = 0.5 * x * x + d - d * v + d * xp.log(v)
        return d * v, inside & (xp.log(open_unit(four[2])) < limit)

    four = _four(words, first, count)
    d = xp.where(small, alpha + 1, alpha) - 1 / 3
    found = until_taken(words, attempt, first, attempt(four, d), d)
    if not small.any():
        return found
    power = xp.log(open_unit(four[3])) / xp.where(small, alpha, 1.0)
    return found * xp.exp(xp.where(small, power, 0.0))  # that of alpha + 1, times u**(1 / alpha)


# -- Poisson: few by the inverse of the distribution; many by W. Hoermann, "The transformed
#    rejection method for generating Poisson random variables", Insurance: Mathematics and
#    Economics 12 (1993)


def poisson(words: Words, first: int, count: int, rate: Any) -> Any:
    """Poisson numbers of `rate`, float64 of 1 or `count` elements, in float64."""
    xp = words.xp
    rate = xp.broadcast_to(rate, (count,))
    few = rate < FEW
    four = _four(words, first, count)
    found = xp.empty(count, DOUBLE)
    if few.any():
        found[few] = _few(xp, open_unit(four[0][few]), rate[few])
    if not few.all():
        many = xp.nonzero(~few)[0]
        places, own = many.astype(u64) + u64(first), rate[many]
        begun = _many(xp, tuple(w[many] for w in four), own)
        found[many] = until_taken(words, partial(_many, xp), places, begun, own)
    return found


def _few(xp: Any, u: Any, rate: Any) -> Any:
    """The first number at which the summed probabilities reach `u`."""
    k, p = xp.zeros(u.shape, DOUBLE), xp.exp(-rate)
    total = p.copy()
    left = u > total
    while left.any():
        k += left
        p = p * rate / xp.maximum(k, 1)
        total += p
        left &= (u > total) & (p > 1e-20)
    return k


def _many(xp: Any, four: Any, rate: Any) -> tuple[Any, Any]:
    """One attempt each."""
    b = 0.931 + 2.53 * xp.sqrt(rate)
    a = -0.059 + 0.02483 * b
    u, v = open_unit(four[0]) - 0.5, open_unit(four[1])
    us = 0.5 - xp.abs(u)
    inside = us > 0
    us = xp.where(inside, us, 1.0)
    k = xp.floor((2 * a / us + b) * u + rate + 0.43)
    surely = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    never = (k < 0) | ((us < 0.013) & (v > us)) | ~inside
    height = xp.log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b))
    k = xp.maximum(k, 0.0)
    under = height <= k * xp.log(rate) - rate - lgamma(xp, k + 1)
    return k, (surely | under) & ~never
