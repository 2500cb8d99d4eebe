"""Sparse reductions: sums and maxima of sparse tensors over axes, elementwise minima and maxima."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Tensor
from hpcflow.ops.array.array_ops import constant, reshape
from hpcflow.ops.array.broadcast_ops import ones_like, zeros_like
from hpcflow.ops.array.concat_split_ops import concat, stack
from hpcflow.ops.array.segment_ops import unsorted_segment_max, unsorted_segment_sum
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import equal, maximum, minimum, multiply, where
from hpcflow.ops.math.reduction_ops import reduce_prod
from hpcflow.ops.shape_inference import normal_axis
from hpcflow.ops.sparse.sparse_functions import flat_places, rank_of, summed_by_place
from hpcflow.ops.sparse.sparse_tensor_ops import SparseTensor, as_sparse
from hpcflow.ops.variables.row_list_ops import gather_values


def _largest(values: Tensor, keys: Tensor, count: Any, name: str | None = None) -> Tensor:
    """The largest value of each key, 0 for a key without values."""
    some = unsorted_segment_sum(ones_like(keys), keys, count)
    most = unsorted_segment_max(values, keys, count)
    return where(equal(some, 0), zeros_like(most), most, name)


def _without(sp: SparseTensor, axis: Any, keepdims: bool, op_name: str) -> tuple[Tensor, Tensor]:
    """Indices and dense shape without the reduced axes, or with size 1 there."""
    rank = rank_of(sp, op_name)
    axes = builtins.range(rank) if axis is None else np.atleast_1d(np.asarray(axis)).tolist()
    gone = {normal_axis(int(a), rank) for a in axes}
    if keepdims:
        stays = np.array([a not in gone for a in builtins.range(rank)])
        return multiply(sp.indices, stays.astype(int64)), where(stays, sp.dense_shape, 1)
    order = [a for a in builtins.range(rank) if a not in gone]
    columns = [getitem(sp.indices, (slice(None), a)) for a in order]
    under = gather_values(sp.dense_shape, constant(np.array(order, int64)))
    if columns:
        return stack(columns, 1), under
    return getitem(sp.indices, (slice(None), slice(0, 0))), under


def _reduce(op_name: str, segments: Callable[..., Tensor], doc: str) -> Callable[..., Tensor]:
    def function(
        sp_input: SparseTensor, axis: Any = None, keepdims: bool = False, name: str | None = None
    ) -> Tensor:
        sp = as_sparse(sp_input)
        places, under = _without(sp, axis, keepdims, op_name)
        flat = segments(sp.values, flat_places(places, under), reduce_prod(under), name)
        return reshape(flat, under)

    function.__name__ = function.__qualname__ = op_name
    function.__doc__ = f"{doc} over `axis` (all if None) as a dense tensor."
    return accepts_aliases(reduction_axes="axis", keep_dims="keepdims")(function)


def _reduce_sparse(
    op_name: str, segments: Callable[..., Tensor], doc: str
) -> Callable[..., SparseTensor]:
    def function(
        sp_input: SparseTensor, axis: Any = None, keepdims: bool = False, name: str | None = None
    ) -> SparseTensor:
        sp = as_sparse(sp_input)
        places, under = _without(sp, axis, keepdims, op_name)
        flat = segments(sp.values, flat_places(places, under), reduce_prod(under), name)
        some = summed_by_place(places, sp.values, under)
        return some.with_values(gather_values(flat, flat_places(some.indices, under)))

    function.__name__ = function.__qualname__ = op_name
    function.__doc__ = f"{doc} over `axis` (all if None) where there are values."
    return accepts_aliases(reduction_axes="axis", keep_dims="keepdims")(function)


_SUM, _MAX = "The sum", "The largest of the values that are there, 0 where none is,"
sparse_reduce_sum = _reduce("sparse_reduce_sum", unsorted_segment_sum, _SUM)
sparse_reduce_max = _reduce("sparse_reduce_max", _largest, _MAX)
sparse_reduce_sum_sparse = _reduce_sparse("sparse_reduce_sum_sparse", unsorted_segment_sum, _SUM)
sparse_reduce_max_sparse = _reduce_sparse("sparse_reduce_max_sparse", _largest, _MAX)


def _place_by_place(
    op_name: str, function: Callable[[Tensor, Tensor], Tensor], doc: str
) -> Callable[..., SparseTensor]:
    def pairwise(sp_a: SparseTensor, sp_b: SparseTensor, name: str | None = None) -> SparseTensor:
        a, b = as_sparse(sp_a), as_sparse(sp_b)
        places = concat([a.indices, b.indices], 0)
        left = concat([a.values, multiply(b.values, 0)], 0)
        right = concat([multiply(a.values, 0), b.values], 0)
        sum_a = summed_by_place(places, left, a.dense_shape)
        sum_b = summed_by_place(places, right, a.dense_shape)
        return sum_a.with_values(function(sum_a.values, sum_b.values))

    pairwise.__name__ = pairwise.__qualname__ = op_name
    pairwise.__doc__ = f"The {doc} at each place where either has a value; a missing one is 0."
    return pairwise


sparse_maximum = _place_by_place("sparse_maximum", maximum, "larger value")
sparse_minimum = _place_by_place("sparse_minimum", minimum, "smaller value")
