"""Tensor lists: values that a loop keeps for its gradient.

A list is one value that its operations change in place. They are ordered, since each takes the list
returned by the previous one. The list is a Python object on the task that created it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.dtypes import history
from hpcflow.graph.graph import Tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec, common_elements, merge_shapes
from hpcflow.ops.shape_inference import Attrs, first_output, make

_HISTORY = NoGrad("the history of a loop is not differentiated again")
LIST = Spec(history, ())
EMPTY_LIST = LIST._replace(elements=())


def require_list(type: str, spec: Spec) -> None:
    """Check that `spec` is that of a list.

    Errors: DTypeError if not.
    """
    if spec.dtype != history:
        raise DTypeError(f"{type} takes a list of tensors, not {spec.dtype}")


def _empty(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [EMPTY_LIST]


def _copy(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_list("ListCopy", inputs[0])
    return [inputs[0]]


def _push(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    tensor_list, value = inputs
    require_list("ListPush", tensor_list)
    pushed = (value._replace(value=None, sizes=None),)
    return [tensor_list._replace(elements=common_elements(tensor_list.elements, pushed))]


def _pop(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_list("ListPop", inputs[0])
    return [inputs[0], element_spec(inputs[0], attrs)]


def element_spec(spec: Spec, attrs: Attrs) -> Spec:
    """An element of a list or array with this spec: `dtype` and `shape` of `attrs`, refined.

    A shape that contradicts `attrs` is left to the operation that meets the element.
    """
    shape = attrs["shape"]
    element = spec.elements[0] if spec.elements else Spec(attrs["dtype"], shape)
    if element.dtype != attrs["dtype"]:
        return Spec(attrs["dtype"], shape)
    try:
        return element._replace(shape=merge_shapes(shape, element.shape))
    except ShapeError:
        return element._replace(shape=shape)


def _rows(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_list("ListRows", inputs[0])
    return [Spec(attrs["dtype"], attrs["shape"])]


op("ListCopy", infer=_copy, grad=_HISTORY, stateful=True)  # and copies of the lists in it
op("ListEmpty", infer=_empty, grad=_HISTORY, stateful=True)
op("ListPush", infer=_push, grad=_HISTORY, stateful=True, keeps=1)
op("ListPop", infer=_pop, grad=_HISTORY, stateful=True, makes_contiguous=True)
op("ListRows", infer=_rows, grad=_HISTORY, stateful=True)  # of every `of`-th element from `first`


def empty() -> Tensor:
    """A new, empty list."""
    return first_output("ListEmpty", [], {}, "list")


def copied(tensor_list: Tensor) -> Tensor:
    """A list of the same tensors, independent of later pops."""
    return first_output("ListCopy", [tensor_list], {}, "copy")


def push(tensor_list: Tensor, value: Tensor, host: bool = False) -> Tensor:
    """The list with `value` appended; with `host`, in host memory."""
    return first_output("ListPush", [tensor_list, value], {"host": host}, "push")


def pop(tensor_list: Tensor, like: Any, host: bool = False) -> tuple[Tensor, Tensor]:
    """The list without its last element, and this element, with dtype and shape of `like`.

    `host`: the list is in host memory.
    """
    attrs = {"dtype": like.dtype, "shape": like.shape, "host": host}
    rest, value = make("ListPop", [tensor_list], attrs, "pop").outputs
    return rest, value
