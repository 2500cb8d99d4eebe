"""The order of reads and updates that no edge of the graph orders: the read comes first.

So a read sees the updates that it follows and no others of its step. A read that follows nothing
stands before the update in the order of the step. One that follows something may have to wait for
another task, so the update follows it by a control input. One behind a queue sees what is there
when it runs: the update may be what the queue waits for.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hpcflow.plan.ir.control_flow_nodes import whole
from hpcflow.plan.ir.program import Node
from hpcflow.plan.ir.program_rewriting import behind_cycles, topological
from hpcflow.plan.verification.effect_verifier import used_state

Pair = tuple[str, str]  # names of nodes: the first runs before the second


def with_reads_first(nodes: Mapping[str, Node], priority: Callable[[str], Any]) -> dict[str, Node]:
    """The nodes so that each follows what it needs, and updates follow reads.

    Of the nodes that are ready the lowest `priority` comes first. A branch or loop that updates a
    variable counts as an update of it. Where the pairs contradict each other (two variables, each
    read behind an update of the other), pairs of earlier reads count.
    """
    order = topological(nodes, priority)
    pairs = list(_pairs(nodes, order))
    if pairs:
        if behind_cycles(nodes, pairs):
            pairs = _without_cycles(nodes, pairs)
        order = topological(nodes, priority, pairs)
    behind = _behind_waits(nodes, order) if pairs else set()
    reads: dict[str, list[str]] = collections.defaultdict(list)
    for read, update in pairs:
        if _may_wait(nodes, read) and read not in behind:
            reads[update].append(read)
    found = {name: nodes[name] for name in order}
    for update, before in reads.items():
        control = dict.fromkeys((*nodes[update].control, *before))
        found[update] = nodes[update].but(control=tuple(control))
    return found


def _behind_waits(nodes: Mapping[str, Node], order: Iterable[str]) -> set[str]:
    """The nodes that wait for what others do, for a queue for example, and those that follow."""
    found: set[str] = set()
    for name in order:
        node = nodes[name]
        if any(n.row.waits for n in whole(node)) or not found.isdisjoint(node.before()):
            found.add(name)
    return found


def _may_wait(nodes: Mapping[str, Node], read: str) -> bool:
    """Whether a read follows anything but its variable."""
    return any(nodes[b].type != "Variable" for b in nodes[read].before())


def _pairs(nodes: Mapping[str, Node], order: list[str]) -> Iterator[Pair]:
    """All pairs of a read and an update that it does not follow; none if `order` is enough."""
    reads: dict[str, list[str]] = collections.defaultdict(list)
    writes: dict[str, list[str]] = collections.defaultdict(list)
    for name in order:
        used, updated = used_state(nodes[name])
        for state in used:
            (writes if state in updated else reads)[state].append(name)
    place = {name: i for i, name in enumerate(order)}
    both = [state for state in writes if state in reads]
    if not any(
        place[read] > place[writes[state][0]] or _may_wait(nodes, read)
        for state in both
        for read in reads[state]
    ):
        return
    bits = {w: 1 << i for i, w in enumerate(dict.fromkeys(w for s in both for w in writes[s]))}
    follows: dict[str, int] = {}  # of each node: the updates that it follows
    for name in order:
        follows[name] = 0
        for b in nodes[name].before():
            follows[name] |= follows[b] | bits.get(b, 0)
    found = ((r, w) for s in both for r in reads[s] for w in writes[s])
    yield from sorted(
        (pair for pair in found if not follows[pair[0]] & bits[pair[1]]),
        key=lambda pair: (place[pair[0]], place[pair[1]]),
    )


def _without_cycles(nodes: Mapping[str, Node], pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs but for those that close a cycle with the nodes' edges and the pairs before."""
    after: dict[str, set[str]] = collections.defaultdict(set)
    for node in nodes.values():
        for before in node.before():
            after[before].add(node.name)
    kept = []
    for read, update in pairs:
        seen, stack = {update}, [update]
        while stack:
            more = after[stack.pop()] - seen
            seen |= more
            stack += more
        if read not in seen:
            after[read].add(update)
            kept.append((read, update))
    return kept
