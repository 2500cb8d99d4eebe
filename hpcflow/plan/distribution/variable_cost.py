"""Variable cost: predicted load of a variable on its server, from its use in training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from hpcflow.graph.dtypes import resource
from hpcflow.graph.function_body import FunctionBody, all_operations, variable_operation
from hpcflow.graph.graph import Graph, Operation
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import size_of
from hpcflow.plan.ir.program import Cluster

ROWS = 1024  # assumed rows per step, if the graph does not determine them
ID_BYTES = 8
MESSAGE_BYTES = 8 << 10  # bytes that move in the latency of one message
HELD_BYTE_WEIGHT = (
    1 / 16
)  # weight of a byte that is held, relative to a byte that moves in each step


@dataclasses.dataclass(frozen=True)
class VariableLoad:
    """The traffic of a variable in one step of a worker; `is_whole` if it moves all rows."""

    nbytes: int = 0
    messages: int = 0
    is_whole: bool = False

    def weight(self, held_bytes: int, share: float = 1.0) -> float:
        """Return the load of a server with this share of the variable, in comparable bytes."""
        moved = self.nbytes + HELD_BYTE_WEIGHT * held_bytes
        return share * moved + MESSAGE_BYTES * self.messages


def variable_nbytes(op: Operation, rows: int | None = None) -> int:
    """Return the bytes of a variable, or of some of its rows."""
    shape = op.attrs["shape"]
    shape = shape if rows is None else (rows, *shape[1:])
    return op.attrs["dtype"].itemsize * size_of(shape)


def used_handles(op: Operation) -> list[str]:
    """Return the variables that an op uses, in creation order."""
    if lookup_op(op.type).owner:
        return []  # the operations in its functions count by themselves
    handles = (variable_operation(t) for t in op.inputs if t.dtype == resource)
    positions = {variable.name: variable.index for variable in handles}
    return sorted(positions, key=positions.__getitem__)


def variable_loads(graph: Graph, cluster: Cluster) -> dict[str, VariableLoad]:
    """Return the load of each variable used in training, measured if available, else predicted.

    Only nodes that an update depends on count, not reads for evaluation and not initial values. A
    variable moves whole if an op that is not colocated with it reads it whole. The gradient moves
    whole if the variable is updated whole. If only rows of a variable are used, rows move.
    """
    operations = list(all_operations(graph))
    trained = _training_operations(operations)
    users = _users_by_input(trained)
    all_uses: dict[str, dict[str, int]] = {}
    for op in trained:
        for name in used_handles(op)[:1]:
            for kind, rows in _variable_uses(op, name, users):
                uses = all_uses.setdefault(name, {})
                uses[kind] = max(rows, uses.get(kind, 0))
    measured = {name: (size, count) for name, size, count in cluster.measured}
    loads = {}
    for name in {**all_uses, **measured}:
        if name in graph:
            load = _predicted_load(graph.get_operation_by_name(name), all_uses.get(name, {}))
            if name in measured:
                nbytes, messages = measured[name]
                load = dataclasses.replace(load, nbytes=nbytes, messages=messages)
            loads[name] = load
    return loads


def _training_operations(operations: Iterable[Operation]) -> list[Operation]:
    """Return updates and what they depend on, without initial values.

    All operations in loops and branches are included.
    """
    stack, inside = [], []
    for op in operations:
        if isinstance(op.graph, FunctionBody):
            inside.append(op)
        elif lookup_op(op.type).writes and not op.attrs.get("initial"):
            stack.append(op)
    trained: dict[Operation, None] = {}
    while stack:
        op = stack.pop()
        if op not in trained:
            trained[op] = None
            stack.extend(t.op for t in op.inputs)
    return [*trained, *inside]


def _users_by_input(operations: Iterable[Operation]) -> dict[Operation, list[Operation]]:
    users: dict[Operation, list[Operation]] = {}
    for op in operations:
        for t in op.inputs:
            users.setdefault(t.op, []).append(op)
    return users


def _variable_uses(
    op: Operation, variable: str, users: Mapping[Operation, list[Operation]]
) -> Iterable[tuple[str, int]]:
    """Yield (kind, rows) for one use: kind is "read", "pick", "change" or "set"."""
    row = lookup_op(op.type)
    if row.variable in ("read", "read_rows"):
        if all(variable in user.colocate for user in users.get(op, ())):
            return  # reads of an optimizer stay on the server
        yield ("pick", _named_rows(op)) if row.by_rows else ("read", 0)
    elif row.writes and not op.attrs.get("initial"):
        yield ("change", _named_rows(op)) if row.by_rows else ("set", 0)


def _named_rows(op: Operation) -> int:
    """Return how many rows an op names, 0 if the graph does not determine it."""
    shape = op.inputs[1].shape
    return size_of(shape) if shape is not None and None not in shape else 0


def _predicted_load(op: Operation, uses: Mapping[str, int]) -> VariableLoad:
    by_rows = [kind for kind in ("pick", "change") if kind in uses]
    if not by_rows or "read" in uses:
        ways = ("read" in uses) + bool({"set", "change"} & set(uses))
        return VariableLoad(ways * variable_nbytes(op), ways, ways > 0)
    picked = max(uses[kind] for kind in by_rows) or ROWS  # an update names the rows that were read
    rows = min(picked, op.attrs["shape"][0])
    return VariableLoad(
        (variable_nbytes(op, rows) + ID_BYTES * rows) * len(by_rows), 2 * len(by_rows)
    )
