"""Embedding lookup: rows of one variable or of shards, and weighted sums of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.dtypes import int32
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.array.array_ops import reshape, shape
from hpcflow.ops.array.concat_split_ops import concat
from hpcflow.ops.array.segment_ops import unsorted_segment_sum
from hpcflow.ops.array.slice_ops import gather, getitem
from hpcflow.ops.array.where_unique_ops import positions
from hpcflow.ops.math.arithmetic_ops import (
    add_n,
    cast,
    equal,
    greater,
    greater_equal,
    less,
    logical_and,
    maximum,
    minimum,
    multiply,
    sqrt,
    square,
    where,
)
from hpcflow.ops.math.elementwise_math_ops import div_no_nan
from hpcflow.ops.math.norm_clipping import clip_by_norm
from hpcflow.ops.sparse.sparse_functions import (
    rank_of,
    sparse_fill_empty_rows,
    sparse_reshape,
    sparse_retain,
)
from hpcflow.ops.sparse.sparse_tensor_ops import SparseTensor, as_sparse
from hpcflow.ops.variables.row_list_ops import gather_values, join_rows


@accepts_and_ignores("validate_indices")
def embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    max_norm: Any = None,
) -> Tensor:
    """The rows `ids` of a table; its gradient is IndexedSlices.

    `params` is a variable or tensor, or a list (or PartitionedVariable) of shards along axis 0.
    With "mod" id i is row i // n of shard i % n of n. With "div" the shards are consecutive parts
    of the table; the first ones have one more row if sizes are unequal. Rows are read on the device
    of their shard: ids are sent there and rows come back. `max_norm` bounds the norm of each row.

    Shapes: ids.shape + row.
    Errors: RangeError at run time for an id outside the table.
    """
    shards = _shards(params)
    if partition_strategy not in ("mod", "div"):
        raise ShapeError(
            f"partition_strategy {partition_strategy!r} is not known", hint="use 'mod' or 'div'"
        )
    with get_default_graph().name_scope(name or "embedding_lookup"):
        at = convert_to_tensor(ids)
        if at.dtype.kind not in "iu":
            raise DTypeError(f"ids must be integers; {at.name!r} is {at.dtype}", line=user_line())
        if len(shards) == 1:
            return _bounded(gather(shards[0], at), at, max_norm)
        flat = reshape(at, [-1])
        shard, row = _placed(shards, flat, partition_strategy)
        places = [reshape(positions(equal(shard, i)), [-1]) for i in range(len(shards))]
        rows = [gather(s, gather_values(row, p)) for s, p in zip(shards, places, strict=True)]
        return _bounded(join_rows(at, places, rows), at, max_norm)


def _shards(params: Any) -> list[Any]:
    """The shards as variables or tensors, with equal row shapes."""
    many = isinstance(params, (list, tuple)) or hasattr(params, "partitions")
    shards = [_table(p) for p in (params if many else [params])]
    if not shards:
        raise ShapeError("embedding_lookup needs at least one table", line=user_line())
    rows = {s.shape[1:] for s in shards if s.shape is not None}
    if len(rows) > 1:
        raise ShapeError(
            f"the shards have rows of shapes {' and '.join(map(shape_text, rows))}",
            line=user_line(),
        )
    return shards


def _table(param: Any) -> Any:
    return param if hasattr(param, "sparse_read") else convert_to_tensor(param)


def _placed(shards: Sequence[Any], ids: Tensor, strategy: str) -> tuple[Tensor, Tensor]:
    """The shard, and the row in it, of each id; invalid ids map to rows outside the shard."""
    n = len(shards)
    if strategy == "mod":
        return ids % n, ids // n
    total = _total(shards, ids)
    each, more = total // n, total % n
    long = each + 1  # number of rows of the first `more` shards
    shard = where(less(ids, long * more), ids // long, (ids - more) // maximum(each, 1))
    shard = minimum(maximum(shard, 0), n - 1)
    first = where(less(shard, more), shard * long, shard * each + more)
    return shard, ids - first


def _total(shards: Sequence[Any], ids: Tensor) -> Tensor:
    lengths = [s.shape[0] for s in shards if s.shape is not None and s.shape[0] is not None]
    if len(lengths) == len(shards):
        return convert_to_tensor(np.asarray(sum(lengths), ids.dtype))
    return add_n([cast(getitem(shape(s), 0), ids.dtype) for s in shards])


def _bounded(rows: Tensor, ids: Tensor, max_norm: Any) -> Tensor:
    if max_norm is None:
        return rows
    if ids.shape is None or rows.shape is None:
        raise ShapeError(
            f"max_norm needs ids {shape_text(ids.shape)} and rows {shape_text(rows.shape)} of "
            "known ranks",
            line=user_line(),
        )
    axes = list(range(len(ids.shape), len(rows.shape)))
    return clip_by_norm(rows, max_norm, axes)


@accepts_and_ignores("allow_fast_lookup")
def embedding_lookup_sparse(
    params: Any,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str = "mean",
    max_norm: Any = None,
) -> Tensor:
    """One row for each row of ids: the weighted sum of their embeddings, or a mean of them.

    `combiner` "sum" adds up `weight * row`, "mean" divides by the sum of the weights, "sqrtn" by
    the root of the sum of their squares. `sp_weights` default to 1; otherwise they have the indices
    of `sp_ids`. A row without ids is zeros.

    Shapes: [sp_ids.dense_shape[0]] + row.
    """
    if combiner not in ("mean", "sqrtn", "sum"):
        raise ShapeError(f"combiner {combiner!r} is not known", hint="use 'mean', 'sqrtn' or 'sum'")
    for sparse in (sp_ids, sp_weights):
        if sparse is not None and not isinstance(sparse, SparseTensor):
            raise DTypeError(
                f"ids and weights must be SparseTensors, not {sparse!r}", line=user_line()
            )
    with get_default_graph().name_scope(name or "embedding_lookup_sparse"):
        rows = embedding_lookup(params, sp_ids.values, partition_strategy, max_norm=max_norm)
        segments = getitem(sp_ids.indices, (slice(None), 0))
        count = getitem(sp_ids.dense_shape, 0)
        if sp_weights is None:
            weights = convert_to_tensor(np.asarray(1, rows.dtype)) + 0 * _column(segments, rows)
        else:
            weights = _like_column(cast(sp_weights.values, rows.dtype), rows)
        total = unsorted_segment_sum(multiply(rows, weights), segments, count)
        if combiner == "sum":
            return total
        below = unsorted_segment_sum(
            weights if combiner == "mean" else square(weights), segments, count
        )
        return div_no_nan(total, below if combiner == "mean" else sqrt(below))


def _column(segments: Tensor, rows: Tensor) -> Tensor:
    return _like_column(cast(segments, rows.dtype), rows)


def _like_column(values: Tensor, rows: Tensor) -> Tensor:
    """A vector reshaped to the rank of `rows`, to broadcast over each row."""
    if rows.shape is None:
        raise ShapeError("embedding_lookup_sparse needs a table of a known rank", line=user_line())
    return reshape(values, [-1] + [1] * (len(rows.shape) - 1))


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str = "mean",
    default_id: int | None = None,
    name: str | None = None,
    partition_strategy: str = "div",
    max_norm: Any = None,
) -> Tensor:
    """`embedding_lookup_sparse` without negative ids and without weights <= 0.

    With combiner "sum" such weights are kept. A row without ids is that of `default_id`, or zeros.

    Shapes: sparse_ids.dense_shape[:-1] + row.
    """
    ids = as_sparse(sparse_ids)
    weights = None if sparse_weights is None else as_sparse(sparse_weights)
    with get_default_graph().name_scope(name or "safe_embedding_lookup_sparse"):
        lead, ids = _two_axes(ids)
        keep = greater_equal(ids.values, 0)
        if weights is not None:
            weights = _two_axes(weights)[1]
            if combiner != "sum":
                keep = logical_and(keep, greater(weights.values, 0))
            weights = sparse_retain(weights, keep)
        ids = sparse_retain(ids, keep)
        if default_id is not None:
            ids = sparse_fill_empty_rows(ids, default_id)[0]
            weights = None if weights is None else sparse_fill_empty_rows(weights, 1)[0]
        rows = embedding_lookup_sparse(
            embedding_weights, ids, weights, partition_strategy, None, combiner, max_norm
        )
        if lead is None:
            return rows
        return reshape(rows, concat([lead, getitem(shape(rows), slice(1, None))], 0))


def _two_axes(sp: SparseTensor) -> tuple[Tensor | None, SparseTensor]:
    """A sparse tensor as a matrix, and the sizes of its leading axes if its rank was not 2."""
    rank = rank_of(sp, "safe_embedding_lookup_sparse")
    if rank < 2:
        raise ShapeError(
            "safe_embedding_lookup_sparse needs ids of rank 2 or more", line=user_line()
        )
    if rank == 2:
        return None, sp
    lead = getitem(sp.dense_shape, slice(0, rank - 1))
    last = getitem(sp.dense_shape, slice(rank - 1, rank))
    return cast(lead, int32), sparse_reshape(sp, concat([[-1], last], 0))
