"""Variable cost: predicted load of a variable on its server, from its use in training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from hpcflow.graph.dtypes import resource
from hpcflow.graph.function_body import Body, all_operations, variable_of
from hpcflow.graph.graph import Graph, Operation
from hpcflow.graph.op_registry import lookup
from hpcflow.graph.static_shape import size_of
from hpcflow.plan.ir.program import Cluster

ROWS = 1024  # assumed rows per step, if the graph does not determine them
ID_BYTES = 8
MESSAGE_BYTES = 8 << 10  # bytes that move in the latency of one message
HELD = 1 / 16  # weight of a byte that is held, relative to a byte that moves in each step


@dataclasses.dataclass(frozen=True)
class Load:
    """The traffic of a variable in one step of a worker; `is_whole` if it moves all rows."""

    nbytes: int = 0
    messages: int = 0
    is_whole: bool = False

    def weight(self, held: int, share: float = 1.0) -> float:
        """Return the load of a server with this share of the variable, in comparable bytes."""
        moved = self.nbytes + HELD * held
        return share * moved + MESSAGE_BYTES * self.messages


def bytes_of(op: Operation, rows: int | None = None) -> int:
    """Return the bytes of a variable, or of some of its rows."""
    shape = op.attrs["shape"]
    shape = shape if rows is None else (rows, *shape[1:])
    return op.attrs["dtype"].itemsize * size_of(shape)


def handles_of(op: Operation) -> list[str]:
    """Return the variables that an op uses, in creation order."""
    if lookup(op.type).owner:
        return []  # the operations in its functions count by themselves
    handles = (variable_of(t) for t in op.inputs if t.dtype == resource)
    found = {variable.name: variable.index for variable in handles}
    return sorted(found, key=found.__getitem__)


def loads_of(graph: Graph, cluster: Cluster) -> dict[str, Load]:
    """Return the load of each variable used in training, measured if available, else predicted.

    Only nodes that an update depends on count, not reads for evaluation and not initial values. A
    variable moves whole if an op that is not colocated with it reads it whole. The gradient moves
    whole if the variable is updated whole. If only rows of a variable are used, rows move.
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
    """Return updates and what they depend on, without initial values.

    All operations in loops and branches are included.
    """
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
    """Yield (kind, rows) for one use: kind is "read", "pick", "change" or "set"."""
    row = lookup(op.type)
    if row.variable in ("read", "read_rows"):
        if all(variable in user.colocate for user in users.get(op, ())):
            return  # reads of an optimizer stay on the server
        yield ("pick", _rows(op)) if row.by_rows else ("read", 0)
    elif row.writes and not op.attrs.get("initial"):
        yield ("change", _rows(op)) if row.by_rows else ("set", 0)


def _rows(op: Operation) -> int:
    """Return how many rows an op names, 0 if the graph does not determine it."""
    shape = op.inputs[1].shape
    return size_of(shape) if shape is not None and None not in shape else 0


def _load(op: Operation, uses: Mapping[str, int]) -> Load:
    by_rows = [what for what in ("pick", "change") if what in uses]
    if not by_rows or "read" in uses:
        ways = ("read" in uses) + bool({"set", "change"} & set(uses))
        return Load(ways * bytes_of(op), ways, ways > 0)
    told = max(uses[what] for what in by_rows) or ROWS  # an update names the rows that were read
    rows = min(told, op.attrs["shape"][0])
    return Load((bytes_of(op, rows) + ID_BYTES * rows) * len(by_rows), 2 * len(by_rows))
