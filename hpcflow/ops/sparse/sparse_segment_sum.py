"""Sums over segments of rows that indices pick, as of the embeddings of the words of sentences."""

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
    """The rows that are meant, and the segment of each."""
    places, ids = operand(indices, "iu"), operand(segment_ids, "iu")
    for t in (places, ids):
        require_rank("sparse_segment", t.spec, 1)
    require_alike("sparse_segment: indices and segment_ids", places, ids)
    return gather(data, places), ids


def sparse_segment_sum(
    data: Any, indices: Any, segment_ids: Any, name: str | None = None, num_segments: Any = None
) -> Tensor:
    """The sum of the rows of `data` that `indices` name, for each segment; 0 of none.

    `num_segments` says how many segments there are, by default as many as the last number needs.
    Shapes: `indices` and `segment_ids` [n], these sorted; [segments, ...] as the rows of `data`.
    Errors: RangeError, when it runs, for an index or a segment that is not there.
    """
    rows, ids = _rows(data, indices, segment_ids)
    if num_segments is None:
        return segment_sum(rows, ids, name)
    return unsorted_segment_sum(rows, ids, num_segments, name)


def sparse_segment_mean(
    data: Any, indices: Any, segment_ids: Any, name: str | None = None, num_segments: Any = None
) -> Tensor:
    """The mean of these rows; see `sparse_segment_sum`."""
    rows, ids = _rows(data, indices, segment_ids)
    if num_segments is None:
        return segment_mean(rows, ids, name)
    return unsorted_segment_mean(rows, ids, num_segments, name)


def sparse_segment_sqrt_n(
    data: Any, indices: Any, segment_ids: Any, name: str | None = None, num_segments: Any = None
) -> Tensor:
    """The sum of these rows over the root of their number; see `sparse_segment_sum`."""
    rows, ids = _rows(data, indices, segment_ids)
    if num_segments is None:
        return segment_sqrt_n(rows, ids, name)
    return unsorted_segment_sqrt_n(rows, ids, num_segments, name)
