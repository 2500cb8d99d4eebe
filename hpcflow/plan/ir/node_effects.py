"""Effects of nodes: what a node does beside computing its outputs."""

from __future__ import annotations

from hpcflow.graph.dtypes import history, tensor_array
from hpcflow.plan.ir.control_flow_nodes import nested_programs
from hpcflow.plan.ir.program import Node, Partition, Program


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
