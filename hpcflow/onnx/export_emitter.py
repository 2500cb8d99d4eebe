"""ONNX export emitter: a graph under construction, and the table of export functions."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import hpcflow.ops
from hpcflow.errors import OnnxError
from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.onnx.element_types import to_onnx

ExportFunction = Callable[
    ["Emitter", Operation], Any
]  # returns the name of the output, or of all outputs

_TABLE: dict[str, ExportFunction] = {}


def exports(*types: str) -> Callable[[ExportFunction], ExportFunction]:
    """Decorator: register the export function of these op types.

    The function emits nodes and returns the name of the output, or of all outputs.
    """

    def add(function: ExportFunction) -> ExportFunction:
        _TABLE.update(dict.fromkeys(types, function))
        return function

    return add


def exports_same(operators: dict[str, str]) -> None:
    """Register the ONNX operator of each op type that has an equal one."""

    def add(type: str, operator: str) -> None:
        @exports(type)
        def say(to: Emitter, op: Operation) -> Any:
            return to.node(operator, *op.inputs)

    for type, operator in operators.items():
        add(type, operator)


@functools.cache
def _load() -> None:
    """Import the modules `NAME_onnx`, which stand beside those of the ops."""
    for module in pkgutil.walk_packages(hpcflow.ops.__path__, "hpcflow.ops."):
        if module.name.endswith("_onnx"):
            importlib.import_module(module.name)


def find_exporter(type: str) -> ExportFunction | None:
    """The export function of an op type, or None."""
    _load()
    return _TABLE.get(type)


def exported() -> set[str]:
    """The op types that can be exported."""
    _load()
    return set(_TABLE)


class Emitter:
    """The nodes and constants emitted so far, and the ONNX names of tensors."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.names: dict[Tensor, str] = {}
        self._name_counts: dict[str, int] = {}
        self._reserved: dict[Tensor, str] = {}
        self._constant_names: dict[tuple[Any, ...], str] = {}
        self._stem = "n"

    # -- names

    def free(self, name: str) -> str:
        """Reserve and return a unique name: `name`, or `name` with a number."""
        count = self._name_counts.get(name, 0)
        self._name_counts[name] = count + 1
        return name if count == 0 else self.free(f"{name}_{count}")

    def begin(self, op: Operation) -> int:
        """Start the export of `op`; returns the number of nodes emitted before."""
        self._stem = op.name
        return len(self.nodes)

    def reserve(self, tensor: Tensor, name: str) -> None:
        """Reserve a name for a tensor that is emitted later."""
        self._reserved.setdefault(tensor, self.free(name))

    def set_name(self, tensor: Tensor, emitted_name: str, since: int) -> None:
        """Set the ONNX name of `tensor`, emitted as `emitted_name`.

        If a node emitted since `since` computes it, the node's output gets the tensor's own name.
        """
        own_name = self._reserved.get(tensor)
        if own_name is None:
            own_name = tensor.op.name if tensor.index == 0 else f"{tensor.op.name}:{tensor.index}"
            own_name = self.free(own_name) if own_name not in self._name_counts else emitted_name
        for node in self.nodes[since:]:
            if emitted_name in node.output:
                self._rename(emitted_name, own_name, since)
                emitted_name = own_name
                break
        self.names[tensor] = emitted_name

    def _rename(self, old: str, new: str, since: int) -> None:
        for node in self.nodes[since:]:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]

    def name(self, tensor: Tensor) -> str:
        """The ONNX name of an emitted tensor; a constant is emitted as an initializer."""
        if tensor not in self.names:
            assert tensor.spec.value is not None
            self.names[tensor] = self.constant(tensor.spec.value, tensor.op.name)
        return self.names[tensor]

    # -- nodes and constants

    def node(self, type: str, *inputs: str | Tensor, outputs: int = 1, **attributes: Any) -> Any:
        """Emit a node; returns the name of its output, or the names of several outputs."""
        input_names = [i if isinstance(i, str) else self.name(i) for i in inputs]
        names = [self.free(f"{self._stem}/{type}") for _ in range(outputs)]
        attributes = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(helper.make_node(type, input_names, names, names[0], **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, name: str = "", dtype: Any = None) -> str:
        """Emit an initializer; equal small ones are shared."""
        array = np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))
        key = (array.dtype.str, array.shape, array.tobytes()) if array.size <= 16 else None
        if key is not None and key in self._constant_names:
            return self._constant_names[key]
        name = self.free(name or f"{self._stem}/const")
        self.constants.append(numpy_helper.from_array(array, name))
        if key is not None:
            self._constant_names[key] = name
        return name

    def ints(self, values: Sequence[int] | int) -> str:
        """An int64 constant, for axes or shapes."""
        return self.constant(np.asarray(values, np.int64))

    def number(self, value: float, like: Tensor) -> str:
        """A scalar constant with the dtype of `like`."""
        return self.constant(np.asarray(value, like.dtype))

    def cast(self, name: str | Tensor, dtype: np.dtype) -> Any:
        """Emit a Cast."""
        return self.node("Cast", name, to=to_onnx(dtype))


def rank_of(tensor: Tensor) -> int:
    """The rank of a tensor.

    Errors: OnnxError if it is unknown.
    """
    if tensor.shape is None:
        raise refused(tensor.op, "the rank of its output is not known (set_shape tells it)")
    return len(tensor.shape)


def refused(op: Operation, reason: str) -> OnnxError:
    """The error for an operation that ONNX cannot represent."""
    return OnnxError(
        f"{op.type} {op.name!r} cannot be exported: {reason}",
        op=op.name,
        line=op.line,
        hint="`hpcflow help onnx` lists what is not exported",
    )


def shape_argument(to: Emitter, op: Operation, at: int) -> Any:
    """The shape argument of an operation: its attribute, or its input `at`."""
    static_shape = op.attrs.get("shape")
    if static_shape is not None and None not in static_shape:
        return to.ints(list(static_shape))
    return to.cast(op.inputs[at], int64)
