"""Pooling layers, by TensorFlow's `tf.layers` names."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.layers.base import Function, format_of, of_rank, sizes_of
from hpcflow.ops.pool import pool
from hpcflow.ops.rules import named


def _pooling(kind: str, rank: int) -> Function:
    what = f"{'max' if kind == 'MAX' else 'average'}_pooling{rank}d"
    noun = "largest element" if kind == "MAX" else "mean"

    def pooling(
        inputs: Any,
        pool_size: Any,
        strides: Any,
        padding: str = "valid",
        data_format: str = "channels_last",
        name: str | None = None,
    ) -> Tensor:
        x = of_rank(convert_to_tensor(inputs), rank + 2, what)
        sizes = sizes_of(pool_size, rank, "pool_size")
        steps = sizes_of(strides, rank, "strides")
        form = format_of(data_format, rank)
        return pool(x, sizes, kind, padding, None, steps, name, form)

    axes = {1: "w", 2: "h, w", 3: "d, h, w"}[rank]
    doc = f"""The {noun} of each window of `pool_size` elements.

    Shapes: [n, {axes}, channels], or [n, channels, {axes}] with channels_first.
    """
    return named(pooling, what, doc)


max_pooling1d, max_pooling2d, max_pooling3d = (_pooling("MAX", rank) for rank in (1, 2, 3))
average_pooling1d, average_pooling2d, average_pooling3d = (
    _pooling("AVG", rank) for rank in (1, 2, 3)
)
