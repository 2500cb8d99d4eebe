"""ONNX export of filling and broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, shape_argument


@exports("Fill")
def _fill(to: Emitter, op: Operation) -> Any:
    if "value" in op.attrs:
        value: Any = to.constant(np.asarray(op.attrs["value"], op.outputs[0].dtype))
        return to.node("Expand", value, shape_argument(to, op, 0))
    return to.node("Expand", op.inputs[0], shape_argument(to, op, 1))


@exports("ZerosLike", "OnesLike")
def _like(to: Emitter, op: Operation) -> Any:
    value = to.constant(np.asarray(op.type == "OnesLike", op.outputs[0].dtype))
    return to.node("Expand", value, to.node("Shape", op.inputs[0]))


@exports("BroadcastTo")
def _broadcast_to(to: Emitter, op: Operation) -> Any:
    return to.node("Expand", op.inputs[0], shape_argument(to, op, 1))
