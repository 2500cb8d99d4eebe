"""Row list ops: concatenate IndexedSlices, and sum rows of equal indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Shape, Spec, merge_shapes
from hpcflow.ops.array.array_ops import reshape, shape, size
from hpcflow.ops.array.concat_split_ops import concat
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import cast
from hpcflow.ops.shape_inference import Attrs, first_output, make, require, require_rank
from hpcflow.ops.variables.indexed_slices import IndexedSlices

_PLAN_ONLY = NoGrad("inserted when the plan is made, after gradients are computed")


def _sum_equal_rows(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    values, indices = inputs
    require("indices of rows", indices, "iu")
    require("sum_equal_rows", values, "iufc")
    require_rank("indices of rows", indices, 1)
    if values.shape is not None:
        merge_shapes(values.shape[:1], indices.shape)
    rows = None if values.shape is None else (None, *values.shape[1:])
    return [
        Spec(values.dtype, rows),
        Spec(indices.dtype, (None,)),
        Spec(int64, merge_shapes(indices.shape, (None,))),
    ]


def _sum_equal_rows_back(op: Operation, g: Tensor | None, *_: Any) -> list[Any]:
    return [None if g is None else gather_values(g, op.outputs[2]), None]


op(
    "SumEqualRows",
    infer=_sum_equal_rows,
    grad=_sum_equal_rows_back,
    kernels="sparse_row_update_kernels kernels.llvm_row_gather_scatter",
)


# -- rows of a sharded variable: the shard of each row, and the original order


def _piece_rows(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    indices = inputs[0]
    require("the indices of rows", indices, "iu")
    specs = [Spec(indices.dtype, (None,)), Spec(int64, (None,))]
    if len(inputs) > 1:
        shape, at = inputs[1].shape, indices.shape
        rows = None if shape is None or at is None else (None, *shape[len(at) :])
        specs.append(Spec(inputs[1].dtype, rows))
    return specs


def _join_rows(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    indices, rows = inputs[0], inputs[1 + len(inputs) // 2 :]
    require("the indices of rows", indices, "iu")
    row_shape: Shape = None
    for spec in rows:
        row_shape = merge_shapes(row_shape, spec.shape and (None, *spec.shape[1:]))
    if indices.shape is None or row_shape is None:
        return [Spec(rows[0].dtype, None)]
    return [Spec(rows[0].dtype, (*indices.shape, *row_shape[1:]))]


def _join_rows_back(op: Operation, g: Tensor) -> list[Any]:
    count = len(op.inputs) // 2
    indices, *places = op.inputs[: 1 + count]
    rows = g
    if indices.shape is None or len(indices.shape) != 1:
        one_row = op.inputs[-1].shape
        static = None if one_row is None or None in one_row[1:] else one_row[1:]
        lead = [size(indices)]
        rows = reshape(g, [*lead, *static] if static is not None else _under(lead, op.inputs[-1]))
    return [None] * (1 + count) + [lambda at=at: gather_values(rows, at) for at in places]


def _under(lead: list[Any], rows: Tensor) -> Tensor:
    return concat([lead, getitem(shape(rows), slice(1, None))], 0)


op(
    "PieceRows",
    infer=_piece_rows,
    grad=_PLAN_ONLY,
    work="move",
    kernels="sparse_row_update_kernels",
)
op(
    "JoinRows",
    infer=_join_rows,
    grad=_join_rows_back,
    work="move",
    kernels="sparse_row_update_kernels",
)


def _add_entries(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    indices, values = inputs
    require("indices of entries", indices, "iu")
    require("add_entries", values, "iufc")
    require_rank("indices of entries", indices, 1)
    merge_shapes(indices.shape, values.shape)
    return [Spec(values.dtype, tuple(attrs["shape"]))]


def _add_entries_back(op: Operation, g: Tensor) -> list[Any]:
    return [None, gather_values(reshape(g, [-1]), op.inputs[0])]


op("AddEntries", infer=_add_entries, grad=_add_entries_back, kernels="sparse_row_update_kernels")


def add_entries(indices: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """The tensor of `shape` with `values` added at flat `indices`, and zeros elsewhere.

    Shapes: `indices` and `values` [n].
    Errors: ShapeError at run time for an index outside.
    """
    return first_output("AddEntries", [indices, values], {"shape": shape})


def join_rows(indices: Tensor, places: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
    """The rows for `indices` from shards: `rows[p][k]` is for their flat position `places[p][k]`.

    Shapes: indices.shape + rows[p].shape[1:]; each position occurs in one of the lists.
    """
    return first_output("JoinRows", [indices, *places, *rows])


def gather_values(rows: Tensor, indices: Tensor) -> Tensor:
    """`gather` from intermediate values: the gradient is dense."""
    return first_output("Gather", [rows, indices], {"axis": 0, "dense": True})


def sum_equal_rows(
    slices: IndexedSlices, name: str | None = None, optional: bool = False
) -> IndexedSlices:
    """The same tensor with unique sorted indices, and rows of equal indices added up.

    It runs where the rows are computed, before they are sent. `optional`: the consumer also adds up
    equal rows; then it only runs if rows are sent to servers, to reduce their number.
    """
    attrs = {"optional": True} if optional else {}
    summed, indices, _ = make("SumEqualRows", [slices.values, slices.indices], attrs, name).outputs
    return IndexedSlices(summed, indices, slices.dense_shape)


def join_slices(parts: Sequence[IndexedSlices]) -> IndexedSlices:
    """The sum of `parts` of one dense shape: their rows concatenated."""
    if len(parts) == 1:
        return parts[0]
    mixed = len({p.indices.dtype for p in parts}) > 1
    indices = [cast(p.indices, int64) if mixed else p.indices for p in parts]
    dense_shape = next((p.dense_shape for p in parts if p.dense_shape is not None), None)
    return IndexedSlices(concat([p.values for p in parts], 0), concat(indices, 0), dense_shape)


def _sort_order(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("keys", inputs[0], "iu")
    require_rank("keys", inputs[0], 1)
    return [Spec(int64, inputs[0].shape)]


op(
    "SortOrder",
    infer=_sort_order,
    grad=NoGrad("its output is integers"),
    kernels="ops.sparse.sparse_tensor_kernels",
)
