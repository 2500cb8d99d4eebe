"""ONNX export of cyclic shifts."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports


@exports("RollBy")
def _roll_by(to: Emitter, op: Operation) -> Any:
    """Emit, for each axis, a Gather of the positions (i - shift) mod size."""
    x: Any = op.inputs[0]
    for shift, axis in zip(op.attrs["shift"], op.attrs["axis"], strict=True):
        size = to.node("Gather", to.node("Shape", x), _scalar(to, axis))
        places = to.node("Range", _scalar(to, 0), size, _scalar(to, 1))
        moved = to.node("Sub", places, _scalar(to, shift))
        x = to.node("Gather", x, to.node("Mod", moved, size), axis=axis)
    return x if isinstance(x, str) else to.node("Identity", x)


def _scalar(to: Emitter, number: int) -> Any:
    return to.constant(np.array(number, np.int64))
