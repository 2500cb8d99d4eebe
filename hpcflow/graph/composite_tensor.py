"""Composite tensors: values made of several tensors, as IndexedSlices and SparseTensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import ArgumentError
from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.static_shape import Shape
from hpcflow.platform.exception_translation import translate_exceptions


@translate_exceptions
class CompositeTensor:
    """Base of values that are made of several tensors.

    A session fetches one as its `Value`, a named tuple of arrays in the order of `parts`, and
    accepts such a tuple as a feed.
    """

    Value: Any  # the named tuple of its arrays

    def parts(self) -> tuple[Tensor, ...]:
        """The component tensors."""
        raise NotImplementedError

    def of(self, parts: Sequence[Tensor]) -> Any:
        """The same kind of value made of other tensors."""
        raise NotImplementedError

    def invariants(self, shape_invariant: tuple[Shape] | None) -> list[Shape]:
        """The shapes of the parts that a loop keeps; `shape_invariant` has the shape invariant
        of the user.
        """
        return [t.shape for t in self.parts()]

    @property
    def op(self) -> Operation:
        """The operation of its first part."""
        return self.parts()[0].op

    @property
    def graph(self) -> Graph:
        """The graph that contains it."""
        return self.op.graph

    @property
    def name(self) -> str:
        """The name of its first part."""
        return self.parts()[0].name

    def __bool__(self) -> bool:
        raise ArgumentError(f"{self!r} has no truth value", op=self.op.name, line=self.op.line)


class WithValues(CompositeTensor):
    """Base of composites whose `values` are at positions that other tensors hold."""

    values: Tensor

    def map_values(self, function: Callable[[Tensor], Tensor]) -> Any:
        """The same positions with `function(values)`."""
        return self.of([function(p) if p is self.values else p for p in self.parts()])
