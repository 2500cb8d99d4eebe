"""ONNX export of pooling, with transposes to channels first and back."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, refused
from hpcflow.ops.nn.convolution_onnx import channels_first, channels_last, window


@exports("MaxPool")
def _max_pool(to: Emitter, op: Operation) -> Any:
    return _pool(to, op, "MaxPool")


@exports("AvgPool")
def _average_pool(to: Emitter, op: Operation) -> Any:
    if any(d != 1 for d in op.attrs["dilations"]):
        raise refused(op, "mean pooling with dilations needs a newer opset")
    return _pool(to, op, "AveragePool", count_include_pad=int(op.attrs["count_include_pad"]))


def _pool(to: Emitter, op: Operation, name: str, **more: Any) -> Any:
    rank, first = len(op.attrs["strides"]), op.attrs["first"]
    x = channels_first(to, op.inputs[0], rank, first)
    y = to.node(name, x, kernel_shape=list(op.attrs["window"]), **window(op), **more)
    return channels_last(to, y, rank, first)
