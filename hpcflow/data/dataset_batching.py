"""Batching of elements: rows of one array, of equal shapes or padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.data.dataset_functions import TensorComponent, values_by_component
from hpcflow.errors import GraphError, ShapeError
from hpcflow.graph.dtypes import as_array, string
from hpcflow.graph.graph import Tensor
from hpcflow.graph.static_shape import Shape, as_shape, shape_text


def stack_elements(column: Sequence[np.ndarray], label: str) -> np.ndarray:
    """Elements of equal shapes as one array; the ShapeError otherwise names them as `label`."""
    shapes = {x.shape for x in column}
    if len(shapes) > 1:
        text = " and ".join(shape_text(s) for s in sorted(shapes)[:2])
        raise ShapeError(
            f"{label} has elements of shapes {text}", hint="use padded_batch() to make them equal"
        )
    return np.stack(column)


def padded_shape(leaf: TensorComponent, target_shape: Any) -> Shape:
    """The shape of a component in a padded batch."""
    shape = as_shape(target_shape)
    if leaf.shape is not None and shape is not None and len(leaf.shape) != len(shape):
        raise ShapeError(
            f"elements {shape_text(leaf.shape)} cannot be padded to {shape_text(shape)}"
        )
    return shape


def paddings(structure: Any, leaves: Sequence[TensorComponent], padding_values: Any) -> list[Any]:
    """The padding value of each component, by default 0 or an empty string."""
    if padding_values is None:
        return [b"" if leaf.dtype == string else 0 for leaf in leaves]
    values = values_by_component(structure, padding_values)
    arrays = [
        as_array(_padding_value(v), leaf.dtype) for v, leaf in zip(values, leaves, strict=True)
    ]
    if any(a.shape for a in arrays):
        raise ShapeError("the padding values of padded_batch are scalars")
    return [a.item() for a in arrays]


def _padding_value(padding: Any) -> Any:
    """A padding value, also from a Const of the graph."""
    if not isinstance(padding, Tensor):
        return padding
    if padding.op.type != "Const":
        raise GraphError(
            f"the padding value {padding.name!r} is not a constant",
            op=padding.op.name,
            hint="give a number",
        )
    return padding.op.attrs["value"]


def pad_elements(column: Sequence[np.ndarray], shape: Any, fill: Any) -> np.ndarray:
    """Elements as one array, padded to `shape`; None in it stands for the largest size."""
    if any(x.ndim != len(shape) for x in column):
        text = " and ".join(sorted({shape_text(x.shape) for x in column}))
        raise ShapeError(f"elements of shapes {text} cannot be padded to {shape_text(shape)}")
    largest = [max(sizes) for sizes in zip(*(x.shape for x in column), strict=True)]
    sizes = [n if d is None else d for n, d in zip(largest, shape, strict=True)]
    if any(n > d for n, d in zip(largest, sizes, strict=True)):
        raise ShapeError(
            f"an element of size {largest} does not fit padded_shapes {shape_text(shape)}"
        )
    rows = np.full((len(column), *sizes), fill, column[0].dtype)
    for i, x in enumerate(column):
        place: tuple[Any, ...] = (i, *map(slice, x.shape), ...)
        rows[place] = x
    return rows
