"""`hf.linalg`: the names of TensorFlow 1's `tf.linalg`; re-exports only."""

from __future__ import annotations

from hpcflow.guard import guard_module
from hpcflow.ops.clip import global_norm
from hpcflow.ops.decompositions import qr, svd
from hpcflow.ops.decompositions import self_adjoint_eig as eigh
from hpcflow.ops.decompositions import self_adjoint_eigvals as eigvalsh
from hpcflow.ops.einsum import einsum, tensordot
from hpcflow.ops.elementwise import cross
from hpcflow.ops.linalg import (
    cholesky,
    cholesky_solve,
    expm,
    logdet,
    matvec,
    slogdet,
)
from hpcflow.ops.linalg import matrix_determinant as det
from hpcflow.ops.linalg import matrix_inverse as inv
from hpcflow.ops.linalg import matrix_solve as solve
from hpcflow.ops.linalg import matrix_solve_ls as lstsq
from hpcflow.ops.linalg import matrix_triangular_solve as triangular_solve
from hpcflow.ops.matmul import matmul
from hpcflow.ops.matrix import adjoint, eye, matrix_transpose, norm, trace
from hpcflow.ops.matrix import diag as tensor_diag
from hpcflow.ops.matrix import diag_part as tensor_diag_part
from hpcflow.ops.matrix import matrix_band_part as band_part
from hpcflow.ops.matrix import matrix_diag as diag
from hpcflow.ops.matrix import matrix_diag_part as diag_part
from hpcflow.ops.matrix import matrix_set_diag as set_diag

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
