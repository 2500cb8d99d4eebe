"""Unique slices op: distinct slices along an axis, with indices and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec
from hpcflow.ops.shape_inference import Attrs, integer_argument, make, normal_axis, require


def _distinct(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("distinct_slices", inputs[0], "biuf")
    given = inputs[0].shape
    if given is None:
        return [Spec(inputs[0].dtype, None), *[Spec(int64, (None,))] * 3]
    at = normal_axis(attrs["axis"], len(given))
    found = Spec(inputs[0].dtype, (*given[:at], None, *given[at + 1 :]))
    return [found, Spec(int64, (None,)), Spec(int64, (given[at],)), Spec(int64, (None,))]


op(
    "DistinctSlices",
    infer=_distinct,
    grad=NoGrad("which slices are kept is not differentiable; hf.gather them by the positions"),
)


def distinct_slices(
    x: Any, axis: int = 0, sorted: bool = True, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The distinct slices of `x` along `axis`, sorted or in order of first occurrence.

    Also the index of the first occurrence of each, the number of the distinct slice for each slice
    of `x`, and the count of each.
    """
    attrs: Attrs = {"axis": integer_argument(axis, "axis"), "sorted": bool(sorted)}
    found, first, which, count = make("DistinctSlices", [convert_to_tensor(x)], attrs, name).outputs
    return found, first, which, count
