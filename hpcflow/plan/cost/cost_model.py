"""Cost model: predicted bytes and messages per step, and seconds per node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from hpcflow.graph.dtypes import OPAQUE
from hpcflow.graph.static_shape import Spec, size_of
from hpcflow.plan.cost.op_flops_and_bytes import node_cost
from hpcflow.plan.ir.program import Node, Partition, Plan

FLOPS = 2e10  # per second on one core, roughly: predictions only decide how often to poll
BYTES = 1e10  # read or written per second
KERNEL_START_S = 1e-6  # seconds to start a kernel
HEADER_BYTES = 64  # the message by which the driver starts a step on each other task of the plan
# Round numbers for two ranks of one node: they only rank placements against each other.
MESSAGE_S = 5e-5  # seconds from the Send of a small value until its receiver goes on
MESSAGE_BYTES_PER_S = 5e9  # of a large value
HANDLING_S = 20e-6  # in which a message keeps the core of its sender busy, and of its receiver


@dataclasses.dataclass(frozen=True)
class TaskTraffic:
    """Messages from one task to another in a step; `headers` of them only start the step."""

    source: str
    dest: str
    messages: int
    nbytes: int
    headers: int


def message_traffic(plan: Plan) -> list[TaskTraffic]:
    """Return the point-to-point messages of a step by (source, destination), the driver's first.

    Each edge is one message; a token has no bytes. The driver starts each other task of the plan
    with one header of `HEADER_BYTES`. Edges inside a loop or branch are not counted, because values
    decide how often they run.
    """
    traffic: dict[tuple[str, str], list[int]] = {}
    for task in plan.parts:
        if task != plan.driver:
            traffic[plan.driver, task] = [1, HEADER_BYTES, 1]
    for edge in (edge for edge in plan.edges if not edge.frame):
        counts = traffic.setdefault((edge.source, edge.dest), [0, 0, 0])
        counts[0] += 1
        counts[1] += edge.spec.nbytes
    return [TaskTraffic(source, dest, *counts) for (source, dest), counts in traffic.items()]


def collective_bytes(part: Partition) -> dict[str, int]:
    """Return the input bytes of each collective of a partition, in order.

    Communicators count the same bytes.
    """
    return {
        node.name: sum(spec.nbytes for spec in node.specs)
        for node in part.nodes.values()
        if node.row.collective
    }


def input_specs(node: Node, part: Partition) -> list[Spec]:
    """Return the specs of the inputs of a node."""
    return [part.spec(ref) for ref in node.inputs]


def flops(node: Node, inputs: Sequence[Spec]) -> int:
    """Return the FLOPs of a node, an estimate if sizes are unknown."""
    known_specs = [spec for spec in (*inputs, *node.specs) if spec.known]
    if node.row.work == "nothing" or not known_specs:
        return 0
    all_known = all(spec.known and spec.dtype not in OPAQUE for spec in (*inputs, *node.specs))
    cost = node_cost(node, inputs) if all_known else None
    if cost is not None:
        return cost.flops
    return max(size_of(spec.shape) for spec in known_specs)


def predicted_seconds(node: Node, inputs: Sequence[Spec]) -> float:
    """Return a rough estimate of the time of a node on one core."""
    if node.row.work == "nothing":
        return 0.0
    moved = sum(spec.nbytes for spec in (*inputs, *node.specs))
    return KERNEL_START_S + max(flops(node, inputs) / FLOPS, moved / BYTES)


def without_idle_rows(node: Node, inputs: Sequence[Spec]) -> list[Spec]:
    """Return the specs of inputs, with no bytes for a variable of which the node uses rows.

    Those of the rows are in the specs of the other inputs or of the output.
    """
    if not node.row.by_rows:
        return list(inputs)
    return [Spec(inputs[0].dtype, (0,)), *inputs[1:]]


def predicted_seconds_in(part: Partition) -> Callable[[Node], float]:
    """Return `seconds` for the nodes of one partition."""
    return lambda node: predicted_seconds(node, input_specs(node, part))
