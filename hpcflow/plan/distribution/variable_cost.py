"""What a variable costs the server that holds it, predicted from how the graph trains it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from hpcflow.graph.dtypes import resource
from hpcflow.graph.function_body import Body, all_operations, variable_of
from hpcflow.graph.graph import Graph, Operation
from hpcflow.graph.op_registry import lookup
from hpcflow.graph.static_shape import size_of
from hpcflow.plan.ir.program import Cluster

ROWS = 1024  # rows that a step names, where the graph does not tell
ID_BYTES = 8
MESSAGE_BYTES = 8 << 10  # what moves in the time that a message takes beside its bytes
HELD = 1 / 16  # of a byte that is moved in each step: what a byte that is only held counts


@dataclasses.dataclass(frozen=True)
class Load:
    """What one step of a worker moves of a variable; `is_whole` if all of it, not only rows."""

    nbytes: int = 0
    messages: int = 0
    is_whole: bool = False

    def weight(self, held: int, share: float = 1.0) -> float:
        """What a server has of it that is given this share of it: in bytes, for comparing."""
        moved = self.nbytes + HELD * held
        return share * moved + MESSAGE_BYTES * self.messages


def bytes_of(op: Operation, rows: int | None = None) -> int:
    """The bytes of a variable, or of some of its rows."""
    shape = op.attrs["shape"]
    shape = shape if rows is None else (rows, *shape[1:])
    return op.attrs["dtype"].itemsize * size_of(shape)


def handles_of(op: Operation) -> list[str]:
    """The variables that an op uses, in creation order."""
    if lookup(op.type).owner:
        return []  # what its functions use has its own operations there
    handles = (variable_of(t) for t in op.inputs if t.dtype == resource)
    found = {variable.name: variable.index for variable in handles}
    return sorted(found, key=found.__getitem__)


def loads_of(graph: Graph, cluster: Cluster) -> dict[str, Load]:
    """The load of each variable that training uses: as measured if it was, else as predicted.

    Only what an update depends on counts, not reads for evaluation or initial values. A value moves
    where it is read whole by what does not live beside the variable; so does the gradient of one
    that is updated whole. Of a variable of which only rows are used rows move.
    """
    operations = list(all_operations(graph))
    trained = _trained(operations)
    users = _users(trained)
    found: dict[str, dict[str, int]] = {}
    for op in trained:
        for name in handles_of(op)[:1]:
            for what, rows in _uses(op, name, users):
                uses = found.setdefault(name, {})
                uses[what] = max(rows, uses.get(what, 0))
    measured = {name: (size, count) for name, size, count in cluster.measured}
    loads = {}
    for name in {**found, **measured}:
        if name in graph:
            load = _load(graph.get_operation_by_name(name), found.get(name, {}))
            if name in measured:
                nbytes, messages = measured[name]
                load = dataclasses.replace(load, nbytes=nbytes, messages=messages)
            loads[name] = load
    return loads


def _trained(operations: Iterable[Operation]) -> list[Operation]:
    """Updates, initial values apart, and what they depend on; all that loops and branches do."""
    stack, inside = [], []
    for op in operations:
        if isinstance(op.graph, Body):
            inside.append(op)
        elif lookup(op.type).writes and not op.attrs.get("initial"):
            stack.append(op)
    seen: dict[Operation, None] = {}
    while stack:
        op = stack.pop()
        if op not in seen:
            seen[op] = None
            stack.extend(t.op for t in op.inputs)
    return [*seen, *inside]


def _users(operations: Iterable[Operation]) -> dict[Operation, list[Operation]]:
    users: dict[Operation, list[Operation]] = {}
    for op in operations:
        for t in op.inputs:
            users.setdefault(t.op, []).append(op)
    return users


def _uses(
    op: Operation, variable: str, users: Mapping[Operation, list[Operation]]
) -> Iterable[tuple[str, int]]:
    """(what moves for one use of a variable, how many rows): "read", "pick", "change", "set"."""
    row = lookup(op.type)
    if op.type in ("ReadVariable", "ReadRows"):
        if all(variable in user.colocate for user in users.get(op, ())):
            return  # what an optimizer reads stays on the server
        yield ("pick", _rows(op)) if row.by_rows else ("read", 0)
    elif row.writes and not op.attrs.get("initial"):
        yield ("change", _rows(op)) if row.by_rows else ("set", 0)


def _rows(op: Operation) -> int:
    """How many rows an op names, 0 if the graph does not tell."""
    shape = op.inputs[1].shape
    return size_of(shape) if shape is not None and None not in shape else 0


def _load(op: Operation, uses: Mapping[str, int]) -> Load:
    by_rows = [what for what in ("pick", "change") if what in uses]
    if not by_rows or "read" in uses:
        ways = ("read" in uses) + bool({"set", "change"} & set(uses))
        return Load(ways * bytes_of(op), ways, ways > 0)
    told = max(uses[what] for what in by_rows) or ROWS  # rows are named as they were read
    rows = min(told, op.attrs["shape"][0])
    return Load((bytes_of(op, rows) + ID_BYTES * rows) * len(by_rows), 2 * len(by_rows))
