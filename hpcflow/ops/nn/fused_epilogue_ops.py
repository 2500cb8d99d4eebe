"""Fused epilogue ops: several ops in one pass; they occur only in lowered code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.graph.op_registry import NoGrad, lookup_op, op
from hpcflow.graph.static_shape import Spec, merge_shapes
from hpcflow.ops import flop_counts

MADE_LATE = NoGrad("inserted when a part is compiled, after gradients are computed")


def _row(type: str, base: str, doc: str, **facts: Any) -> None:
    def infer(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
        (spec,) = lookup_op(base).infer(inputs[:2], attrs)
        if spec.shape is not None:
            merge_shapes(spec.shape[-1:], inputs[2].shape)
        return [spec]

    op(type, infer=infer, grad=MADE_LATE, doc=doc, **facts)


_row(
    "MatMulBias",
    "MatMul",
    "A product plus a vector along its columns, then, with `relu`, that.",
    flops=flop_counts.matmul,
    contraction=flop_counts.matrices,
    kernels="fused_epilogue_kernels kernels.onednn_matmul kernels.cublaslt_matmul",
)
_row(
    "ConvBias",
    "Conv",
    "A convolution plus a vector along its channels, then, with `relu`, that.",
    flops=flop_counts.convolution(0, 1, -1),
    contraction=flop_counts.filters(1, -1, "window"),
    kernels="fused_epilogue_kernels kernels.onednn_convolution kernels.cudnn_convolution",
)


def _pool_grad(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    (spec,) = lookup_op("MaxPoolGrad").infer(
        inputs, {k: v for k, v in attrs.items() if k != "bias"}
    )
    if not attrs["bias"]:
        return [spec]
    return [spec, Spec(spec.dtype, None if spec.shape is None else spec.shape[-1:])]


op(
    "MaxPoolReluGrad",
    infer=_pool_grad,
    grad=MADE_LATE,
    doc="MaxPoolGrad and the ReluGrad behind it; with `bias` also its sum over all but the last.",
    flops=flop_counts.windows(1),
    kernels="fused_epilogue_kernels kernels.llvm_max_pooling",
)
