"""Concat in place: values joined along the first axis are computed in the output of the join."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hpcflow.graph.static_shape import is_known
from hpcflow.plan.ir.program import Node, Partition, Ref


class ConcatSlot(NamedTuple):
    """The place of input number `input_index` in the output of the joining node `node`."""

    node: str
    input_index: int


def concatenates_rows(node: Node) -> bool:
    """Whether a node concatenates values of static shape along the first axis."""
    if not node.row.joins or not is_known(node.specs[0].shape):
        return False
    return node.attrs["axis"] in (0, -len(node.specs[0].shape or ()))


def concat_slots(
    part: Partition,
    has_own_block: Callable[[Node], bool],
    can_compute_in_slot: Callable[[Ref, Node], bool],
) -> dict[Ref, ConcatSlot]:
    """The values that are computed in their slot.

    `has_own_block(node)` is true if the output of a joining node has an arena block of its own.
    `can_compute_in_slot(ref, node)` is true if a value can be computed in a slot of `node`. Each
    value has at most one slot. The output of a joining node has none.
    """
    slots: dict[Ref, ConcatSlot] = {}
    for node in part.nodes.values():
        if not concatenates_rows(node) or not has_own_block(node):
            continue
        for i, ref in enumerate(node.inputs):
            maker = part.nodes[ref.node]
            if ref not in slots and not concatenates_rows(maker) and can_compute_in_slot(ref, node):
                slots[ref] = ConcatSlot(node.name, i)
    return slots
