"""Fusion clustering: reorders a segment so that nodes with one key are contiguous.

Only nodes that do not depend on each other change places.
"""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hpcflow.graph.dtypes import history
from hpcflow.plan.ir.program import Node, Partition

Key = Any  # nodes with joinable keys may be in one item


def joint_key(a: Key, b: Key) -> Key | None:
    """The joint key of nodes with these two keys; None if they cannot be in one item."""
    return a if a == b else None


class SegmentItems:
    """The nodes of a segment in their order, but nodes with joinable keys move to one item.

    Position 2i is in front of item i, where scalars that a group needs are computed; 2i + 1 is in
    it.
    """

    def __init__(
        self, part: Partition, joined: Callable[[Key, Key], Key | None] = joint_key
    ) -> None:
        self.part, self.joined = part, joined
        self.items: list[SegmentItem] = []
        self.position: dict[str, int] = {}
        self.written: dict[str, int] = {}  # handle -> position of its last update
        self.touched: dict[str, int] = {}  # handle -> position of its last use
        self.floor = 0  # position of the last node that no other node may cross

    def names(self) -> Iterable[str]:
        """All nodes in their new order."""
        for item in self.items:
            yield from item.first
            yield from item.nodes

    def add(
        self,
        node: Node,
        keys: Sequence[Key] = (),
        closes: bool = False,
        predecessors: Sequence[str] = (),
    ) -> Key | None:
        """Add a node to an existing item with a key joinable to one of `keys`, else to a new item.

        Return the key that was used. `keys` are tried in order. The values of a node that `closes`
        are available only after its item, and so are the values of nodes `predecessors` for this
        node. A node that `closes` goes to the first item possible, which may compute what it sums;
        others go to the last.
        """
        after = self._after(node, predecessors)
        writes, uses = self._handles(node)
        place, key = self._find(node, keys, after, closes)
        self.position[node.name] = place + closes
        if self._is_barrier(node):
            self.floor = place
        for handle in uses:
            self.touched[handle] = max(place, self.touched.get(handle, 0))
        for handle in writes:
            self.written[handle] = place
        return key

    def has_joinable_item(self, node: Node, key: Key, predecessors: Sequence[str] = ()) -> bool:
        """Whether an item with a key joinable to `key` exists that a node can still be added to."""
        later = self.items[self._after(node, predecessors) // 2 :]
        return any(i.key is not None and self.joined(i.key, key) is not None for i in later)

    def _handles(self, node: Node) -> tuple[set[str], set[str]]:
        """The handles of state that a node writes, and those of all state that it uses."""
        writes = {node.inputs[i].node for i in node.row.writes}
        return writes, {ref.node for ref in node.inputs if self.part.nodes[ref.node].is_state}

    def _after(self, node: Node, predecessors: Sequence[str]) -> int:
        """The first position that a node may have."""
        writes, uses = self._handles(node)
        return max(
            [
                self.floor,
                *(self.position.get(name, 0) for name in node.before()),
                *((self.position.get(name, 0) + 1) // 2 * 2 for name in predecessors),
                *(self.touched.get(handle, 0) for handle in writes),
                *(self.written.get(handle, 0) for handle in uses),
            ]
        )

    def _find(
        self, node: Node, keys: Sequence[Key], after: int, early: bool
    ) -> tuple[int, Key | None]:
        for key in keys:
            places = range(after // 2, len(self.items))
            for i in places if early else reversed(places):
                item = self.items[i]
                joined = None if item.key is None else self.joined(item.key, key)
                if joined is not None:
                    item.key = joined
                    item.nodes.append(node.name)
                    return 2 * i + 1, key
        if not keys and self._is_light(node):
            for i in range((after + 1) // 2, len(self.items)):
                if self.items[i].key is not None:
                    self.items[i].first.append(node.name)
                    return 2 * i, None
        new_key = keys[-1] if keys else None
        self.items.append(SegmentItem([], [node.name], new_key))
        return 2 * len(self.items) - 1, new_key

    def _is_barrier(self, node: Node) -> bool:
        """Whether no other node may be moved across this node."""
        row = node.row
        acts = row.waits or row.control_flow or row.message == "send"
        if row.stateful and not row.draws_rows:
            acts = acts or not self._takes_list(node)
        return bool(acts) and not node.is_state

    def _takes_list(self, node: Node) -> bool:
        """Whether a node takes or makes a tensor list: its operations are ordered by their edges.

        Those of a tensor array are not: several may take it before one changes it in place.
        """
        return history in (s.dtype for s in (*node.specs, *map(self.part.spec, node.inputs)))

    def _is_light(self, node: Node) -> bool:
        """Whether a node may be moved ahead of an item.

        It is a scalar, its update, a read, a source, or takes a value from a tensor list.
        """
        if self._is_barrier(node) or node.row.message == "copy":
            return False
        if len(node.specs) > 1 and node.specs[0].dtype == history:
            return True
        scalar = all(spec.shape == () for spec in node.specs)
        if node.row.writes:
            return scalar and tuple(node.attrs.get("shape", (1,))) == ()
        return scalar or node.row.variable == "read" or bool(node.row.source)


def ordered_groups(part: Partition, groups: Sequence[list[str]]) -> list[list[str]]:
    """The groups in a topological order of their values and control dependencies.

    Groups that depend on each other in a cycle are split between the nodes on it. The names of each
    group are in an order that respects their edges.
    """
    owner = {name: k for k, names in enumerate(groups) for name in names}
    before = {name: [b for b in part.nodes[name].before() if b in owner] for name in owner}
    needs = {
        k: dict.fromkeys(owner[b] for name in names for b in before[name] if owner[b] != k)
        for k, names in enumerate(groups)
    }
    try:
        return [groups[k] for k in graphlib.TopologicalSorter(needs).static_order()]
    except graphlib.CycleError:
        level: dict[str, int] = {}
        for name in graphlib.TopologicalSorter(before).static_order():
            level[name] = max(
                (level[b] + (owner[b] != owner[name]) for b in before[name]), default=0
            )
        subgroups: dict[tuple[int, int], list[str]] = {}
        for k, names in enumerate(groups):
            for name in names:
                subgroups.setdefault((level[name], k), []).append(name)
        return [subgroups[key] for key in sorted(subgroups)]


@dataclasses.dataclass
class SegmentItem:
    """One node, or a group of nodes with one `key`; the nodes `first` run before them."""

    first: list[str]
    nodes: list[str]
    key: Key | None


def connected_components(
    names: Sequence[str], marks: Callable[[str], Iterable[Any]]
) -> Iterator[list[str]]:
    """Partition names into connected components: two names are connected if they share a mark."""
    group = {name: {name} for name in names}
    owner: dict[Any, str] = {}
    for name in names:
        for mark in marks(name):
            mate = owner.setdefault(mark, name)
            if group[mate] is not group[name]:
                group[mate] |= group[name]
                for member in group[name]:
                    group[member] = group[mate]
    visited: set[str] = set()
    for name in names:
        if name not in visited:
            visited |= group[name]
            yield [member for member in names if member in group[name]]
