"""Concat in place: values joined along the first axis are computed in the output of the join."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hpcflow.graph.static_shape import is_known
from hpcflow.plan.ir.program import Node, Part, Ref


class Slot(NamedTuple):
    """The place of input number `place` in the output of the joining node `node`."""

    node: str
    place: int


def joins(node: Node) -> bool:
    """Whether a node concatenates values of static shape along the first axis."""
    if not node.row.joins or not is_known(node.specs[0].shape):
        return False
    return node.attrs["axis"] in (0, -len(node.specs[0].shape or ()))


def slots(
    part: Part, whole: Callable[[Node], bool], fits: Callable[[Ref, Node], bool]
) -> dict[Ref, Slot]:
    """The values that are computed in their slot.

    `whole(node)` is true if the output of a joining node has an arena block of its own. `fits(ref,
    node)` is true if a value can be computed in a slot of `node`. Each value has at most one slot.
    The output of a joining node has none.
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
