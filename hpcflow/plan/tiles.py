"""Updates of large variables in tiles: what a formula computes for a tile stays in the cache.

Element by element, a formula and the updates that end it need no other order than their own: all
its operations on one tile come before any of the next. So its temporaries are of the size of a
tile, and between two tiles a server may look after others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from hpcflow.graph.shape import is_known
from hpcflow.plan.alike import Items
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
    chosen = tiled(part, strands, info)
    if not chosen:
        return part, strands, {}
    new: list[Strand] = []
    groups: list[list[str]] = []
    for strand in strands:
        items = Items(part)
        for name in strand.nodes:
            items.add(part.nodes[name], [chosen[name]] if name in chosen else [])
        groups += [item.nodes for item in items.items if item.key is not None]
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


def tiled(
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
