"""Lists of tensors that one step makes: what a loop keeps for its gradient.

A list is one value that its operations change in place, one after the other: each takes the list
of the one before. It lives in Python, on the task that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import DTypeError
from hpcflow.graph.dtypes import history
from hpcflow.graph.graph import Tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec
from hpcflow.ops.shape_inference import Attrs, make, one

_HISTORY = NoGrad("the history of a loop is not differentiated again")
LIST = Spec(history, ())


def require_list(type: str, spec: Spec) -> None:
    """DTypeError unless `spec` is that of a list."""
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
    """A new list."""
    return one("ListEmpty", [], {}, "list")


def copied(held: Tensor) -> Tensor:
    """A list of the same tensors, of which others do not take."""
    return one("ListCopy", [held], {}, "copy")


def push(held: Tensor, value: Tensor, host: bool = False) -> Tensor:
    """The list with `value` at its end; with `host`, kept in host memory."""
    return one("ListPush", [held, value], {"host": host}, "push")


def pop(held: Tensor, like: Any, host: bool = False) -> tuple[Tensor, Tensor]:
    """The list without its last element, and that element, of the dtype and shape of `like`.

    `host`: the list is kept in host memory.
    """
    attrs = {"dtype": like.dtype, "shape": like.shape, "host": host}
    rest, value = make("ListPop", [held], attrs, "pop").outputs
    return rest, value
