"""Packed matmul ops: matrices stored in the order in which the product reads them.

The plan creates them for matrices that are used often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec, is_known, shape_text
from hpcflow.ops import flop_counts

_NO_GRADIENT = NoGrad("inserted when a part is compiled, after gradients are computed")


def _matrix(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    (spec,) = inputs
    if not is_known(spec.shape) or len(spec.shape or ()) != 2:
        raise ShapeError(f"a packed matrix must have a known size, not {shape_text(spec.shape)}")
    return [Spec(spec.dtype, spec.shape)]


def _product(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    rows, packed = inputs[0].shape, inputs[1].shape
    summed, columns = (packed or ())[:: -1 if attrs["transpose_b"] else 1]
    if not is_known(rows) or (rows or ())[1:] != (summed,):
        raise ShapeError(f"a product of {shape_text(rows)} with {shape_text(packed)}, packed")
    return [Spec(inputs[0].dtype, ((rows or ())[0], columns))]


def _strided(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    return [Spec(inputs[0].dtype, tuple(attrs["shape"]))]


op(
    "Packed",
    infer=_matrix,
    grad=_NO_GRADIENT,
    doc="A matrix in the order in which products of `rows` rows with it, or its transpose, read.",
    kernels="kernels.onednn_packed_matmul",
)
op(
    "PackedMatMul",
    infer=_product,
    grad=_NO_GRADIENT,
    doc="A product with a matrix that is packed.",
    flops=flop_counts.matmul,
    contraction=flop_counts.matrices,
    uses_blas=True,
    kernels="kernels.onednn_packed_matmul",
)
op(
    "StridedMatMul",
    infer=_strided,
    grad=_NO_GRADIENT,
    doc="A product of matrices that lie by `lays` in the operands and in the result; the rest of "
    "the result is that of a third operand.",
    flops=flop_counts.strided_matmul,
    nbytes=flop_counts.strided_bytes,
    contraction=flop_counts.strided_matrices,
    kernels="kernels.strided_matmul",
)
