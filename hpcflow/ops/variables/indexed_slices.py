"""IndexedSlices: rows of a large tensor with their indices; gradients of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.composite_tensor import WithValues
from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.graph.static_shape import Shape, merge_shapes, shape_text
from hpcflow.ops.array.array_ops import (
    constant,
    partial_value,
    reshape,
    shape_argument,
    size,
    sizes,
)
from hpcflow.ops.shape_inference import first_output, like
from hpcflow.platform.exception_translation import translate_exceptions
from hpcflow.platform.rank_logging import say_once


@translate_exceptions
class IndexedSlicesValue(NamedTuple):
    """IndexedSlices as arrays, as a session returns them."""

    values: np.ndarray
    indices: np.ndarray
    dense_shape: np.ndarray | None = None


class IndexedSlices(WithValues):
    """The tensor of shape `dense_shape` with `values[i]` added to row `indices[i]`.

    Other rows are zeros. `gradients` returns it for a variable that is only read by `gather` or
    `embedding_lookup`: it has as many rows as were read, independently of the table's length.

    Shapes: `values` [n, ...], `indices` [n], `dense_shape` a vector, or None if not given. Indices
            of
            another rank, with values [*indices.shape, ...], are flattened.
    """

    Value = IndexedSlicesValue

    def __init__(self, values: Any, indices: Any, dense_shape: Any = None) -> None:
        self.values, self.indices = convert_to_tensor(values), convert_to_tensor(indices)
        self.given_values = values  # a list is converted to the dtype of the updated variable
        if self.indices.dtype.kind not in "iu":
            raise DTypeError(f"indices of rows must be integers, not {self.indices.dtype}")
        if dense_shape is not None and not isinstance(dense_shape, Tensor):
            dense_shape = constant(np.asarray(dense_shape, int64))
        self.dense_shape: Tensor | None = dense_shape
        if self.indices.shape is not None and len(self.indices.shape) != 1:
            self.values, self.indices = _listed(self.values, self.indices)
            self.given_values = self.values
        rows, at = self.values.shape, self.indices.shape
        if rows == ():
            raise ShapeError(
                f"indices {shape_text(at)} do not name the rows of values {shape_text(rows)}"
            )
        merge_shapes(rows and rows[:1], at)
        merge_shapes(rows and (None, *rows[1:]), self.shape)

    def parts(self) -> tuple[Tensor, ...]:
        """`values`, `indices`, and `dense_shape` if known."""
        both = (self.values, self.indices)
        return both if self.dense_shape is None else (*both, self.dense_shape)

    def of(self, parts: Sequence[Tensor]) -> IndexedSlices:
        """The same kind of tensor from other components."""
        return IndexedSlices(*parts)

    def invariants(self, shape_invariant: tuple[Shape] | None) -> list[Shape]:
        """The loop invariant given is the shape of `values`."""
        if shape_invariant is None:
            return super().invariants(None)
        rows = None if shape_invariant[0] is None else shape_invariant[0][:1]
        return [shape_invariant[0], rows, *(t.shape for t in self.parts()[2:])]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def shape(self) -> Shape:
        """The static shape of the dense tensor."""
        static = None if self.dense_shape is None else partial_value(self.dense_shape)
        rows = self.values.shape
        return merge_shapes(static, None if rows is None else (None, *rows[1:]))

    get_shape = property(lambda self: lambda: self.shape)

    def with_values(self, values: Any) -> IndexedSlices:
        """The same rows with other values, for example a scaled gradient."""
        return IndexedSlices(like(values, self.values), self.indices, self.dense_shape)

    def dense(self, name: str | None = None) -> Tensor:
        """The dense tensor, with zeros in other rows."""
        if self.dense_shape is None:
            raise ShapeError(
                f"rows {self.name!r} cannot be made dense: their dense_shape is unknown",
                op=self.op.name,
                line=self.op.line,
                hint="give it: hf.IndexedSlices(values, indices, dense_shape)",
            )
        static, dynamic = shape_argument(self.dense_shape)
        attrs = {"axis": 0, "shape": static}
        return first_output("GatherGrad", [self.values, self.indices, *dynamic], attrs, name)

    def as_tensor(self) -> Tensor:
        """The dense tensor, for an operation without a sparse form; the conversion is logged."""
        say_once(
            f"the rows {self.name!r} of a tensor of shape {shape_text(self.shape)} are made dense "
            "at "
            f"{user_line()}"
        )
        return self.dense()

    def __repr__(self) -> str:
        return f"<hf.IndexedSlices {self.name!r} of {shape_text(self.shape)} dtype={self.dtype}>"


def _listed(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and indices as lists, for indices that are not a vector."""
    rows, at = values.shape, indices.shape
    lead = len(at or ())
    if rows is None or len(rows) < lead or None in rows[lead:]:
        raise ShapeError(
            f"indices {shape_text(at)} do not name the rows of values {shape_text(rows)}"
        )
    merge_shapes(rows[:lead], at)
    n = -1 if 0 not in rows[lead:] else size(indices)
    return reshape(values, [n, *rows[lead:]]), reshape(indices, [-1])


def slices_of(params: Tensor, indices: Tensor, g: Tensor) -> IndexedSlices | None:
    """The gradient of rows `indices` of `params` as IndexedSlices; None for unknown row sizes."""
    if params.shape is None or None in params.shape[1:]:
        return None
    return rows_of(g, indices, params.shape[1:], sizes(params))


def rows_of(g: Tensor, indices: Tensor, row: Shape, dense_shape: Any) -> IndexedSlices:
    """`g` of shape indices.shape + row as a list of rows."""
    assert row is not None
    if indices.shape is None or len(indices.shape) != 1:
        n = -1 if 0 not in row else size(indices)
        g, indices = reshape(g, [n, *row]), reshape(indices, [-1])
    return IndexedSlices(g, indices, dense_shape)


def convert_to_tensor_or_indexed_slices(
    value: Any, dtype: Any = None, name: str | None = None
) -> Tensor | IndexedSlices:
    """IndexedSlices unchanged, anything else as a tensor."""
    return value if isinstance(value, IndexedSlices) else convert_to_tensor(value, dtype, name)
