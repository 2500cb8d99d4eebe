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

import numpy as np

from hpcflow.codegen.optimizer_formulas import UPDATES
from hpcflow.graph.static_shape import is_known
from hpcflow.lowering.fusion.fusion_clustering import Items, in_sequence
from hpcflow.lowering.fusion.update_fusion import Described, Writer, apart, described, shape_of
from hpcflow.lowering.segments_between_waits import Strand, home, users
from hpcflow.plan.distribution.variable_sharding import ELEMENTWISE
from hpcflow.plan.ir.control_flow_nodes import FRAMES
from hpcflow.plan.ir.program import Node, Part, Ref
from hpcflow.plan.ir.program_rewriting import SAME_ORDER, topological

TILE = 32 << 10  # elements: those of a formula's values together fit a core's L2 cache
LARGE = 4 * TILE  # elements: smaller values are in the cache as they are
LOOSE_VIEWS = {"Reshape", "Rows"}  # as loose as what they show
TILED = {"Assign", "AssignAdd", "AssignSub"}  # the updates that can be computed in tiles


@dataclasses.dataclass(frozen=True)
class Group:
    """Nodes of one strand that are computed tile by tile, in their order; all of `size` elements.

    `scratch` are values that nobody else uses: they have the size of a tile. If there is a `loop`,
    it is generated, and they are nowhere.
    """

    nodes: tuple[str, ...]
    size: int
    scratch: frozenset[Ref]
    loop: Described | None = None

    @property
    def last(self) -> str:
        """The node whose end is the group's."""
        return self.nodes[-1]


def arranged(
    part: Part,
    strands: list[Strand],
    info: Callable[[Node], Any],
    writes: Writer | None = None,
    alone: frozenset[str] = frozenset(),
) -> tuple[Part, list[Strand], dict[str, Group]]:
    """The part and its strands with the nodes of each group side by side; the group of each node.

    Only the order within strands changes, and only of nodes that do not depend on each other.
    `writes` tells what loops can be generated for, None if they cannot be; updates that are `alone`
    are in no group.
    """
    chosen = grouped(part, strands, info, writes, alone)
    if not chosen:
        return part, strands, {}
    new: list[Strand] = []
    groups: list[list[str]] = []
    for strand in strands:
        items = Items(part)
        for name in strand.nodes:
            items.add(part.nodes[name], [chosen[name]] if name in chosen else [])
        for item in items.items:
            if item.key is not None:
                found = in_sequence(part, list(apart(part, item.nodes)))
                item.nodes = [name for group in found for name in group]
                groups += found
        new.append(dataclasses.replace(strand, nodes=tuple(items.names())))
    whole = {
        name
        for names in groups
        if writes is not None and not all(writes(part, part.nodes[name]) for name in names)
        for name in names
        if part.nodes[name].type in UPDATES.keys() - TILED
    }
    if whole:
        return arranged(part, strands, info, writes, alone | whole)
    position = {name: i for i, name in enumerate(part.nodes)}
    inside = [pair for strand in new for pair in pairwise(strand.nodes)]
    names = topological(part.nodes, position.__getitem__, inside)
    part = dataclasses.replace(part, nodes={name: part.nodes[name] for name in names})
    made = [_group(part, names, writes) for names in groups]
    return part, new, {name: group for group in made for name in group.nodes}


def _group(part: Part, names: list[str], writes: Writer | None) -> Group:
    """What the group of these nodes is."""
    nodes = [part.nodes[name] for name in names]
    mine, taken = set(names), users(part)
    made = [Ref(node.name, i) for node in nodes for i in range(len(node.specs))]
    outside = set(part.fetches)
    scratch = {r for r in made if r not in outside and mine.issuperset(taken.get(r, ()))}
    loop = None
    if writes is not None and all(writes(part, node) for node in nodes):
        loop = described(part, nodes, [r for r in made if r not in scratch], writes.exact)
    return Group(tuple(names), math.prod(shape_of(nodes[0])), frozenset(scratch), loop)


def grouped(
    part: Part,
    strands: list[Strand],
    info: Callable[[Node], Any],
    writes: Writer | None,
    alone: frozenset[str] = frozenset(),
) -> dict[str, tuple[Any, ...]]:
    """The nodes that are computed in loops, with what all of a group have in common.

    They are updates, and what is computed element by element for them: by generated loops, and in
    tiles where variables are large.
    """
    where = home(strands)
    chosen: dict[str, tuple[Any, ...]] = {}

    def fits(node: Node) -> bool:
        written = writes is not None and writes(part, node)
        return _fits(part, node, info, written)

    for name in reversed(part.nodes):
        node = part.nodes[name]
        if node.type not in UPDATES or node.attrs.get("initial") or name in alone or not fits(node):
            continue  # an initial value is made in the variable's own memory
        alike = (shape_of(node), node.device, where[name])
        wanted = [name]
        while wanted:
            node = part.nodes[wanted.pop()]
            chosen[node.name] = alike
            for before in (part.nodes[ref.node] for ref in node.inputs):
                there = where.get(before.name) == alike[2] and before.device == alike[1]
                if there and before.name not in chosen and before.type in ELEMENTWISE:
                    if shape_of(before) == alike[0] and fits(before):
                        wanted.append(before.name)
    return chosen


def _fits(part: Part, node: Node, info: Callable[[Node], Any], written: bool) -> bool:
    """Whether a node can be computed in a group: operands are scalars, or of its own shape.

    `written`: a loop can be generated for it.
    """
    if node.kind != "cpu" and not written:
        return False
    shape = shape_of(node)
    if not written and not (is_known(shape) and math.prod(shape) >= LARGE):
        return False
    if node.type in UPDATES:
        if not written and node.type not in TILED:
            return False
    else:
        form = info(node).form
        if form not in ("ufunc", "out") or len(node.specs) != 1 or not node.specs[0].sized:
            return False
        if Ref(node.name) in part.fetches:  # has memory of its own, made in each step
            return False
    for i, ref in enumerate(node.inputs):
        if i in node.row.writes:
            continue
        given = part.spec(ref)
        if given.shape != shape and given.shape != ():
            return False
        if given.shape == shape and not _in_order(part, ref, info):
            return False
    return True


def _in_order(part: Part, ref: Ref, info: Callable[[Node], Any]) -> bool:
    """Whether a value's elements lie in the order of its indices, or in memory of their own."""
    node = part.nodes[ref.node]
    while node.type in SAME_ORDER and info(node).form == "view":
        node = part.nodes[node.inputs[0].node]
    has_kernel = bool(node.inputs) and node.type not in FRAMES and not node.row.waits
    if not has_kernel or node.type in ("ReadVariable", "Recv", "Copy"):
        return True
    return info(node).form != "view"


def is_loose(part: Part, ref: Ref, info: Callable[[Node], Any]) -> bool:
    """Whether a value may be no array, or none whose elements lie in their order."""
    node = part.nodes[ref.node]
    while node.type in LOOSE_VIEWS and ref not in part.fetches:
        ref = node.inputs[0]
        node = part.nodes[ref.node]
    if node.type == "Const":
        return not np.asarray(node.attrs["value"]).flags.c_contiguous
    if node.type in ("ReadVariable", "Recv") or node.row.collective:
        return not node.specs[ref.index].sized
    if ref in part.fetches or not node.inputs or node.row.waits or node.is_state:
        return True
    return node.type in FRAMES or node.type == "Copy" or info(node).form not in ("ufunc", "out")
