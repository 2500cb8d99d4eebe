"""Reduced picture of a large plan: the boxes that are seen, with sums instead of operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hpcflow.plan.listing.picture_groups import Box, Picture
from hpcflow.plan.listing.picture_operations import DrawnValue, PictureOperation


def reduced(picture: Picture) -> Picture:
    """Return the picture without what is inside of closed boxes.

    Operations of a box that have the same task, device and phase become one with the sums of their
    costs. Values between two of these become one with the sum of their bytes.
    """
    seen = picture.visible(picture.opened)
    operations, number = _summed_operations(picture, seen)
    kept = [place for place in range(len(picture.boxes)) if seen[place] == place]
    new = {place: i for i, place in enumerate(kept)}
    boxes = [_reduced_box(picture, place, new, number) for place in kept]
    box_of = [0] * len(operations)
    for i, box_place in enumerate(kept):
        if box_place not in picture.opened:
            for member in boxes[i].members:
                box_of[member] = i
    values = _summed_values(picture, seen, number)
    tops = [new[place] for place in picture.tops]
    return Picture(
        operations, values, boxes, box_of, tops, {new[place] for place in picture.opened}
    )


def _summed_operations(
    picture: Picture, seen: Sequence[int]
) -> tuple[list[PictureOperation], list[int]]:
    """The sums, and the number of the sum of each operation."""
    found: dict[tuple[int, str, str, int], int] = {}
    operations: list[PictureOperation] = []
    number = []
    for op, box in zip(picture.operations, picture.box_of, strict=True):
        key = (seen[box], op.task, op.device, op.phase)
        if key not in found:
            found[key] = len(operations)
            facts = op.node_name, op.task, op.device, op.type, op.phase
            operations.append(PictureOperation(*facts, 0, 0, 0.0, 0, 0))
        number.append(found[key])
        total = operations[found[key]]
        total.flops += op.flops
        total.nbytes += op.nbytes
        total.seconds += op.seconds
        total.unsized += op.unsized
        total.count += op.count
    return operations, number


def _reduced_box(picture: Picture, place: int, new: dict[int, int], number: Sequence[int]) -> Box:
    box = picture.boxes[place]
    members = sorted({number[i] for i in box.members})
    is_open = place in picture.opened
    return dataclasses.replace(
        box,
        parent=None if box.parent is None else new[box.parent],
        operation=None if box.operation is None else number[box.operation],
        members=members,
        children=[new[child] for child in box.children] if is_open else [],
    )


def _summed_values(
    picture: Picture, seen: Sequence[int], number: Sequence[int]
) -> list[DrawnValue]:
    """Values by their source and by one user in each box, of another task if there is one."""
    found: dict[tuple[int, int], DrawnValue] = {}
    for value in picture.values:
        source, task = seen[picture.box_of[value.source]], picture.operations[value.source].task
        users: dict[int, int] = {}
        for user in value.users:
            box = seen[picture.box_of[user]]
            if box not in users or picture.operations[user].task != task:
                users[box] = number[user]
        for box, user in users.items():
            if box == source:
                continue
            key = number[value.source], user
            if key not in found:
                found[key] = DrawnValue(key[0], 0, [user], 0)
            total = found[key]
            total.nbytes += value.nbytes
            total.count += value.count
    return list(found.values())
