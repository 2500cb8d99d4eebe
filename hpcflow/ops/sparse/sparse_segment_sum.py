"""Sparse segment ops: sums over segments of selected rows, as in sentence embeddings."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Tensor
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.array.segment_ops import (
    segment_mean,
    segment_sqrt_n,
    segment_sum,
    unsorted_segment_mean,
    unsorted_segment_sqrt_n,
    unsorted_segment_sum,
)
from hpcflow.ops.shape_inference import operand, require_alike, require_rank


def _rows(data: Any, indices: Any, segment_ids: Any) -> tuple[Tensor, Tensor]:
    """The selected rows, and the segment of each."""
    places, ids = operand(indices, "iu"), operand(segment_ids, "iu")
    for t in (places, ids):
        require_rank("sparse_segment", t.spec, 1)
    require_alike("sparse_segment: indices and segment_ids", places, ids)
    return gather(data, places), ids


def sparse_segment_sum(
    data: Any, indices: Any, segment_ids: Any, name: str | None = None, num_segments: Any = None
) -> Tensor:
    """The sum of the rows of `data` selected by `indices`, for each segment; 0 if empty.

    `num_segments` is the number of segments, by default the last segment number + 1.
    Shapes: `indices` and `segment_ids` [n], the latter sorted; [segments, ...] as the rows of
            `data`.
    Errors: RangeError at run time for an index or segment out of range.
    """
    rows, ids = _rows(data, indices, segment_ids)
    if num_segments is None:
        return segment_sum(rows, ids, name)
    return unsorted_segment_sum(rows, ids, num_segments, name)


def sparse_segment_mean(
    data: Any, indices: Any, segment_ids: Any, name: str | None = None, num_segments: Any = None
) -> Tensor:
    """The mean of the rows; see `sparse_segment_sum`."""
    rows, ids = _rows(data, indices, segment_ids)
    if num_segments is None:
        return segment_mean(rows, ids, name)
    return unsorted_segment_mean(rows, ids, num_segments, name)


def sparse_segment_sqrt_n(
    data: Any, indices: Any, segment_ids: Any, name: str | None = None, num_segments: Any = None
) -> Tensor:
    """The sum of the rows over the root of their number; see `sparse_segment_sum`."""
    rows, ids = _rows(data, indices, segment_ids)
    if num_segments is None:
        return segment_sqrt_n(rows, ids, name)
    return unsorted_segment_sqrt_n(rows, ids, num_segments, name)
