"""Cases of sparse tensors: dense forms, products with dense matrices, orders."""

from __future__ import annotations

import numpy as np

from tests.ops.cases import CASES, I32, I64, Case, f, n, v


def dense(indices: np.ndarray, shape: np.ndarray, values: np.ndarray, default: np.ndarray):
    whole = np.full(shape, default)
    for i, place in enumerate(indices):
        whole[tuple(place)] = values[i] if values.shape else values
    return whole


ORDERED = v([[0, 1], [1, 0], [1, 3], [2, 2]], I64)
for validate in (True, False):
    CASES.append(
        Case("SparseToDense", [ORDERED, v([3, 4], I64), f(4), f()], dense, {"validate": validate})
    )
CASES.append(Case("SparseToDense", [v([[1], [3]]), v([5]), f(), f()], dense, {"validate": True}))
CASES.append(
    Case(
        "SparseToDense",
        [v(np.zeros((0, 2)), I64), v([2, 2], I64), f(0), f()],
        dense,
        {"validate": True},
    )
)
CASES.append(
    Case(
        "SparseToDense",
        [v([[2], [0]], I64), v([3], I64), n(2), v(7, I64)],
        dense,
        {"validate": False},
        (I64,),
    )
)


def product(adjoint: bool):
    def oracle(indices: np.ndarray, values: np.ndarray, shape: np.ndarray, b: np.ndarray):
        a = np.zeros(shape, b.dtype)
        np.add.at(a, tuple(indices.T), values)
        return (a.T if adjoint else a) @ b

    return oracle


TWICE = v([[2, 0], [0, 1], [2, 0], [1, 3]], I64)  # in no order, one place named twice
for adjoint in (False, True):
    b = f(3 if adjoint else 4, 2)
    attrs = {"adjoint_a": adjoint}
    shape = v([3, 4], I64)
    CASES.append(Case("SparseTensorDenseMatMul", [TWICE, f(4), shape, b], product(adjoint), attrs))
    none = [v(np.zeros((0, 2)), I64), f(0), shape, b]
    CASES.append(Case("SparseTensorDenseMatMul", none, product(adjoint), attrs))

CASES.append(Case("SortOrder", [v([3, 1, 3, 0, 1], I32)], lambda k: np.array([3, 1, 4, 0, 2])))
