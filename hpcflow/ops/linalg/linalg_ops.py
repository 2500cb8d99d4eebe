"""Linear algebra ops: solve, inverse, determinant, Cholesky, matrix exponential; batched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.graph.op_registry import Infer, op
from hpcflow.graph.static_shape import Shape, Spec, broadcast_shapes, shape_text
from hpcflow.ops import flop_counts
from hpcflow.ops.array.array_ops import expand_dims, shape, squeeze
from hpcflow.ops.array.broadcast_ops import sum_to, zeros_like
from hpcflow.ops.array.concat_split_ops import concat
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.linalg.matmul_ops import matmul
from hpcflow.ops.linalg.matrix_diagonal_ops import (
    adjoint,
    eye,
    matrix_band_part,
    matrix_diag_part,
    matrix_set_diag,
    matrix_shape,
)
from hpcflow.ops.math.arithmetic_ops import (
    add,
    cast,
    divide,
    greater,
    log,
    multiply,
    negative,
    times,
    where,
)
from hpcflow.ops.math.complex_number_ops import real
from hpcflow.ops.math.reduction_ops import reduce_max, reduce_sum
from hpcflow.ops.named_results import LogMatrixDeterminant
from hpcflow.ops.shape_inference import Attrs, first_output, make, operands, require_equal

# -- shape rules


def lapack(type: str, spec: Spec) -> tuple[Shape, int | None, int | None]:
    """The shape of matrices of a dtype that LAPACK supports."""
    if spec.dtype.kind not in "fc" or spec.dtype.itemsize < 4:
        raise DTypeError(
            f"{type} takes float32, float64 or complex numbers, not {spec.dtype}",
            hint="convert with hf.cast(x, hf.float32)",
        )
    return matrix_shape(type, spec)


def square(type: str, spec: Spec) -> tuple[Shape, int | None]:
    """The leading axes and the size of square matrices."""
    lead, rows, columns = lapack(type, spec)
    if lead is None:
        return None, None
    if rows is not None and columns is not None and rows != columns:
        raise ShapeError(f"{type} needs square matrices, not shape {shape_text(spec.shape)}")
    return lead, rows if columns is None else columns


def square_matrix_shape(type: str) -> Infer:
    """Shape rule of ops from square matrices to square matrices."""

    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        lead, n = square(type, inputs[0])
        return [Spec(inputs[0].dtype, None if lead is None else (*lead, n, n))]

    return infer


def _solved(type: str) -> Infer:
    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        require_equal(type, inputs)
        lead, n = square(type, inputs[0])
        right_lead, rows, columns = lapack(f"{type}'s right side", inputs[1])
        if n is not None and rows is not None and n != rows:
            pair = f"{shape_text(inputs[0].shape)} and {shape_text(inputs[1].shape)}"
            raise ShapeError(f"{type} of {pair}: the numbers of rows, {n} and {rows}, differ")
        if lead is None or right_lead is None:
            return [Spec(inputs[0].dtype, None)]
        joint = broadcast_shapes([lead, right_lead])
        assert joint is not None
        return [Spec(inputs[0].dtype, (*joint, rows if n is None else n, columns))]

    return infer


def _determinant(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    lead, _ = square("matrix_determinant", inputs[0])
    return [Spec(inputs[0].dtype, lead)]


def _log_determinant(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    if inputs[0].dtype.kind == "c":
        raise DTypeError("slogdet takes real matrices", hint="use hf.matrix_determinant")
    return _determinant(inputs, attrs) * 2


# -- gradients


def _inverse_back(op: Operation, g: Tensor) -> list[Any]:
    turned = adjoint(op.outputs[0])
    return [negative(matmul(turned, matmul(g, turned)))]


def _solve_back(op: Operation, g: Tensor) -> list[Any]:
    (a, b), x = op.inputs, op.outputs[0]
    of_b = first_output(op.type, [a, g], {**op.attrs, "adjoint": not op.attrs["adjoint"]})

    def of_a() -> Tensor:
        d = matmul(x, adjoint(of_b)) if op.attrs["adjoint"] else matmul(of_b, adjoint(x))
        if op.type == "MatrixTriangularSolve":
            d = matrix_band_part(d, *((-1, 0) if op.attrs["lower"] else (0, -1)))
        return sum_to(negative(d), a, d)

    return [of_a, lambda: sum_to(of_b, b, of_b)]


def _per_matrix(t: Tensor) -> Tensor:
    return expand_dims(expand_dims(t, -1), -1)


def _determinant_back(op: Operation, g: Tensor) -> list[Any]:
    inverse = adjoint(matrix_inverse(op.inputs[0]))
    return [multiply(_per_matrix(times(g, op.outputs[0])), inverse)]


def _log_determinant_back(op: Operation, _: Tensor | None, g: Tensor | None) -> list[Any]:
    if g is None:
        return [None]  # the sign is constant
    return [multiply(_per_matrix(g), adjoint(matrix_inverse(op.inputs[0])))]


def _cholesky_back(op: Operation, g: Tensor) -> list[Any]:
    factor = op.outputs[0]  # I. Murray, arXiv:1602.07527, equation 9; symmetric, as in TensorFlow
    middle = matmul(adjoint(factor), g)
    half = multiply(matrix_diag_part(middle), 0.5)
    middle = matrix_band_part(matrix_set_diag(middle, half), -1, 0)
    solved = matrix_triangular_solve(factor, middle, adjoint=True)
    d = matrix_triangular_solve(factor, adjoint(solved), adjoint=True)
    # d is the adjoint of the solution of equation 9; the sum is the same for both
    return [multiply(add(d, adjoint(d)), 0.5)]


def _expm_back(op: Operation, g: Tensor) -> list[Any]:
    a = adjoint(op.inputs[0])  # exp([[a, g], [0, a]]) contains the derivative
    above = concat([a, g], -1)
    block = concat([above, concat([zeros_like(g), a], -1)], -2)
    return [_upper_right(first_output("Expm", [block]), a)]


def _upper_right(block: Tensor, a: Tensor) -> Tensor:
    """The upper right quarter of `block`, which is twice as large as `a`."""
    side = None if a.shape is None else a.shape[-1]
    if side is not None:
        return getitem(block, (..., slice(None, side), slice(side, None)))
    unit = eye(getitem(shape(a), -1), dtype=a.dtype)
    none = zeros_like(unit)
    return matmul(matmul(concat([unit, none], -1), block), concat([none, unit], -2))


_KERNELS = "linalg_kernels kernels.llvm_triangular"
op(
    "MatrixInverse",
    infer=square_matrix_shape("matrix_inverse"),
    grad=_inverse_back,
    flops=flop_counts.per_matrix(lambda m, n, _: 2 * n**3),
)
op(
    "MatrixSolve",
    infer=_solved("matrix_solve"),
    grad=_solve_back,
    flops=flop_counts.per_matrix(lambda m, n, k: 2 / 3 * n**3 + 2 * n**2 * k),
)
op(
    "MatrixTriangularSolve",
    infer=_solved("matrix_triangular_solve"),
    grad=_solve_back,
    flops=flop_counts.per_matrix(lambda m, n, k: n**2 * k),
    kernels=_KERNELS,
)
op(
    "MatrixDeterminant",
    infer=_determinant,
    grad=_determinant_back,
    flops=flop_counts.per_matrix(lambda m, n, _: 2 / 3 * n**3),
)
op(
    "LogMatrixDeterminant",
    infer=_log_determinant,
    grad=_log_determinant_back,
    flops=flop_counts.per_matrix(lambda m, n, _: 2 / 3 * n**3),
)
op(
    "Cholesky",
    infer=square_matrix_shape("cholesky"),
    grad=_cholesky_back,
    flops=flop_counts.per_matrix(lambda m, n, _: n**3 / 3),
    kernels=_KERNELS,
)
op("Expm", infer=square_matrix_shape("expm"), grad=_expm_back)


# -- public functions


def matrix_inverse(input: Any, adjoint: bool = False, name: str | None = None) -> Tensor:
    """The inverse of each square matrix, or of its adjoint.

    Errors: NumericError at run time for a singular matrix.
    """
    return first_output("MatrixInverse", [_turned(input, adjoint)], {}, name)


def _turned(matrix: Any, turn: bool) -> Tensor:
    return adjoint(matrix) if turn else convert_to_tensor(matrix)


def matrix_solve(matrix: Any, rhs: Any, adjoint: bool = False, name: str | None = None) -> Tensor:
    """The solution X of `matrix` X = `rhs`, or with the adjoint of `matrix`.

    Shapes: [..., n, n] and [..., n, k] give [..., n, k]; leading axes are broadcast.
    Errors: NumericError at run time for a singular matrix.
    """
    a, b = operands(matrix, rhs)
    return first_output("MatrixSolve", [a, b], {"adjoint": bool(adjoint)}, name)


def matrix_triangular_solve(
    matrix: Any, rhs: Any, lower: bool = True, adjoint: bool = False, name: str | None = None
) -> Tensor:
    """`matrix_solve` for triangular matrices; reads only the `lower` or the upper triangle."""
    a, b = operands(matrix, rhs)
    attrs = {"lower": bool(lower), "adjoint": bool(adjoint)}
    return first_output("MatrixTriangularSolve", [a, b], attrs, name)


def matrix_determinant(input: Any, name: str | None = None) -> Tensor:
    """The determinant of each square matrix."""
    return first_output("MatrixDeterminant", [convert_to_tensor(input)], {}, name)


def slogdet(input: Any, name: str | None = None) -> LogMatrixDeterminant:
    """The sign and the logarithm of the absolute value of each determinant."""
    sign, size = make("LogMatrixDeterminant", [convert_to_tensor(input)], {}, name).outputs
    return LogMatrixDeterminant(sign, size)


def cholesky(input: Any, name: str | None = None) -> Tensor:
    """The Cholesky factor: lower triangular L with L L^H = `input`; reads the lower triangle.

    Gradient: symmetric, as in TensorFlow.
    Errors: NumericError at run time for a matrix that is not positive definite.
    """
    return first_output("Cholesky", [convert_to_tensor(input)], {}, name)


def cholesky_solve(chol: Any, rhs: Any, name: str | None = None) -> Tensor:
    """The solution X of A X = `rhs`, where `chol` is the Cholesky factor of A."""
    half = matrix_triangular_solve(chol, rhs)
    return matrix_triangular_solve(chol, half, adjoint=True, name=name)


def logdet(matrix: Any, name: str | None = None) -> Tensor:
    """The logarithm of the determinant of Hermitian positive definite matrices."""
    diagonal = matrix_diag_part(cholesky(matrix))
    return multiply(reduce_sum(log(real(diagonal)), -1), 2, name)


def expm(input: Any, name: str | None = None) -> Tensor:
    """The matrix exponential of each square matrix."""
    return first_output("Expm", [convert_to_tensor(input)], {}, name)


@accepts_and_ignores("a_is_sparse", "b_is_sparse")
def matvec(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    adjoint_a: bool = False,
    name: str | None = None,
) -> Tensor:
    """The products of matrices and vectors: [..., n, k] and [..., k] give [..., n]."""
    x, y = operands(a, b)
    if adjoint_a:
        x = adjoint(x)
    return squeeze(matmul(x, expand_dims(y, -1), transpose_a), -1, name)


def matrix_solve_ls(
    matrix: Any, rhs: Any, l2_regularizer: float = 0.0, fast: bool = True, name: str | None = None
) -> Tensor:
    """The least squares solution X of `matrix` X = `rhs` of least norm, optionally regularized.

    `fast` solves the normal equations, which requires full rank. Otherwise an SVD is used; singular
    values below the machine epsilon times the largest count as 0, and `l2_regularizer` must be 0.
    Shapes: [..., m, n] and [..., m, k] give [..., n, k].
    """
    a, b = operands(matrix, rhs)
    if not fast:
        if l2_regularizer:
            raise ShapeError("matrix_solve_ls takes l2_regularizer only with fast=True")
        return matmul(_pseudo_inverse(a), b, name=name)
    _, rows, columns = lapack("matrix_solve_ls", a.spec)
    if rows is None or columns is None:
        raise ShapeError(
            f"matrix_solve_ls with fast=True needs known sizes, not {shape_text(a.shape)}",
            hint="give the sizes by set_shape, or use fast=False",
        )
    tall = rows >= columns
    turned = adjoint(a)
    normal = matmul(turned, a) if tall else matmul(a, turned)
    normal = add(normal, multiply(eye(min(rows, columns), dtype=a.dtype), l2_regularizer))
    factor = cholesky(normal)
    if tall:
        return cholesky_solve(factor, matmul(turned, b), name)
    return matmul(turned, cholesky_solve(factor, b), name=name)


def _pseudo_inverse(a: Tensor) -> Tensor:
    attrs = {"full_matrices": False, "compute_uv": True}
    s, u, v = make("Svd", [a], attrs).outputs
    widest = cast(reduce_max(shape(a)[-2:]), s.dtype) if a.shape is not None else None
    if widest is None:
        raise ShapeError("matrix_solve_ls needs matrices of known rank")
    rounding = {4: 1.2e-7, 8: 2.3e-16}[s.dtype.itemsize]
    limit = multiply(multiply(reduce_max(s, -1, True), widest), rounding)
    nonzero = greater(s, limit)
    inverse = where(nonzero, divide(1, where(nonzero, s, 1)), 0)
    return matmul(multiply(v, expand_dims(cast(inverse, v.dtype), -2)), adjoint(u))
