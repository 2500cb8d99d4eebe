"""Variable placement: which server holds which variable, or which of its rows, in ps mode."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from hpcflow.graph.device_names import DeviceName, parse_device
from hpcflow.graph.function_body import all_operations, variable_operation
from hpcflow.graph.graph import Graph, Operation
from hpcflow.graph.op_registry import lookup_op
from hpcflow.plan.distribution.variable_cost import (
    VariableLoad,
    used_handles,
    variable_loads,
    variable_nbytes,
)
from hpcflow.plan.ir.program import Cluster
from hpcflow.settings import Settings

# a variable that moves whole is sharded into pieces of at least shard_bytes / MIN_SHARD_FRACTION
MIN_SHARD_FRACTION = 16
_lock = threading.Lock()
_placement_cache: weakref.WeakKeyDictionary[Graph, dict[Any, _CachedPlacement]] = (
    weakref.WeakKeyDictionary()
)


@dataclasses.dataclass(frozen=True)
class VariableShard:
    """Rows `start` to `stop` of a variable, on one server."""

    server: int
    start: int = 0
    stop: int = 0

    @property
    def device(self) -> str:
        """The task that holds it."""
        return f"/job:ps/task:{self.server}"


@dataclasses.dataclass(frozen=True)
class VariablePlacement:
    """The placement of a variable; a whole variable has one piece.

    A slot (momentum, ...) is placed with its `owner`, sharded by the same rows. A slot of another
    shape than the owner (a step count) is `copied`: each piece of the owner has its own copy.
    """

    pieces: tuple[VariableShard, ...]
    owner: str
    copied: bool = False

    @property
    def is_unsharded(self) -> bool:
        """True if each piece holds the whole variable."""
        return self.copied or len(self.pieces) == 1


@dataclasses.dataclass
class _CachedPlacement:
    """The placements of the variables of a graph of `version` operations."""

    version: int = 0
    placements: dict[str, VariablePlacement] = dataclasses.field(default_factory=dict)


def place_variables(
    graph: Graph, cluster: Cluster, settings: Settings
) -> dict[str, VariablePlacement]:
    """Return a placement on the servers for every shared variable not requested elsewhere.

    Variables are assigned in creation order, each to the least loaded server. The load counts bytes
    moved in a step, predicted (`plan/distribution/variable_cost.py`) or measured, messages, and
    bytes held, slots included. Variables larger than `shard_bytes` are sharded by rows: tables into
    pieces of about that size, variables that move whole over all servers. Placements do not depend
    on what a step runs. A variable keeps its placement when the graph grows.
    """
    if cluster.mode != "ps":
        return {}
    key = (cluster.servers, settings.shard_bytes, settings.dense, cluster.measured)
    with _lock:
        cached = _placement_cache.setdefault(graph, {}).setdefault(key, _CachedPlacement())
        if cached.version != graph.version:
            version = graph.version
            cached.placements = _VariablePlacer(graph, cluster, settings, cached.placements).run()
            cached.version = version
        return dict(cached.placements)


def server_bytes(
    graph: Graph, placements: Mapping[str, VariablePlacement], servers: int
) -> list[int]:
    """Return the bytes of variables that each server holds."""
    bytes_by_server = [0] * servers
    for name, placement in placements.items():
        op = graph.get_operation_by_name(name)
        for piece in placement.pieces:
            if piece.server < servers:
                rows = None if placement.is_unsharded else piece.stop - piece.start
                bytes_by_server[piece.server] += variable_nbytes(op, rows)
    return bytes_by_server


def piece_count(nbytes: int, shard_bytes: int, is_whole: bool) -> int:
    """Return the number of pieces of a variable, without the limit by the number of servers.

    `is_whole`: the variable moves whole in a step.
    """
    if nbytes <= shard_bytes:
        return 1
    return -(-nbytes * (MIN_SHARD_FRACTION if is_whole else 1) // shard_bytes)


def least_loaded(work: Sequence[float], rows: int, pieces: int) -> tuple[VariableShard, ...]:
    """Return `pieces` pieces of a variable, each on another server, those with the least `work`.

    There are at most as many pieces as servers and rows. If the rows cannot be divided equally, the
    first pieces have one row more.
    """
    least = sorted(range(len(work)), key=lambda s: (work[s], s))
    count = max(1, min(len(least), rows, pieces))
    each, extra = divmod(rows, count)
    cuts = [each * i + min(i, extra) for i in range(count + 1)]
    return tuple(VariableShard(least[i], cuts[i], cuts[i + 1]) for i in range(count))


class _VariablePlacer:
    """Assigns the variables that have no placement yet."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        settings: Settings,
        placements: Mapping[str, VariablePlacement],
    ) -> None:
        self.graph, self.settings, self.before = graph, settings, placements
        self.work = [0.0] * cluster.servers
        self.variables = [op for op in graph.get_operations() if _is_variable(op)]
        self.owners, self.slots = _slot_owners(graph), _slot_variables(graph)
        self.tables = _row_accessed_variables(graph) if settings.dense == "replicas" else None
        self.loads = variable_loads(graph, cluster)
        self.placements: dict[str, VariablePlacement] = {}
        self.beside: dict[str, int] = {}  # owner -> bytes of its slots without a placement
        for op in self.variables:
            owner = self.owners.get(op.name)
            if owner is not None and op.name not in placements:
                self.beside[owner] = self.beside.get(owner, 0) + variable_nbytes(op)

    def run(self) -> dict[str, VariablePlacement]:
        """Return the placement of each variable."""
        for op in self.variables:
            owner = self.owners.get(op.name)
            if op.name in self.before:
                self._record(op, self.before[op.name], self._bytes(op))
            elif owner in self.placements:
                placement = self.placements[owner]
                is_slot = op.name in self.slots
                self.placements[op.name] = _placement_beside(
                    op, self.graph.get_operation_by_name(owner), placement, is_slot
                )
                if owner in self.before:  # else its bytes count with the owner
                    self._record(op, self.placements[op.name], variable_nbytes(op))
            elif owner is None and _is_served(op, parse_device(op.device), self.tables):
                self._record(op, self._choose_servers(op, parse_device(op.device)), self._bytes(op))
        return self.placements

    def _bytes(self, op: Operation) -> int:
        return variable_nbytes(op) + self.beside.get(op.name, 0) * (op.name not in self.before)

    def _choose_servers(self, op: Operation, requested: DeviceName) -> VariablePlacement:
        rows = op.attrs["shape"][0] if op.attrs["shape"] else 1
        if requested.task is not None:  # the placement pass reports one out of range
            return VariablePlacement((VariableShard(requested.task, 0, rows),), op.name)
        is_whole = self.loads.get(op.name, VariableLoad()).is_whole
        count = piece_count(variable_nbytes(op), self.settings.shard_bytes, is_whole)
        return VariablePlacement(least_loaded(self.work, rows, count), op.name)

    def _record(self, op: Operation, placement: VariablePlacement, resident_bytes: int) -> None:
        """Record a placement and add its load to its servers."""
        self.placements[op.name] = placement
        load = self.loads.get(op.name, VariableLoad())
        if placement.owner != op.name:
            load = VariableLoad()  # an update of a slot moves no bytes
        rows = max(1, placement.pieces[-1].stop)
        for piece in placement.pieces:
            share = 1.0 if placement.is_unsharded else (piece.stop - piece.start) / rows
            if piece.server < len(self.work):
                self.work[piece.server] += load.weight(resident_bytes, share)


def _is_served(op: Operation, requested: DeviceName, tables: set[str] | None) -> bool:
    """Return whether a variable is on a server; a local one is only if requested.

    With `tables`, only these variables are on servers, and others only if requested.
    """
    if requested.job is None and requested.task is None:
        return not op.attrs.get("local") and (tables is None or op.name in tables)
    return requested.job == "ps"


def _row_accessed_variables(graph: Graph) -> set[str]:
    """Return the variables of which an operation uses rows."""
    rows = (op for op in all_operations(graph) if lookup_op(op.type).by_rows)
    return {variable_operation(op.inputs[0]).name for op in rows}


def _is_variable(op: Operation) -> bool:
    return lookup_op(op.type).variable == "handle"


def _slot_owners(graph: Graph) -> dict[str, str]:
    """Map each slot to its owner: by colocation, or the first variable in a common update."""
    owners: dict[str, str] = {}
    for op in all_operations(graph):
        if _is_variable(op):
            beside = [n for n in op.colocate if _is_variable(graph.get_operation_by_name(n))]
            handles = [*beside[:1], op.name]
        else:
            handles = used_handles(op)
        for slot in handles[1:]:
            owners.setdefault(slot, owners.get(handles[0], handles[0]))
    return owners


def _slot_variables(graph: Graph) -> set[str]:
    """Return the variables updated together with an earlier one, or colocated with another one."""
    slots, variables = set(), {op.name for op in graph.get_operations() if _is_variable(op)}
    for op in all_operations(graph):
        first, *others = used_handles(op) or [""]
        slots.update(others)
        if lookup_op(op.type).writes and not variables.isdisjoint({*op.colocate} - {first}):
            slots.add(first)
    return slots


def _placement_beside(
    op: Operation, owner: Operation, placement: VariablePlacement, is_slot: bool
) -> VariablePlacement:
    """Return the placement of a variable beside its owner.

    It is sharded like the owner if the shapes agree. Else a slot is copied to each piece, and
    another variable is whole beside the first piece.
    """
    if op.attrs["shape"] == owner.attrs["shape"]:
        return placement
    if is_slot:
        return dataclasses.replace(placement, copied=True)
    return VariablePlacement(
        (dataclasses.replace(placement.pieces[0], start=0, stop=0),), placement.owner
    )
