"""ONNX export of gathering and one-hot vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.graph.dtypes import bool_, int64
from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, rank_of


@exports("Gather")
def _gather(to: Emitter, op: Operation) -> Any:
    if op.attrs.get("batch_dims"):
        return _batch_gather(to, op)
    return to.node("Gather", *op.inputs, axis=op.attrs["axis"])


def _batch_gather(to: Emitter, op: Operation) -> Any:
    """Transpose the indexed axis to follow the batch axes, and the result back."""
    x, index = op.inputs
    batch, axis = op.attrs["batch_dims"], op.attrs["axis"] % rank_of(op.inputs[0])
    rank, inner = rank_of(x), rank_of(index) - batch
    source: Any = x
    if axis != batch:
        order = [*range(batch), axis, *(a for a in range(batch, rank) if a != axis)]
        source = to.node("Transpose", x, perm=order)
    at = to.node("Unsqueeze", to.cast(index, int64), to.ints([rank_of(index)]))
    y = to.node("GatherND", source, at, batch_dims=batch)
    if axis == batch:
        return y
    middle = axis - batch
    axes = range(batch + inner + rank - batch - 1)
    order = [*axes[:batch], *axes[batch + inner : batch + inner + middle]]
    order += [*axes[batch : batch + inner], *axes[batch + inner + middle :]]
    return to.node("Transpose", y, perm=order)


@exports("OneHot")
def _one_hot(to: Emitter, op: Operation) -> Any:
    attrs, dtype = op.attrs, op.outputs[0].dtype
    values = [attrs["off_value"], attrs["on_value"]]
    depth: Any = to.ints(attrs["depth"]) if attrs["depth"] is not None else op.inputs[1]
    off_on = np.asarray(values, np.float32 if dtype == bool_ else dtype)
    index, scalar = to.cast(op.inputs[0], int64), rank_of(op.inputs[0]) == 0
    if scalar:
        index = to.node("Unsqueeze", index, to.ints([0]))
    hot = to.node("OneHot", index, depth, to.constant(off_on), axis=-1 if scalar else attrs["axis"])
    if scalar:
        hot = to.node("Squeeze", hot, to.ints([0]))
    return to.cast(hot, dtype) if dtype == bool_ else hot
