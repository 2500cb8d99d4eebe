"""ONNX export of matrix products."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, rank_of


@exports("MatMul")
def _matmul(to: Emitter, op: Operation) -> Any:
    names = []
    for tensor, turned in zip(op.inputs, ("transpose_a", "transpose_b"), strict=True):
        name: Any = to.name(tensor)
        if op.attrs[turned]:
            perm = list(range(rank_of(tensor)))
            perm[-1], perm[-2] = perm[-2], perm[-1]
            name = to.node("Transpose", tensor, perm=perm)
        names.append(name)
    return to.node("MatMul", *names)
