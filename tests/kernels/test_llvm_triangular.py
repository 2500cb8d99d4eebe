"""Generated triangular solutions and Cholesky factors, against NumPy and by their residuals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.codegen import triangular_solve_codegen
from hpcflow.codegen.matmul_codegen import VectorRegisters
from hpcflow.errors import NumericError
from tests.kernels.against_plain import both, chosen, run

REGISTERS = [None, (64, 32), (32, 16), (16, 16)]
UNITS = {"float32": 2.0**-24, "float64": 2.0**-53}  # of rounding


@pytest.fixture(params=REGISTERS, ids=str)
def registers(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Kernels for the vectors of this CPU, and of others."""
    if request.param is not None:
        here = VectorRegisters(*request.param)
        monkeypatch.setattr(triangular_solve_codegen, "vector_registers", lambda: here)
    return request.param


def triangle(rng: np.random.Generator, shape: tuple[int, ...], lower: bool) -> np.ndarray:
    """Matrices whose other triangle is NaN: it must not be read."""
    a = rng.standard_normal(shape) / np.sqrt(shape[-1]) + 2 * np.eye(shape[-1])
    inside = np.tri(shape[-1], dtype=bool)
    return np.where(inside if lower else inside.T, a, np.nan)


def solved(a: np.ndarray, b: np.ndarray, lower: bool, adjoint: bool) -> np.ndarray:
    choice, node = chosen("MatrixTriangularSolve", {"lower": lower, "adjoint": adjoint}, [a, b])
    assert choice.kernel.provider == "llvm"
    return run(choice, node, [a, b])


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_solutions_of_any_sizes(dtype: str, lower: bool, adjoint: bool, registers: Any) -> None:
    """Substitution is backward stable: |a x - b| <= c n u |a| |x| (Higham, 2002, theorem 8.5)."""
    rng = np.random.default_rng(5)
    for n, columns in itertools.product((1, 2, 7, 16, 33, 70), (1, 3, 8, 17, 70)):
        a, b = triangle(rng, (n, n), lower).astype(dtype), rng.standard_normal((n, columns))
        x = solved(a, b.astype(dtype), lower, adjoint).astype("longdouble")
        system = np.where(np.isnan(a), 0, a).astype("longdouble")
        system = system.T if adjoint else system
        residual = np.abs(system @ x - b.astype(dtype))
        assert (residual <= 2 * (n + 1) * UNITS[dtype] * (np.abs(system) @ np.abs(x))).all()


@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_small_pivots_are_as_accurate(kernels: str, lower: bool, adjoint: bool) -> None:
    """Inverses of diagonal blocks, and a solution that exchanges rows, lose all digits."""
    rng = np.random.default_rng(6)
    a = rng.uniform(1, 2, (80, 80))
    a[np.diag_indices(80)] = 10.0 ** rng.uniform(-3, 0, 80)
    a, b = np.tril(a) if lower else np.triu(a), rng.standard_normal((80, 40))
    attrs = {"lower": lower, "adjoint": adjoint}
    choice, node = chosen("MatrixTriangularSolve", attrs, [a, b], kernels=kernels)
    x = run(choice, node, [a, b]).astype("longdouble")
    system = a.T if adjoint else a
    residual = np.abs(system @ x - b)
    assert (residual <= 200 * UNITS["float64"] * (np.abs(system) @ np.abs(x))).all()


@pytest.mark.parametrize(
    ("of_a", "of_b"),
    [((3,), (3,)), ((), (4,)), ((2, 1), (2, 3)), ((2, 3), ()), ((0,), (0,))],
    ids=str,
)
def test_batches_are_broadcast(of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    a, b = triangle(rng, (*of_a, 9, 9), True), rng.standard_normal((*of_b, 9, 5))
    lead = np.broadcast_shapes(of_a, of_b)
    found = solved(a, b, True, False)
    full = np.broadcast_to(np.nan_to_num(a), (*lead, 9, 9))
    wanted = np.linalg.solve(full, np.broadcast_to(b, (*lead, 9, 5)))
    np.testing.assert_allclose(found, wanted, rtol=1e-11)


@pytest.mark.parametrize(
    ("of_a", "of_b"),
    [((0, 0), (0, 3)), ((2, 0, 0), (2, 0, 3)), ((3, 3), (3, 0)), ((0, 3, 3), (0, 3, 2))],
    ids=str,
)
def test_nothing_is_solved_to_nothing(of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
    a, b = np.ones(of_a), np.ones(of_b)
    assert solved(a, b, True, False).shape == of_b
    choice, node = chosen("Cholesky", {}, [a * 0])
    if not a.size:
        assert run(choice, node, [a]).shape == of_a


def test_rows_apart_and_columns_apart_are_read_as_they_are() -> None:
    rng = np.random.default_rng(8)
    a, b = triangle(rng, (20, 20), True), rng.standard_normal((20, 6))
    wide, turned = np.full((20, 50), np.nan), np.asfortranarray(a)
    wide[:, 3:23] = a
    for same in (wide[:, 3:23], turned):
        np.testing.assert_array_equal(solved(same, b, True, False), solved(a, b, True, False))


def test_a_zero_on_the_diagonal_is_an_error() -> None:
    a = np.eye(5)
    a[3, 3] = 0
    with pytest.raises(NumericError, match="Singular"):
        solved(a, np.ones((5, 2)), True, False)


@pytest.mark.parametrize("dtype", UNITS)
def test_cholesky_factors_of_any_sizes(dtype: str, registers: Any) -> None:
    rng = np.random.default_rng(9)
    for n in (1, 2, 5, 8, 15, 16, 17, 40, 255, 256, 257, 300):
        a = rng.standard_normal((2, n, n))
        a = (a @ a.swapaxes(1, 2) + n * np.eye(n)).astype(dtype)
        read = np.where(np.tri(n, dtype=bool), a, np.nan).astype(dtype)  # the lower triangle alone
        choice, node = chosen("Cholesky", {}, [read])
        assert choice.kernel.provider == "llvm"
        factor = run(choice, node, [read]).astype("longdouble")
        assert (factor == np.tril(factor)).all()
        away = np.abs(factor @ factor.swapaxes(1, 2) - a).max()
        assert away <= (n + 10) * UNITS[dtype] * np.abs(a).max()


@pytest.mark.parametrize("n", [4, 40, 300])
@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
def test_the_factor_of_what_is_not_finite_is_not_finite(n: int, value: float) -> None:
    """As NumPy's; other matrices of the batch are factored."""
    a = np.stack([np.eye(n), 4 * np.eye(n)])
    a[0, n - 2, n - 2] = value
    choice, node = chosen("Cholesky", {}, [a])
    factor = run(choice, node, [a])
    assert not np.isfinite(factor[0, n - 2, n - 2])
    np.testing.assert_array_equal(factor[1], 2 * np.eye(n))


@pytest.mark.parametrize("n", [4, 40, 300])
@pytest.mark.parametrize("value", [-1.0, 0.0], ids=str)
def test_a_matrix_that_is_not_positive_definite_is_an_error(n: int, value: float) -> None:
    a = np.eye(n)
    a[n - 2, n - 2] = value
    choice, node = chosen("Cholesky", {}, [a])
    with pytest.raises(NumericError, match="not positive definite"):
        run(choice, node, [a])


def test_other_dtypes_are_lapacks() -> None:
    a = np.eye(3, dtype="complex128")
    provider, found, plain = both("Cholesky", {}, [a])
    assert provider == "plain" and (found == plain).all()


def test_the_gradient_of_a_log_likelihood() -> None:
    """The derivatives of a Gaussian process's log marginal likelihood (Rasmussen, equation 5.9)."""
    rng = np.random.default_rng(10)
    x, y = rng.standard_normal((60, 3)), rng.standard_normal((60, 1))
    with hf.Graph().as_default(), hf.Session() as session:
        length = hf.Variable(np.float64(1.3))
        squares = hf.reduce_sum(hf.square(x[:, None] - x[None]), 2)
        kernel = hf.exp(-squares / (2 * hf.square(length))) + 0.1 * np.eye(60)
        lower = hf.cholesky(kernel)
        white = hf.matrix_triangular_solve(lower, y)
        logs = hf.reduce_sum(hf.log(hf.linalg.diag_part(lower)))
        (slope,) = hf.gradients(0.5 * hf.reduce_sum(hf.square(white)) + logs, [length])
        session.run(length.initializer)
        found = session.run(slope)
    apart = ((x[:, None] - x[None]) ** 2).sum(2)
    covariance = np.exp(-apart / (2 * 1.3**2))
    inverse = np.linalg.inv(covariance + 0.1 * np.eye(60))
    by_length = covariance * apart / 1.3**3
    alpha = inverse @ y
    wanted = 0.5 * np.trace(inverse @ by_length) - 0.5 * (alpha.T @ by_length @ alpha).item()
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
