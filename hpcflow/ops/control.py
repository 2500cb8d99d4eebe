"""Order without data: `group`, `no_op`."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Operation, get_default_graph
from hpcflow.graph.registry import NoGrad, op

op("NoOp", infer=lambda inputs, attrs: [], grad=NoGrad("it computes nothing"), stateful=True)


def no_op(name: str = "no_op") -> Operation:
    """An operation that does nothing, after the control dependencies in force."""
    return get_default_graph().create_op("NoOp", [], {}, name)


def group(*before: Any, name: str = "group") -> Operation:
    """One operation that is done when all of `before` (operations, tensors, variables) are."""
    with get_default_graph().control_dependencies(before):
        return no_op(name)
