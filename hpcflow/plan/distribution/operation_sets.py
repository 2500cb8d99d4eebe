"""Operation sets: the operations that share a device with one that has a requirement.

They share it by state or colocation. A set has the requirements of its operations, and the tasks
that something else than a requirement gives to them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hpcflow.graph.device_names import NOTHING, DeviceName, Requirement, parse_device
from hpcflow.graph.dtypes import resource
from hpcflow.graph.function_body import all_operations, variable_operation
from hpcflow.graph.graph import Graph, Operation
from hpcflow.graph.requirement_text import requirement_text
from hpcflow.plan.distribution.task_offers import TaskOffers
from hpcflow.plan.distribution.variable_placement import VariablePlacement
from hpcflow.platform.union_find import DisjointSets

SERVED = "a variable on a server"


class RequirementOf(NamedTuple):
    """An operation with a requirement, and its line."""

    name: str
    line: str
    needs: Requirement

    def __str__(self) -> str:
        return f"{self.name!r} requires {requirement_text(self.needs)}"


class FixedTask(NamedTuple):
    """The task of an operation by a device scope or by its server; `why` says which."""

    task: int
    name: str
    line: str
    why: str


@dataclasses.dataclass
class OperationSet:
    """Operations on one device, with their requirements and the tasks that are fixed for them."""

    names: list[str] = dataclasses.field(default_factory=list)
    requirements: list[RequirementOf] = dataclasses.field(default_factory=list)
    fixed: list[FixedTask] = dataclasses.field(default_factory=list)

    @property
    def needs(self) -> Requirement:
        """All requirements together."""
        needs = NOTHING
        for one in self.requirements:
            needs = needs.both(one.needs)
        return needs


def operation_sets(
    graph: Graph, offers: TaskOffers, placements: Mapping[str, VariablePlacement]
) -> list[OperationSet]:
    """Return the sets with a requirement, in the order of their first operation with one."""
    sets: DisjointSets[str] = DisjointSets()
    for op in all_operations(graph):
        handles = [variable_operation(t).name for t in op.inputs if t.dtype == resource]
        for name in (op.name, *handles, *op.colocate):
            sets.add(name)
            sets.join(name, op.name)
    found: dict[str, OperationSet] = {}
    operations = list(all_operations(graph))
    for op in operations:
        needs = parse_device(op.device).needs
        if needs:
            own = found.setdefault(sets.find(op.name), OperationSet())
            own.requirements.append(RequirementOf(op.name, op.line, needs))
    for op in operations:
        if (root := sets.find(op.name)) in found:
            found[root].names.append(op.name)
            found[root].fixed += _fixed_tasks(op, offers, placements)
    return list(found.values())


def _fixed_tasks(
    op: Operation, offers: TaskOffers, placements: Mapping[str, VariablePlacement]
) -> Iterable[FixedTask]:
    """Yield the tasks that the script or the placement of variables gives to an operation."""
    if op.name in placements:
        for piece in placements[op.name].pieces:
            task = offers.number("ps", piece.server)
            if task is not None:
                yield FixedTask(task, op.name, op.line, SERVED)
    requested = parse_device(op.device)
    if requested.job is not None or requested.task is not None:
        task = offers.number(requested.job or "worker", requested.task or 0)
        if task is not None:  # else the placement pass says that there is none
            place = DeviceName(requested.job, requested.task)
            yield FixedTask(task, op.name, op.line, f"asked for: {place}")
