"""ONNX export of gathering and scattering of slices."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, shape_argument


@exports("GatherNd")
def _gather_nd(to: Emitter, op: Operation) -> Any:
    x, index = op.inputs
    return to.node("GatherND", x, to.cast(index, int64), batch_dims=op.attrs.get("batch_dims", 0))


@exports("ScatterNd")
def _scatter_nd(to: Emitter, op: Operation) -> Any:
    index, updates = op.inputs[:2]
    zero = to.constant(np.zeros((), updates.dtype))
    empty = to.node("Expand", zero, shape_argument(to, op, 2))
    return to.node("ScatterND", empty, to.cast(index, int64), updates, reduction="add")


@exports("TensorScatterAdd", "TensorScatterUpdate")
def _tensor_scatter(to: Emitter, op: Operation) -> Any:
    x, index, updates = op.inputs
    added = "add" if op.type == "TensorScatterAdd" else None
    return to.node("ScatterND", x, to.cast(index, int64), updates, reduction=added)
