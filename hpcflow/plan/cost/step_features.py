"""Step features: what a driver computes, feeds, fetches and exchanges in a step of a plan.

The learned correction (`step_correction.py`) predicts the own work of a step from them. A run
leaves those of its plan in the machine profile, and a prediction extracts its own by the same
function.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator

from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.kernel_metadata import LoweredPartition
from hpcflow.plan.cost.cost_model import predicted_seconds, predicted_seconds_in
from hpcflow.plan.cost.op_flops_and_bytes import cost_input_specs
from hpcflow.plan.cost.operation_features import operation_features
from hpcflow.plan.ir.control_flow_nodes import runs_of
from hpcflow.plan.ir.program import Node, Partition, Plan
from hpcflow.platform.measured_step_costs import (
    ELEMENTWISE,
    MOST_OPERATIONS,
    OTHER,
    PRODUCT,
    CountedOperation,
    StepFeatures,
)


def step_features(plan: Plan, code: LoweredPartition) -> StepFeatures:
    """Return the features of a step; `code` is the driver's partition as it runs, after fusion.

    Operations of a loop count as often as it runs, once if that is unknown; of a branch those of
    the program that takes longer. Values of unknown size have no bytes.
    """
    part, counts = code.part, collections.Counter[CountedOperation]()
    for node, inside, times in _computing(code):
        counts[_operation(node, inside)] += times
    operations = [one._replace(calls=count) for one, count in counts.items()]
    sent = [edge for edge in plan.edges if plan.driver in (edge.source, edge.dest)]
    sums = [node for node in part.nodes.values() if node.row.collective]
    return StepFeatures(
        _merged(operations),
        _nbytes(spec for name in part.feeds for spec in part.nodes[name].specs),
        _nbytes(part.spec(ref) for ref in part.fetches),
        len(sent),
        _nbytes(edge.spec for edge in sent if not edge.token),
        len(sums) if plan.cluster.replicas > 1 else 0,
        _nbytes(s for n in sums for s in n.specs) if plan.cluster.replicas > 1 else 0,
    )


def _computing(code: LoweredPartition, times: int = 1) -> Iterator[tuple[Node, Partition, int]]:
    """The nodes that compute, with the partition or body that holds them, and how often they do."""
    for node in code.part.nodes.values():
        if node.row.message in ("send", "receive") or node.row.collective:
            continue
        if not node.row.control_flow:
            if node.row.work != "nothing":
                yield node, code.part, times
            continue
        insides = code.frames[node.name]
        costs = {key: _program_seconds(inside.part) for key, inside in insides.items()}
        for key, runs in runs_of(node, costs).items():
            yield from _computing(insides[key], times * runs)


def _program_seconds(part: Partition) -> float:
    return sum(map(predicted_seconds_in(part), part.nodes.values()))


def _operation(node: Node, part: Partition) -> CountedOperation:
    inputs = cost_input_specs(node, part)
    features = operation_features(node, inputs)
    row = node.row
    elementwise = row.elementwise or row.update_formula
    kind = PRODUCT if row.contraction is not None else ELEMENTWISE if elementwise else OTHER
    known = features is not None
    return CountedOperation(
        kind,
        features.type if features else node.type,
        features.dtypes if features else (),
        node.kind or "cpu",
        known,
        features.flops if features else 0,
        features.nbytes if features else 0,
        predicted_seconds(node, inputs),
        1,
    )


def _merged(operations: list[CountedOperation]) -> tuple[CountedOperation, ...]:
    """At most MOST_OPERATIONS operations, those of the most time first.

    Of more, the shorter half are merged by type, with mean FLOPs, bytes and seconds. If there are
    still more, the types of the least time are left out.
    """
    ordered = sorted(operations, key=lambda one: -one.calls * one.constant_s)
    if len(ordered) <= MOST_OPERATIONS:
        return tuple(ordered)
    kept, groups = ordered[: MOST_OPERATIONS // 2], dict[object, list[CountedOperation]]()
    for one in ordered[MOST_OPERATIONS // 2 :]:
        groups.setdefault(one[:5], []).append(one)
    kept += [_mean(group) for group in groups.values()]
    return tuple(kept[:MOST_OPERATIONS])


def _mean(alike: list[CountedOperation]) -> CountedOperation:
    count = sum(one.calls for one in alike)
    flops, nbytes = (
        sum(one.calls * getattr(one, name) for one in alike) // count
        for name in ("flops", "nbytes")
    )
    seconds = sum(one.calls * one.constant_s for one in alike) / count
    return alike[0]._replace(flops=flops, nbytes=nbytes, constant_s=seconds, calls=count)


def _nbytes(specs: Iterator[Spec]) -> int:
    return sum(spec.nbytes for spec in specs if spec.sized)
