"""Read/write order: where no edge orders a read and an update, the read comes first.

A read therefore sees the updates that it follows and no other updates of its step. A read without
predecessors precedes the update in the step order. A read with predecessors may have to wait for
another task, so the update gets a control input from it. A read behind a queue gets no such edge,
because the queue may wait for the update; it sees the value at the time it runs.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hpcflow.plan.ir.control_flow_nodes import node_with_nested
from hpcflow.plan.ir.program import Node
from hpcflow.plan.ir.program_rewriting import cyclic_nodes, topological_order
from hpcflow.plan.verification.effect_verifier import used_state

Pair = tuple[str, str]  # names of nodes: the first runs before the second


def order_reads_before_updates(
    nodes: Mapping[str, Node], priority: Callable[[str], Any]
) -> dict[str, Node]:
    """Return the nodes in topological order, with updates behind unordered reads.

    Among ready nodes the lowest `priority` comes first. A branch or loop that updates a variable
    counts as an update of it. If the (read, update) pairs form a cycle (two variables, each read
    after an update of the other), the pairs of earlier reads take precedence.
    """
    order = topological_order(nodes, priority)
    pairs = list(_unordered_pairs(nodes, order))
    if pairs:
        if cyclic_nodes(nodes, pairs):
            pairs = _acyclic_pairs(nodes, pairs)
        order = topological_order(nodes, priority, pairs)
    behind = _waits_and_successors(nodes, order) if pairs else set()
    reads: dict[str, list[str]] = collections.defaultdict(list)
    for read, update in pairs:
        if _may_wait(nodes, read) and read not in behind:
            reads[update].append(read)
    ordered = {name: nodes[name] for name in order}
    for update, before in reads.items():
        control = dict.fromkeys((*nodes[update].control, *before))
        ordered[update] = nodes[update].but(control=tuple(control))
    return ordered


def _waits_and_successors(nodes: Mapping[str, Node], order: Iterable[str]) -> set[str]:
    """Return the nodes that wait for other steps, as at a queue, and their successors."""
    behind: set[str] = set()
    for name in order:
        node = nodes[name]
        if any(n.row.waits for n in node_with_nested(node)) or not behind.isdisjoint(node.before()):
            behind.add(name)
    return behind


def _may_wait(nodes: Mapping[str, Node], read: str) -> bool:
    """Return whether a read has a predecessor other than its variable."""
    return any(nodes[b].row.variable != "handle" for b in nodes[read].before())


def _unordered_pairs(nodes: Mapping[str, Node], order: list[str]) -> Iterator[Pair]:
    """Yield all (read, update) pairs where the read does not follow the update.

    Nothing is yielded if `order` already satisfies all pairs.
    """
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
    follows: dict[str, int] = {}  # node -> bit set of the updates that it follows
    for name in order:
        follows[name] = 0
        for b in nodes[name].before():
            follows[name] |= follows[b] | bits.get(b, 0)
    candidates = ((r, w) for s in both for r in reads[s] for w in writes[s])
    yield from sorted(
        (pair for pair in candidates if not follows[pair[0]] & bits[pair[1]]),
        key=lambda pair: (place[pair[0]], place[pair[1]]),
    )


def _acyclic_pairs(nodes: Mapping[str, Node], pairs: Iterable[Pair]) -> list[Pair]:
    """Return the pairs that close no cycle with the edges and the pairs before them."""
    after: dict[str, set[str]] = collections.defaultdict(set)
    for node in nodes.values():
        for before in node.before():
            after[before].add(node.name)
    acyclic = []
    for read, update in pairs:
        reachable, stack = {update}, [update]
        while stack:
            successors = after[stack.pop()] - reachable
            reachable |= successors
            stack += successors
        if read not in reachable:
            after[read].add(update)
            acyclic.append((read, update))
    return acyclic
