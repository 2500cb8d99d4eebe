"""Partitioners: functions of a variable's shape and dtype that return the number of shards.

They are arguments of `variable_scope` and `get_variable`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import as_dtype, float32
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.ops.variables.variable_scope import get_variable, variable_scope

Partitioner = Callable[..., list[int]]


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Partitioner:
    """The given number of shards along `axis`."""

    def partition(shape: Sequence[int], dtype: Any = float32) -> list[int]:
        return _along(axis, num_shards, shape)

    return partition


def variable_axis_size_partitioner(
    max_shard_bytes: int,
    axis: int = 0,
    bytes_per_string_element: int = 16,
    max_shards: int | None = None,
) -> Partitioner:
    """The fewest shards along `axis` of at most `max_shard_bytes`, at most `max_shards`."""
    if max_shard_bytes < 1 or bytes_per_string_element < 1:
        raise ShapeError("max_shard_bytes and bytes_per_string_element must be at least 1")
    if max_shards is not None and max_shards < 1:
        raise ShapeError("max_shards must be at least 1")

    def partition(shape: Sequence[int], dtype: Any = float32) -> list[int]:
        size = _element_bytes(dtype, bytes_per_string_element)
        row = size * math.prod(shape) // max(1, shape[axis])
        rows = max(1, max_shard_bytes // max(1, row))
        pieces = min(-(-shape[axis] // rows), max_shards or shape[axis])
        return _along(axis, max(1, pieces), shape)

    return partition


def min_max_variable_partitioner(
    max_partitions: int = 1,
    axis: int = 0,
    min_slice_size: int = 256 << 10,
    bytes_per_string_element: int = 16,
) -> Partitioner:
    """As many shards along `axis` as have `min_slice_size` bytes each, at most `max_partitions`."""
    if max_partitions < 1 or min_slice_size < 1 or bytes_per_string_element < 1:
        raise ShapeError(
            "max_partitions, min_slice_size and bytes_per_string_element must be at least 1"
        )

    def partition(shape: Sequence[int], dtype: Any = float32) -> list[int]:
        total = _element_bytes(dtype, bytes_per_string_element) * math.prod(shape)
        pieces = min(-(-total // min_slice_size), max_partitions, shape[axis])
        return _along(axis, max(1, pieces), shape)

    return partition


def _element_bytes(dtype: Any, string: int) -> int:
    dtype = as_dtype(dtype)
    return string if dtype.kind in "OSU" else np.dtype(dtype).itemsize


def _along(axis: int, pieces: int, shape: Sequence[int]) -> list[int]:
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(f"a variable with {len(shape)} axes cannot be split along axis {axis}")
    return [pieces if i == axis % len(shape) else 1 for i in range(len(shape))]


def create_partitioned_variables(
    shape: Sequence[int],
    slicing: Sequence[int],
    initializer: Any,
    dtype: Any = float32,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    name: str | None = None,
    reuse: Any = None,
) -> list[Variable]:
    """The shards of a variable of `shape`, as many along each axis as `slicing` says.

    Their names are `name/part_0` and so on; they are created as by `get_variable`.
    """
    with variable_scope(name, "PartitionedVariable", reuse=reuse):
        variable = get_variable(
            "",
            shape,
            dtype,
            initializer,
            trainable=trainable,
            collections=collections,
            partitioner=lambda shape, dtype: list(slicing),
        )
    return list(variable)
