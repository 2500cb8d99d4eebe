"""ONNX export of normalization."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports


@exports("Normalize")
def _normalize(to: Emitter, op: Operation) -> list[Any]:
    """Moments have size 1 on reduced axes, and float32 for 16-bit inputs."""
    x, moment = op.inputs[0], op.outputs[1]
    axes = op.attrs["axis"]
    axes = list(axes) if axes is not None else None
    wide: Any = to.name(x) if x.dtype == moment.dtype else to.cast(x, moment.dtype)
    mean = to.node("ReduceMean", wide, axes=axes, keepdims=1)
    centered = to.node("Sub", wide, mean)
    variance = to.node("ReduceMean", to.node("Mul", centered, centered), axes=axes, keepdims=1)
    widened = to.node("Add", variance, to.number(op.attrs["epsilon"], moment))
    y = to.node("Div", centered, to.node("Sqrt", widened))
    return [y if x.dtype == moment.dtype else to.cast(y, x.dtype), mean, variance]
