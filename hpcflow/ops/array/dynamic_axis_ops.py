"""Dynamic axis ops: apply ops along axes that are known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec
from hpcflow.ops.array.array_ops import constant, reshape, shape, sizes, transpose
from hpcflow.ops.shape_inference import Attrs, first_output, make, require, require_rank

_INTEGERS = NoGrad("its outputs are integers")


def _vector(length: int | None) -> Spec:
    return Spec(int64, (length,))


def _rank(sizes: Spec) -> int | None:
    require("sizes", sizes, "iu")
    require_rank("sizes", sizes, 1)
    return None if sizes.shape is None else sizes.shape[0]


def _count(axes: Spec) -> int | None:
    """The number of axes in a scalar or a vector of axes."""
    if axes.shape is None:
        return None
    return axes.shape[0] if axes.shape else 1


def _remaining_rank(rank: int | None, *counts: int | None) -> int | None:
    if rank is None or None in counts:
        return None
    return max(0, rank - sum(n for n in counts if n is not None))


def _around(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x_shape, axis, middle = inputs
    require("an axis", axis, "iu")
    require_rank("an axis", axis, 0)
    gone = 0 if attrs["insert"] else 1
    rank, inserted = _remaining_rank(_rank(x_shape), gone), _rank(middle)
    length = None if rank is None or inserted is None else rank + inserted
    return [_vector(3), _vector(length)]


def _joined(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("an axis", inputs[0], "iu")
    require_rank("an axis", inputs[0], 0)
    ranks = [_rank(s) for s in inputs[1:] if _rank(s) is not None]
    if len(set(ranks)) > 1:
        raise ShapeError(f"concat: tensors of different ranks {ranks} cannot be concatenated")
    return [*(_vector(3) for _ in inputs[1:]), _vector(ranks[0] if ranks else None)]


def _reduced(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x_shape, axes = inputs
    require("an axis", axes, "iu")
    require_rank("axes", axes, 0, 1)
    rank = _rank(x_shape)
    return [
        _vector(rank),
        _vector(2),
        _vector(rank if attrs["keepdims"] else _remaining_rank(rank, _count(axes))),
    ]


def _dot(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    a, b, axes_a, axes_b = inputs
    for axes in (axes_a, axes_b):
        require("an axis", axes, "iu")
        require_rank("axes", axes, 0, 1)
    left, right = (
        _remaining_rank(_rank(a), _count(axes_a)),
        _remaining_rank(_rank(b), _count(axes_b)),
    )
    out_rank = None if left is None or right is None else left + right
    return [_vector(_rank(a)), _vector(2), _vector(_rank(b)), _vector(2), _vector(out_rank)]


op("AroundAxis", infer=_around, grad=_INTEGERS, work="start")
op("JoinedShapes", infer=_joined, grad=_INTEGERS, work="start")
op("ReducedAxes", infer=_reduced, grad=_INTEGERS, work="start")
op("DotAxes", infer=_dot, grad=_INTEGERS, work="start")


def _wide(x: Tensor) -> Tensor:
    return shape(x, out_type=int64)


def flat_around(x: Tensor, axis: Tensor) -> Tensor:
    """`x` reshaped to [product of sizes before `axis`, size of `axis`, product of sizes after]."""
    return reshape(x, _around_axis(x, axis, constant([], int64)).outputs[0])


def with_axis_replaced(x: Tensor, axis: Tensor, middle: Any) -> Tensor:
    """The shape of `x` with the size of `axis` replaced by the sizes `middle`, a vector."""
    return _around_axis(x, axis, middle).outputs[1]


def _around_axis(x: Tensor, axis: Tensor, middle: Any) -> Any:
    return make("AroundAxis", [_wide(x), axis, middle], {"insert": False})


def along(
    x: Tensor,
    axis: Tensor,
    compute: Callable[[Tensor], Tensor],
    middle: Any = None,
    name: str | None = None,
) -> Tensor:
    """`compute` applied to `x` along axis 1 of 3, reshaped with sizes `middle` in place of `axis`.

    Without `middle` the result has the shape of `x`.
    Errors: ShapeError at run time for an axis that `x` lacks.
    """
    flat = compute(flat_around(x, axis))
    return reshape(flat, sizes(x) if middle is None else with_axis_replaced(x, axis, middle), name)


def joined_along(values: Sequence[Tensor], axis: Tensor, name: str | None) -> Tensor:
    """`concat` of `values` along an axis known at run time."""
    *flats, target = make("JoinedShapes", [axis, *map(_wide, values)]).outputs
    parts = [reshape(x, flat) for x, flat in zip(values, flats, strict=True)]
    return reshape(first_output("Concat", parts, {"axis": 1}), target, name)


def reduced_over(
    type: str, x: Tensor, axes: Tensor, keepdims: bool, name: str | None = None, **attrs: Any
) -> Tensor:
    """The reduction `type` of `x` over axes known at run time.

    Errors: ShapeError at run time for an axis that is repeated or that `x` lacks.
    """
    layout = make("ReducedAxes", [_wide(x), axes], {"keepdims": keepdims})
    perm, flat, target = layout.outputs
    rows = reshape(transpose(x, perm), flat)
    reduced = first_output(type, [rows], {**attrs, "axis": 1, "keepdims": False})
    return reshape(reduced, target, name)


def shape_without(x: Tensor, axes: Tensor) -> Tensor:
    """The shape of `x` without axes known at run time."""
    layout = make("ReducedAxes", [_wide(x), axes], {"keepdims": False})
    return layout.outputs[2]


def dotted(a: Tensor, b: Tensor, axes_a: Tensor, axes_b: Tensor, name: str | None) -> Tensor:
    """The tensor contraction over pairs of axes in `axes_a` and `axes_b`.

    Errors: ShapeError at run time if their numbers or sizes differ.
    """
    layout = make("DotAxes", [_wide(a), _wide(b), axes_a, axes_b])
    perm_a, flat_a, perm_b, flat_b, target = layout.outputs
    left = reshape(transpose(a, perm_a), flat_a)
    right = reshape(transpose(b, perm_b), flat_b)
    return reshape(first_output("Einsum", [left, right], {"equation": "ij,jk->ik"}), target, name)
