"""ONNX export of Einstein sums."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports


@exports("Einsum")
def _einsum(to: Emitter, op: Operation) -> Any:
    return to.node("Einsum", *op.inputs, equation=op.attrs["equation"])
