"""ONNX export of the error function."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, exports_same

exports_same({"Erf": "Erf"})


@exports("Erfc")
def _erfc(to: Emitter, op: Operation) -> Any:
    x = op.inputs[0]
    return to.node("Sub", to.number(1, x), to.node("Erf", x))
