"""Side effects of operations: whether running them is a training step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpcflow.graph.function_body import all_operations, bodies, control_of, variable_of
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.graph.op_registry import lookup


def trains(wanted: Iterable[Tensor | Operation]) -> bool:
    """Whether running them changes a variable that replicas share, other than by initial values."""
    return any(_changes_at_all(op) for op in _needed(_operations(wanted)))


def learns(wanted: Iterable[Tensor | Operation]) -> bool:
    """Whether running them changes a variable by what it reads of a variable.

    Assigning fed values does not count: it is a restore.
    """
    for op in _needed(_operations(wanted)):
        if _changes_inside(op):
            return True
        if _changes(op) and any(o.type == "ReadVariable" for o in _needed([op])):
            return True
    return False


def _operations(wanted: Iterable[Tensor | Operation]) -> list[Operation]:
    return [w if isinstance(w, Operation) else w.op for w in wanted]


def _needed(operations: Iterable[Operation]) -> Iterator[Operation]:
    """The operations and all their dependencies."""
    left, seen = list(operations), set()
    while left:
        op = left.pop()
        if op not in seen:
            seen.add(op)
            yield op
            left += [t.op for t in op.inputs]
            left += control_of(op)


def _changes_at_all(op: Operation) -> bool:
    return _changes(op) or _changes_inside(op)


def _changes_inside(op: Operation) -> bool:
    inside = (inner for function in bodies(op) for inner in all_operations(function.body))
    return any(_changes(inner) for inner in inside)


def _changes(op: Operation) -> bool:
    if op.attrs.get("initial"):
        return False
    return any(not variable_of(op.inputs[i]).attrs.get("local") for i in lookup(op.type).writes)
