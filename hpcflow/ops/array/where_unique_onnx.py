"""ONNX export of places of true elements."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, rank_of, refused


@exports("Where")
def _where(to: Emitter, op: Operation) -> Any:
    if rank_of(op.inputs[0]) == 0:
        raise refused(op, "NonZero of ONNX does not support scalars")
    return to.node("Transpose", to.node("NonZero", op.inputs[0]), perm=[1, 0])
