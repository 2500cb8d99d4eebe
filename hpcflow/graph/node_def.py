"""`NodeDef`: an operation as plain data, with the field names of TensorFlow 1's message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple


class NodeDef(NamedTuple):
    """An operation: `op` is its type; `input` has "name", "name:1", "^name" (control)."""

    name: str = ""
    op: str = ""
    input: Sequence[str] = ()
    device: str = ""
    attr: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def of(cls, operation: Any) -> NodeDef:
        """The NodeDef of an operation of the graph."""
        inputs = [t.name.removesuffix(":0") for t in operation.inputs]
        inputs += [f"^{dependency.name}" for dependency in operation.control_inputs]
        attrs = dict(operation.attrs)
        return cls(operation.name, operation.type, tuple(inputs), operation.device, attrs)
