"""Atomic step commit: all replicas apply a joint step or none does, by one last allreduce.

For jobs that continue after the loss of a replica (`runtime/failure/replica_loss_recovery.py`). A
replica starts the last allreduce, of one number, when it has the results of all other collectives
of the step. If it completes on any replica, every surviving replica has all inputs of its updates.
If it completes on none, no variable has changed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hpcflow.graph.device_names import parse_device
from hpcflow.graph.static_shape import Spec
from hpcflow.plan.ir.control_flow_nodes import node_with_nested
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import as_constant, sorted_program

COMMIT = "replicas/commit"


def insert_commit(program: Program) -> Program:
    """Return `program`, its collectives numbered, with `COMMIT` behind them and before all updates.

    The program is returned unchanged if it has no collectives, or if a collective depends on an
    update of the same step.
    """
    collectives = [node for node in program.nodes.values() if node.row.collective]
    updates = [node for node in program.nodes.values() if changes_state(node)]
    needed = _predecessors(program.nodes, {node.name for node in collectives})
    if not collectives or not needed.isdisjoint(node.name for node in updates):
        return program
    first = collectives[0]
    device = f"{parse_device(first.device).host}/cpu:0"
    constant = Node(f"{COMMIT}/one", "Const", device=device, line=first.line)
    constant = as_constant(constant, np.zeros((), np.int32))
    attrs = {"group": "replicas", "of": (COMMIT,), "sequence": len(collectives)}
    last = Node(
        COMMIT,
        "AllReduce",
        (Ref(constant.name),),
        tuple(node.name for node in collectives),
        attrs,
        (Spec(np.dtype(np.int32), ()),),
        device,
        line=first.line,
    )
    nodes = {**program.nodes, constant.name: constant, last.name: last}
    for node in updates:
        nodes[node.name] = node.but(control=(*node.control, COMMIT))
    return sorted_program(program.but(nodes=nodes, targets=(*program.targets, COMMIT)))


def changes_state(node: Node) -> bool:
    """Return whether a node, or a loop or branch that it holds, updates a variable."""
    return any(n.row.writes for n in node_with_nested(node))


def _predecessors(nodes: Mapping[str, Node], names: set[str]) -> set[str]:
    """Return all direct and indirect predecessors of `names`."""
    predecessors: set[str] = set()
    stack = [before for name in names for before in nodes[name].before()]
    while stack:
        name = stack.pop()
        if name not in predecessors:
            predecessors.add(name)
            stack.extend(nodes[name].before())
    return predecessors
