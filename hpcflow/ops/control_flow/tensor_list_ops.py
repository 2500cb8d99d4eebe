"""Tensor lists: values that a loop keeps for its gradient.

A list is one value that its operations change in place. They are ordered, since each takes the list
returned by the previous one. The list is a Python object on the task that created it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import DTypeError
from hpcflow.graph.dtypes import history
from hpcflow.graph.graph import Tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec
from hpcflow.ops.shape_inference import Attrs, first_output, make

_HISTORY = NoGrad("the history of a loop is not differentiated again")
LIST = Spec(history, ())


def require_list(type: str, spec: Spec) -> None:
    """Check that `spec` is that of a list.

    Errors: DTypeError if not.
    """
    if spec.dtype != history:
        raise DTypeError(f"{type} takes a list of tensors, not {spec.dtype}")


def _list(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [LIST]


def _push(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_list("ListPush", inputs[0])
    return [LIST]


def _pop(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_list("ListPop", inputs[0])
    return [LIST, Spec(attrs["dtype"], attrs["shape"])]


def _rows(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_list("ListRows", inputs[0])
    return [Spec(attrs["dtype"], attrs["shape"])]


op("ListCopy", infer=_list, grad=_HISTORY, stateful=True)  # and copies of the lists in it
op("ListEmpty", infer=_list, grad=_HISTORY, stateful=True)
op("ListPush", infer=_push, grad=_HISTORY, stateful=True)
op("ListPop", infer=_pop, grad=_HISTORY, stateful=True)
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
