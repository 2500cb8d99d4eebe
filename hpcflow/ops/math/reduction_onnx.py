"""ONNX export of reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.graph.dtypes import int32, int64
from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports


def _axes(op: Operation) -> list[int] | None:
    axis = op.attrs["axis"]
    if axis is None:
        return None
    return [axis] if isinstance(axis, int) else list(axis)


def _reduced(to: Emitter, op: Operation, name: str, x: Any) -> Any:
    axes, keep = _axes(op), int(op.attrs["keepdims"])
    if axes == []:
        return to.node("Identity", x)
    if name == "ReduceSum":
        return to.node(name, x, *([] if axes is None else [to.ints(axes)]), keepdims=keep)
    return to.node(name, x, axes=axes, keepdims=keep)


def _reduction(type: str, name: str) -> None:
    @exports(type)
    def say(to: Emitter, op: Operation) -> Any:
        return _reduced(to, op, name, op.inputs[0])


for _type, _name in {
    **{"Sum": "ReduceSum", "Mean": "ReduceMean", "Prod": "ReduceProd", "Max": "ReduceMax"},
    **{"Min": "ReduceMin", "LogSumExp": "ReduceLogSumExp"},
}.items():
    _reduction(_type, _name)


@exports("Any", "All")
def _logic(to: Emitter, op: Operation) -> Any:
    """Count the true or false elements, which is also correct for an empty tensor."""
    x: Any = op.inputs[0]
    counted = to.cast(x if op.type == "Any" else to.node("Not", x), int32)
    positive = to.node("Greater", _reduced(to, op, "ReduceSum", counted), to.constant(np.int32(0)))
    return positive if op.type == "Any" else to.node("Not", positive)


@exports("ArgMax", "ArgMin")
def _position(to: Emitter, op: Operation) -> Any:
    at = to.node(op.type, op.inputs[0], axis=op.attrs["axis"], keepdims=0)
    return at if op.outputs[0].dtype == int64 else to.cast(at, op.outputs[0].dtype)
