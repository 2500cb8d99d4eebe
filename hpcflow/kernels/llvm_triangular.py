"""Generated triangular solutions and Cholesky factors.

OpenBLAS reaches a fifth of the peak for a few hundred rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.codegen.kernel_cache import builtin
from hpcflow.errors import NumericError
from hpcflow.kernels.kernel_registry import KernelNode, fast
from hpcflow.ops.linalg.linalg_kernels import refuse_zero_pivots

BLOCK = 256  # rows of a matrix that stays in a core's cache while it is factored


def _refuses(node: KernelNode) -> str:
    if node.outputs[0].dtype.name not in ("float32", "float64"):
        return f"elements of {node.outputs[0].dtype}"
    return "" if all(s.shape is not None for s in node.inputs) else "its ranks are not known"


def _solver(dtype: str, transposed: bool, upward: bool) -> Callable[..., Any]:
    from hpcflow.codegen import triangular_solve_codegen  # few steps need it

    return builtin(triangular_solve_codegen.text(dtype, transposed, upward))


def _rows_contiguous(x: np.ndarray) -> np.ndarray:
    """The array, copied if the elements of a row are not neighbours."""
    return x if x.strides[-1] == x.itemsize and x.flags.aligned else x.copy()


@fast("llvm", "MatrixTriangularSolve", "out", on="cpu", refuses=_refuses)
def _triangular_solve(xp: Any, node: KernelNode) -> Callable[..., Any]:
    lower, transposed = node.attrs["lower"], node.attrs["adjoint"]
    solve = _solver(node.outputs[0].dtype.name, transposed, lower == transposed)

    def run(a: Any, b: Any, out: Any) -> None:
        refuse_zero_pivots(a)
        *lead, n, columns = out.shape
        a = np.broadcast_to(a, (*lead, n, n)) if a.ndim > 2 else a[None]
        out[...] = b
        count = math.prod(lead)
        matrices = _rows_contiguous(a).reshape(math.prod(a.shape[:-2]), n, n)
        solve(np.broadcast_to(matrices, (count, n, n)), out.reshape(count, n, columns))

    return run


@fast("llvm", "Cholesky", "out", on="cpu", refuses=_refuses)
def _cholesky(xp: Any, node: KernelNode) -> Callable[..., Any]:
    """U with U^T U = A, by blocks of rows (left-looking); the result is its transpose."""
    from hpcflow.codegen import triangular_solve_codegen  # few steps need it

    dtype = node.outputs[0].dtype.name
    factor = builtin(triangular_solve_codegen.cholesky_text(dtype))
    solve = _solver(dtype, True, False)
    triangle = np.tri(BLOCK, dtype=np.bool_)

    def factor_blocks(upper: np.ndarray) -> None:
        for begin in range(0, len(upper), BLOCK):
            here, behind = slice(begin, begin + BLOCK), slice(begin + BLOCK, None)
            above = upper[:begin]
            upper[here, begin:] -= above[:, here].T @ above[:, begin:]
            factor(upper[None, here, here])
            solve(upper[None, here, here], upper[None, here, behind])

    def run(a: Any, out: Any) -> None:
        *lead, n, _ = a.shape
        given = a.reshape(math.prod(lead), n, n)
        uppers = given.swapaxes(1, 2).copy()
        if n <= BLOCK:
            factor(uppers)
        else:
            for upper in uppers:
                factor_blocks(upper)
        for wrong in np.flatnonzero(~(uppers.diagonal(axis1=1, axis2=2) > 0).all(1)):
            if np.isfinite(np.tril(given[wrong])).all():  # as NumPy, which factors NaN to NaN
                raise NumericError("linear algebra failed: Matrix is not positive definite")
        lowers = out.reshape(given.shape)
        lowers[...] = 0
        for begin in range(0, n, BLOCK):
            here = slice(begin, begin + BLOCK)
            lowers[:, here, :begin] = uppers[:, :begin, here].swapaxes(1, 2)
            square = uppers[:, here, here].swapaxes(1, 2)
            np.copyto(lowers[:, here, here], square, where=triangle[: n - begin, : n - begin])

    return run
