"""Linear algebra: what is composed of several ops, errors, large triangles."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import scipy.linalg as sl

import hpcflow as hf
from hpcflow.errors import DTypeError, GradientError, NumericError, ShapeError
from tests.ops.evaluate import evaluate


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_a_triangle_of_several_blocks() -> None:
    a, b = random(150, 150) / 20 + np.eye(150), random(150, 3, seed=1)
    for lower in (True, False):
        for turn in (True, False):
            got = evaluate(hf.matrix_triangular_solve(hf.constant(a), b, lower, turn))
            expected = sl.solve_triangular(a, b, "T" if turn else "N", lower)
            np.testing.assert_allclose(got, expected, rtol=1e-9)


@pytest.mark.parametrize("n", [16, 17, 64, 65, 200])
@pytest.mark.parametrize("kind", ["f4", "f8", "c16"])
def test_triangular_solves_of_blocks_are_as_exact_as_lapacks(n, kind):
    """Rows of a covariance, whose factor is nearly singular; the other triangle is not read."""
    rng = np.random.default_rng(n)
    x = np.sort(rng.random((2, n)), -1)
    covariance = np.exp(-((x[:, :, None] - x[:, None]) ** 2)) + 1e-6 * np.eye(n)
    triangle = np.linalg.cholesky(covariance).astype(kind)
    b = rng.standard_normal((2, n, 3)).astype(kind)
    for lower in (True, False):
        a = triangle if lower else np.ascontiguousarray(triangle.swapaxes(-1, -2))
        spoiled = np.where((np.tri(n) if lower else np.tri(n).T) > 0, a, np.nan)
        for turn in (False, True):
            got = evaluate(hf.matrix_triangular_solve(spoiled, b, lower, turn))
            wide = (a.conj().swapaxes(-1, -2) if turn else a).astype("c16")
            left = np.abs(wide @ got - b)
            scale = np.abs(wide) @ np.abs(got) + np.abs(b)
            assert (left <= 200 * np.finfo(kind).eps * scale).all()


def test_a_singular_triangle_is_an_error_in_any_block():
    a = np.tril(np.ones((100, 100), "f4"))
    a[90, 90] = 0
    with pytest.raises(hf.errors.NumericError, match="Singular"):
        evaluate(hf.matrix_triangular_solve(a, np.ones((100, 1), "f4")))


def test_a_triangle_whose_inverse_overflows() -> None:
    tiny = np.eye(20, dtype="f4") * np.float32(1e-30)
    tiny[1, 0] = 1e10
    b = np.zeros((20, 1), "f4")
    b[1] = 1e-30
    got = evaluate(hf.matrix_triangular_solve(tiny, b))
    assert got[1] == 1 and not got[2:].any()


def test_solving_by_the_cholesky_factor() -> None:
    x = random(2, 4, 4)
    a, b = x @ x.swapaxes(1, 2) + np.eye(4), random(2, 4, 3, seed=1)
    factor = hf.cholesky(hf.constant(a))
    np.testing.assert_allclose(evaluate(hf.cholesky_solve(factor, b)), np.linalg.solve(a, b))
    np.testing.assert_allclose(evaluate(hf.linalg.logdet(a)), np.linalg.slogdet(a)[1])


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4)])
def test_least_squares(shape: tuple) -> None:
    a, b = random(*shape), random(*shape[:-1], 2, seed=1)
    x, y = hf.constant(a), hf.constant(b)
    expected = np.linalg.pinv(a) @ b
    for fast in (True, False):
        np.testing.assert_allclose(evaluate(hf.matrix_solve_ls(x, y, fast=fast)), expected)
    regular = evaluate(hf.matrix_solve_ls(x, y, 0.5))
    turned = a.swapaxes(-1, -2)
    normal = turned @ a + 0.5 * np.eye(shape[-1])
    np.testing.assert_allclose(regular, np.linalg.solve(normal, turned @ b), rtol=1e-6)


def test_least_squares_without_full_rank() -> None:
    a = np.array([[1.0, 1], [1, 1], [2, 2]])
    b = np.array([[1.0], [2], [3]])
    got = evaluate(hf.matrix_solve_ls(hf.constant(a), b, fast=False))
    np.testing.assert_allclose(got, np.linalg.pinv(a) @ b)


def test_norms_of_vectors() -> None:
    a = random(3, 4)
    x = hf.constant(a)
    assert np.isclose(evaluate(hf.norm(x)), np.sqrt((a * a).sum()))
    for order in (1, 2, 3, 2.5, np.inf):
        got = evaluate(hf.norm(x, order, 1, keepdims=True))
        np.testing.assert_allclose(got, np.linalg.norm(a, order, 1, True))
    z = a + 1j
    got = evaluate(hf.norm(hf.constant(z), axis=0))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, np.linalg.norm(z, axis=0))


def test_norms_of_matrices() -> None:
    a = random(2, 3, 4)
    x = hf.constant(a)
    for order in ("fro", 1, 2, np.inf):
        for axes in ([1, 2], [-3, -1], [2, 0]):
            for keep in (False, True):
                got = evaluate(hf.norm(x, order, axes, keep))
                np.testing.assert_allclose(got, np.linalg.norm(a, order, tuple(axes), keep))
    for order in ("nuclear", 3):
        with pytest.raises(ShapeError, match=r"order .* is not known"):
            hf.norm(x, order, [1, 2])
    with pytest.raises(ShapeError, match=r"order .* is not known"):
        hf.norm(x, -1)


def test_diagonals_of_tensors() -> None:
    a = random(2, 3)
    big = evaluate(hf.diag(hf.constant(a)))
    assert big.shape == (2, 3, 2, 3)
    assert np.array_equal(np.einsum("ijij->ij", big), a) and (big != 0).sum() == 6
    assert np.array_equal(evaluate(hf.diag_part(hf.constant(big))), a)
    unknown = hf.placeholder(hf.float64, [None, 3, None, 3])
    assert np.array_equal(evaluate(hf.diag_part(unknown), {unknown: big}), a)
    any_rank = hf.placeholder(hf.float64)
    assert np.array_equal(evaluate(hf.diag(any_rank), {any_rank: a}), big)
    with pytest.raises(ShapeError, match="diag_part"):
        hf.diag_part(hf.zeros([2, 2, 2]))


def test_traces_and_transposes() -> None:
    a = random(2, 3, 4) + 1j * random(2, 3, 4, seed=1)
    for x in (hf.constant(a), hf.placeholder(hf.complex128, None)):
        fed = {x: a} if x.op.type == "Placeholder" else {}
        found = [hf.trace(x), hf.matrix_transpose(x), hf.linalg.adjoint(x)]
        trace, turned, adjoint = evaluate(found, fed)
        np.testing.assert_allclose(trace, np.trace(a, axis1=1, axis2=2))
        assert np.array_equal(turned, a.swapaxes(1, 2))
        assert np.array_equal(adjoint, a.swapaxes(1, 2).conj())


def test_identity_matrices() -> None:
    assert np.array_equal(evaluate(hf.eye(3)), np.eye(3))
    assert evaluate(hf.eye(2, 3, [4, 1], hf.int32)).tolist() == [[np.eye(2, 3).tolist()]] * 4
    n = hf.placeholder(hf.int32, [])
    got = evaluate(hf.eye(n, n + 1, [2], hf.complex64), {n: 2})
    assert got.dtype == np.complex64 and np.array_equal(got, [np.eye(2, 3)] * 2)


def test_products_with_vectors() -> None:
    a, b = random(2, 3, 4), random(2, 4, seed=1)
    got = evaluate(hf.linalg.matvec(hf.constant(a), b))
    np.testing.assert_allclose(got, (a @ b[..., None])[..., 0])


def test_gradients_of_singular_values_and_eigenvalues_alone() -> None:
    a = random(4, 3)
    x = hf.constant(a)
    (g,) = hf.gradients(hf.svd(x, compute_uv=False), x)
    u, _, v = np.linalg.svd(a, full_matrices=False)
    np.testing.assert_allclose(evaluate(g), u @ v)
    (g,) = hf.gradients(hf.svd(x, full_matrices=True)[0], x)
    np.testing.assert_allclose(evaluate(g), u @ v)


def test_equal_eigenvalues_have_finite_gradients() -> None:
    x = hf.constant(np.eye(3))
    values, vectors = hf.self_adjoint_eig(x)
    (g,) = hf.gradients([values, vectors], x)
    assert np.isfinite(evaluate(g)).all()
    z = hf.zeros([3, 2], hf.float64)
    s, u, _ = hf.svd(z)
    (g,) = hf.gradients([s, u], z)
    assert np.isfinite(evaluate(g)).all()


@pytest.mark.parametrize(
    ("function", "matrix"),
    [
        (hf.matrix_inverse, [[1.0, 2], [2, 4]]),
        (hf.cholesky, [[1.0, 2], [2, 1]]),
        (lambda x: hf.matrix_solve(x, np.ones((2, 1), "f4")), [[0.0, 0], [0, 0]]),
        (lambda x: hf.matrix_triangular_solve(x, np.ones((2, 1), "f4")), [[0.0, 0], [0, 1]]),
    ],
)
def test_what_cannot_be_computed(function, matrix: list) -> None:
    x = hf.placeholder(hf.float32, [2, 2])
    with pytest.raises(NumericError, match="linear algebra failed"):
        evaluate(function(x), {x: matrix})


def test_shapes_and_dtypes_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match="needs square matrices"):
        hf.matrix_inverse(hf.zeros([2, 3]))
    with pytest.raises(ShapeError, match="rank 2 or more"):
        hf.cholesky(hf.zeros([3]))
    with pytest.raises(ShapeError, match="the numbers of rows, 3 and 2, differ"):
        hf.matrix_solve(hf.zeros([3, 3]), hf.zeros([2, 1]))
    for dtype in (hf.float16, hf.int32):
        with pytest.raises(DTypeError, match="matrix_determinant takes"):
            hf.matrix_determinant(hf.zeros([2, 2], dtype))
    with pytest.raises(GradientError, match="thin factors"):
        x = hf.placeholder(hf.float64, [2, 3])
        hf.gradients(hf.qr(x)[0], x)


def test_adjoint_factors() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((2, 2, 3)) + 1j * rng.standard_normal((2, 2, 3)) for _ in "ab")
    x, y = hf.constant(a), hf.constant(b)
    with hf.Session() as session:
        np.testing.assert_allclose(
            session.run(hf.matmul(x, y, adjoint_b=True)), a @ b.conj().swapaxes(1, 2)
        )
        np.testing.assert_allclose(
            session.run(hf.matmul(x, y, adjoint_a=True)), a.conj().swapaxes(1, 2) @ b
        )
    with pytest.raises(ShapeError, match="not both"):
        hf.matmul(x, y, transpose_b=True, adjoint_b=True)
