"""Cost model: predicted bytes and messages of a step, and seconds of a node, without measurements.

The time of a node is that of the roofline model (Williams, Waterman and Patterson, CACM 52(4),
2009): the longer of its FLOPs and its bytes at fixed rates, plus the start of a kernel.
`operation_costs.py` predicts seconds from the measurements of a machine instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from hpcflow.graph.dtypes import OPAQUE
from hpcflow.graph.static_shape import Spec, size_of
from hpcflow.plan.cost.op_flops_and_bytes import node_cost
from hpcflow.plan.ir.control_flow_nodes import nested_programs, runs_of
from hpcflow.plan.ir.program import Node, Partition, Plan, Program

# Round numbers for one core of a usual CPU. They decide how often a step polls for messages; and,
# for operations that were not measured, placements and predicted steps.
FLOPS_PER_S = 2e10
BYTES_PER_S = 1e10  # read or written
KERNEL_START_S = 1e-6
HEADER_BYTES = 64  # the message by which the driver starts a step on each other task of the plan
# Round numbers for two ranks of one node, by which placements are compared with each other.
MESSAGE_S = 5e-5  # from the Send of a small value until its receiver goes on
MESSAGE_BYTES_PER_S = 5e9  # of a large value; also in `step_correction.py`
MESSAGE_OVERHEAD_S = 20e-6  # a message keeps a core of its sender busy, and one of its receiver


@dataclasses.dataclass(frozen=True)
class TaskTraffic:
    """Messages from one task to another in a step, and their bytes.

    `headers` of them only start the step.
    """

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


def input_specs(node: Node, part: Partition | Program) -> list[Spec]:
    """Return the specs of the inputs of a node."""
    return [part.spec(ref) for ref in node.inputs]


def flops(node: Node, inputs: Sequence[Spec]) -> int:
    """Return the FLOPs of a node, an estimate if sizes are unknown."""
    if node.row.control_flow:
        return round(sum_of_programs(node, flops))
    known_specs = [spec for spec in (*inputs, *node.specs) if spec.known]
    if node.row.work == "nothing" or not known_specs:
        return 0
    all_known = all(spec.known and spec.dtype not in OPAQUE for spec in (*inputs, *node.specs))
    cost = node_cost(node, inputs) if all_known else None
    if cost is not None:
        return cost.flops
    return max(size_of(spec.shape) for spec in known_specs)


def predicted_seconds(node: Node, inputs: Sequence[Spec]) -> float:
    """Return the seconds of a node on one core by the roofline model.

    A loop or branch takes the time of the nodes that it runs.
    """
    if node.row.work == "nothing":
        return 0.0
    if node.row.control_flow:
        return KERNEL_START_S + sum_of_programs(node, predicted_seconds)
    moved = sum(spec.nbytes for spec in (*inputs, *node.specs))
    return roofline_seconds(flops(node, inputs), moved)


def roofline_seconds(flops: float, nbytes: float) -> float:
    """Return the seconds of a kernel of so many FLOPs that reads and writes so many bytes."""
    return KERNEL_START_S + max(flops / FLOPS_PER_S, nbytes / BYTES_PER_S)


def sum_of_programs(node: Node, value: Callable[[Node, Sequence[Spec]], float]) -> float:
    """Return the sum of `value(node, inputs)` over the nodes that a loop or branch runs."""
    sums = {
        key: sum(value(n, input_specs(n, program)) for n in program.nodes.values())
        for key, program in nested_programs(node)
    }
    return sum(times * sums[key] for key, times in runs_of(node, sums).items())


def without_idle_rows(node: Node, inputs: Sequence[Spec]) -> list[Spec]:
    """Return `inputs`, with an empty shape for a variable of which the node uses only rows.

    The bytes of these rows are in the specs of the other inputs or of the output.
    """
    if not node.row.by_rows:
        return list(inputs)
    return [Spec(inputs[0].dtype, (0,)), *inputs[1:]]


def predicted_seconds_in(part: Partition) -> Callable[[Node], float]:
    """Return `predicted_seconds` as a function of the nodes of one partition."""
    return lambda node: predicted_seconds(node, input_specs(node, part))
