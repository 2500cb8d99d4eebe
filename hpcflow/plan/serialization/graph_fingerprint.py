"""Digests of a graph, so that ranks can tell whether they built the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.graph.dtypes import text_of
from hpcflow.graph.function_body import Function, all_operations
from hpcflow.graph.graph import Graph, Operation
from hpcflow.plan.ir.attribute_values import canonical


class OpDigest(NamedTuple):
    """What ranks compare of one operation, and what a message says of it."""

    name: str
    type: str
    line: str
    digest: str


def op_digests(graph: Graph) -> list[OpDigest]:
    """One digest an operation, in creation order: type, attributes, constants, inputs, wishes.

    The user's line is shown but not compared: paths may differ from node to node.
    """
    return [OpDigest(op.name, op.type, op.line, _digest(op)) for op in all_operations(graph)]


def fingerprint(graph: Graph) -> str:
    """One digest of the whole graph."""
    whole = hashlib.blake2b(digest_size=16)
    for one in op_digests(graph):
        whole.update(one.digest.encode())
    return whole.hexdigest()


def first_difference(mine: Sequence[OpDigest], theirs: Sequence[OpDigest]) -> str | None:
    """What differs first between two ranks' graphs, in words with both lines; None if nothing."""
    for i, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if a.digest != b.digest:
            if (a.name, a.type) == (b.name, b.type):
                return (
                    f"operation {i}, {a.name!r} ({a.type}, made at {a.line}), has the same name "
                    "and type but other attributes, constants, inputs, order or device"
                )
            return (
                f"operation {i} is {a.name!r} ({a.type}, made at {a.line}) here "
                f"and {b.name!r} ({b.type}, made at {b.line}) there"
            )
    if len(mine) == len(theirs):
        return None
    here = len(mine) > len(theirs)
    one = (mine if here else theirs)[min(len(mine), len(theirs))]
    where = "here" if here else "there"
    return f"operation {one.name!r} ({one.type}, made at {one.line}) exists only {where}"


def _digest(op: Operation) -> str:
    facts = (
        op.name,
        op.type,
        tuple(t.name for t in op.inputs),
        tuple(sorted(c.name for c in op.control_inputs)),
        op.device,
        tuple(sorted(op.colocate)),
        tuple((text_of(t.dtype), t.shape) for t in op.outputs),
        canonical(_same_everywhere(op.attrs)),
    )
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _same_everywhere(attrs: dict[str, object]) -> dict[str, object]:
    """Attributes without addresses: a function counts by its name, which all ranks share.

    A function of the graph counts by its results' names: its operations are digested themselves.
    """
    attrs = {
        k: tuple(t.name for t in v.results) if isinstance(v, Function) else v
        for k, v in attrs.items()
    }
    return {
        k: getattr(v, "__qualname__", type(v).__name__) if canonical(v)[0] == "object" else v  # type: ignore[index]
        for k, v in attrs.items()
    }
