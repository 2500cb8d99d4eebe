"""Linear algebra kernels: LAPACK (NumPy) or cuSOLVER (CuPy)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import NumericError
from hpcflow.kernels.cuda_graph_restrictions import CALLS_CUBLAS, CALLS_CUSOLVER
from hpcflow.kernels.kernel_registry import KernelNode, kernel

BLOCK = 32  # rows that a triangular solve computes one by one; the rest are matrix products


def call_linalg(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """A function of numpy.linalg whose LinAlgError becomes a NumericError."""
    try:
        return function(*args, **more)
    except np.linalg.LinAlgError as error:
        raise NumericError(f"linear algebra failed: {error}") from None


def adjoint(x: Any) -> Any:
    """The conjugate transpose of the last two axes."""
    return x.swapaxes(-1, -2).conj()


def _simple(type: str, function: str) -> None:
    @kernel(type, "out", uncaptured=CALLS_CUSOLVER)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        run = getattr(xp.linalg, function)
        return lambda x, out: xp.copyto(out, call_linalg(run, x))


_simple("MatrixInverse", "inv")
_simple("Cholesky", "cholesky")
_simple("MatrixDeterminant", "det")


@kernel("LogMatrixDeterminant", "out", uncaptured=CALLS_CUSOLVER)
def _log_determinant(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(x: Any, sign: Any, size: Any) -> None:
        parts = xp.linalg.slogdet(x)
        xp.copyto(sign, parts[0])
        xp.copyto(size, parts[1])

    return run


def _joined(xp: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Matrices and right-hand sides, broadcast to common leading axes."""
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return tuple(xp.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))


@kernel("MatrixSolve", "out", uncaptured=CALLS_CUSOLVER)
def _solve(xp: Any, node: KernelNode) -> Callable[..., Any]:
    turn = node.attrs["adjoint"]

    def run(a: Any, b: Any, out: Any) -> None:
        a, b = _joined(xp, adjoint(a) if turn else a, b)
        xp.copyto(out, call_linalg(xp.linalg.solve, a, b))

    return run


@kernel("MatrixTriangularSolve", "out", uncaptured=CALLS_CUBLAS)
def _triangular_solve(xp: Any, node: KernelNode) -> Callable[..., Any]:
    """By substitution: a general solution exchanges rows, which loses digits of small ones."""
    turn = node.attrs["adjoint"]
    down = node.attrs["lower"] != turn

    def run(a: Any, b: Any, out: Any) -> None:
        a, b = _joined(xp, adjoint(a) if turn else a, b)
        refuse_zero_pivots(a)
        n = a.shape[-1]
        blocks = [range(i, min(i + BLOCK, n)) for i in range(0, n, BLOCK)]
        xp.copyto(out, b)
        for block in blocks if down else reversed(blocks):
            here, solved = slice(block[0], block[-1] + 1), slice(None, block[0])
            if not down:
                solved = slice(block[-1] + 1, None)
            out[..., here, :] -= xp.matmul(a[..., here, solved], out[..., solved, :])
            for i in block if down else reversed(block):
                before = slice(block[0], i) if down else slice(i + 1, block[-1] + 1)
                row = slice(i, i + 1)
                out[..., row, :] -= xp.matmul(a[..., row, before], out[..., before, :])
                out[..., row, :] /= a[..., row, row]

    return run


def refuse_zero_pivots(a: Any) -> None:
    """Check the diagonals of triangular matrices.

    Errors: NumericError if one has a zero.
    """
    if not a.diagonal(0, -2, -1).all():
        raise NumericError("linear algebra failed: Singular matrix")


# -- matrix exponential: Pade approximant of order 13 with scaling (N. Higham, SIMAX 26 (2005) 1179)

_PADE: tuple[float, ...] = (
    *(64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800),
    *(129060195264000, 10559470521600, 670442572800, 33522128640, 1323241920),
    *(40840800, 960960, 16380, 182, 1),
)
_LARGEST = 5.371920351148152  # 1-norm up to which the approximant is fully accurate


@kernel("Expm", "out")
def _expm(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(x: Any, out: Any) -> None:
        if not out.size:
            return
        size = float(xp.abs(x).sum(axis=-2).max())
        if not math.isfinite(size):
            out.fill(math.nan)
            return
        halvings = max(0, math.ceil(math.log2(size / _LARGEST))) if size else 0
        a, b = x * x.dtype.type(2.0**-halvings), _PADE
        unit = xp.eye(x.shape[-1], dtype=x.dtype)
        a2 = xp.matmul(a, a)
        a4 = xp.matmul(a2, a2)
        a6 = xp.matmul(a2, a4)
        odd = xp.matmul(a6, b[13] * a6 + b[11] * a4 + b[9] * a2)
        odd = xp.matmul(a, odd + b[7] * a6 + b[5] * a4 + b[3] * a2 + b[1] * unit)
        even = xp.matmul(a6, b[12] * a6 + b[10] * a4 + b[8] * a2)
        even = even + b[6] * a6 + b[4] * a4 + b[2] * a2 + b[0] * unit
        exponential = call_linalg(xp.linalg.solve, even - odd, even + odd)
        for _ in range(halvings):
            exponential = xp.matmul(exponential, exponential)
        xp.copyto(out, exponential)

    return run


# -- decompositions


@kernel("Qr", "out", uncaptured=CALLS_CUSOLVER)
def _qr(xp: Any, node: KernelNode) -> Callable[..., Any]:
    mode = "complete" if node.attrs["full_matrices"] else "reduced"

    def run(x: Any, q: Any, r: Any) -> None:
        factors = call_linalg(xp.linalg.qr, x, mode)
        xp.copyto(q, factors[0])
        xp.copyto(r, factors[1])

    return run


@kernel("Svd", "out", uncaptured=CALLS_CUSOLVER)
def _svd(xp: Any, node: KernelNode) -> Callable[..., Any]:
    full, vectors = node.attrs["full_matrices"], node.attrs["compute_uv"]

    def run(x: Any, *outs: Any) -> None:
        if not vectors:
            xp.copyto(outs[0], call_linalg(xp.linalg.svd, x, compute_uv=False))
            return
        u, s, v = call_linalg(xp.linalg.svd, x, full_matrices=full)
        for out, factor in zip(outs, (s, u, adjoint(v)), strict=True):
            xp.copyto(out, factor)

    return run


@kernel("SelfAdjointEig", "out", uncaptured=CALLS_CUSOLVER)
def _eig(xp: Any, node: KernelNode) -> Callable[..., Any]:
    vectors = node.attrs["compute_v"]

    def run(x: Any, *outs: Any) -> None:
        if not vectors:
            xp.copyto(outs[0], call_linalg(xp.linalg.eigvalsh, x))
            return
        for out, factor in zip(outs, call_linalg(xp.linalg.eigh, x), strict=True):
            xp.copyto(out, factor)

    return run
