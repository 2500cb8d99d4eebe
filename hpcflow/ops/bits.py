"""The same bytes read as another data type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.dtypes import as_dtype
from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.graph.registry import NoGrad, op
from hpcflow.graph.shape import Spec, show
from hpcflow.ops.rules import Attrs, one


def _bitcast(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    given, dtype = inputs[0], attrs["dtype"]
    have, want = given.dtype.itemsize, dtype.itemsize
    if have % want and want % have:
        raise DTypeError(f"bitcast of {given.dtype} to {dtype}: the sizes do not go together")
    if given.shape is None or have == want:
        return [Spec(dtype, given.shape)]
    if have > want:
        return [Spec(dtype, (*given.shape, have // want))]
    if not given.shape or given.shape[-1] not in (None, want // have):
        raise ShapeError(
            f"bitcast of {given.dtype}{show(given.shape)} to {dtype} needs a last axis of "
            f"{want // have}"
        )
    return [Spec(dtype, given.shape[:-1])]


op("Bitcast", infer=_bitcast, grad=NoGrad("bits have no derivative"))


def bitcast(input: Any, type: Any, name: str | None = None) -> Tensor:
    """The bytes of `input` as numbers of another data type.

    Shapes: the same for types of one size; a larger type takes the last axis away, a smaller one
            adds one.
    """
    return one("Bitcast", [convert_to_tensor(input)], {"dtype": as_dtype(type)}, name)
