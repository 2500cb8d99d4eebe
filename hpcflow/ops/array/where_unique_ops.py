"""Where and unique ops: positions of true elements, distinct values, searchsorted, permutations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import as_dtype, bool_, int32, int64, kind_of
from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec, merge_shapes, shape_text
from hpcflow.ops.named_results import ListDiff, Unique, UniqueWithCounts
from hpcflow.ops.shape_inference import (
    Attrs,
    first_output,
    integer_argument,
    like,
    make,
    normal_axis,
    operand,
    require,
    require_equal,
    require_rank,
)

_PLACES = NoGrad("its output is integers")
_CHOICE = NoGrad("which values are kept is not differentiable; hf.gather them by the positions")


def _where(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("where's condition", inputs[0], "b")
    input_shape = inputs[0].shape
    return [Spec(int64, (None, None if input_shape is None else len(input_shape)))]


def _unique(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_rank("unique", inputs[0], 1)
    size = None if inputs[0].shape is None else inputs[0].shape[0]
    specs = [Spec(inputs[0].dtype, (None,)), Spec(attrs["dtype"], (size,))]
    return specs + [Spec(attrs["dtype"], (None,))] * attrs["counts"]


def _list_diff(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("setdiff1d", inputs)
    for s in inputs:
        require_rank("setdiff1d", s, 1)
    return [Spec(inputs[0].dtype, (None,)), Spec(attrs["dtype"], (None,))]


def _invert(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("invert_permutation", inputs[0], "iu")
    require_rank("invert_permutation", inputs[0], 1)
    return [Spec(inputs[0].dtype, inputs[0].shape if inputs[0].shape is not None else (None,))]


def _search(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("searchsorted", inputs)
    row, values = (s.shape for s in inputs)
    if row == () or values == ():
        raise ShapeError("searchsorted takes tensors of rank 1 or more, not a scalar")
    if row is not None and values is not None:
        if len(row) != len(values):
            raise ShapeError(
                f"searchsorted: values {shape_text(values)} and sorted_sequence {shape_text(row)} "
                "have different ranks"
            )
        values = (*(merge_shapes(row[:-1], values[:-1]) or ()), values[-1])
    return [Spec(attrs["dtype"], values)]


def _first(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("first_in_row", inputs[0], "iu")
    if inputs[0].shape == ():
        raise ShapeError("first_in_row needs a tensor with rows, not a scalar")
    return [Spec(bool_, inputs[0].shape)]


op("FirstInRow", infer=_first, grad=_PLACES)
op("Where", infer=_where, grad=_PLACES, work="move")
op("Unique", infer=_unique, grad=_CHOICE)
op("ListDiff", infer=_list_diff, grad=_CHOICE)
op("InvertPermutation", infer=_invert, grad=_PLACES)
op("SearchSorted", infer=_search, grad=_PLACES)


def positions(condition: Any, name: str | None = None) -> Tensor:
    """The indices of the true elements of `condition` in row-major order: int64 [count, rank].

    A number is true unless it is 0.
    """
    x = convert_to_tensor(condition)
    if kind_of(x.dtype) in "iufc":
        x = first_output("NotEqual", [x, like(0, x)])
    return first_output("Where", [x], {}, name)


def unique(x: Any, out_idx: Any = int32, name: str | None = None) -> Unique:
    """The distinct values of a vector in order of first occurrence, and each element's number."""
    attrs: Attrs = {"counts": False, "dtype": as_dtype(out_idx)}
    y, idx = make("Unique", [convert_to_tensor(x)], attrs, name).outputs
    return Unique(y, idx)


def unique_with_counts(x: Any, out_idx: Any = int32, name: str | None = None) -> UniqueWithCounts:
    """As `unique`, and the count of each value."""
    attrs: Attrs = {"counts": True, "dtype": as_dtype(out_idx)}
    y, idx, count = make("Unique", [convert_to_tensor(x)], attrs, name).outputs
    return UniqueWithCounts(y, idx, count)


def setdiff1d(x: Any, y: Any, index_dtype: Any = int32, name: str | None = None) -> ListDiff:
    """The elements of the vector `x` that are not in `y`, in order, and their indices."""
    x = convert_to_tensor(x)
    attrs = {"dtype": as_dtype(index_dtype)}
    out, idx = make("ListDiff", [x, like(y, x)], attrs, name).outputs
    return ListDiff(out, idx)


def first_in_row(x: Any, name: str | None = None) -> Tensor:
    """Whether each integer is the first with its value along the last axis."""
    return first_output("FirstInRow", [convert_to_tensor(x)], {}, name)


def invert_permutation(x: Any, name: str | None = None) -> Tensor:
    """The vector y with y[x[i]] = i.

    Errors: RangeError at run time if `x` does not contain each of 0 ... n - 1 once.
    """
    return first_output("InvertPermutation", [operand(x, "iu")], {}, name)


def searchsorted(
    sorted_sequence: Any,
    values: Any,
    side: str = "left",
    out_type: Any = int32,
    name: str | None = None,
) -> Tensor:
    """The insertion index of each of `values` in the sorted last axis: before equals, or "right".

    Shapes: all axes except the last correspond; the result is shaped as `values`.
    """
    if side not in ("left", "right"):
        raise ShapeError(f"side {side!r} is neither 'left' nor 'right'")
    row = convert_to_tensor(sorted_sequence)
    attrs: Attrs = {"right": side == "right", "dtype": as_dtype(out_type)}
    return first_output("SearchSorted", [row, like(values, row)], attrs, name)


def _distinct(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("distinct_slices", inputs[0], "biuf")
    input_shape = inputs[0].shape
    if input_shape is None:
        return [Spec(inputs[0].dtype, None), *[Spec(int64, (None,))] * 3]
    at = normal_axis(attrs["axis"], len(input_shape))
    parts = Spec(inputs[0].dtype, (*input_shape[:at], None, *input_shape[at + 1 :]))
    return [parts, Spec(int64, (None,)), Spec(int64, (input_shape[at],)), Spec(int64, (None,))]


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
    parts, first, which, count = make("DistinctSlices", [convert_to_tensor(x)], attrs, name).outputs
    return parts, first, which, count
