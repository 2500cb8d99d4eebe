"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.ops.linalg.einsum_ops import einsum as einsum
from hpcflow.ops.linalg.einsum_ops import tensordot as tensordot
from hpcflow.ops.linalg.linalg_ops import cholesky as cholesky
from hpcflow.ops.linalg.linalg_ops import cholesky_solve as cholesky_solve
from hpcflow.ops.linalg.linalg_ops import expm as expm
from hpcflow.ops.linalg.linalg_ops import logdet as logdet
from hpcflow.ops.linalg.linalg_ops import matrix_determinant as det
from hpcflow.ops.linalg.linalg_ops import matrix_inverse as inv
from hpcflow.ops.linalg.linalg_ops import matrix_solve as solve
from hpcflow.ops.linalg.linalg_ops import matrix_solve_ls as lstsq
from hpcflow.ops.linalg.linalg_ops import matrix_triangular_solve as triangular_solve
from hpcflow.ops.linalg.linalg_ops import matvec as matvec
from hpcflow.ops.linalg.linalg_ops import slogdet as slogdet
from hpcflow.ops.linalg.matmul_ops import matmul as matmul
from hpcflow.ops.linalg.matrix_decomposition_ops import qr as qr
from hpcflow.ops.linalg.matrix_decomposition_ops import self_adjoint_eig as eigh
from hpcflow.ops.linalg.matrix_decomposition_ops import self_adjoint_eigvals as eigvalsh
from hpcflow.ops.linalg.matrix_decomposition_ops import svd as svd
from hpcflow.ops.linalg.matrix_diagonal_ops import adjoint as adjoint
from hpcflow.ops.linalg.matrix_diagonal_ops import diag as tensor_diag
from hpcflow.ops.linalg.matrix_diagonal_ops import diag_part as tensor_diag_part
from hpcflow.ops.linalg.matrix_diagonal_ops import eye as eye
from hpcflow.ops.linalg.matrix_diagonal_ops import matrix_band_part as band_part
from hpcflow.ops.linalg.matrix_diagonal_ops import matrix_diag as diag
from hpcflow.ops.linalg.matrix_diagonal_ops import matrix_diag_part as diag_part
from hpcflow.ops.linalg.matrix_diagonal_ops import matrix_set_diag as set_diag
from hpcflow.ops.linalg.matrix_diagonal_ops import matrix_transpose as matrix_transpose
from hpcflow.ops.linalg.matrix_diagonal_ops import norm as norm
from hpcflow.ops.linalg.matrix_diagonal_ops import trace as trace
from hpcflow.ops.math.elementwise_math_ops import cross as cross
from hpcflow.ops.math.norm_clipping import global_norm as global_norm
