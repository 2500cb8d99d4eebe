"""Matmul op: the matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.graph import Operation, Tensor, user_line
from hpcflow.graph.op_registry import op
from hpcflow.graph.operator_overloads import OPERATORS
from hpcflow.graph.static_shape import Spec, broadcast_shapes, shape_text
from hpcflow.ops import flop_counts
from hpcflow.ops.array.broadcast_ops import sum_to
from hpcflow.ops.math.arithmetic_ops import conj
from hpcflow.ops.shape_inference import Attrs, first_output, operands, require, require_equal


def _matmul(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("matmul", inputs)
    require("matmul", inputs[0], "iufc")
    a, b = inputs[0].shape, inputs[1].shape
    for s in (a, b):
        if s is not None and len(s) < 2:
            raise ShapeError(f"matmul takes matrices of rank 2 or more, not shape {shape_text(s)}")
    if a is None or b is None:
        return [Spec(inputs[0].dtype, None)]
    rows, left = (a[-1], a[-2]) if attrs["transpose_a"] else (a[-2], a[-1])
    right, columns = (b[-1], b[-2]) if attrs["transpose_b"] else (b[-2], b[-1])
    if None not in (left, right) and left != right:
        turned = [" transposed" if attrs[k] else "" for k in ("transpose_a", "transpose_b")]
        raise ShapeError(
            f"matmul of {shape_text(a)}{turned[0]} and {shape_text(b)}{turned[1]}: inner sizes "
            f"{left} and {right} differ",
            hint="change the shape of one, or transpose it: transpose_a=True, transpose_b=True",
        )
    lead = broadcast_shapes([a[:-2], b[:-2]])
    assert lead is not None
    return [Spec(inputs[0].dtype, (*lead, rows, columns))]


def _matmul_back(op: Operation, g: Tensor) -> list[Any]:
    a, b = op.inputs
    ta, tb = op.attrs["transpose_a"], op.attrs["transpose_b"]

    def of_a() -> Tensor:
        c = conj(b)
        d = matmul(c, g, tb, True) if ta else matmul(g, c, False, not tb)
        return _without_lead(d, a, b)

    def of_b() -> Tensor:
        c = conj(a)
        d = matmul(g, c, True, ta) if tb else matmul(c, g, not ta, False)
        return _without_lead(d, b, a)

    return [of_a, of_b]


def _without_lead(d: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """The sum over leading axes along which the product broadcast `x`."""
    if x.shape is not None and other.shape is not None:
        if x.shape[:-2] == other.shape[:-2] and None not in x.shape[:-2]:
            return d
    return sum_to(d, x, d)


op(
    "MatMul",
    infer=_matmul,
    grad=_matmul_back,
    flops=flop_counts.matmul,
    contraction=flop_counts.matrices,
    uses_blas=True,
    kernels="ops.math.arithmetic_kernels kernels.llvm_matmul kernels.onednn_matmul "
    "kernels.cublaslt_matmul",
)


@accepts_and_ignores("a_is_sparse", "b_is_sparse")
def matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """The matrix product of the last two axes; leading axes are broadcast.

    Shapes: [..., n, k] and [..., k, m] give [..., n, m]; transposed and adjoint inputs have their
            last two axes swapped.
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise ShapeError("a matrix is transposed or adjoint, not both", line=user_line())
    x, y = operands(a, b)
    x, y = conj(x) if adjoint_a else x, conj(y) if adjoint_b else y
    attrs = {
        "transpose_a": bool(transpose_a or adjoint_a),
        "transpose_b": bool(transpose_b or adjoint_b),
    }
    return first_output("MatMul", [x, y], attrs, name)


OPERATORS["matmul"] = matmul
