"""ONNX export of shape operations."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, shape_argument


@exports("CheckSizes", "Identity", "StopGradient", "PlaceholderWithDefault")
def _identity(to: Emitter, op: Operation) -> str:
    return to.name(op.inputs[0])


@exports("Reshape")
def _reshape(to: Emitter, op: Operation) -> Any:
    target = op.attrs["shape"]
    zeros = target is not None and 0 in target and -1 not in target
    allow = 1 if zeros else None  # a size 0 means 0, not a copy of the input's size
    return to.node("Reshape", op.inputs[0], shape_argument(to, op, 1), allowzero=allow)


@exports("ExpandDims")
def _expand_dims(to: Emitter, op: Operation) -> Any:
    return to.node("Unsqueeze", op.inputs[0], to.ints([op.attrs["axis"]]))


@exports("Squeeze")
def _squeeze(to: Emitter, op: Operation) -> Any:
    axis = op.attrs["axis"]
    axes = [] if axis is None else [to.ints([axis] if isinstance(axis, int) else list(axis))]
    return to.node("Squeeze", op.inputs[0], *axes)


@exports("Transpose")
def _transpose(to: Emitter, op: Operation) -> Any:
    perm = op.attrs["perm"]
    return to.node("Transpose", op.inputs[0], perm=None if perm is None else list(perm))


@exports("Shape", "Size")
def _shape(to: Emitter, op: Operation) -> Any:
    output = to.node(op.type, op.inputs[0])
    return output if op.outputs[0].dtype == int64 else to.cast(output, op.outputs[0].dtype)


@exports("Rank")
def _rank(to: Emitter, op: Operation) -> Any:
    rank = to.node("Size", to.node("Shape", op.inputs[0]))
    return to.cast(rank, op.outputs[0].dtype)


@exports("Range")
def _range(to: Emitter, op: Operation) -> Any:
    return to.node("Range", *op.inputs)
