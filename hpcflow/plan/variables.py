"""Which server holds which variable, or which rows of it, in parameter-server mode."""

from __future__ import annotations

import dataclasses

from hpcflow.graph.body import all_operations, variable_of
from hpcflow.graph.device import DeviceName, parse
from hpcflow.graph.dtypes import resource
from hpcflow.graph.graph import Graph, Operation
from hpcflow.graph.registry import lookup
from hpcflow.graph.shape import size_of
from hpcflow.plan.ir import Cluster
from hpcflow.plan.nested import OWNERS
from hpcflow.settings import Settings


@dataclasses.dataclass(frozen=True)
class Piece:
    """Rows `start` to `stop` of a variable, on one server."""

    server: int
    start: int = 0
    stop: int = 0

    @property
    def device(self) -> str:
        """The task that holds it."""
        return f"/job:ps/task:{self.server}"


@dataclasses.dataclass(frozen=True)
class Home:
    """Where a variable lives: one piece if it is whole.

    A slot (momentum, ...) lives where its `owner` does, cut in the same rows; one that is not of
    the owner's shape (a count of steps) is `copied`: each piece of the owner has its own.
    """

    pieces: tuple[Piece, ...]
    owner: str
    copied: bool = False


def assign_variables(graph: Graph, cluster: Cluster, settings: Settings) -> dict[str, Home]:
    """A home on the servers for every variable that is shared and not asked to be elsewhere.

    All variables of the graph are dealt in creation order, each to the server with the fewest
    bytes; larger ones than `shard_bytes` are cut by rows. So the homes do not depend on what a step
    runs, and variables made later do not move earlier ones.
    """
    if cluster.mode != "ps":
        return {}
    owners, loads = _owners(graph), [0] * cluster.servers
    tables = _tables(graph) if settings.dense == "replicas" else None
    slots = _slots(graph)
    homes: dict[str, Home] = {}
    for op in graph.get_operations():
        if op.type != "Variable":
            continue
        owner, wish = owners.get(op.name), parse(op.device)
        if owner in homes:
            home = _beside(op, graph.get_operation_by_name(owner), homes[owner], op.name in slots)
            homes[op.name] = home
            _add(op, home, loads)
        elif owner is None and _is_served(op, wish, tables):
            homes[op.name] = _deal(op, wish, loads, settings)
    return homes


def _is_served(op: Operation, wish: DeviceName, tables: set[str] | None) -> bool:
    """Whether a variable lives on a server: one local to its replica does only if asked to.

    With `tables` only these do, unless it is asked for.
    """
    if wish.job is None and wish.task is None:
        return not op.attrs.get("local") and (tables is None or op.name in tables)
    return wish.job == "ps"


def _tables(graph: Graph) -> set[str]:
    """The variables of which some operation uses rows."""
    rows = (op for op in all_operations(graph) if lookup(op.type).by_rows)
    return {variable_of(op.inputs[0]).name for op in rows}


def _owners(graph: Graph) -> dict[str, str]:
    """The variable that each follows: by colocation, or as the later one in a common update."""
    owners: dict[str, str] = {}
    for op in all_operations(graph):
        if op.type == "Variable":
            beside = [n for n in op.colocate if graph.get_operation_by_name(n).type == "Variable"]
            handles = [*beside[:1], op.name]
        else:
            handles = _handles(op)
        for slot in handles[1:]:
            owners.setdefault(slot, owners.get(handles[0], handles[0]))
    return owners


def _handles(op: Operation) -> list[str]:
    """The variables that an op uses, in creation order."""
    if op.type in OWNERS:
        return []  # what its functions use has its own operations there
    handles = (variable_of(t) for t in op.inputs if t.dtype == resource)
    found = {variable.name: variable.index for variable in handles}
    return sorted(found, key=found.__getitem__)


def _slots(graph: Graph) -> set[str]:
    """Variables that some update changes together with an earlier one, or beside another one."""
    found, variables = set(), {op.name for op in graph.get_operations() if op.type == "Variable"}
    for op in all_operations(graph):
        first, *others = _handles(op) or [""]
        found.update(others)
        if lookup(op.type).writes and not variables.isdisjoint({*op.colocate} - {first}):
            found.add(first)
    return found


def _bytes(op: Operation, rows: int | None = None) -> int:
    shape = op.attrs["shape"]
    shape = shape if rows is None else (rows, *shape[1:])
    return op.attrs["dtype"].itemsize * size_of(shape)


def _deal(op: Operation, wish: DeviceName, loads: list[int], settings: Settings) -> Home:
    by_load = sorted(range(len(loads)), key=lambda s: (loads[s], s))
    rows = op.attrs["shape"][0] if op.attrs["shape"] else 1
    count = min(len(loads), rows, -(-_bytes(op) // settings.shard_bytes))
    if wish.task is not None:  # out of range is for the placing pass to tell
        by_load, count = [wish.task], 1
    if count <= 1:
        pieces = [Piece(by_load[0], 0, rows)]
    else:
        cuts = [rows * i // count for i in range(count + 1)]
        pieces = [Piece(by_load[i], cuts[i], cuts[i + 1]) for i in range(count)]
    home = Home(tuple(pieces), op.name)
    _add(op, home, loads)
    return home


def _beside(op: Operation, owner: Operation, home: Home, is_slot: bool) -> Home:
    """Cut as its owner if of its shape, else copied to each piece if they are updated together."""
    if op.attrs["shape"] == owner.attrs["shape"]:
        return home
    if is_slot:
        return dataclasses.replace(home, copied=True)
    return Home((dataclasses.replace(home.pieces[0], start=0, stop=0),), home.owner)


def _add(op: Operation, home: Home, loads: list[int]) -> None:
    whole = home.copied or len(home.pieces) == 1
    for piece in home.pieces[:1] if whole else home.pieces:
        if piece.server < len(loads):
            loads[piece.server] += _bytes(op, None if whole else piece.stop - piece.start)
