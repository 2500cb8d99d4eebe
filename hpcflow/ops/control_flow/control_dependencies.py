"""Control dependencies: `group`, `tuple`, `no_op`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import GraphError
from hpcflow.graph import nested_structure
from hpcflow.graph.composite_tensor import CompositeTensor
from hpcflow.graph.graph import Operation, convert_to_tensor, get_default_graph
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.ops.shape_inference import several

op(
    "NoOp",
    infer=lambda inputs, attrs: [],
    grad=NoGrad("it computes nothing"),
    stateful=True,
    order_only=True,
    no_kernel=True,
    work="nothing",
)


def no_op(name: str | None = None) -> Operation:
    """An operation that does nothing, after the control dependencies in force."""
    return get_default_graph().create_op("NoOp", [], {}, name)


def group(*before: Any, name: str | None = None) -> Operation:
    """One operation that completes after all of `before` (operations, tensors, variables).

    They may be in lists and other structures.
    """
    with get_default_graph().control_dependencies(nested_structure.flatten_structure(before)):
        return no_op(name or "group_deps")


def tuple(
    tensors: Sequence[Any], name: str | None = None, control_inputs: Sequence[Any] | None = None
) -> list[Any]:
    """`tensors`, each available only after all of them (and `control_inputs`) are.

    None entries stay None; IndexedSlices and sparse tensors keep their type.
    """
    graph = get_default_graph()
    listed = several(tensors, "hf.tuple")
    entries = [
        t if t is None or isinstance(t, CompositeTensor) else convert_to_tensor(t) for t in listed
    ]
    if all(t is None for t in entries):
        raise GraphError("hf.tuple needs at least one tensor")
    with graph.name_scope(name or "tuple"):
        parts = [p for t in entries if t is not None for p in _parts(t)]
        gate = group(*parts, *(control_inputs or ()))
        with graph.control_dependencies([gate]):
            return [None if t is None else in_order(t) for t in entries]


def _parts(t: Any) -> Sequence[Any]:
    return t.parts() if isinstance(t, CompositeTensor) else [t]


def in_order(t: Any) -> Any:
    """The same value, available only after the control dependencies in force."""
    if isinstance(t, CompositeTensor):
        return t.of([in_order(part) for part in t.parts()])
    return get_default_graph().create_op("Identity", [t], {}).outputs[0]
