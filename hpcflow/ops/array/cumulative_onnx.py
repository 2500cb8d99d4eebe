"""ONNX export of cumulative sums and the largest elements."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports


@exports("Cumsum")
def _cumsum(to: Emitter, op: Operation) -> Any:
    attributes = {k: int(op.attrs[k]) for k in ("exclusive", "reverse")}
    return to.node("CumSum", op.inputs[0], to.ints(op.attrs["axis"]), **attributes)


@exports("TopK")
def _top_k(to: Emitter, op: Operation) -> Any:
    if len(op.inputs) == 1:
        k = to.ints([op.attrs["k"]])
    else:
        k = to.node("Reshape", to.cast(op.inputs[1], int64), to.ints([1]))
    values, at = to.node("TopK", op.inputs[0], k, outputs=2)
    return [values, to.cast(at, op.outputs[1].dtype)]
