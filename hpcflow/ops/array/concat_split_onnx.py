"""ONNX export of concatenation, splitting, tiling and padding."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports


@exports("Concat")
def _concat(to: Emitter, op: Operation) -> Any:
    return to.node("Concat", *op.inputs, axis=op.attrs["axis"])


@exports("Pack")
def _pack(to: Emitter, op: Operation) -> Any:
    axis = to.ints([op.attrs["axis"]])
    parts = [to.node("Unsqueeze", t, axis) for t in op.inputs]
    return to.node("Concat", *parts, axis=op.attrs["axis"])


@exports("Unpack")
def _unpack(to: Emitter, op: Operation) -> list[Any]:
    axis, count = op.attrs["axis"], len(op.outputs)
    parts = [op.inputs[0]]
    if count > 1:
        parts = to.node("Split", op.inputs[0], to.ints([1] * count), outputs=count, axis=axis)
    return [to.node("Squeeze", part, to.ints([axis])) for part in parts]


@exports("Split")
def _split(to: Emitter, op: Operation) -> Any:
    sizes = op.attrs["sizes"]
    lengths = to.cast(op.inputs[1], int64) if None in sizes else to.ints(list(sizes))
    if len(sizes) == 1:
        return to.node("Identity", op.inputs[0])
    return to.node("Split", op.inputs[0], lengths, outputs=len(sizes), axis=op.attrs["axis"])


@exports("Tile")
def _tile(to: Emitter, op: Operation) -> Any:
    if "multiples" not in op.attrs or op.attrs["multiples"] is None:
        return to.node("Tile", op.inputs[0], to.cast(op.inputs[1], int64))
    return to.node("Tile", op.inputs[0], to.ints(list(op.attrs["multiples"])))


@exports("Pad")
def _pad(to: Emitter, op: Operation) -> Any:
    pairs, value = op.attrs["paddings"], to.number(op.attrs["value"], op.inputs[0])
    if pairs is None:  # ONNX lists all pads before, then all pads after
        table = to.node("Reshape", to.cast(op.inputs[1], int64), to.ints([-1, 2]))
        ends = to.node("Reshape", to.node("Transpose", table, perm=[1, 0]), to.ints([-1]))
        return to.node("Pad", op.inputs[0], ends, value)
    if not any(a or b for a, b in pairs):
        return to.node("Identity", op.inputs[0])
    pads = to.ints([p[0] for p in pairs] + [p[1] for p in pairs])
    return to.node("Pad", op.inputs[0], pads, value)
