"""Chain partition: a list of weights, cut into contiguous parts for processors in order.

Chains-on-chains partitioning by bisection of the greatest time, with a probe that fills the parts
greedily (Pinar and Aykanat, "Fast Optimal Load Balancing Algorithms for 1D Partitioning", 2004).
"""

from __future__ import annotations

from collections.abc import Sequence


def chain_partition(weights: Sequence[float], rates: Sequence[float]) -> list[int]:
    """Return the part of each item: contiguous parts, the greatest time of which is least.

    Part k takes the sum of its weights divided by `rates[k]`. The greatest time is within
    sum(weights) / min(rates) / 2^40 of the least possible one.
    """
    low, high = 0.0, sum(weights) / min(rates)
    for _ in range(40):
        middle = (low + high) / 2
        if _probe(weights, rates, middle) is not None:
            high = middle
        else:
            low = middle
    return _probe(weights, rates, high) or [0] * len(weights)


def _probe(weights: Sequence[float], rates: Sequence[float], limit: float) -> list[int] | None:
    """Return the part of each item if each part is filled up to the time `limit`.

    None if the items need more parts than there are rates.
    """
    part, load, of_item = 0, 0.0, []
    for weight in weights:
        while load + weight > limit * rates[part]:
            if part + 1 == len(rates):
                return None
            part, load = part + 1, 0.0
        load += weight
        of_item.append(part)
    return of_item
