"""ONNX export of cyclic shifts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, refused


@exports("Roll")
def _roll(to: Emitter, op: Operation) -> Any:
    x, shifts, axes = op.inputs
    if axes.constant is None or shifts.shape is None:
        raise refused(op, "its axes, or the number of its shifts, are not known")
    entries: list[Any] = [to.cast(shifts, int64)]
    if shifts.shape:
        entries = [to.node("Gather", entries[0], _scalar(to, i)) for i in range(axes.constant.size)]
    return _rolled(to, x, entries, axes.constant.ravel().tolist())


@exports("RollBy")
def _roll_by(to: Emitter, op: Operation) -> Any:
    shifts = [_scalar(to, shift) for shift in op.attrs["shift"]]
    return _rolled(to, op.inputs[0], shifts, op.attrs["axis"])


def _rolled(to: Emitter, x: Any, shifts: Sequence[Any], axes: Sequence[int]) -> Any:
    """Emit, for each axis, a Gather of the positions (i - shift) mod size."""
    for shift, axis in zip(shifts, axes, strict=True):
        size = to.node("Gather", to.node("Shape", x), _scalar(to, axis))
        places = to.node("Range", _scalar(to, 0), size, _scalar(to, 1))
        moved = to.node("Sub", places, shift)
        x = to.node("Gather", x, to.node("Mod", moved, size), axis=axis)
    return x if isinstance(x, str) else to.node("Identity", x)


def _scalar(to: Emitter, number: int) -> Any:
    return to.constant(np.array(number, np.int64))
