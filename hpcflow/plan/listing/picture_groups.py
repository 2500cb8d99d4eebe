"""Groups of a plan's picture: operations by task, name scope and phase, in rows by data flow.

A *layer* is a name scope of the least depth at which no scope has more than half of the forward
operations. Gradients and updates of a layer are groups inside the layer.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpcflow.plan.ir.layer_names import FORWARD
from hpcflow.plan.ir.program import Plan
from hpcflow.plan.listing.picture_operations import (
    PHASES,
    UPDATES_OF_SERVER,
    DrawnOperation,
    DrawnValue,
    PictureOperation,
    drawn_operations,
    drawn_values,
)

LEAST_BOXES = 5  # at the level of layers, if the scopes are deep enough
MOST_BOXES = 60  # in a group, and in the picture at the level of layers
MOST_OF_TASK = 8  # boxes of a server that is opened


@dataclasses.dataclass
class Box:
    """A group, or an operation with its number; boxes refer to each other by their places."""

    name: str
    phase: int
    parent: int | None = None
    operation: int | None = None  # None: a group
    members: list[int] = dataclasses.field(default_factory=list)  # numbers of its operations
    children: list[int] = dataclasses.field(default_factory=list)  # row by row
    row: int = 0  # among the boxes of its parent


@dataclasses.dataclass
class Picture:
    """A plan as operations and values, and boxes around them, each parent before its children."""

    operations: Sequence[PictureOperation]
    values: list[DrawnValue]
    boxes: list[Box]
    box_of: list[int]  # the box of each operation
    tops: list[int]  # the outermost boxes, row by row
    opened: set[int]  # the groups that are open at the level of layers

    def visible(self, opened: set[int]) -> list[int]:
        """Return the box in which each box is seen if the groups `opened` are open."""
        seen: list[int] = []
        for place, box in enumerate(self.boxes):
            is_seen = box.parent is None or (
                box.parent in opened and seen[box.parent] == box.parent
            )
            seen.append(place if is_seen or box.parent is None else seen[box.parent])
        return seen

    def edges(self, opened: set[int]) -> dict[tuple[int, int], PictureEdge]:
        """Return the edges between visible boxes; a value counts once in an edge."""
        seen = self.visible(opened)
        found: dict[tuple[int, int], PictureEdge] = {}
        for value in self.values:
            source, task = seen[self.box_of[value.source]], self.operations[value.source].task
            boxes = {user: seen[self.box_of[user]] for user in value.users}
            for box in set(boxes.values()) - {source}:
                edge = found.get((source, box), PictureEdge(0, 0, False))
                crosses = any(
                    b == box and self.operations[u].task != task for u, b in boxes.items()
                )
                found[source, box] = PictureEdge(
                    edge.values + value.count, edge.nbytes + value.nbytes, edge.crosses or crosses
                )
        return found


class PictureEdge(NamedTuple):
    """The values from one visible box to another; `crosses` if one is sent to another task."""

    values: int
    nbytes: int
    crosses: bool


def picture_of(plan: Plan) -> Picture:
    """Return the picture of a plan, and of the update by servers that belongs to it."""
    operations = drawn_operations(plan)
    values = drawn_values(plan, operations)
    if plan.round is not None:
        count, more = len(operations), drawn_operations(plan.round)
        values += [
            dataclasses.replace(value, source=value.source + count,
                                users=[user + count for user in value.users])
            for value in drawn_values(plan.round, more)
        ]  # fmt: skip
        operations += [dataclasses.replace(op, task=op.task + UPDATES_OF_SERVER) for op in more]
    tree = _tree(operations)
    boxes: list[Box] = []
    tops = [_add_boxes(entry, None, boxes) for entry in tree.bundled()]
    box_of = [0] * len(operations)
    for place, box in enumerate(boxes):
        if box.operation is not None:
            box_of[box.operation] = place
    picture = Picture(operations, values, boxes, box_of, tops, set())
    _set_rows(picture, operations)
    _open_layers(picture)
    return picture


# -- the tree of scopes


@dataclasses.dataclass
class _Entry:
    """A scope, or an operation with its number, while the tree is built."""

    name: str
    phase: int = FORWARD
    operation: int | None = None
    inner: dict[tuple[str, int, int | None], _Entry] = dataclasses.field(default_factory=dict)

    def entry(self, name: str, phase: int, operation: int | None = None) -> _Entry:
        """Return an entry of this scope; make it if there is none."""
        return self.inner.setdefault((name, phase, operation), _Entry(name, phase, operation))

    def operations(self) -> Iterator[int]:
        """Yield the numbers of the operations in it."""
        if self.operation is not None:
            yield self.operation
        for entry in self.inner.values():
            yield from entry.operations()

    def simplified(self, keeps: bool = False) -> _Entry:
        """Return the entry with operations inside scopes of their name, as a variable beside reads
        of it, and without scopes of one entry; the scope itself stays if `keeps`.
        """
        for key, entry in list(self.inner.items()):
            scope = self.inner.get((entry.name, entry.phase, None))
            if entry.operation is not None and scope is not None:
                scope.inner = {key: self.inner.pop(key), **scope.inner}
        self.inner = {key: entry.simplified() for key, entry in self.inner.items()}
        if len(self.inner) != 1 or keeps:
            return self
        (only,) = self.inner.values()
        return dataclasses.replace(only, name=f"{self.name}/{only.name}")

    def bundled(self) -> list[_Entry]:
        """Return its entries; of too many, runs of neighbours are put together."""
        entries = list(self.inner.values())
        while len(entries) > MOST_BOXES:
            entries.sort(key=lambda entry: min(entry.operations()))
            size = math.isqrt(len(entries)) + 1
            runs = [entries[i : i + size] for i in range(0, len(entries), size)]
            entries = [_run(run) for run in runs]
        return entries


def _run(entries: Sequence[_Entry]) -> _Entry:
    if len(entries) == 1:
        return entries[0]
    run = _Entry(f"{entries[0].name} … {entries[-1].name}", min(e.phase for e in entries))
    run.inner = {(str(i), entry.phase, None): entry for i, entry in enumerate(entries)}
    return run


def _tree(operations: Sequence[DrawnOperation]) -> _Entry:
    depth, root = _layer_depth(operations), _Entry("")
    by_task = len({op.task for op in operations}) > 1
    for number, op in enumerate(operations):
        scope = root.entry(op.task, FORWARD) if by_task else root
        for name in op.layer[:depth]:
            scope = scope.entry(name, FORWARD)
        if op.phase != FORWARD:
            scope = scope.entry(PHASES[op.phase], op.phase)
        for name in (*op.layer[depth:], *op.inside):
            scope = scope.entry(name, op.phase)
        scope.entry(op.name, op.phase, number)
    if by_task:
        root.inner = {key: task.simplified(keeps=True) for key, task in root.inner.items()}
        return root
    return root.simplified(keeps=True)


def _layer_depth(operations: Sequence[DrawnOperation]) -> int:
    """Return how many components of a name tell the layer."""
    scopes = [op.layer for op in operations if op.phase == FORWARD]
    deepest = max(map(len, scopes), default=1)
    for depth in range(1, deepest):
        sizes = collections.Counter(scope[:depth] for scope in scopes if len(scope) >= depth)
        boxes = len(sizes) + len(scopes) - sum(sizes.values())
        inside = len({scope[: depth + 1] for scope in scopes})
        is_split = boxes >= LEAST_BOXES and max(sizes.values()) * 2 <= len(scopes)
        if is_split or inside > MOST_BOXES:
            return depth
    return max(1, deepest)


# -- boxes in rows


def _add_boxes(entry: _Entry, parent: int | None, boxes: list[Box]) -> int:
    """Append the boxes of an entry and return the place of its own."""
    box, place = Box(entry.name, entry.phase, parent, entry.operation), len(boxes)
    box.members = sorted(entry.operations())
    boxes.append(box)
    box.children = [_add_boxes(inner, place, boxes) for inner in entry.bundled()]
    return place


def _set_rows(picture: Picture, operations: Sequence[DrawnOperation]) -> None:
    """Set the rows of all boxes: the longest path of values from the first row.

    Forward operations decide the order of groups; values of later groups do not count, as the
    gradients that a layer passes back.
    """
    before: dict[int, set[int]] = {}
    for value in picture.values:
        for user in value.users:
            a, b = _siblings(picture, picture.box_of[value.source], picture.box_of[user])
            if a != b:
                before.setdefault(b, set()).add(a)
    keys = [_place_in_order(operations, box) for box in picture.boxes]
    for siblings in (picture.tops, *(box.children for box in picture.boxes)):
        _set_rows_of(picture.boxes, siblings, before, keys)


def _siblings(picture: Picture, a: int, b: int) -> tuple[int, int]:
    """Return the outermost boxes around `a` and around `b` that differ."""
    above_a, above_b = _outwards(picture.boxes, a), _outwards(picture.boxes, b)
    for one, other in zip(above_a, above_b, strict=False):
        if one != other:
            return one, other
    return a, a


def _outwards(boxes: Sequence[Box], place: int) -> list[int]:
    chain = [place]
    while (outer := boxes[chain[-1]].parent) is not None:
        chain.append(outer)
    return chain[::-1]


def _place_in_order(operations: Sequence[DrawnOperation], box: Box) -> int:
    """Return the median place of the operations of its first phase; of a variable -1.

    Reads, which a plan may begin with, count only in a box that has no other operations.
    """
    members = [(i, operations[i]) for i in box.members]
    phase = min(op.phase for _, op in members)
    first = [(i, op) for i, op in members if op.phase == phase and not op.is_variable]
    places = [i for i, op in first if not op.is_read] or [i for i, _ in first]
    return places[len(places) // 2] if places else -1


def _set_rows_of(
    boxes: Sequence[Box], siblings: list[int], before: dict[int, set[int]], keys: Sequence[int]
) -> None:
    siblings.sort(key=lambda place: (keys[place], place))
    users: dict[int, list[int]] = {}
    for place in siblings:
        earlier = [b for b in before.get(place, ()) if keys[b] < keys[place]]
        boxes[place].row = max((boxes[b].row + 1 for b in earlier), default=0)
        for b in earlier:
            users.setdefault(b, []).append(place)
    for place in siblings:  # what needs nothing stands above its first user
        if boxes[place].row == 0 and place in users:
            boxes[place].row = min(boxes[user].row for user in users[place]) - 1
    siblings.sort(key=lambda place: (boxes[place].row, keys[place], place))


def _open_layers(picture: Picture) -> None:
    """Open the tasks, the driver's first, and then groups until layers are seen.

    A server with many variables stays closed: each would have edges of its own to a worker.
    """
    boxes, opened, count = picture.boxes, picture.opened, len(picture.tops)
    driver = next((place for place in picture.tops if 0 in boxes[place].members), -1)
    is_task = {place for place in picture.tops if boxes[place].name.startswith("/job:")}
    is_server = {place for place in is_task if boxes[place].name.startswith("/job:ps")}
    waiting = [
        place
        for place in picture.tops
        if place not in is_server or len(boxes[place].children) <= MOST_OF_TASK
    ]
    while waiting:
        place = max(waiting, key=lambda p: (p == driver, p in is_task, len(boxes[p].members)))
        waiting.remove(place)
        box, more = boxes[place], len(boxes[place].children) - 1
        wanted = place in is_task or count < LEAST_BOXES
        wanted |= len(box.members) * 2 > len(picture.operations)
        if box.children and box.phase == FORWARD and wanted and count + more <= MOST_BOXES:
            opened.add(place)
            count += more
            waiting += box.children
