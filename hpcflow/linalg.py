"""Linear algebra `hf.linalg`: the names of TensorFlow 1's `tf.linalg`; re-exports only."""

from __future__ import annotations

from hpcflow.ops.linalg.einsum_ops import einsum, tensordot
from hpcflow.ops.linalg.linalg_ops import (
    cholesky,
    cholesky_solve,
    expm,
    logdet,
    matvec,
    slogdet,
)
from hpcflow.ops.linalg.linalg_ops import matrix_determinant as det
from hpcflow.ops.linalg.linalg_ops import matrix_inverse as inv
from hpcflow.ops.linalg.linalg_ops import matrix_solve as solve
from hpcflow.ops.linalg.linalg_ops import matrix_solve_ls as lstsq
from hpcflow.ops.linalg.linalg_ops import matrix_triangular_solve as triangular_solve
from hpcflow.ops.linalg.matmul_ops import matmul
from hpcflow.ops.linalg.matrix_decomposition_ops import qr, svd
from hpcflow.ops.linalg.matrix_decomposition_ops import self_adjoint_eig as eigh
from hpcflow.ops.linalg.matrix_decomposition_ops import self_adjoint_eigvals as eigvalsh
from hpcflow.ops.linalg.matrix_diagonal_ops import adjoint, eye, matrix_transpose, norm, trace
from hpcflow.ops.linalg.matrix_diagonal_ops import diag as tensor_diag
from hpcflow.ops.linalg.matrix_diagonal_ops import diag_part as tensor_diag_part
from hpcflow.ops.linalg.matrix_diagonal_ops import matrix_band_part as band_part
from hpcflow.ops.linalg.matrix_diagonal_ops import matrix_diag as diag
from hpcflow.ops.linalg.matrix_diagonal_ops import matrix_diag_part as diag_part
from hpcflow.ops.linalg.matrix_diagonal_ops import matrix_set_diag as set_diag
from hpcflow.ops.math.elementwise_math_ops import cross
from hpcflow.ops.math.norm_clipping import global_norm
from hpcflow.platform.exception_translation import guard_module

__all__ = [
    "adjoint",
    "band_part",
    "cholesky",
    "cholesky_solve",
    "cross",
    "det",
    "diag",
    "diag_part",
    "eigh",
    "eigvalsh",
    "einsum",
    "expm",
    "eye",
    "global_norm",
    "inv",
    "logdet",
    "lstsq",
    "matmul",
    "matrix_transpose",
    "matvec",
    "norm",
    "qr",
    "set_diag",
    "slogdet",
    "solve",
    "svd",
    "tensor_diag",
    "tensor_diag_part",
    "tensordot",
    "trace",
    "triangular_solve",
]

guard_module(globals(), __all__)
