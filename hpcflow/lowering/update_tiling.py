"""Loop tiling of large variable updates: the temporaries of a tile stay in the cache.

An elementwise formula and the updates that end it need only their own order: all operations run on
one tile before any runs on the next. So the temporaries have the size of a tile, and a server can
do other work between two tiles.
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
from hpcflow.lowering.fusion.fusion_clustering import SegmentItems, ordered_groups
from hpcflow.lowering.fusion.update_fusion import (
    UpdateDescription,
    UpdateLoopFactory,
    describe_update,
    independent_groups,
    updated_shape,
)
from hpcflow.lowering.segments_between_waits import Segment, segment_by_node, value_consumers
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.plan.ir.program_rewriting import topological_order

TILE = 32 << 10  # elements: the tiles of all values of a formula fit the L2 cache of a core
MIN_TILED_ELEMENTS = 4 * TILE  # elements: smaller values stay in the cache without tiling


@dataclasses.dataclass(frozen=True)
class TileGroup:
    """Nodes of one segment that are computed tile by tile; all have `size` elements.

    The nodes run in their order. `scratch` are values that only the group uses: they have the size
    of a tile. With a `loop`, the loop is generated, and they have no memory.
    """

    nodes: tuple[str, ...]
    size: int
    scratch: frozenset[Ref]
    loop: UpdateDescription | None = None

    @property
    def last(self) -> str:
        """The node at which the code of the group is emitted."""
        return self.nodes[-1]


def tile_updates(
    part: Partition,
    segments: list[Segment],
    info: Callable[[Node], Any],
    writes: UpdateLoopFactory | None = None,
    alone: frozenset[str] = frozenset(),
) -> tuple[Partition, list[Segment], dict[str, TileGroup]]:
    """The partition and its segments with contiguous groups, and the group of each node.

    Only the order within segments changes, and only of nodes that do not depend on each other.
    `writes` says for which nodes loops can be generated, None if for none. Updates in `alone` are
    in no group.
    """
    chosen = tile_groups(part, segments, info, writes, alone)
    if not chosen:
        return part, segments, {}
    new: list[Segment] = []
    groups: list[list[str]] = []
    for segment in segments:
        items = SegmentItems(part)
        for name in segment.nodes:
            items.add(part.nodes[name], [chosen[name]] if name in chosen else [])
        for item in items.items:
            if item.key is not None:
                ordered = ordered_groups(part, list(independent_groups(part, item.nodes)))
                item.nodes = [name for group in ordered for name in group]
                groups += ordered
        new.append(dataclasses.replace(segment, nodes=tuple(items.names())))
    untiled = {
        name
        for names in groups
        if writes is not None and not all(writes(part, part.nodes[name]) for name in names)
        for name in names
        if part.nodes[name].type in UPDATES and not part.nodes[name].row.tiled
    }
    if untiled:
        return tile_updates(part, segments, info, writes, alone | untiled)
    position = {name: i for i, name in enumerate(part.nodes)}
    inside = [pair for segment in new for pair in pairwise(segment.nodes)]
    names = topological_order(part.nodes, position.__getitem__, inside)
    part = dataclasses.replace(part, nodes={name: part.nodes[name] for name in names})
    new_groups = [_make_group(part, names, writes) for names in groups]
    return part, new, {name: group for group in new_groups for name in group.nodes}


def _make_group(part: Partition, names: list[str], writes: UpdateLoopFactory | None) -> TileGroup:
    """The group of the nodes `names`."""
    nodes = [part.nodes[name] for name in names]
    members, consumers = set(names), value_consumers(part)
    outputs = [Ref(node.name, i) for node in nodes for i in range(len(node.specs))]
    outside = set(part.fetches)
    scratch = {r for r in outputs if r not in outside and members.issuperset(consumers.get(r, ()))}
    loop = None
    if writes is not None and all(writes(part, node) for node in nodes):
        loop = describe_update(part, nodes, [r for r in outputs if r not in scratch], writes.exact)
    return TileGroup(tuple(names), math.prod(updated_shape(nodes[0])), frozenset(scratch), loop)


def tile_groups(
    part: Partition,
    segments: list[Segment],
    info: Callable[[Node], Any],
    writes: UpdateLoopFactory | None,
    alone: frozenset[str] = frozenset(),
) -> dict[str, tuple[Any, ...]]:
    """The nodes that are computed in loops, each with the key that all nodes of its group share.

    They are updates and the elementwise nodes they depend on. Loops are generated where possible;
    else large variables are updated in tiles.
    """
    segment_of = segment_by_node(segments)
    chosen: dict[str, tuple[Any, ...]] = {}

    def fits(node: Node) -> bool:
        written = writes is not None and writes(part, node)
        return _can_tile(part, node, info, written)

    for name in reversed(part.nodes):
        node = part.nodes[name]
        if node.type not in UPDATES or node.attrs.get("initial") or name in alone or not fits(node):
            continue  # an initial value is computed in the memory of the variable
        if node.attrs.get("uncounted"):
            continue  # a loop counts an update
        alike = (updated_shape(node), node.device, segment_of[name])
        stack = [name]
        while stack:
            node = part.nodes[stack.pop()]
            chosen[node.name] = alike
            for before in (part.nodes[ref.node] for ref in node.inputs):
                there = segment_of.get(before.name) == alike[2] and before.device == alike[1]
                if there and before.name not in chosen and before.row.update_formula:
                    if updated_shape(before) == alike[0] and fits(before):
                        stack.append(before.name)
    return chosen


def _can_tile(part: Partition, node: Node, info: Callable[[Node], Any], written: bool) -> bool:
    """Whether a node can be in a group: its operands are scalars, or have its own shape.

    `written`: a loop can be generated for it.
    """
    if node.kind != "cpu" and not written:
        return False
    shape = updated_shape(node)
    if not written and not (is_known(shape) and math.prod(shape) >= MIN_TILED_ELEMENTS):
        return False
    if node.type in UPDATES:
        if not written and not node.row.tiled:
            return False
    else:
        form = info(node).form
        if form not in ("ufunc", "out") or len(node.specs) != 1 or not node.specs[0].sized:
            return False
        if Ref(node.name) in part.fetches:  # allocated in every step
            return False
    for i, ref in enumerate(node.inputs):
        if i in node.row.writes:
            continue
        spec = part.spec(ref)
        if spec.shape != shape and spec.shape != ():
            return False
        if spec.shape == shape and not _is_c_order(part, ref, info):
            return False
    return True


def _is_c_order(part: Partition, ref: Ref, info: Callable[[Node], Any]) -> bool:
    """Whether a value is in C order, or in memory of its own."""
    node = part.nodes[ref.node]
    while node.row.view == "same_order" and info(node).form == "view":
        node = part.nodes[node.inputs[0].node]
    row = node.row
    if not node.inputs or row.control_flow or row.waits or row.no_kernel:
        return True
    return info(node).form != "view"


def may_be_strided(part: Partition, ref: Ref, info: Callable[[Node], Any]) -> bool:
    """Whether a value may be no array, or not C-contiguous."""
    node = part.nodes[ref.node]
    while node.row.contiguous_view and ref not in part.fetches:
        ref = node.inputs[0]
        node = part.nodes[ref.node]
    if node.row.source == "constant":
        return not np.asarray(node.attrs["value"]).flags.c_contiguous
    if node.row.variable == "read" or node.row.message == "receive" or node.row.collective:
        return not node.specs[ref.index].sized
    if ref in part.fetches or not node.inputs or node.row.waits or node.is_state:
        return True
    row = node.row
    if row.makes_contiguous:
        return False
    copied = row.control_flow or row.message == "copy"
    return bool(copied) or info(node).form not in ("ufunc", "out")
