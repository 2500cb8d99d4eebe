"""A node of an ONNX graph as the functions of the table see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hpcflow.errors import MALFORMED, OnnxError
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.element_types import carried, to_onnx
from hpcflow.onnx.importers.constant_propagation import NeedsValue
from hpcflow.onnx.importers.import_scope import Scope
from hpcflow.ops.array.array_ops import shape


class Node:
    """One node: its type, attributes, opset version, and what it may ask of its surroundings."""

    def __init__(self, proto: onnx.NodeProto, scope: Scope, version: int) -> None:
        self.type, self.version, self.proto, self.scope = proto.op_type, version, proto, scope
        self.outputs = len(proto.output)  # how many are named, those left out in between too
        self.attributes: dict[str, onnx.AttributeProto] = {}
        for attribute in proto.attribute:
            given: onnx.AttributeProto | None = attribute
            if attribute.ref_attr_name:  # inside a function: an attribute of its call
                given = scope.attributes.get(attribute.ref_attr_name)
            if given is not None:
                self.attributes[attribute.name] = given

    @property
    def called(self) -> str:
        """Type and name, for messages."""
        return f"ONNX {self.type} {self.proto.name!r}" if self.proto.name else f"ONNX {self.type}"

    def has(self, name: str) -> bool:
        """True if the attribute is given."""
        return name in self.attributes

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as plain data: numbers, lists of them, str, an array, a GraphProto."""
        if name not in self.attributes:
            return default
        value = helper.get_attribute_value(self.attributes[name])
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, onnx.TensorProto):
            return carried(values_of(value))
        if isinstance(value, onnx.GraphProto) or not isinstance(value, Sequence):
            return value
        return [v.decode() if isinstance(v, bytes) else v for v in value]

    def resolved(self) -> onnx.NodeProto:
        """The node with the attributes it has here: those of a function's call filled in."""
        whole = onnx.NodeProto()
        whole.CopyFrom(self.proto)
        del whole.attribute[:]
        for name, attribute in self.attributes.items():
            given = whole.attribute.add()
            given.CopyFrom(attribute)
            given.name = name
        return whole

    def wants(self, index: int) -> bool:
        """True if output `index` is named."""
        return index < self.outputs and bool(self.proto.output[index])

    def value(self, tensor: Tensor, what: str) -> np.ndarray:
        """The value of an input, `what`, that must be known while the graph is built."""
        return self.scope.whole.values.of(tensor, f"{what} of {self.called}")

    def maybe(self, tensor: Tensor, what: str) -> np.ndarray | None:
        """The same, None if it is not known."""
        try:
            return self.value(tensor, what)
        except NeedsValue:
            return None

    def integers(self, name: str, tensor: Tensor | None = None, default: Any = None) -> Any:
        """Integers that older opsets have as attribute `name`, newer ones as an input."""
        if tensor is not None:
            return [int(v) for v in self.value(tensor, name).reshape(-1)]
        return self.attr(name, default)

    def known(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of `tensor`, which must be known while the graph is built."""
        if tensor.shape is None or None in tensor.shape:
            return tuple(int(d) for d in self.value(shape(tensor), "the shape of an input"))
        return tensor.shape  # type: ignore[return-value]

    def rank(self, tensor: Tensor) -> int:
        """The rank of `tensor`; OnnxError if it is not known."""
        if tensor.shape is None:
            raise self.declined("the rank of its input is not known")
        return len(tensor.shape)

    def elem_type(self, tensor: Tensor) -> int:
        """The ONNX element type of a tensor, which may be narrower than its dtype."""
        return self.scope.whole.narrow.get(tensor) or to_onnx(tensor.dtype)

    def marked(self, tensor: Tensor, elem_type: int) -> Tensor:
        """`tensor`, known to carry values of `elem_type`."""
        return self.scope.whole.mark(tensor, elem_type)

    def body(self, graph: onnx.GraphProto, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of a graph that is an attribute, built here with these inputs."""
        return self.scope.whole.body(graph, inputs, self.scope)

    def declined(self, why: str) -> OnnxError:
        """The error for what is not supported of this node."""
        return OnnxError(
            f"{self.called}: {why}", hint="`hpcflow help onnx` lists what is not supported"
        )


def values_of(proto: onnx.TensorProto) -> np.ndarray:
    """The array in a model. Errors: OnnxError if its bytes, type and shape do not fit."""
    try:
        if min(proto.dims, default=0) < 0:
            raise ValueError(f"its shape is {list(proto.dims)}")
        return np.asarray(numpy_helper.to_array(proto))
    except MALFORMED as error:
        raise OnnxError(f"the tensor {proto.name!r} is malformed: {error}") from error
