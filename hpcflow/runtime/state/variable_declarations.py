"""Variable declarations: drivers declare their server variables; mismatched graphs are rejected.

Asynchronous replicas may run different fetches at different times, so they have no common point to
compare their graphs. A variable of two replicas must nevertheless be the same: one shape, on one
server. Each driver declares the variables of its plans to the first server, before the first step
that uses them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from hpcflow.errors import GraphMismatchError
from hpcflow.graph.static_shape import shape_text
from hpcflow.plan.ir.attribute_values import canonical
from hpcflow.plan.ir.program import Node, Partition


class StateDeclaration(NamedTuple):
    """A variable, a shard of one, or other state, as declared by one driver's plan."""

    name: str
    variable: str  # the variable of which it is a shard
    turn: int  # how many other declarations the driver had under that name before
    spec: str  # its type, dtype and shape
    task: str
    rows: tuple[int, ...]  # of a shard: first and last
    line: str  # the user's line


def describe_state(node: Node) -> str:
    """A description of a node's state: `variable float32[3, 4]`, or its type and attributes."""
    attrs = node.attrs
    if node.row.variable == "handle":
        return f"variable {attrs['dtype']}{shape_text(attrs.get('whole', attrs['shape']))}"
    return f"{node.type} {canonical(attrs)}"


class DriverDeclarations:
    """What this driver has declared; `new` returns what remains to be declared."""

    def __init__(self) -> None:
        self._turns: dict[str, list[dict[str, StateDeclaration]]] = {}

    def new(self, parts: Iterable[Partition]) -> bytes:
        """The server state that `parts` use and no earlier plan did, encoded for
        `ServerDeclarations.add`.
        """
        rows = []
        for part in parts:
            if not part.task.startswith("/job:ps"):
                continue
            for node in part.nodes.values():
                if node.is_state and "copy" not in node.attrs:
                    rows += self._declare(node, part.task)
        return json.dumps(rows).encode() if rows else b""

    def _declare(self, node: Node, task: str) -> list[StateDeclaration]:
        base = node.name.rpartition("/part_")[0] if "whole" in node.attrs else node.name
        piece = tuple(node.attrs.get("piece") or ())
        turns = self._turns.setdefault(base, [{}])
        decl = StateDeclaration(
            node.name, base, len(turns) - 1, describe_state(node), task, piece, node.line
        )
        previous = turns[-1].get(node.name)
        if previous == decl:
            return []
        if previous is not None and previous._replace(line=decl.line) != decl:  # of another graph
            turns.append({})
            decl = decl._replace(turn=decl.turn + 1)
        turns[-1][node.name] = decl
        return [decl]


class _SharedName(NamedTuple):
    """The declarations of one name; of at most two drivers, because all others are equal."""

    by_name: dict[
        str, dict[int, StateDeclaration]
    ]  # name of a shard or of the whole -> driver -> declaration
    first: dict[int, StateDeclaration]  # driver -> the first shard that it declared


class ServerDeclarations:
    """The declarations of all drivers, on the first server.

    A declaration is compared with that of one other driver, regardless of their number.
    """

    def __init__(self) -> None:
        self._declared: dict[tuple[str, int], _SharedName] = {}

    def add(self, driver: int, body: bytes) -> None:
        """Add the declarations of rank `driver`.

        Errors: GraphMismatchError if they conflict with another driver's.
        """
        for row in json.loads(body):
            decl = StateDeclaration(*row)
            decl = decl._replace(rows=tuple(decl.rows))
            shared = self._declared.setdefault((decl.variable, decl.turn), _SharedName({}, {}))
            same = shared.by_name.setdefault(decl.name, {})
            for peer, like in [*same.items(), *shared.first.items()]:
                if peer != driver:
                    check_compatible(like, peer, decl, driver)
                    break
            for by_driver in (same, shared.first):
                if len(by_driver) < 2:
                    by_driver.setdefault(driver, decl)


def check_compatible(
    a: StateDeclaration, driver_a: int, b: StateDeclaration, driver_b: int
) -> None:
    """Errors: GraphMismatchError unless both declarations can be the same state."""
    if driver_b < driver_a:
        a, driver_a, b, driver_b = b, driver_b, a, driver_a
    if a.spec != b.spec:
        raise_mismatch(b.variable, (driver_a, a.spec, a.line), (driver_b, b.spec, b.line))
    same_place = (a.task, a.rows) == (b.task, b.rows) or a.name != b.name
    if same_place and (a.name == a.variable) == (b.name == b.variable):
        return
    raise_mismatch(
        b.variable,
        (driver_a, _declaration_place(a), a.line),
        (driver_b, _declaration_place(b), b.line),
        reason="the replicas have different variables, so their shares over the servers differ: ",
    )


def _declaration_place(decl: StateDeclaration) -> str:
    return f"rows {decl.rows[0]} to {decl.rows[1]} on {decl.task}" if decl.rows else decl.task


def raise_mismatch(name: str, *graphs: tuple[int, Any, str], reason: str = "") -> None:
    """Raise a GraphMismatchError; each of `graphs` is a rank, its declaration, the user's line."""
    each = ", but ".join(f"{decl} on rank {rank} (made at {line})" for rank, decl, line in graphs)
    raise GraphMismatchError(
        f"{reason}{name!r} is {each}",
        op=name,
        hint="build the same graph on every rank: do not branch on the rank or on random values",
    )
