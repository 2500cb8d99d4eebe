"""ONNX import scope: names of a graph during import, and services of the whole import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import onnx

from hpcflow.errors import OnnxError
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.constant_propagation import ConstantValues


class ModelImport(Protocol):
    """Interface of the import of one model."""

    values: ConstantValues
    narrow: dict[Tensor, int]  # tensors with values of a narrower type

    def mark(self, tensor: Tensor, elem_type: int) -> Tensor:
        """Record that `tensor` has values of `elem_type`."""
        ...

    def body(
        self, graph: onnx.GraphProto, inputs: Sequence[Tensor], outer: ImportScope
    ) -> list[Tensor]:
        """The outputs of a subgraph, which can use names of enclosing graphs."""
        ...


class ImportScope:
    """Names of one ONNX graph or of one function call, during import."""

    def __init__(
        self,
        model_import: ModelImport,
        versions: Mapping[str, int],
        outer: ImportScope | None = None,
        attributes: Mapping[str, onnx.AttributeProto] | None = None,
    ) -> None:
        self.model_import, self.versions, self.outer = model_import, versions, outer
        self.attributes: Mapping[str, onnx.AttributeProto] = attributes or {}
        self.values: dict[str, Tensor] = {}

    def find(self, name: str) -> Tensor:
        """The tensor `name` of this scope or an enclosing one."""
        scope: ImportScope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise OnnxError(f"the model has no value {name!r}")
