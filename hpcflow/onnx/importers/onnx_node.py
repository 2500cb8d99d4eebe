"""ONNX node wrapper: the view of a node that importers use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hpcflow.errors import MALFORMED, OnnxError
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.element_types import carried, to_onnx
from hpcflow.onnx.importers.constant_propagation import UnknownValueError
from hpcflow.onnx.importers.import_scope import ImportScope
from hpcflow.ops.array.array_ops import shape


class OnnxNode:
    """One node: type, attributes, opset version, and services of the import."""

    def __init__(self, proto: onnx.NodeProto, scope: ImportScope, version: int) -> None:
        self.type, self.version, self.proto, self.scope = proto.op_type, version, proto, scope
        self.outputs = len(proto.output)  # number of output names, including empty ones
        self.attributes: dict[str, onnx.AttributeProto] = {}
        for attribute in proto.attribute:
            resolved: onnx.AttributeProto | None = attribute
            if attribute.ref_attr_name:  # a reference to an attribute of the function's call
                resolved = scope.attributes.get(attribute.ref_attr_name)
            if resolved is not None:
                self.attributes[attribute.name] = resolved

    @property
    def description(self) -> str:
        """Type and name, for messages."""
        return f"ONNX {self.type} {self.proto.name!r}" if self.proto.name else f"ONNX {self.type}"

    def has(self, name: str) -> bool:
        """Whether the attribute is present."""
        return name in self.attributes

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as plain data: numbers, lists of numbers, str, an array, or a GraphProto."""
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
        """The node with references to attributes of a function's call resolved."""
        node_proto = onnx.NodeProto()
        node_proto.CopyFrom(self.proto)
        del node_proto.attribute[:]
        for name, attribute in self.attributes.items():
            new_attribute = node_proto.attribute.add()
            new_attribute.CopyFrom(attribute)
            new_attribute.name = name
        return node_proto

    def is_output_used(self, index: int) -> bool:
        """Whether output `index` is used."""
        return index < self.outputs and bool(self.proto.output[index])

    def value(self, tensor: Tensor, label: str) -> np.ndarray:
        """The value of an input, which must be known at import; `label` describes it in errors."""
        return self.scope.model_import.values.evaluate(tensor, f"{label} of {self.description}")

    def maybe(self, tensor: Tensor, label: str) -> np.ndarray | None:
        """The value of an input; None if it is unknown at import."""
        try:
            return self.value(tensor, label)
        except UnknownValueError:
            return None

    def integers(self, name: str, tensor: Tensor | None = None, default: Any = None) -> Any:
        """Integers that older opsets have in attribute `name` and newer ones in an input."""
        if tensor is not None:
            return [int(v) for v in self.value(tensor, name).reshape(-1)]
        return self.attr(name, default)

    def static_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of `tensor`, which must be known at import."""
        if tensor.shape is None or None in tensor.shape:
            return tuple(int(d) for d in self.value(shape(tensor), "the shape of an input"))
        return tensor.shape  # type: ignore[return-value]

    def rank(self, tensor: Tensor) -> int:
        """The rank of `tensor`.

        Errors: OnnxError if it is unknown.
        """
        if tensor.shape is None:
            raise self.declined("the rank of its input is not known")
        return len(tensor.shape)

    def elem_type(self, tensor: Tensor) -> int:
        """The ONNX element type of a tensor, which may be narrower than its dtype."""
        return self.scope.model_import.narrow.get(tensor) or to_onnx(tensor.dtype)

    def marked(self, tensor: Tensor, elem_type: int) -> Tensor:
        """Record that `tensor` has values of `elem_type`; returns it."""
        return self.scope.model_import.mark(tensor, elem_type)

    def body(self, graph: onnx.GraphProto, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of a subgraph attribute, built here with these inputs."""
        return self.scope.model_import.body(graph, inputs, self.scope)

    def declined(self, reason: str) -> OnnxError:
        """The error for an unsupported feature of this node."""
        return OnnxError(
            f"{self.description}: {reason}", hint="`hpcflow help onnx` lists what is not supported"
        )


def values_of(proto: onnx.TensorProto) -> np.ndarray:
    """The array of an initializer.

    Errors: OnnxError if bytes, type and shape do not match.
    """
    try:
        if min(proto.dims, default=0) < 0:
            raise ValueError(f"its shape is {list(proto.dims)}")
        return np.asarray(numpy_helper.to_array(proto))
    except MALFORMED as error:
        raise OnnxError(f"the tensor {proto.name!r} is malformed: {error}") from error
