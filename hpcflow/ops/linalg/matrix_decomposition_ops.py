"""Matrix decomposition ops: QR, SVD, eigenvalues of Hermitian matrices; batched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec
from hpcflow.ops import flop_counts
from hpcflow.ops.array.array_ops import expand_dims
from hpcflow.ops.array.broadcast_ops import zeros_like
from hpcflow.ops.linalg.linalg_ops import lapack, matrix_triangular_solve, square
from hpcflow.ops.linalg.matmul_ops import matmul
from hpcflow.ops.linalg.matrix_diagonal_ops import (
    adjoint,
    least_size,
    matrix_band_part,
    matrix_diag,
    matrix_diag_part,
    matrix_set_diag,
)
from hpcflow.ops.math.arithmetic_ops import add, add_n, cast, equal, multiply, subtract, where
from hpcflow.ops.math.arithmetic_ops import square as squared
from hpcflow.ops.math.complex_number_ops import REAL
from hpcflow.ops.math.elementwise_math_ops import reciprocal
from hpcflow.ops.named_results import Qr
from hpcflow.ops.shape_inference import Attrs, first_output, make

# -- shape rules


def _qr(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    lead, m, n = lapack("qr", inputs[0])
    dtype = inputs[0].dtype
    if lead is None:
        return [Spec(dtype, None)] * 2
    k = m if attrs["full_matrices"] else least_size(m, n)
    return [Spec(dtype, (*lead, m, k)), Spec(dtype, (*lead, k, n))]


def _svd(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    lead, m, n = lapack("svd", inputs[0])
    dtype = inputs[0].dtype
    values = Spec(REAL.get(dtype, dtype), None if lead is None else (*lead, least_size(m, n)))
    if not attrs["compute_uv"]:
        return [values]
    if lead is None:
        return [values, *[Spec(dtype, None)] * 2]
    left, right = (m, n) if attrs["full_matrices"] else (least_size(m, n),) * 2
    return [values, Spec(dtype, (*lead, m, left)), Spec(dtype, (*lead, n, right))]


def _eig(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    lead, n = square("self_adjoint_eig", inputs[0])
    dtype = inputs[0].dtype
    values = Spec(REAL.get(dtype, dtype), None if lead is None else (*lead, n))
    if not attrs["compute_v"]:
        return [values]
    return [values, Spec(dtype, None if lead is None else (*lead, n, n))]


# -- gradients


def _over(x: Tensor, r: Tensor) -> Tensor:
    """`x` times the adjoint of the inverse of the upper triangular matrix `r`."""
    return adjoint(matrix_triangular_solve(r, adjoint(x), lower=False))


def _qr_back(op: Operation, dq: Tensor | None, dr: Tensor | None) -> list[Any]:
    """Gradient of QR for thin factors. Source: S. F. Walter, L. Lehmann, arXiv:1001.1654."""
    x, (q, r) = op.inputs[0], op.outputs
    rows, columns = (None, None) if x.shape is None else x.shape[-2:]
    thin = not op.attrs["full_matrices"] or rows == columns
    if rows is None or columns is None or rows < columns or not thin:
        return [NoGrad("it is implemented for thin factors of matrices that are not wide")]

    def gradient() -> Tensor:
        of_q = zeros_like(q) if dq is None else dq
        of_r = zeros_like(r) if dr is None else dr
        inner, outer = matmul(adjoint(q), of_q), matmul(r, adjoint(of_r))
        both = add(subtract(inner, adjoint(inner)), subtract(outer, adjoint(outer)))
        low = _lower(both)
        return add(matmul(q, add(of_r, _over(low, r))), _over(subtract(of_q, matmul(q, inner)), r))

    return [gradient]


def _lower(x: Tensor) -> Tensor:
    """The lower triangle; of complex matrices with half the diagonal, which is imaginary."""
    low = matrix_band_part(x, -1, 0)
    if x.dtype.kind == "c":
        return matrix_set_diag(low, multiply(matrix_diag_part(x), 0.5))
    return low


def _gaps(values: Tensor) -> Tensor:
    """1 / (v_j - v_i) in row i and column j; 0 on the diagonal and for equal values."""
    gap = subtract(expand_dims(values, -2), expand_dims(values, -1))
    none = equal(gap, 0)
    return where(none, 0, reciprocal(where(none, 1, gap)))


def _svd_back(op: Operation, ds: Tensor | None, *rest: Tensor | None) -> list[Any]:
    """Gradient of SVD. Source: J.

    Townsend, Differentiating the singular value decomposition (2016).
    """
    x = op.inputs[0]
    rows, columns = (None, None) if x.shape is None else x.shape[-2:]
    is_full = op.attrs["full_matrices"] and (rows is None or rows != columns)
    vectors = any(t is not None for t in rest)
    if vectors and (x.dtype.kind == "c" or is_full):
        return [NoGrad("that of its vectors is implemented for real matrices and thin factors")]

    def gradient() -> Tensor:
        s, u, v = op.outputs if op.attrs["compute_uv"] else _factors(x)
        parts = []
        if ds is not None:
            if is_full:
                s, u, v = _factors(x)
            weights = expand_dims(cast(ds, x.dtype), -2)
            parts.append(matmul(multiply(u, weights), adjoint(v)))
        if vectors:
            parts += _svd_vectors(s, u, v, *rest)
        return add_n(parts)

    return [gradient]


def _factors(x: Tensor) -> tuple[Tensor, ...]:
    return make("Svd", [x], {"full_matrices": False, "compute_uv": True}).outputs


def _svd_vectors(
    s: Tensor, u: Tensor, v: Tensor, du: Tensor | None, dv: Tensor | None
) -> list[Tensor]:
    gaps, across = _gaps(squared(s)), expand_dims(s, -2)
    none = equal(s, 0)
    inverse = where(none, 0, reciprocal(where(none, 1, s)))
    parts = []
    for factor, other, d, is_left in ((u, v, du, True), (v, u, dv, False)):
        if d is None:
            continue
        inner = matmul(adjoint(factor), d)
        turned = multiply(gaps, subtract(inner, adjoint(inner)))
        within = matmul(factor, multiply(turned, across))
        beyond = multiply(subtract(d, matmul(factor, inner)), expand_dims(inverse, -2))
        half = matmul(add(within, beyond), adjoint(other))
        parts.append(half if is_left else adjoint(half))
    return parts


def _eig_back(op: Operation, de: Tensor | None, *rest: Tensor | None) -> list[Any]:
    """Gradient for the lower triangle, the only one read, as in TensorFlow."""
    x = op.inputs[0]

    def gradient() -> Tensor:
        e, v = op.outputs if op.attrs["compute_v"] else _vectors(x)
        inner = zeros_like(v)
        if rest and rest[0] is not None:
            inner = multiply(cast(_gaps(e), x.dtype), matmul(adjoint(v), rest[0]))
        if de is not None:
            inner = add(inner, matrix_diag(cast(de, x.dtype)))
        d = matmul(matmul(v, inner), adjoint(v))
        both = matrix_band_part(add(d, adjoint(d)), -1, 0)
        return matrix_set_diag(both, multiply(matrix_diag_part(both), 0.5))

    return [gradient]


def _vectors(x: Tensor) -> tuple[Tensor, ...]:
    return make("SelfAdjointEig", [x], {"compute_v": True}).outputs


op(
    "Qr",
    infer=_qr,
    grad=_qr_back,
    flops=flop_counts.per_matrix(lambda m, n, _: 4 * m * min(m, n) ** 2 - 4 / 3 * min(m, n) ** 3),
    kernels="linalg_kernels",
)
op("Svd", infer=_svd, grad=_svd_back, flops=flop_counts.svd, kernels="linalg_kernels")
op("SelfAdjointEig", infer=_eig, grad=_eig_back, flops=flop_counts.eigh, kernels="linalg_kernels")


# -- public functions


def qr(input: Any, full_matrices: bool = False, name: str | None = None) -> Qr:
    """QR decomposition of `input`: Q with orthonormal columns, R upper triangular.

    Shapes: [..., m, k] and [..., k, n], where k is min(m, n), or m with `full_matrices`.
    Gradient: for m >= n and thin factors; otherwise GradientError.
    """
    attrs = {"full_matrices": bool(full_matrices)}
    q, r = make("Qr", [convert_to_tensor(input)], attrs, name).outputs
    return Qr(q, r)


def svd(
    tensor: Any, full_matrices: bool = False, compute_uv: bool = True, name: str | None = None
) -> Any:
    """Singular value decomposition U diag(s) V^H: (s, u, v) with `compute_uv`, else s, descending.

    Shapes: [..., k], [..., m, k], [..., n, k], where k is min(m, n); U and V are square with
            `full_matrices`.
    Gradient: of s always; of U and V for real matrices and thin factors.
    """
    attrs = {"full_matrices": bool(full_matrices), "compute_uv": bool(compute_uv)}
    outputs = make("Svd", [convert_to_tensor(tensor)], attrs, name).outputs
    return tuple(outputs) if compute_uv else outputs[0]


def self_adjoint_eig(tensor: Any, name: str | None = None) -> tuple[Tensor, Tensor]:
    """The eigenvalues of Hermitian matrices in ascending order, and eigenvectors as columns.

    Only the lower triangle is read and has the gradient.
    """
    values, vectors = make(
        "SelfAdjointEig", [convert_to_tensor(tensor)], {"compute_v": True}, name
    ).outputs
    return values, vectors


def self_adjoint_eigvals(tensor: Any, name: str | None = None) -> Tensor:
    """The eigenvalues of Hermitian matrices in ascending order."""
    return first_output("SelfAdjointEig", [convert_to_tensor(tensor)], {"compute_v": False}, name)
