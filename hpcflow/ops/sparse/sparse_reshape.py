"""Sparse reshape ops: new bounds, ids as an index axis, split."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.array.array_ops import expand_dims, identity, partial_value, reshape, shape
from hpcflow.ops.array.concat_split_ops import concat, stack
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.control_flow.assertions import assert_equal, assert_less_equal
from hpcflow.ops.math.arithmetic_ops import add, cast, floordiv, minimum, mod, multiply, subtract
from hpcflow.ops.math.reduction_ops import reduce_max
from hpcflow.ops.shape_inference import integer_argument, normal_axis
from hpcflow.ops.sparse.sparse_functions import rank_of, sparse_reorder, sparse_slice
from hpcflow.ops.sparse.sparse_tensor_ops import SparseTensor, as_sparse


def sparse_reset_shape(sp_input: SparseTensor, new_shape: Any = None) -> SparseTensor:
    """The same indices and values with dense shape `new_shape`, by default the smallest.

    Errors: ShapeError for another rank or a smaller size; AssertError at run time.
    """
    sp = as_sparse(sp_input)
    if new_shape is None:
        outside = np.full((1, rank_of(sp, "sparse_reset_shape")), -1, int64)
        bounds = add(reduce_max(concat([sp.indices, outside], 0), 0), 1)
        return SparseTensor(sp.indices, sp.values, bounds)
    target_shape = cast(convert_to_tensor(new_shape), int64)
    _check_larger(sp, target_shape)
    graph = get_default_graph()
    with graph.control_dependencies([assert_equal(shape(sp.dense_shape), shape(target_shape))]):
        old_shape = identity(sp.dense_shape)
    with graph.control_dependencies([assert_less_equal(old_shape, target_shape)]):
        return SparseTensor(sp.indices, sp.values, identity(target_shape))


def _check_larger(sp: SparseTensor, new_shape: Tensor) -> None:
    old, new = sp.shape, partial_value(new_shape)
    if old is None or new is None:
        return
    smaller = any(a is not None and b is not None and b < a for a, b in zip(old, new, strict=False))
    if len(old) != len(new) or smaller:
        raise ShapeError(
            f"a sparse tensor of shape {shape_text(old)} does not fit shape {shape_text(new)}",
            line=user_line(),
            hint="give a shape of the same rank with no size smaller",
        )


def sparse_merge(
    sp_ids: SparseTensor | Sequence[SparseTensor],
    sp_values: SparseTensor,
    vocab_size: Any,
    name: str | None = None,
    already_sorted: bool = False,
) -> SparseTensor:
    """The values at indices that end with the values of `sp_ids`, bounded by `vocab_size`.

    Lists of ids and sizes replace the last index by several. Indices are sorted in row-major order,
    unless `already_sorted`.
    """
    many = isinstance(sp_ids, (list, tuple)) and not hasattr(sp_ids, "dense_shape")
    ids = [as_sparse(sp) for sp in (sp_ids if many else [sp_ids])]  # type: ignore[union-attr]
    bounds = list(vocab_size) if many else [vocab_size]
    if not ids or len(ids) != len(bounds):
        raise ShapeError(
            f"sparse_merge needs one vocab_size for each of sp_ids, not {len(bounds)} for "
            f"{len(ids)}",
            line=user_line(),
        )
    lead = rank_of(ids[0], "sparse_merge") - 1
    columns = [expand_dims(cast(sp.values, int64), 1) for sp in ids]
    places = concat([getitem(ids[0].indices, (slice(None), slice(0, lead))), *columns], 1)
    sizes = [reshape(cast(convert_to_tensor(n), int64), [1]) for n in bounds]
    under = concat([getitem(ids[0].dense_shape, slice(0, lead)), *sizes], 0)
    merged = SparseTensor(places, as_sparse(sp_values).values, under)
    return merged if already_sorted else sparse_reorder(merged, name)


@accepts_aliases(split_dim="axis")
def sparse_split(
    *, sp_input: SparseTensor, num_split: int, axis: int, name: str | None = None
) -> list[SparseTensor]:
    """`num_split` parts along `axis`; the first ones are longer by one if sizes are unequal."""
    sp, count = as_sparse(sp_input), integer_argument(num_split, "num_split")
    rank = rank_of(sp, "sparse_split")
    at = normal_axis(integer_argument(axis, "axis"), rank)
    if count < 1:
        raise ShapeError(f"num_split must be at least 1, not {count}", line=user_line())
    total = getitem(sp.dense_shape, at)
    each, remainder = floordiv(total, count), mod(total, count)
    parts = []
    for i in builtins.range(count):
        first = add(multiply(each, i), minimum(remainder, i))
        after = add(multiply(each, i + 1), minimum(remainder, i + 1))
        zero = multiply(first, 0)
        start = stack([first if a == at else zero for a in builtins.range(rank)])
        whole_axes = [getitem(sp.dense_shape, a) for a in builtins.range(rank)]
        whole_axes[at] = subtract(after, first)
        parts.append(sparse_slice(sp, start, stack(whole_axes), name))
    return parts
