"""Cases of what is picked by uniform numbers that are given."""

from __future__ import annotations

import numpy as np

from tests.ops.cases import CASES, I32, I64, Case, f


def picked(logits: np.ndarray, fractions: np.ndarray) -> np.ndarray:
    """One by one: the first class at which the probabilities sum to more than the number."""
    found = np.zeros(fractions.shape, int)
    for row, column in np.ndindex(found.shape):
        weights = np.exp(logits[row] - logits[row].max())
        left = fractions[row, column] * weights.sum()
        while left >= weights[found[row, column]]:
            left -= weights[found[row, column]]
            found[row, column] += 1
    return found


CASES += [
    Case(
        "PickCategory",
        [f(rows, classes), f(rows, count, low=0.0, high=0.9)],
        picked,
        attrs={"dtype": dtype},
    )
    for rows, classes, count, dtype in (
        (3, 5, 4, I64),
        (2, 1, 3, I64),
        (4, 33, 50, I32),
        (0, 3, 2, I64),
        (2, 3, 0, I64),
    )
]
