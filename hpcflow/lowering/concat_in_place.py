"""Values that are joined along the first axis can be produced where they are joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hpcflow.graph.static_shape import is_known
from hpcflow.plan.ir.program import Node, Part, Ref


class Slot(NamedTuple):
    """The place of input number `place` of a node that joins."""

    node: str
    place: int


def joins(node: Node) -> bool:
    """Whether a node puts values of known sizes one behind the other."""
    if node.type not in ("Concat", "Pack") or not is_known(node.specs[0].shape):
        return False
    return node.attrs["axis"] in (0, -len(node.specs[0].shape or ()))


def slots(
    part: Part, whole: Callable[[Node], bool], fits: Callable[[Ref, Node], bool]
) -> dict[Ref, Slot]:
    """The values that are produced in their slot.

    `whole(node)` tells if a node that joins has a block of the arena of its own, `fits(ref, node)`
    if a value can be produced in a slot of that node. Each value has one; a value that is itself
    joined of such has none.
    """
    found: dict[Ref, Slot] = {}
    for node in part.nodes.values():
        if not joins(node) or not whole(node):
            continue
        for i, ref in enumerate(node.inputs):
            maker = part.nodes[ref.node]
            if ref not in found and not joins(maker) and fits(ref, node):
                found[ref] = Slot(node.name, i)
    return found
