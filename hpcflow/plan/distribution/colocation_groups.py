"""Colocation groups: nodes that share a device, and what constrains the device of a node."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from hpcflow.graph.device_names import NOTHING, DeviceName, parse_device
from hpcflow.graph.dtypes import resource, string
from hpcflow.graph.graph import Graph
from hpcflow.graph.op_registry import lookup_op
from hpcflow.plan.distribution.variable_placement import VariablePlacement
from hpcflow.plan.ir.program import Node, Program
from hpcflow.platform.union_find import DisjointSets

# why a variable, or a piece of one, is on its server
BY_LOAD = "variable: server with the least to do"
PIECE_BY_LOAD = "part of a variable: one of the servers with the least to do"


@dataclasses.dataclass(frozen=True)
class DeviceConstraint:
    """A device constraint, with the node and line that set it."""

    requested: DeviceName
    node: str
    line: str
    reason: str


class ColocationGroups(DisjointSets[str]):
    """Sets of operations on one device: colocated, or connected by handles or collectives.

    An AllReduce or AllGather without constraints is placed with its input. Operations that the step
    does not run still constrain the operations colocated with them.
    """

    def __init__(self, program: Program, graph: Graph) -> None:
        super().__init__()
        stack = list(program.nodes)
        while stack:
            name = stack.pop()
            node = program.nodes.get(name)
            self.add(name)
            mates = (
                _colocated_nodes(node, program)
                if node
                else graph.get_operation_by_name(name).colocate
            )
            for mate in mates:
                if mate not in self and (mate in program.nodes or mate in graph):
                    self.add(mate)
                    stack.append(mate)
                if mate in self:
                    self.join(name, mate)


def _colocated_nodes(node: Node, program: Program) -> list[str]:
    mates = list(node.colocate)
    mates += [ref.node for ref in node.inputs if program.spec(ref).dtype == resource]
    if node.row.combines in ("sum", "rows") and not mates and not node.device:
        mates.append(node.inputs[0].node)
    return mates


class ChosenTask(NamedTuple):
    """The worker task that automatic placement chose for a node, and why."""

    task: int
    reason: str


def device_constraints(
    name: str,
    program: Program,
    graph: Graph,
    placements: Mapping[str, VariablePlacement],
    chosen: Mapping[str, ChosenTask],
) -> list[DeviceConstraint]:
    """Return what constrains the device of a node: the script, its kind, its server, `chosen`."""
    node = program.nodes.get(name)
    if node is not None and node.row.source == "feed":
        return []
    op = node if node is not None else graph.get_operation_by_name(name)
    constraints = []
    if op.device:
        why = _request(parse_device(op.device), name, chosen)
        if lookup_op(op.type).variable == "handle" and {"piece", "copy"} & set(op.attrs):
            why = PIECE_BY_LOAD
        constraints.append(DeviceConstraint(parse_device(op.device), name, op.line, why))
    kind = _only_kind(node, program) if node is not None else ""
    if kind:
        why = f"{op.type} of these types runs on a {kind} only"
        constraints.append(DeviceConstraint(DeviceName(kind=kind), name, op.line, why))
    if name in placements:
        piece, owner = placements[name].pieces[0], placements[name].owner
        why = BY_LOAD if owner == name else f"slot of {owner}"
        constraints.append(DeviceConstraint(parse_device(piece.device), name, op.line, why))
    if name in chosen:
        device = DeviceName(job="worker", task=chosen[name].task)
        constraints.append(DeviceConstraint(device, name, op.line, chosen[name].reason))
    return constraints


def _request(requested: DeviceName, name: str, chosen: Mapping[str, ChosenTask]) -> str:
    """Return what a device scope asks for, and on which task that is if a requirement decides."""
    place = requested._replace(needs=NOTHING)
    texts = [f"asked for: {place}"] if str(place) else []
    if requested.needs:
        from hpcflow.graph.requirement_text import requirement_text  # few scripts need it

        texts.append(f"requires {requirement_text(requested.needs)}")
        if name in chosen:
            texts.append(chosen[name].reason)
    return "; ".join(texts)


def _only_kind(node: Node, program: Program) -> str:
    """Return the only kind of device that can run a node, or "".

    Strings stay on CPUs.
    """
    specs = (*node.specs, *(program.spec(ref) for ref in node.inputs))
    return "cpu" if any(s.dtype == string for s in specs) else node.row.device
