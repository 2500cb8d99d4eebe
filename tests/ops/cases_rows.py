"""Cases of lists of rows: sums of equal ones, rows by piece of a variable."""

from __future__ import annotations

import numpy as np

from tests.ops.cases import CASES, I32, I64, Case, f, v


def summed(values: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, ...]:
    distinct = sorted(set(indices.tolist()))
    rows = [sum(values[i] for i in range(len(indices)) if indices[i] == d) for d in distinct]
    return (
        np.reshape(rows, (len(distinct), *values.shape[1:])),
        np.array(distinct, indices.dtype),
        np.array([distinct.index(i) for i in indices.tolist()], I64),
    )


for indices in ([3, 0, 3, 3, 1], [4, 2, 0, 1, 3], [2, 2, 2, 2, 2]):
    CASES.append(Case("SumEqualRows", [f(5, 3), v(indices)], summed))
CASES.append(Case("SumEqualRows", [f(4), v([1, 0, 1, 0], I64)], summed))
CASES.append(Case("SumEqualRows", [f(0, 2), v([], I32)], summed))
CASES.append(Case("SumEqualRows", [f(3, 0), v([1, 0, 1])], summed))


def piece(indices: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Rows 2 to 5 of 7."""
    at = [i for i in range(indices.size) if 2 <= indices.flat[i] < 5]
    rows = values.reshape(indices.size, *values.shape[indices.ndim :])
    return indices.reshape(-1)[at] - 2, np.array(at, I64), rows[at]


CUT = {"start": 2, "stop": 5, "size": 7}
CASES.append(Case("PieceRows", [v([6, 2, 0, 4, 2]), f(5, 3)], piece, CUT))
CASES.append(Case("PieceRows", [v([[6, 2], [4, 3]], I64), f(2, 2, 2)], piece, CUT))
CASES.append(Case("PieceRows", [v([0, 1]), f(2)], piece, CUT))


def joined(indices: np.ndarray, *args: np.ndarray) -> np.ndarray:
    places, rows = args[: len(args) // 2], args[len(args) // 2 :]
    order = np.argsort(np.concatenate(places))
    return np.concatenate(rows)[order].reshape(*indices.shape, *rows[0].shape[1:])


CASES.append(
    Case("JoinRows", [v([5, 1, 0]), v([1, 2], I64), v([0], I64), f(2, 3), f(1, 3)], joined)
)
CASES.append(Case("JoinRows", [v([[5], [1]]), v([1, 0], I64), v([], I64), f(2), f(0)], joined))


def entries(indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = np.zeros((2, 3), values.dtype)
    for at, value in zip(indices.tolist(), values.tolist(), strict=True):
        out[at // 3, at % 3] += value
    return out


CASES.append(Case("AddEntries", [v([5, 0, 5, 2]), f(4)], entries, {"shape": (2, 3)}))
CASES.append(Case("AddEntries", [v([], I64), f(0)], entries, {"shape": (2, 3)}))
