"""Side effects of operations: whether running them is a training step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpcflow.graph.function_body import (
    all_operations,
    bodies,
    used_control_inputs,
    variable_operation,
)
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.graph.op_registry import lookup_op


def is_training_step(fetches: Iterable[Tensor | Operation]) -> bool:
    """Whether running them changes a variable that replicas share, other than by initial values."""
    return any(_has_update(op) for op in _dependencies(_operations(fetches)))


def updates_from_variables(fetches: Iterable[Tensor | Operation]) -> bool:
    """Whether running them changes a variable by what it reads of a variable.

    Assigning fed values does not count: it is a restore.
    """
    for op in _dependencies(_operations(fetches)):
        if _bodies_change(op):
            return True
        if _changes_variable(op) and any(o.type == "ReadVariable" for o in _dependencies([op])):
            return True
    return False


def _operations(fetches: Iterable[Tensor | Operation]) -> list[Operation]:
    return [w if isinstance(w, Operation) else w.op for w in fetches]


def _dependencies(operations: Iterable[Operation]) -> Iterator[Operation]:
    """The operations and all their dependencies."""
    stack, visited = list(operations), set()
    while stack:
        op = stack.pop()
        if op not in visited:
            visited.add(op)
            yield op
            stack += [t.op for t in op.inputs]
            stack += used_control_inputs(op)


def _has_update(op: Operation) -> bool:
    return _changes_variable(op) or _bodies_change(op)


def _bodies_change(op: Operation) -> bool:
    inside = (inner for function in bodies(op) for inner in all_operations(function.body))
    return any(_changes_variable(inner) for inner in inside)


def _changes_variable(op: Operation) -> bool:
    if op.attrs.get("initial"):
        return False
    return any(
        not variable_operation(op.inputs[i]).attrs.get("local") for i in lookup_op(op.type).writes
    )
