"""ONNX export of linear algebra."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports


@exports("MatrixDeterminant")
def _determinant(to: Emitter, op: Operation) -> Any:
    return to.node("Det", op.inputs[0])
