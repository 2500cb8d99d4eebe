"""Norm clipping: bounds on the norm of one tensor, or of several together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph
from hpcflow.ops.array.array_ops import size
from hpcflow.ops.math.arithmetic_ops import (
    add_n,
    cast,
    divide,
    greater,
    maximum,
    minimum,
    multiply,
    rsqrt,
    sqrt,
    square,
    where,
)
from hpcflow.ops.math.elementwise_math_ops import is_finite
from hpcflow.ops.math.reduction_ops import reduce_sum
from hpcflow.ops.shape_inference import like, several, with_shape_of
from hpcflow.ops.variables.indexed_slices import IndexedSlices
from hpcflow.ops.variables.row_list_ops import sum_equal_rows


def _summed(t: Any) -> Tensor:
    """A tensor, or the rows of IndexedSlices with equal indices added up, for norms."""
    return sum_equal_rows(t).values if isinstance(t, IndexedSlices) else convert_to_tensor(t)


def clip_by_norm(t: Any, clip_norm: Any, axes: Any = None, name: str | None = None) -> Any:
    """`t` scaled down to norm `clip_norm` where its norm over `axes` (None: all) is larger.

    IndexedSlices stay rows, with equal indices added up; the norm is over all axes, or all but the
    first.
    """
    if isinstance(t, IndexedSlices):
        if axes is not None and 0 in (axes if isinstance(axes, (list, tuple)) else [axes]):
            raise ShapeError(
                "clip_by_norm of IndexedSlices cannot reduce axis 0 alone", op=t.op.name
            )
        t = sum_equal_rows(t)
        return t.with_values(clip_by_norm(t.values, clip_norm, axes, name))
    t = convert_to_tensor(t)
    bound = like(clip_norm, t)
    total = reduce_sum(square(t), axes, keepdims=True)
    some = greater(total, 0)  # the gradient of sqrt at 0 is infinite
    norm = where(some, sqrt(where(some, total, 1)), total)
    return with_shape_of(divide(multiply(t, bound), maximum(norm, bound), name), t, "clip_by_norm")


def clip_by_average_norm(t: Any, clip_norm: Any, name: str | None = None) -> Tensor:
    """`t` scaled down so that its norm divided by its size is at most `clip_norm`."""
    t = convert_to_tensor(t)
    bound = like(clip_norm, t)
    inverse = multiply(rsqrt(reduce_sum(square(t))), cast(size(t), t.dtype))
    return multiply(multiply(t, bound), minimum(inverse, divide(1, bound)), name)


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """The norm of all tensors in `t_list` together; None entries are skipped.

    For IndexedSlices it is the norm of the dense tensor: equal indices are added up first.
    """
    tensors = [_summed(t) for t in several(t_list, "global_norm") if t is not None]
    if not tensors:
        raise ShapeError("global_norm needs at least one tensor")
    return sqrt(add_n([reduce_sum(square(t)) for t in tensors]), name)


def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: Any, use_norm: Any = None, name: str | None = None
) -> tuple[list[Any], Tensor]:
    """All tensors scaled by one factor to the global norm `clip_norm`, and their global norm.

    `use_norm` is that norm if already known. All become NaN if the norm is not finite.
    IndexedSlices stay rows.
    """
    with get_default_graph().name_scope(name or "clip_by_global_norm"):
        norm = global_norm(t_list) if use_norm is None else convert_to_tensor(use_norm)
        bound = like(clip_norm, norm)
        scale = multiply(bound, minimum(divide(1, norm), divide(1, bound)))
        scale = where(is_finite(norm), scale, norm.dtype.type("nan"))

        def clipped(t: Any) -> Any:
            if isinstance(t, IndexedSlices):
                return t.with_values(clipped(t.values))
            t = convert_to_tensor(t)
            return multiply(t, cast(scale, t.dtype))

        return [None if t is None else clipped(t) for t in t_list], norm
