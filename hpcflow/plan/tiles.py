"""Updates of large variables in tiles: what a formula computes for a tile stays in the cache.

Element by element, a formula and the updates that end it need no other order than their own: all
its operations on one tile come before any of the next. So its temporaries are of the size of a
tile, and between two tiles a server may look after others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from hpcflow.graph.shape import is_known
from hpcflow.plan.ir import Node, Part, Ref
from hpcflow.plan.nested import FRAMES
from hpcflow.plan.rewrite import topological
from hpcflow.plan.shard import ELEMENTWISE
from hpcflow.plan.strands import Strand, home, users

TILE = 32 << 10  # elements: those of a formula's values together fit a core's L2 cache
LARGE = 4 * TILE  # elements: smaller values are in the cache as they are
UPDATES = {"Assign", "AssignAdd", "AssignSub"}
SAME_ELEMENTS = {"Identity", "Reshape", "ExpandDims", "Squeeze"}  # views in the order they had


@dataclasses.dataclass(frozen=True)
class Group:
    """Nodes of one strand that are computed tile by tile, in their order; all of `size` elements.

    `scratch` are values that nobody else uses: they have the size of a tile.
    """

    nodes: tuple[str, ...]
    size: int
    scratch: frozenset[Ref]

    @property
    def last(self) -> str:
        """The node whose end is the group's."""
        return self.nodes[-1]


def arranged(
    part: Part, strands: list[Strand], info: Callable[[Node], Any]
) -> tuple[Part, list[Strand], dict[str, Group]]:
    """The part and its strands with the nodes of each group side by side; the group of each node.

    Only the order within strands changes, and only of nodes that do not depend on each other.
    """
    chosen = _chosen(part, strands, info)
    if not chosen:
        return part, strands, {}
    new: list[Strand] = []
    groups: list[list[str]] = []
    for strand in strands:
        items = _Items(part)
        for name in strand.nodes:
            items.add(part.nodes[name], chosen.get(name))
        groups += [item.nodes for item in items.items if item.shape is not None]
        new.append(dataclasses.replace(strand, nodes=tuple(items.names())))
    position = {name: i for i, name in enumerate(part.nodes)}
    inside = [pair for strand in new for pair in pairwise(strand.nodes)]
    names = topological(part.nodes, position.__getitem__, inside)
    part = dataclasses.replace(part, nodes={name: part.nodes[name] for name in names})
    found = [_group(part, names) for names in groups]
    return part, new, {name: group for group in found for name in group.nodes}


def _group(part: Part, names: list[str]) -> Group:
    """What the group of these nodes is."""
    mine, taken = set(names), users(part)
    made = [Ref(name, i) for name in names for i in range(len(part.nodes[name].specs))]
    outside = set(part.fetches)
    scratch = {r for r in made if r not in outside and mine.issuperset(taken.get(r, ()))}
    return Group(tuple(names), math.prod(_shape(part, part.nodes[names[0]])), frozenset(scratch))


def _chosen(
    part: Part, strands: list[Strand], info: Callable[[Node], Any]
) -> dict[str, tuple[Any, ...]]:
    """The nodes that may be computed in tiles, with what all of a group have in common.

    They are updates of large variables and what is computed element by element for them alone.
    """
    where = home(strands)
    chosen: dict[str, tuple[Any, ...]] = {}
    for name in reversed(part.nodes):
        node = part.nodes[name]
        if node.type not in UPDATES or node.attrs.get("initial") or not _fits(part, node, info):
            continue  # an initial value is made in the variable's own memory
        alike = (_shape(part, node), node.device, where[name])
        wanted = [name]
        while wanted:
            node = part.nodes[wanted.pop()]
            chosen[node.name] = alike
            for before in (part.nodes[ref.node] for ref in node.inputs):
                there = where.get(before.name) == alike[2] and before.device == alike[1]
                if there and before.name not in chosen and before.type in ELEMENTWISE:
                    if _shape(part, before) == alike[0] and _fits(part, before, info):
                        wanted.append(before.name)
    return chosen


def _shape(part: Part, node: Node) -> Any:
    """The shape of what a node computes or updates."""
    if node.type in UPDATES:
        return tuple(node.attrs["shape"])
    return node.specs[0].shape


def _fits(part: Part, node: Node, info: Callable[[Node], Any]) -> bool:
    """Whether a node can be computed tile by tile: operands are scalars, or of its own shape."""
    shape = _shape(part, node)
    if not is_known(shape) or math.prod(shape) < LARGE or "/cpu:" not in node.device:
        return False
    if node.type not in UPDATES:
        form = info(node).form
        if form not in ("ufunc", "out") or len(node.specs) != 1 or not node.specs[0].sized:
            return False
        if Ref(node.name) in part.fetches:  # has memory of its own, made in each step
            return False
    for i, ref in enumerate(node.inputs):
        if i in node.row.writes:
            continue
        given = part.nodes[ref.node].specs[ref.index]
        if given.shape != shape and given.shape != ():
            return False
        if given.shape == shape and not _in_order(part, ref, info):
            return False
    return True


def _in_order(part: Part, ref: Ref, info: Callable[[Node], Any]) -> bool:
    """Whether a value's elements lie in the order of its indices, or in memory of their own."""
    node = part.nodes[ref.node]
    while node.type in SAME_ELEMENTS and info(node).form == "view":
        node = part.nodes[node.inputs[0].node]
    has_kernel = bool(node.inputs) and node.type not in FRAMES and not node.row.waits
    if not has_kernel or node.type in ("ReadVariable", "Recv", "Copy"):
        return True
    return info(node).form != "view"


class _Items:
    """The nodes of a strand as they come, except that those alike go where the first of them is.

    Place 2i is in front of item i, where scalars are computed that a group needs, 2i + 1 in it.
    """

    def __init__(self, part: Part) -> None:
        self.part = part
        self.items: list[_Item] = []
        self.place: dict[str, int] = {}
        self.written: dict[str, int] = {}  # handle -> place of its last update
        self.touched: dict[str, int] = {}  # handle -> place of its last use
        self.floor = 0  # place of the last node that nothing passes

    def names(self) -> Iterable[str]:
        """All nodes in their new order."""
        for item in self.items:
            yield from item.first
            yield from item.nodes

    def add(self, node: Node, alike: tuple[Any, ...] | None) -> None:
        """Put a node where it may stand."""
        after = max([self.floor, *(self.place.get(name, 0) for name in node.before())])
        writes = {node.inputs[i].node for i in node.row.writes}
        uses = {ref.node for ref in node.inputs if self.part.nodes[ref.node].is_state}
        after = max([after, *(self.touched.get(h, 0) for h in writes)])
        after = max([after, *(self.written.get(h, 0) for h in uses)])
        place = self._find(node, alike, after)
        self.place[node.name] = place
        if self._stays(node):
            self.floor = place
        for handle in uses:
            self.touched[handle] = max(place, self.touched.get(handle, 0))
        for handle in writes:
            self.written[handle] = place

    def _find(self, node: Node, alike: tuple[Any, ...] | None, after: int) -> int:
        if alike is not None:
            for i in range(len(self.items) - 1, after // 2 - 1, -1):
                if self.items[i].shape == alike:
                    self.items[i].nodes.append(node.name)
                    return 2 * i + 1
        elif self._is_light(node):
            for i in range((after + 1) // 2, len(self.items)):
                if self.items[i].shape is not None:
                    self.items[i].first.append(node.name)
                    return 2 * i
        self.items.append(_Item([], [node.name], alike))
        return 2 * len(self.items) - 1

    @staticmethod
    def _stays(node: Node) -> bool:
        """Whether all that came before it stays there, and all that follows it too."""
        acts = node.row.waits or node.row.stateful or node.type in FRAMES or node.type == "Send"
        return acts and not node.is_state

    def _is_light(self, node: Node) -> bool:
        """Whether it may as well come earlier: a scalar, a read, an update of a scalar."""
        if self._stays(node) or node.type == "Copy":
            return False
        scalar = all(spec.shape == () for spec in node.specs)
        if node.row.writes:
            return scalar and tuple(node.attrs.get("shape", (1,))) == ()
        return scalar or node.type in ("ReadVariable", "Const")


@dataclasses.dataclass
class _Item:
    """One node, or a group of nodes alike in `shape` (and place) with what must come first."""

    first: list[str]
    nodes: list[str]
    shape: tuple[Any, ...] | None
