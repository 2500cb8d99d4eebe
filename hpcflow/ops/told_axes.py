"""Axes that only the step knows: they are brought to the end, where the graph knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hpcflow.graph.dtypes import int32
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.graph.registry import NoGrad, op
from hpcflow.graph.shape import Spec, merge
from hpcflow.ops.array import shape
from hpcflow.ops.positions import invert_permutation
from hpcflow.ops.rules import Attrs, has_tensors, make, one, require, require_rank


def _transposed(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x, perm = inputs
    require("a permutation of axes", perm, "iu")
    require_rank("a permutation of axes", perm, 1)
    count = perm.shape[0] if perm.shape is not None else None
    known = merge(
        None if x.shape is None else (None,) * len(x.shape),
        None if count is None else (None,) * count,
    )
    return [Spec(x.dtype, known)]


def _transposed_back(op: Operation, g: Tensor) -> list[Any]:
    return [transpose_by(g, invert_permutation(op.inputs[1])), None]


def _last(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    axes, sizes = inputs
    for s in inputs:
        require("an axis", s, "iu")
    require_rank("an axis", axes, 0, 1)
    require_rank("an axis", sizes, 1)
    rank = None if sizes.shape is None else sizes.shape[0]
    shapes = ((rank,), (2,), (None,), (rank,))
    return [Spec(int32, s) for s in shapes]


def _with(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    sizes, _, more = inputs
    for s, rank in zip(inputs, (1, 0, 1), strict=True):
        require("a size or an axis", s, "iu")
        require_rank("a size or an axis", s, rank)
    lengths = [None if s.shape is None else s.shape[0] for s in (sizes, more)]
    known = None if None in lengths else sum(n for n in lengths if n is not None) - 1
    return [Spec(int32, (known,))]


op("TransposeBy", infer=_transposed, grad=_transposed_back)
op("AxesLast", infer=_last, grad=NoGrad("its outputs are integers"))
op("SizesWith", infer=_with, grad=NoGrad("its output is integers"))


class Last(NamedTuple):
    """How axes come to the end, as vectors: the order of all axes; the sizes of a matrix with the
    others as rows; the sizes of the others, and of all with 1 for those at the end.
    """

    order: Tensor
    matrix: Tensor
    others: Tensor
    ones: Tensor


def told_axis(axis: Any) -> Tensor | None:
    """An axis argument that only the step knows, as a tensor; None for one that is known."""
    if isinstance(axis, (list, tuple)) and has_tensors(axis):
        axis = convert_to_tensor(axis)
    return axis if isinstance(axis, Tensor) and axis.constant is None else None


def axes_last(x: Tensor, axes: Tensor) -> Last:
    """How `axes` of `x`, a number or a vector of them, come to the end.

    Errors: ShapeError when it runs for one that is out of range or named twice.
    """
    return Last(*make("AxesLast", [axes, shape(x)]).outputs)


def transpose_by(x: Tensor, perm: Tensor, name: str | None = None) -> Tensor:
    """`x` with its axes in the order that a vector tells."""
    return one("TransposeBy", [x, perm], {}, name)


def transposed_back(x: Tensor, perm: Tensor, name: str | None = None) -> Tensor:
    """What `transpose_by` made `x` of."""
    return transpose_by(x, invert_permutation(perm), name)


def sizes_with(x: Tensor, axis: Tensor, other: Tensor) -> Tensor:
    """The sizes of `x` with those of `other` in the place of that of `axis`."""
    return one("SizesWith", [shape(x), axis, shape(other)])
