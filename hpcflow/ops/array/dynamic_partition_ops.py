"""Dynamic partition ops: dynamic_partition and dynamic_stitch of rows by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import op
from hpcflow.graph.static_shape import Shape, Spec, merge_shapes
from hpcflow.ops.array.array_ops import range, reshape, reshaped_like, size, sizes
from hpcflow.ops.array.broadcast_ops import zeros_like
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.shape_inference import (
    Attrs,
    first_output,
    integer_argument,
    like,
    make,
    operand,
    require,
    require_equal,
)


def _partition(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    data, partitions = inputs
    require("dynamic_partition's partitions", partitions, "iu")
    part_shape: Shape = None
    if data.shape is not None and partitions.shape is not None:
        lead = len(partitions.shape)
        merge_shapes(data.shape[:lead], partitions.shape)
        part_shape = (None, *data.shape[lead:])
    return [Spec(data.dtype, part_shape)] * attrs["num"]


def _partition_back(op: Operation, *grads: Tensor | None) -> list[Any]:
    data, partitions = op.inputs
    places = reshape(range(size(partitions)), sizes(partitions))
    indices = make("DynamicPartition", [places, partitions], op.attrs).outputs
    filled = [zeros_like(y) if g is None else g for y, g in zip(op.outputs, grads, strict=True)]
    return [reshaped_like(dynamic_stitch(list(indices), filled), data), None]


def _stitch(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    half = len(inputs) // 2
    indices, data = inputs[:half], inputs[half:]
    require_equal("dynamic_stitch", data)
    row_shape: Shape = None
    longest: int | None = 0
    for i, d in zip(indices, data, strict=True):
        require("dynamic_stitch's indices", i, "iu")
        if i.shape is not None and d.shape is not None:
            merge_shapes(d.shape[: len(i.shape)], i.shape)
            row_shape = merge_shapes(row_shape, d.shape[len(i.shape) :])
        if i.value is None or longest is None:
            longest = None
        elif i.value.size:
            longest = max(longest, int(i.value.max()) + 1)
    return [Spec(data[0].dtype, None if row_shape is None else (longest, *row_shape))]


def _stitch_back(op: Operation, g: Tensor) -> list[Any]:
    half = len(op.inputs) // 2
    return [None] * half + [gather(g, i) for i in op.inputs[:half]]


op("DynamicPartition", infer=_partition, grad=_partition_back, work="move")
op("DynamicStitch", infer=_stitch, grad=_stitch_back, work="move")


def dynamic_partition(
    data: Any, partitions: Any, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """The rows of `data` partitioned into `num_partitions` tensors, in the order of `data`.

    Shapes: `partitions` has the first axes of `data`; results are [its rows, rest of data].
    Errors: RangeError at run time for a number outside [0, num_partitions).
    """
    attrs: Attrs = {"num": integer_argument(num_partitions, "num_partitions")}
    if attrs["num"] < 1:
        raise ShapeError(
            f"dynamic_partition: num_partitions must be at least 1, not {num_partitions}",
            line=user_line(),
        )
    inputs = [convert_to_tensor(data), operand(partitions, "iu")]
    return list(make("DynamicPartition", inputs, attrs, name).outputs)


def dynamic_stitch(indices: Sequence[Any], data: Sequence[Any], name: str | None = None) -> Tensor:
    """One tensor with `data[k][i]` as row `indices[k][i]`; for equal indices the last counts.

    The number of rows is the largest index + 1; rows without an index are zeros.
    Errors: RangeError at run time for a negative index.
    """
    if not len(indices) or len(indices) != len(data):
        raise ShapeError(
            "dynamic_stitch needs as many indices as data, at least 1, not "
            f"{len(indices)} and {len(data)}"
        )
    first = convert_to_tensor(data[0])
    tensors = [like(d, first) for d in data]
    return first_output("DynamicStitch", [*(operand(i, "iu") for i in indices), *tensors], {}, name)
