"""Control edge merging: fewer tokens, by one NoOp that joins nodes of another task."""

from __future__ import annotations

from hpcflow.plan.communication.send_recv_insertion import task_of
from hpcflow.plan.distribution.device_placement import device_label
from hpcflow.plan.ir.program import Node, Program


def merge_control_edges(program: Program, driver: str) -> Program:
    """Add a NoOp on each task with several nodes that another task waits for together.

    The end of a hundred updates on one server thus reaches the driver in one message.
    """
    task = {name: task_of(node.device) for name, node in program.nodes.items()}
    nodes: dict[str, Node] = {}
    joins: dict[tuple[str, frozenset[str]], str] = {}

    def joined(names: tuple[str, ...], here: str, data: set[str], hint: str) -> tuple[str, ...]:
        by_task: dict[str, list[str]] = {}
        for name in names:
            by_task.setdefault(task[name], []).append(name)
        merged: list[str] = []
        for there, group in by_task.items():
            loose = [n for n in group if n not in data]
            if there == here or len(loose) < 2:
                merged += group
                continue
            key = (there, frozenset(loose))
            if key not in joins:
                joins[key] = _add_noop(
                    nodes, program, loose, f"{hint}/joined_on_{device_label(there)}"
                )
            merged += [n for n in group if n in data] + [joins[key]]
        return tuple(merged)

    for node in program.nodes.values():
        data = {ref.node for ref in node.inputs}
        control = joined(node.control, task[node.name], data, node.name)
        nodes[node.name] = node.but(control=control)
    targets = joined(program.targets, driver, {r.node for r in program.fetches}, "step")
    return program.but(nodes=nodes, targets=targets)


def _add_noop(nodes: dict[str, Node], program: Program, group: list[str], name: str) -> str:
    while name in program.nodes or name in nodes:
        name += "_"
    first = program.nodes[group[0]]
    nodes[name] = Node(name, "NoOp", (), tuple(group), {}, (), first.device, (), first.line)
    return name
