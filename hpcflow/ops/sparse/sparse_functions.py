"""Sparse functions: reorder, add, transpose, reshape, slice, concat; composed of other ops."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ArgumentError, ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import bool_, int64
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.graph.static_shape import is_known, merge_shapes
from hpcflow.ops.array.array_ops import (
    constant,
    expand_dims,
    identity,
    reshape,
    size,
    stop_gradient,
    transpose,
)
from hpcflow.ops.array.broadcast_ops import fill
from hpcflow.ops.array.concat_split_ops import concat, stack
from hpcflow.ops.array.cumulative_ops import cumprod
from hpcflow.ops.array.gather_nd_scatter_nd import tensor_scatter_add
from hpcflow.ops.array.rearrange_ops import unravel_index
from hpcflow.ops.array.segment_ops import unsorted_segment_max, unsorted_segment_sum
from hpcflow.ops.array.slice_ops import boolean_mask, getitem
from hpcflow.ops.array.where_unique_ops import positions
from hpcflow.ops.control_flow.assertions import assert_equal
from hpcflow.ops.math.arithmetic_ops import (
    abs,
    add,
    cast,
    divide,
    equal,
    exp,
    floordiv,
    greater_equal,
    less,
    logical_and,
    logical_not,
    maximum,
    minimum,
    multiply,
    subtract,
    where,
)
from hpcflow.ops.math.arithmetic_ops import mod as floormod
from hpcflow.ops.math.reduction_ops import reduce_all, reduce_max, reduce_prod, reduce_sum
from hpcflow.ops.shape_inference import make, normal_axis, several
from hpcflow.ops.sparse.sparse_tensor_ops import SparseTensor, as_sparse, sparse_tensor_to_dense
from hpcflow.ops.variables.indexed_slices import IndexedSlices
from hpcflow.ops.variables.row_list_ops import gather_values
from hpcflow.platform.exception_translation import value_text


def rank_of(sp: SparseTensor, op_name: str) -> int:
    """The rank, which must be static."""
    for shape, at in ((sp.dense_shape.shape, 0), (sp.indices.shape, 1)):
        if shape is not None and shape[at] is not None:
            return shape[at]  # type: ignore[return-value]
    raise ShapeError(f"{op_name} needs a sparse tensor of a known rank", line=user_line())


def flat_places(indices: Tensor, dense_shape: Tensor) -> Tensor:
    """The flat index of each value in the dense tensor."""
    strides = cumprod(dense_shape, exclusive=True, reverse=True)
    return reduce_sum(multiply(indices, strides), 1)


def _column(sp: SparseTensor, axis: int) -> Tensor:
    return getitem(sp.indices, (slice(None), axis))


def _select_values(sp: SparseTensor, places: Tensor) -> SparseTensor:
    """The sparse tensor with only the values at `places`."""
    return SparseTensor(
        gather_values(sp.indices, places), gather_values(sp.values, places), sp.dense_shape
    )


def summed_by_place(indices: Tensor, values: Tensor, dense_shape: Tensor) -> SparseTensor:
    """Sorted in row-major order, with values of equal indices added."""
    keys = flat_places(indices, dense_shape)
    values, places, _ = make("SumEqualRows", [values, keys]).outputs
    strides = cumprod(dense_shape, exclusive=True, reverse=True)
    rows = floormod(floordiv(expand_dims(places, 1), strides), dense_shape)
    return SparseTensor(rows, values, dense_shape)


def sparse_reorder(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """The same tensor with indices in row-major order."""
    sp_input = as_sparse(sp_input)
    keys = flat_places(sp_input.indices, sp_input.dense_shape)
    order = make("SortOrder", [keys], {}, name).outputs[0]
    order.set_shape(sp_input.values.shape)
    return _select_values(sp_input, order)


def sparse_retain(sp_input: SparseTensor, to_retain: Any) -> SparseTensor:
    """The values where the booleans `to_retain` are true."""
    sp_input = as_sparse(sp_input)
    keep = convert_to_tensor(to_retain, bool_)
    merge_shapes(sp_input.values.shape, keep.shape)
    return _select_values(sp_input, reshape(positions(keep), [-1]))


@accepts_aliases(threshold="thresh")
def sparse_add(a: Any, b: Any, thresh: Any = 0) -> Any:
    """The sum: sparse if both are, else dense. Sums with magnitude below `thresh` are dropped."""
    if not isinstance(a, SparseTensor):
        a, b = b, a
    if not isinstance(a, SparseTensor):
        raise ShapeError(
            "sparse_add needs at least one sparse tensor", line=user_line(), hint="use hf.add"
        )
    if not isinstance(b, SparseTensor):
        dense = convert_to_tensor(b, a.dtype)
        return tensor_scatter_add(dense, a.indices, a.values)
    indices, values = concat([a.indices, b.indices], 0), concat([a.values, b.values], 0)
    merge_shapes(a.shape, b.shape)
    shape = a.dense_shape
    if not (is_known(a.shape) and is_known(b.shape)):
        shape = _agreed("sparse_add: shapes", a.dense_shape, b.dense_shape, shape)
    total = summed_by_place(indices, values, shape)
    if isinstance(thresh, (int, float)) and thresh == 0:
        return total
    large = greater_equal(abs(total.values), thresh)
    return sparse_retain(total, large)


def sparse_transpose(
    sp_input: SparseTensor, perm: Sequence[int] | None = None, name: str | None = None
) -> SparseTensor:
    """The axes in the order `perm` (None: reversed); indices in row-major order."""
    sp_input = as_sparse(sp_input)
    rank = rank_of(sp_input, "sparse_transpose")
    axes = list(reversed(builtins.range(rank))) if perm is None else [int(p) for p in perm]
    if sorted(axes) != list(builtins.range(rank)):
        raise ShapeError(f"perm {axes} does not name each of {rank} axes once", line=user_line())
    order = constant(np.array(axes))
    turned = SparseTensor(
        stack([_column(sp_input, a) for a in axes], 1),
        sp_input.values,
        gather_values(sp_input.dense_shape, order),
    )
    return sparse_reorder(turned, name)


def _agreed(message: str, a: Tensor, b: Tensor, value: Tensor) -> Tensor:
    """`value` after an assertion that `a` and `b` are equal."""
    with value.graph.control_dependencies([assert_equal(a, b, message=message)]):
        return identity(value)


def sparse_reshape(sp_input: SparseTensor, shape: Any, name: str | None = None) -> SparseTensor:
    """The same values in order with another dense shape; one size may be -1."""
    sp_input = as_sparse(sp_input)
    requested = cast(convert_to_tensor(shape), int64)
    known_size = reduce_prod(maximum(where(less(requested, 0), 1, requested), 0))
    total = reduce_prod(sp_input.dense_shape)
    new = where(less(requested, 0), total // maximum(known_size, 1), requested)
    new = _agreed("sparse_reshape: number of elements", reduce_prod(new), total, new)
    keys = flat_places(sp_input.indices, sp_input.dense_shape)
    return SparseTensor(transpose(unravel_index(keys, new)), sp_input.values, new)


def sparse_slice(
    sp_input: SparseTensor, start: Any, size: Any, name: str | None = None
) -> SparseTensor:
    """The slice of shape `size` at `start`, clipped at the end of the tensor."""
    sp_input = as_sparse(sp_input)
    low = cast(convert_to_tensor(start), int64)
    length = cast(convert_to_tensor(size), int64)
    high = minimum(add(low, length), sp_input.dense_shape)
    inside = logical_and(greater_equal(sp_input.indices, low), less(sp_input.indices, high))
    some = sparse_retain(sp_input, reduce_all(inside, 1))
    shape = maximum(subtract(high, low), 0)
    return SparseTensor(subtract(some.indices, low), some.values, shape)


@accepts_aliases(concat_dim="axis")
def sparse_concat(
    axis: int, sp_inputs: Sequence[SparseTensor], name: str | None = None
) -> SparseTensor:
    """The tensors concatenated along `axis`; other sizes must be equal."""
    sp_inputs = [as_sparse(sp) for sp in several(sp_inputs, "sparse_concat")]
    if not sp_inputs:
        raise ShapeError("sparse_concat needs at least one sparse tensor", line=user_line())
    at = normal_axis(axis, rank_of(sp_inputs[0], "sparse_concat"))
    unit = np.zeros(rank_of(sp_inputs[0], "sparse_concat"), int64)
    unit[at] = 1
    offset: Any = constant(np.int64(0))
    indices = []
    for sp in sp_inputs:
        indices.append(add(sp.indices, multiply(unit, offset)))
        offset = add(offset, getitem(sp.dense_shape, at))
    shape = where(constant(unit == 1), offset, sp_inputs[0].dense_shape)
    joined = SparseTensor(concat(indices, 0), concat([sp.values for sp in sp_inputs], 0), shape)
    return sparse_reorder(joined, name)


def sparse_fill_empty_rows(
    sp_input: SparseTensor, default_value: Any, name: str | None = None
) -> tuple[SparseTensor, Tensor]:
    """`default_value` in the first column of each empty row; and which rows were empty.

    Rows are in order; values in a row keep their order.
    """
    sp_input = as_sparse(sp_input)
    rank = rank_of(sp_input, "sparse_fill_empty_rows")
    rows = getitem(sp_input.dense_shape, 0)
    row = _column(sp_input, 0)
    counts = unsorted_segment_sum(multiply(row, 0) + 1, row, rows)
    empty = equal(counts, 0)
    first = positions(empty)
    empty_places = concat([first, *[multiply(first, 0)] * (rank - 1)], 1)
    default = convert_to_tensor(default_value, sp_input.dtype)
    values = concat([sp_input.values, fill(reshape(size(first), [1]), default)], 0)
    filled = SparseTensor(concat([sp_input.indices, empty_places], 0), values, sp_input.dense_shape)
    order = make("SortOrder", [_column(filled, 0)], {}, name).outputs[0]
    return _select_values(filled, order), empty


def sparse_softmax(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """Softmax over the last axis, of the stored values only."""
    sp_input = as_sparse(sp_input)
    rank = rank_of(sp_input, "sparse_softmax")
    if rank < 2:
        raise ShapeError("sparse_softmax needs rank 2 or more", line=user_line())
    lead = getitem(sp_input.dense_shape, slice(0, rank - 1))
    keys = flat_places(getitem(sp_input.indices, (slice(None), slice(0, rank - 1))), lead)
    count = reduce_prod(lead)
    largest = gather_values(unsorted_segment_max(stop_gradient(sp_input.values), keys, count), keys)
    raised = exp(subtract(sp_input.values, largest))
    total = gather_values(unsorted_segment_sum(raised, keys, count), keys)
    shares = divide(raised, total)
    shares.set_shape(sp_input.values.shape)
    return sp_input.with_values(shares)


def sparse_to_indicator(sp_input: SparseTensor, vocab_size: int, name: str | None = None) -> Tensor:
    """True at the indices given by integer values on the last axis: [..., vocab_size]."""
    sp_input = as_sparse(sp_input)
    rank = rank_of(sp_input, "sparse_to_indicator")
    lead = getitem(sp_input.indices, (slice(None), slice(0, rank - 1)))
    indices = concat([lead, expand_dims(cast(sp_input.values, int64), 1)], 1)
    sizes = concat([getitem(sp_input.dense_shape, slice(0, rank - 1)), [vocab_size]], 0)
    ones = equal(sp_input.values, sp_input.values)
    marked = SparseTensor(indices, ones, sizes)
    return sparse_tensor_to_dense(marked, False, validate_indices=False, name=name)


def sparse_mask(a: IndexedSlices, mask_indices: Any, name: str | None = None) -> IndexedSlices:
    """The rows of IndexedSlices whose index is not in `mask_indices`."""
    if not isinstance(a, IndexedSlices):
        raise ArgumentError(
            f"sparse_mask takes hf.IndexedSlices, not {value_text(a)}", line=user_line()
        )
    masked = cast(convert_to_tensor(mask_indices), a.indices.dtype)
    hit = equal(expand_dims(a.indices, 1), expand_dims(masked, 0))
    keep = logical_not(reduce_max(cast(hit, a.indices.dtype), 1) > 0)
    values, indices = boolean_mask(a.values, keep), boolean_mask(a.indices, keep)
    return IndexedSlices(values, indices, a.dense_shape)
