"""ONNX export of activations, softmax and losses."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, exports_same

exports_same({"BiasAdd": "Add", "Relu": "Relu", "Softplus": "Softplus"})


@exports("L2Loss")
def _l2_loss(to: Emitter, op: Operation) -> Any:
    x = op.inputs[0]
    total = to.node("ReduceSum", to.node("Mul", x, x), keepdims=0)
    return to.node("Mul", total, to.number(0.5, x))


@exports("Softmax", "LogSoftmax")
def _softmax(to: Emitter, op: Operation) -> Any:
    return to.node(op.type, op.inputs[0], axis=op.attrs["axis"])


@exports("Elu")
def _elu(to: Emitter, op: Operation) -> Any:
    return to.node("Elu", op.inputs[0], alpha=1.0)


@exports("Relu6")
def _relu6(to: Emitter, op: Operation) -> Any:
    x = op.inputs[0]
    return to.node("Clip", x, to.number(0, x), to.number(6, x))
