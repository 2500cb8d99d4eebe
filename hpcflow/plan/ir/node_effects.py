"""Effects of nodes and plans: what they do beside computing their outputs."""

from __future__ import annotations

from collections.abc import Iterable

from hpcflow.graph.dtypes import history, tensor_array
from hpcflow.plan.ir.control_flow_nodes import nested_programs, node_with_nested
from hpcflow.plan.ir.program import Node, Partition, Plan, Program


def has_effect(program: Program | Partition, node: Node) -> bool:
    """Return whether a step without this node of `program` differs by more than its outputs.

    Such effects are updates, waits, collectives, calls of the script, assertions and messages of
    the user. Lists and arrays of tensors are values. A random draw depends on no other.
    """
    row = node.row
    if row.control_flow:
        bodies = (body for _, body in nested_programs(node))
        return any(has_effect(body, n) for body in bodies for n in body.nodes.values())
    if row.writes or row.waits or row.script or row.collective:
        return True
    if not row.stateful or row.source or row.variable or row.order_only or row.draws_rows:
        return False
    specs = (*node.specs, *(program.spec(ref) for ref in node.inputs))
    return all(spec.dtype not in (history, tensor_array) for spec in specs)


def updates_variables(node: Node) -> bool:
    """Whether a node, or one in the programs that it holds, changes a variable.

    Initial values do not count. The program of a loop or branch counts even if it may not run.
    """
    return any(n.row.writes and not n.attrs.get("initial") for n in node_with_nested(node))


def plan_trains(plan: Plan) -> bool:
    """Whether a step, or the synchronous update after it, changes variables.

    Initial values do not count.
    """
    nodes = (node for part in plan.parts.values() for node in part.nodes.values())
    own = any(map(updates_variables, nodes))
    return own or (plan.round is not None and plan_trains(plan.round))


def updates_servers(plan: Plan) -> bool:
    """Whether a step, or the synchronous update after it, changes variables of servers."""
    return _updates_on(plan, [task for task in plan.parts if task.startswith("/job:ps")])


def updates_other_tasks(plan: Plan) -> bool:
    """Whether a step, or the synchronous update after it, changes variables not of its driver."""
    return _updates_on(plan, [task for task in plan.parts if task != plan.driver])


def _updates_on(plan: Plan, tasks: Iterable[str]) -> bool:
    nodes = (node for task in tasks for node in plan.parts[task].nodes.values())
    changes = any(each.row.writes for node in nodes for each in node_with_nested(node))
    return plan.round is not None or changes
