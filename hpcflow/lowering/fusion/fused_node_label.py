"""Labels of `Fused` nodes for reports: operations, common name scope, elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpcflow.graph.static_shape import is_known, size_of
from hpcflow.plan.ir.program import Node

MAX_LISTED_NAMES = 6


def fused_types(node: Node) -> tuple[str, ...]:
    """The types of the operations that a node computes, in order."""
    if node.type != "Fused":
        return (node.type,)
    return tuple(node.attrs["types"])


def fused_names(node: Node) -> tuple[str, ...]:
    """The graph names of the operations of a node."""
    return tuple(node.attrs["names"]) if node.type == "Fused" else (node.name,)


def node_label(node: Node) -> str:
    """`Fused: Add, Mul x2, Tanh`; the type of a node that is not fused."""
    if node.type != "Fused":
        return node.type
    counts = Counter(fused_types(node))
    kinds = [kind if n == 1 else f"{kind} x{n}" for kind, n in counts.items()]
    suffix = f" and {len(kinds) - MAX_LISTED_NAMES} more" if len(kinds) > MAX_LISTED_NAMES else ""
    return f"Fused: {', '.join(kinds[:MAX_LISTED_NAMES])}{suffix}"


def common_scope(names: Sequence[str]) -> str:
    """The common name scope of names, `layer/...`; without one, the first few names themselves."""
    parts = [name.split("/") for name in names]
    common: list[str] = []
    for column in zip(*(part[:-1] for part in parts), strict=False):
        if len(set(column)) > 1:
            break
        common.append(column[0])
    if len(names) == 1:
        return names[0]
    if common:
        return "/".join(common) + "/..."
    suffix = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return ", ".join(names[:MAX_LISTED_NAMES]) + suffix


def element_count(node: Node) -> int | None:
    """The number of elements that each operation computes; None if only the step knows."""
    if node.type == "Fused":
        return int(node.attrs["size"])
    shape = node.specs[0].shape
    return size_of(shape) if is_known(shape) else None
