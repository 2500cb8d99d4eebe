"""Operations and values of a plan's picture: layer, phase, device and predicted cost of each.

Constants, messages and operations that only order others are not drawn. A value that is sent to
another task, also one in a parcel, leads from the operation that computes it to those that use it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hpcflow.graph.dtypes import OPAQUE
from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.fusion.fused_node_label import node_label
from hpcflow.ops.replicas.replica_ops import parcel_layout
from hpcflow.plan.cost import cost_model
from hpcflow.plan.cost.op_flops_and_bytes import cost_input_specs, node_cost
from hpcflow.plan.ir.layer_names import UPDATE, LayerNames
from hpcflow.plan.ir.program import Node, Partition, Plan, Ref

UPDATES_OF_SERVER = " (update)"  # in the name of a task: its part of the synchronous update
PHASES = ("forward", "backward", "updates")


@dataclasses.dataclass
class PictureOperation:
    """One operation, or the sum of `count` of one place and phase: what the cost model predicts."""

    node_name: str
    task: str
    device: str
    type: str
    phase: int
    flops: int
    nbytes: int  # read and written
    seconds: float
    unsized: int  # how many do work that depends on sizes that only a step tells
    count: int


@dataclasses.dataclass
class DrawnOperation(PictureOperation):
    """One operation of a plan with its scopes."""

    node: Node
    layer: tuple[str, ...]  # the scope of the forward operations, also of gradients and updates
    inside: tuple[str, ...]  # the scopes of the gradient function
    name: str

    @property
    def is_variable(self) -> bool:
        """Whether it is a variable itself, not an operation on it."""
        return self.node.row.variable == "handle"

    @property
    def is_read(self) -> bool:
        """Whether it only reads a variable."""
        return self.node.row.variable == "read"


@dataclasses.dataclass
class DrawnValue:
    """A value: the operation that computes it and those that use it, by number."""

    source: int
    nbytes: int
    users: list[int]
    count: int = 1  # of values, if this is the sum of several


def drawn_operations(plan: Plan) -> list[DrawnOperation]:
    """Return the operations of a plan in its order, the driver's first."""
    operations = []
    for task, part in plan.parts.items():
        layers = LayerNames(part)
        for node in part.nodes.values():
            phase, layer, inside, name = layers.of(node)
            if is_drawn(node):
                about = node.name, task, node.device, node_label(node), phase
                cost = _predicted_cost(node, part)
                operations.append(DrawnOperation(*about, *cost, 1, node, layer, inside, name))
    _mark_slots(operations)
    return operations


def is_drawn(node: Node) -> bool:
    """Return whether a node has a box of its own."""
    row = node.row
    is_message = row.message not in ("", "copy")
    return not (row.source == "constant" or is_message or row.order_only)


def drawn_values(plan: Plan, operations: Sequence[DrawnOperation]) -> list[DrawnValue]:
    """Return the values that the drawn operations compute for others."""
    number = {(op.task, op.node_name): i for i, op in enumerate(operations)}
    sources = _Sources(plan)
    values: dict[tuple[str, Ref], DrawnValue] = {}
    for i, op in enumerate(operations):
        for ref in dict.fromkeys(op.node.inputs):
            task, value = sources.of(op.task, ref)
            source = number.get((task, value.node))
            if source is None:
                continue
            if (task, value) not in values:
                size = _value_bytes(plan.parts[task].spec(value))
                values[task, value] = DrawnValue(source, size, [])
            values[task, value].users.append(i)
    return list(values.values())


class _Sources:
    """Finds where a value is computed, through messages between tasks."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sent = {edge.channel: (edge.source, edge.ref) for edge in plan.edges}
        for task, part in plan.parts.items():  # fused operations have other outputs than `edges`
            for node in part.nodes.values():
                if node.row.message == "send" and node.inputs:
                    self.sent[node.attrs["channel"]] = task, node.inputs[0]

    def of(self, task: str, ref: Ref) -> tuple[str, Ref]:
        """Return the task and the value that a reference of `task` means."""
        node = self.plan.parts[task].nodes[ref.node]
        if node.row.message == "receive":
            return self.of(*self.sent[node.attrs["channel"]])
        if node.row.message == "unpack":
            there, parcel = self.of(task, node.inputs[0])
            part = self.plan.parts[there]
            refs = part.nodes[parcel.node].inputs
            starts, _ = parcel_layout([part.spec(each) for each in refs])
            return self.of(there, dict(zip(starts, refs, strict=True))[node.attrs["start"]])
        return task, ref


def _value_bytes(spec: Spec) -> int:
    return 0 if spec.dtype in OPAQUE else spec.nbytes


def _predicted_cost(node: Node, part: Partition) -> tuple[int, int, float, bool]:
    inputs = cost_input_specs(node, part)
    cost = node_cost(node, inputs)
    if cost is None:
        return (
            cost_model.flops(node, inputs),
            0,
            cost_model.predicted_seconds(node, inputs),
            True,
        )
    return *cost, cost_model.predicted_seconds(node, inputs), False


def _mark_slots(operations: Sequence[DrawnOperation]) -> None:
    """Give variables that only updates use, as an optimizer's slots, the phase of the updates."""
    users: dict[tuple[str, str], set[int]] = {}
    for op in operations:
        for ref in op.node.inputs:
            users.setdefault((op.task, ref.node), set()).add(op.phase)
    for op in operations:
        if op.is_variable and users.get((op.task, op.node_name)) == {UPDATE}:
            op.phase = UPDATE
