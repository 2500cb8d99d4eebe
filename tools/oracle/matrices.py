"""Functions of matrices and of sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tools.oracle.draw import COMPLEX, NUMBERS, SIGNED, WIDE, Case, Draw, Text
from tools.oracle.parts import dense_shape, sparse_tensor, square

# -- matrices


def matmul(d: Draw, f: str) -> Case:
    d.finite = True
    m, k, n = d.size(), d.size(), d.size()
    batch, dtype = d.shape(0, 2), d.one(("float32", "float64", "int32", "complex64", "float16"))
    flags = d.some(transpose_a=[True], transpose_b=[True]) if d.chance(0.5) else {}
    if dtype == "complex64" and d.chance(0.4):
        flags = d.some(adjoint_a=[True], adjoint_b=[True])
    a = (k, m) if flags.get("transpose_a") or flags.get("adjoint_a") else (m, k)
    b = (n, k) if flags.get("transpose_b") or flags.get("adjoint_b") else (k, n)
    if f.endswith("matvec"):
        flags = {}
        return d.call(f, d.array((*batch, m, k), dtype), d.array((*batch, k), dtype))
    if d.chance(d.wrong):
        b = (b[0] + 1, b[1])
    return d.call(f, d.array((*batch, *a), dtype), d.array((*d.beside(batch), *b), dtype), **flags)


def square_matrix(d: Draw, f: str, definite: bool = False, dtypes: Sequence[str] = WIDE) -> Case:
    return d.call(f, square(d, d.shape(0, 2), d.whole(1, 4), definite, d.one(dtypes)))


def any_matrix(d: Draw, f: str, dtypes: Sequence[str] = NUMBERS) -> Case:
    return d.call(f, d.array((*d.shape(0, 2), d.size(), d.size()), dtypes))


def decomposition(d: Draw, f: str) -> Case:
    """What does not depend on the signs of vectors."""
    x = square(d, d.shape(0, 1), d.whole(1, 4), True, d.one(WIDE))
    forms = {
        "qr": f"(lambda q, r: tf.matmul(q, r))(*tf.qr({x}))",
        "svd": f"tf.svd({x}, compute_uv=False)",
        "self_adjoint_eig": f"tf.self_adjoint_eig({x})[0]",
    }
    return Case(f, forms[f.rpartition(".")[2]], d.inputs)


def diagonal(d: Draw, f: str) -> Case:
    return d.call(f, d.array(d.shape(1, 2), NUMBERS))


def diagonal_part(d: Draw, f: str) -> Case:
    return d.call(f, d.array(d.shape(1, 2) * 2, NUMBERS))


def set_diag(d: Draw, f: str) -> Case:
    batch, m, n, dtype = d.shape(0, 1), d.size(), d.size(), d.one(SIGNED)
    return d.call(f, d.array((*batch, m, n), dtype), d.array((*batch, min(m, n)), dtype))


def band_part(d: Draw, f: str) -> Case:
    x = d.array((*d.shape(0, 1), d.size(), d.size()), SIGNED)
    return d.call(f, x, d.whole(-1, 2), d.whole(-1, 2))


def solve(d: Draw, f: str) -> Case:
    batch, n, dtype = d.shape(0, 1), d.whole(1, 4), d.one(WIDE)
    matrix = square(d, batch, n, "cholesky" in f, dtype)
    if "triangular" in f:
        flags = d.some(lower=[True, False], adjoint=[True, False])
    else:
        flags = d.some(adjoint=[True, False]) if f.endswith("solve") and "chol" not in f else {}
    return d.call(f, matrix, d.array((*batch, n, d.whole(1, 3)), dtype, 0), **flags)


def least_squares(d: Draw, f: str) -> Case:
    m, n = d.whole(1, 4), d.whole(1, 4)
    named = d.some(l2_regularizer=[0.5], fast=[True])
    return d.call(
        f, d.array((m, n), "float64", 0), d.array((m, d.whole(1, 2)), "float64", 0), **named
    )


def eye(d: Draw, f: str) -> Case:
    named = d.some(num_columns=[1, 4], batch_shape=[[2], []], dtype=[Text("tf.int32")])
    return d.call(f, d.size(), **named)


def einsum(d: Draw, f: str) -> Case:
    d.finite = True
    equation = d.one(
        ["ij,jk->ik", "bij,bjk->bik", "ij->ji", "ii->i", "ij,j->i", "i,j->ij", "ij->", "bij->bi"]
    )
    sizes = {c: d.size() for c in "ijkb"}
    left = equation.partition("->")[0].split(",")
    dtype = d.one(("float32", "float64", "complex64"))
    return d.call(f, equation, *(d.array(tuple(sizes[c] for c in part), dtype) for part in left))


def tensordot(d: Draw, f: str) -> Case:
    d.finite = True
    a, b, k = d.shape(0, 2), d.shape(0, 2), d.shape(1, 2)
    x, y = d.array((*a, *k), WIDE), d.array((*k, *b), "float32")
    d.inputs[1].value = d.inputs[1].value.astype(d.inputs[0].value.dtype)
    axes: Any = len(k)
    if d.chance(0.5):
        axes = [[len(a) + i for i in range(len(k))], list(range(len(k)))]
    return d.call(f, x, y, axes)


def trace(d: Draw, f: str) -> Case:
    return d.call(f, d.array((*d.shape(0, 2), d.size(), d.size()), SIGNED))


def transform(d: Draw, f: str) -> Case:
    dims = 3 if "3d" in f else 2 if "2d" in f else 1
    real = f.rpartition(".")[2].startswith("rfft")
    shape = (*d.shape(0, 1), *(d.whole(1, 4) for _ in range(dims)))
    return d.call(f, d.array(shape, ("float32", "float64") if real else COMPLEX, 0))


# -- sparse tensors


def sparse_alone(d: Draw, f: str) -> Case:
    return d.call(f, sparse_tensor(d, d.whole(1, 3)))


def sparse_softmax(d: Draw, f: str) -> Case:
    return d.call(f, sparse_tensor(d, d.whole(2, 3)))


def sparse_reduce(d: Draw, f: str) -> Case:
    rank = d.whole(1, 3)
    return d.call(
        f,
        sparse_tensor(d, rank),
        **({"axis": d.axis(rank)} if d.chance(0.7) else {}),
        **d.some(keepdims=[True]),
    )


def sparse_pair(d: Draw, f: str) -> Case:
    first = sparse_tensor(d, 2)
    return d.call(f, first, first if d.chance(0.5) else sparse_tensor(d, 2))


def sparse_concat(d: Draw, f: str) -> Case:
    first = sparse_tensor(d, 2)
    return d.call(f, d.one([0, 1, -1]), [first, first])


def sparse_reshape(d: Draw, f: str) -> Case:
    made = sparse_tensor(d, 2)
    shape = dense_shape(made)
    return d.call(f, made, d.one([[-1], shape[::-1], [shape[0] * shape[1]], [7]]))


def sparse_slice(d: Draw, f: str) -> Case:
    return d.call(
        f, sparse_tensor(d, 2), [d.whole(0, 1), d.whole(0, 1)], [d.whole(1, 3), d.whole(1, 3)]
    )


def sparse_rows(d: Draw, f: str) -> Case:
    return d.call(f, sparse_tensor(d, 2), 0.5 if "fill" in f else 4)


def sparse_retain(d: Draw, f: str) -> Case:
    made = sparse_tensor(d, 2)
    n = len(d.inputs[1].value)
    return d.call(f, made, d.array((n,), "bool", way="given"))


def sparse_transpose(d: Draw, f: str) -> Case:
    return d.call(f, sparse_tensor(d, 2), **d.some(perm=[[1, 0], [0, 1]]))


def sparse_matmul(d: Draw, f: str) -> Case:
    made = sparse_tensor(d, 2)
    shape = dense_shape(made)
    flags = d.some(adjoint_a=[True])
    inner = shape[0] if flags else shape[1]
    return d.call(f, made, d.array((inner, d.whole(1, 3)), "float32"), **flags)


def to_dense(d: Draw, f: str) -> Case:
    n = d.whole(0, 3)
    where = np.sort(d.rng.permutation(5)[:n]).astype("int64")
    return d.call(f, d.given(where), [5], d.array((n,), "float32"), **d.some(default_value=[-1.0]))


def sparse_indicator(d: Draw, f: str) -> Case:
    return d.call(f, sparse_tensor(d, 2, "int64", 0, 4), 5)


def slices_mask(d: Draw, f: str) -> Case:
    made = (
        f"tf.IndexedSlices({d.array((3, 2), 'float32', way='fed')}, tf.constant([0, 2, 5]), [6, 2])"
    )
    return d.call(f, Text(made), [2])


def edit_distance(d: Draw, f: str) -> Case:
    pair = [sparse_tensor(d, 2, "int64", 0, 3), sparse_tensor(d, 2, "int64", 0, 3)]
    return d.call(f, *pair, **d.some(normalize=[False]))
