"""An ONNX graph while it is written, and the table of how our operations are said in ONNX."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hpcflow.errors import OnnxError
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.onnx.element_types import to_onnx

FAMILIES = ("export_math", "export_nn", "export_shape")
Say = Callable[["Emitter", Operation], Any]  # the name of the output, or names of all outputs

_TABLE: dict[str, Say] = {}


def exports(*types: str) -> Callable[[Say], Say]:
    """Decorator: the function says operations of these types in ONNX.

    It returns the name of the output it has written, or of all outputs.
    """

    def add(say: Say) -> Say:
        _TABLE.update(dict.fromkeys(types, say))
        return say

    return add


@functools.cache
def _load() -> None:
    for family in FAMILIES:
        importlib.import_module(f"hpcflow.onnx.exporters.{family}")


def find(type: str) -> Say | None:
    """How operations of a type are said, None if they cannot be."""
    _load()
    return _TABLE.get(type)


def exported() -> set[str]:
    """The types of operations that can be exported."""
    _load()
    return set(_TABLE)


class Emitter:
    """Nodes and constants written so far, and the names of tensors in them."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.names: dict[Tensor, str] = {}
        self._used: dict[str, int] = {}
        self._kept: dict[Tensor, str] = {}
        self._known: dict[tuple[Any, ...], str] = {}
        self._stem = "n"

    # -- names

    def free(self, name: str) -> str:
        """`name`, numbered if it is taken; it is taken from then on."""
        count = self._used.get(name, 0)
        self._used[name] = count + 1
        return name if count == 0 else self.free(f"{name}_{count}")

    def begin(self, op: Operation) -> int:
        """The nodes that follow say `op`; how many there are before."""
        self._stem = op.name
        return len(self.nodes)

    def reserve(self, tensor: Tensor, name: str) -> None:
        """Keep a name for a tensor that is made later."""
        self._kept.setdefault(tensor, self.free(name))

    def settle(self, tensor: Tensor, made: str, since: int) -> None:
        """`made` is what `tensor` is called: under its own name if a node since then made it."""
        own = self._kept.get(tensor)
        if own is None:
            own = tensor.op.name if tensor.index == 0 else f"{tensor.op.name}:{tensor.index}"
            own = self.free(own) if own not in self._used else made
        for node in self.nodes[since:]:
            if made in node.output:
                self._rename(made, own, since)
                made = own
                break
        self.names[tensor] = made

    def _rename(self, old: str, new: str, since: int) -> None:
        for node in self.nodes[since:]:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]

    def name(self, tensor: Tensor) -> str:
        """The name of a tensor that was said before; a constant becomes an initializer."""
        if tensor not in self.names:
            assert tensor.spec.value is not None
            self.names[tensor] = self.constant(tensor.spec.value, tensor.op.name)
        return self.names[tensor]

    # -- writing

    def node(self, type: str, *inputs: str | Tensor, outputs: int = 1, **attributes: Any) -> Any:
        """A node; the name of its output, or the names of its outputs if they are several."""
        given = [i if isinstance(i, str) else self.name(i) for i in inputs]
        made = [self.free(f"{self._stem}/{type}") for _ in range(outputs)]
        attributes = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(helper.make_node(type, given, made, made[0], **attributes))
        return made[0] if outputs == 1 else made

    def constant(self, value: Any, name: str = "", dtype: Any = None) -> str:
        """An initializer; equal small ones are one."""
        array = np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))
        key = (array.dtype.str, array.shape, array.tobytes()) if array.size <= 16 else None
        if key is not None and key in self._known:
            return self._known[key]
        name = self.free(name or f"{self._stem}/const")
        self.constants.append(numpy_helper.from_array(array, name))
        if key is not None:
            self._known[key] = name
        return name

    def ints(self, values: Sequence[int] | int) -> str:
        """A constant of int64: axes, shapes."""
        return self.constant(np.asarray(values, np.int64))

    def number(self, value: float, like: Tensor) -> str:
        """A scalar of the dtype of `like`."""
        return self.constant(np.asarray(value, like.dtype))

    def cast(self, name: str | Tensor, dtype: np.dtype) -> Any:
        """A cast."""
        return self.node("Cast", name, to=to_onnx(dtype))


def rank_of(tensor: Tensor) -> int:
    """The rank of a tensor; OnnxError if it is not known."""
    if tensor.shape is None:
        raise refused(tensor.op, "the rank of its output is not known (set_shape tells it)")
    return len(tensor.shape)


def refused(op: Operation, why: str) -> OnnxError:
    """The error for an operation that ONNX cannot say."""
    return OnnxError(
        f"{op.type} {op.name!r} cannot be exported: {why}",
        op=op.name,
        line=op.line,
        hint="`hpcflow help onnx` lists what is not exported",
    )
