"""Row view ops: created only by the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec, shape_text


def _rows(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    (given,), start, stop = inputs, attrs["start"], attrs["stop"]
    if not given.shape or given.shape[0] is None:
        raise ShapeError("a view of rows needs an array with a known number of rows")
    if not 0 <= start <= stop <= given.shape[0]:
        raise ShapeError(f"rows {start} to {stop} are not in {shape_text(given.shape)}")
    return [Spec(given.dtype, (stop - start, *given.shape[1:]))]


op(
    "Rows",
    infer=_rows,
    grad=NoGrad("inserted when the plan is made, after gradients are computed"),
    doc="Rows `start` to `stop`, where they lie.",
    view="strided",
    contiguous_view=True,
    kernels="array_kernels",
)
