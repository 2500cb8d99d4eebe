"""Labels of `Fused` nodes for reports: operations, common name scope, elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpcflow.graph.static_shape import is_known, size_of
from hpcflow.plan.ir.program import Node

LISTED = 6


def types(node: Node) -> tuple[str, ...]:
    """The types of the operations that a node computes, in order."""
    if node.type != "Fused":
        return (node.type,)
    return tuple(node.attrs["types"])


def names(node: Node) -> tuple[str, ...]:
    """The graph names of the operations of a node."""
    return tuple(node.attrs["names"]) if node.type == "Fused" else (node.name,)


def label(node: Node) -> str:
    """`Fused: Add, Mul x2, Tanh`; the type of a node that is not fused."""
    if node.type != "Fused":
        return node.type
    counts = Counter(types(node))
    said = [kind if n == 1 else f"{kind} x{n}" for kind, n in counts.items()]
    more = f" and {len(said) - LISTED} more" if len(said) > LISTED else ""
    return f"Fused: {', '.join(said[:LISTED])}{more}"


def scope(of: Sequence[str]) -> str:
    """The common name scope of names, `layer/...`; without one, the first few names themselves."""
    parts = [name.split("/") for name in of]
    common: list[str] = []
    for column in zip(*(part[:-1] for part in parts), strict=False):
        if len(set(column)) > 1:
            break
        common.append(column[0])
    if len(of) == 1:
        return of[0]
    if common:
        return "/".join(common) + "/..."
    more = f" and {len(of) - LISTED} more" if len(of) > LISTED else ""
    return ", ".join(of[:LISTED]) + more


def elements(node: Node) -> int | None:
    """The number of elements that each operation computes; None if only the step knows."""
    if node.type == "Fused":
        return int(node.attrs["size"])
    shape = node.specs[0].shape
    return size_of(shape) if is_known(shape) else None
