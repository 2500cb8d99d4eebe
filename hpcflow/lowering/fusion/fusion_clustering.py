"""Nodes of a strand that are alike are put side by side, where nothing depends on their order."""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hpcflow.plan.ir.control_flow_nodes import FRAMES
from hpcflow.plan.ir.program import Node, Part

Key = Any  # what nodes that go together have in common


def same(a: Key, b: Key) -> Key | None:
    """The key of nodes with either of two, None if they do not go together."""
    return a if a == b else None


class Items:
    """The nodes of a strand as they come, except that those alike go where the first of them is.

    Place 2i is in front of item i, where scalars are computed that a group needs, 2i + 1 in it.
    """

    def __init__(self, part: Part, joined: Callable[[Key, Key], Key | None] = same) -> None:
        self.part, self.joined = part, joined
        self.items: list[Item] = []
        self.place: dict[str, int] = {}
        self.written: dict[str, int] = {}  # handle -> place of its last update
        self.touched: dict[str, int] = {}  # handle -> place of its last use
        self.floor = 0  # place of the last node that nothing passes

    def names(self) -> Iterable[str]:
        """All nodes in their new order."""
        for item in self.items:
            yield from item.first
            yield from item.nodes

    def add(
        self, node: Node, keys: Sequence[Key] = (), closes: bool = False, behind: Sequence[str] = ()
    ) -> Key | None:
        """Put a node where it may stand: with others of one of `keys`, the first that is there.

        That key is returned. The values of a node that `closes` are there when its item is over, as
        those of the nodes `behind` have to be for this one; it goes to the first such item, which
        may make what it sums up, all others to the last.
        """
        after = self._after(node, behind)
        writes, uses = self._handles(node)
        place, key = self._find(node, keys, after, closes)
        self.place[node.name] = place + closes
        if self._stays(node):
            self.floor = place
        for handle in uses:
            self.touched[handle] = max(place, self.touched.get(handle, 0))
        for handle in writes:
            self.written[handle] = place
        return key

    def reaches(self, node: Node, key: Key, behind: Sequence[str] = ()) -> bool:
        """Whether there is an item of `key` that a node can still be put in."""
        later = self.items[self._after(node, behind) // 2 :]
        return any(i.key is not None and self.joined(i.key, key) is not None for i in later)

    def _handles(self, node: Node) -> tuple[set[str], set[str]]:
        """Of the state that a node writes, and of all that it uses."""
        writes = {node.inputs[i].node for i in node.row.writes}
        return writes, {ref.node for ref in node.inputs if self.part.nodes[ref.node].is_state}

    def _after(self, node: Node, behind: Sequence[str]) -> int:
        """The first place where a node may stand."""
        writes, uses = self._handles(node)
        return max(
            [
                self.floor,
                *(self.place.get(name, 0) for name in node.before()),
                *((self.place.get(name, 0) + 1) // 2 * 2 for name in behind),
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
        own = keys[-1] if keys else None
        self.items.append(Item([], [node.name], own))
        return 2 * len(self.items) - 1, own

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


def in_sequence(part: Part, groups: Sequence[list[str]]) -> list[list[str]]:
    """Groups of nodes so that each follows those it depends on, by values or by order alone.

    Where groups depend on each other in a cycle, all are cut between the nodes that are on it. The
    names of each group are in an order that respects their edges.
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
        found: dict[tuple[int, int], list[str]] = {}
        for k, names in enumerate(groups):
            for name in names:
                found.setdefault((level[name], k), []).append(name)
        return [found[key] for key in sorted(found)]


@dataclasses.dataclass
class Item:
    """One node, or a group of nodes alike in `key`, with what must come first."""

    first: list[str]
    nodes: list[str]
    key: Key | None


def clusters(names: Sequence[str], marks: Callable[[str], Iterable[Any]]) -> Iterator[list[str]]:
    """The names in groups, each of those that marks lead from one to the other."""
    group = {name: {name} for name in names}
    owner: dict[Any, str] = {}
    for name in names:
        for mark in marks(name):
            mate = owner.setdefault(mark, name)
            if group[mate] is not group[name]:
                group[mate] |= group[name]
                for other in group[name]:
                    group[other] = group[mate]
    done: set[str] = set()
    for name in names:
        if name not in done:
            done |= group[name]
            yield [other for other in names if other in group[name]]
