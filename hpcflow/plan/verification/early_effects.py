"""Early effects: whether a step may be prefetched, by what other tasks do without the driver.

A prefetched step begins there before the driver runs it, and it may be discarded. So they may
read variables by then, but not update them, draw random numbers, or use queues. A loop or branch
that spans tasks cannot be discarded.
"""

from __future__ import annotations

from hpcflow.plan.distribution.sync_program_split import BEGIN
from hpcflow.plan.ir.control_flow_nodes import node_with_nested
from hpcflow.plan.ir.program import Node, Plan


def may_be_discarded(plan: Plan) -> bool:
    """Return whether nothing changes if a step begins on all tasks but the driver and then ends."""
    nodes = [node for part in plan.parts.values() for node in part.nodes.values()]
    if any(node.row.across_tasks for node in nodes):
        return False
    behind = _nodes_behind_driver(plan)
    return all(node.name in behind or _can_be_in_vain(node) for node in nodes)


def _nodes_behind_driver(plan: Plan) -> set[str]:
    """Return the nodes of the driver and all that follow one of them, also by messages."""
    nodes = {name: node for part in plan.parts.values() for name, node in part.nodes.items()}
    sends = {n.attrs["channel"]: n.name for n in nodes.values() if n.row.message == "send"}
    followers: dict[str, list[str]] = {}
    for name, node in nodes.items():
        before = {*node.before()}
        if node.row.message == "receive":
            before.add(sends[node.attrs["channel"]])
        for other in before:
            followers.setdefault(other, []).append(name)
    behind = set(plan.parts[plan.driver].nodes)
    stack = list(behind)
    while stack:
        new = [name for name in followers.get(stack.pop(), ()) if name not in behind]
        behind.update(new)
        stack += new
    return behind


def _can_be_in_vain(node: Node) -> bool:
    """Return whether nothing changes if a node runs and its step is then discarded."""
    if node.name == BEGIN or node.row.message:
        return True
    rows = [n.row for n in node_with_nested(node)]
    if any(row.writes or row.script or row.draws_rows for row in rows):
        return False
    return node.is_state or all(
        bool(row.variable) or not (row.waits or row.stateful) for row in rows
    )
