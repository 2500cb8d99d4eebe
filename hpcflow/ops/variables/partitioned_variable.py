"""Partitioned variables: one tensor divided into shards, each a variable."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import as_dtype
from hpcflow.graph.function_body import innermost_graph, root_as_default
from hpcflow.graph.graph import Graph, Operation, Tensor, convert_to_tensor
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.array.concat_split_ops import concat, split
from hpcflow.ops.control_flow.control_dependencies import group
from hpcflow.ops.variables.assignable_variable import Assignable
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.platform.exception_translation import translate_exceptions


@dataclasses.dataclass(frozen=True)
class PartitionInfo:
    """The position of a shard, for initializers."""

    full_shape: tuple[int, ...]
    var_offset: tuple[int, ...]


@translate_exceptions
class PartitionedVariable(Assignable):
    """Shards of one variable, divided along one axis; used like their concatenation.

    `partitions` is the number of shards along each axis. Iteration yields the shards. An update
    changes each shard by its part of the value.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: Any,
        variable_list: Sequence[Variable],
        partitions: Sequence[int],
    ) -> None:
        self.name, self.dtype = name, as_dtype(dtype)
        self.shape: tuple[int, ...] = tuple(int(d) for d in shape)
        self.partitions = check_partitions(partitions, self.shape)
        self.axis = cut_axis(self.partitions)
        self._pieces = list(variable_list)
        if len(self._pieces) != self.partitions[self.axis]:
            raise ShapeError(
                f"{len(self._pieces)} variables do not match the "
                f"{self.partitions[self.axis]} shards "
                f"of {name!r}"
            )
        with root_as_default(self.graph) as graph, graph.name_scope(None):
            read = [piece.fetched for piece in self._pieces]
            self.fetched = concat(read, self.axis, name=f"{self.name}/fetched")

    @property
    def graph(self) -> Graph:
        """The graph of the variable."""
        return self._pieces[0].graph

    def __iter__(self) -> Iterator[Variable]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def value(self) -> Tensor:
        """The concatenation of the shards, each read after the control dependencies in force."""
        graph = innermost_graph(self.graph)
        with graph.as_default(), graph.name_scope(graph.prefix):
            read = [piece.value() for piece in self._pieces]
            return concat(read, self.axis, name=f"{self.name}/concat")

    as_tensor = value

    @property
    def initializer(self) -> Operation:
        """One operation that initializes all shards."""
        with self.graph.as_default():
            return group(*(piece.initializer for piece in self._pieces))

    def _changed(self, method: str, value: Any, name: str | None, read_value: bool) -> Any:
        tensor = convert_to_tensor(value, self.dtype)
        lengths = [piece[self.axis] for piece in pieces_of(self.shape, self.partitions)]
        with innermost_graph(self.graph).as_default():
            writes = [
                getattr(piece, method)(part, read_value=read_value)
                for piece, part in zip(self._pieces, split(tensor, lengths, self.axis), strict=True)
            ]
            name = name or f"{self.name}/{method}"
            return concat(writes, self.axis, name=name) if read_value else group(*writes, name=name)

    def __repr__(self) -> str:
        return (
            f"<hf.PartitionedVariable {self.name!r} shape={shape_text(self.shape)} "
            f"dtype={self.dtype} "
            f"pieces={len(self)}>"
        )


def check_partitions(partitions: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Check for one number per axis, at most one of them above 1. Errors: ShapeError."""
    counts = tuple(int(n) for n in partitions)
    fit = len(counts) == len(shape) and all(n >= 1 for n in counts)
    if not fit or sum(n > 1 for n in counts) > 1:
        raise ShapeError(
            f"partitions {list(counts)} do not split {shape_text(tuple(shape))} along one axis",
            hint="give the number of shards along each axis, more than 1 for one axis at most",
        )
    for n, size in zip(counts, shape, strict=True):
        if n > max(1, size):
            raise ShapeError(f"an axis of size {size} cannot be split into {n} shards")
    return counts


def cut_axis(partitions: Sequence[int]) -> int:
    """The divided axis; 0 if there is none."""
    return next((i for i, n in enumerate(partitions) if n > 1), 0)


def pieces_of(shape: Sequence[int], partitions: Sequence[int]) -> list[tuple[int, ...]]:
    """The shapes of the shards; the first ones are larger by one if sizes are unequal."""
    axis = cut_axis(partitions)
    count, size = partitions[axis], shape[axis]
    lengths = [size // count + (i < size % count) for i in range(count)]
    return [(*shape[:axis], n, *shape[axis + 1 :]) for n in lengths]


def offsets(shape: Sequence[int], partitions: Sequence[int]) -> list[tuple[int, ...]]:
    """The offset of each shard."""
    axis = cut_axis(partitions)
    lengths = [piece[axis] for piece in pieces_of(shape, partitions)]
    starts = np.cumsum([0, *lengths[:-1]])
    return [tuple(int(s) if i == axis else 0 for i in range(len(shape))) for s in starts]
