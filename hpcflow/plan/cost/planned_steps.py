"""Planned steps: what a driver computes, feeds, fetches and exchanges in a step of a plan.

These are the facts from which a learned correction predicts the time of a step. A run leaves those
of its plan in the machine profile, and a prediction makes those of its own by the same function.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator

from hpcflow.graph.static_shape import Spec
from hpcflow.plan.cost.cost_model import predicted_seconds
from hpcflow.plan.cost.op_flops_and_bytes import cost_input_specs
from hpcflow.plan.cost.operation_features import operation_features
from hpcflow.plan.ir.control_flow_nodes import nested_programs
from hpcflow.plan.ir.program import Node, Partition, Plan
from hpcflow.platform.measured_steps import (
    ELEMENTWISE,
    MOST_OPERATIONS,
    OTHER,
    PRODUCT,
    PlannedOperation,
    PlannedStep,
)


def planned_step(plan: Plan, part: Partition) -> PlannedStep:
    """Return the step of the driver of a plan; `part` is its partition as it runs, after fusion.

    A loop or a branch counts as one pass. Values of unknown size have no bytes.
    """
    counts = collections.Counter(_operation(node, inside) for node, inside in _computing(part))
    operations = [one._replace(calls=count) for one, count in counts.items()]
    sent = [edge for edge in plan.edges if plan.driver in (edge.source, edge.dest)]
    sums = [node for node in part.nodes.values() if node.row.collective]
    return PlannedStep(
        _merged(operations),
        _nbytes(spec for name in part.feeds for spec in part.nodes[name].specs),
        _nbytes(part.spec(ref) for ref in part.fetches),
        len(sent),
        _nbytes(edge.spec for edge in sent if not edge.token),
        len(sums) if plan.cluster.replicas > 1 else 0,
        _nbytes(s for n in sums for s in n.specs) if plan.cluster.replicas > 1 else 0,
    )


def _computing(part: Partition) -> Iterator[tuple[Node, Partition]]:
    """The nodes that compute, with the partition or body that holds them."""
    for node in part.nodes.values():
        if node.row.message in ("send", "receive") or node.row.collective:
            continue
        insides = [p for _, p in nested_programs(node) if isinstance(p, Partition) and p.nodes]
        for inside in insides:
            yield from _computing(inside)
        if not insides and node.row.work != "nothing":
            yield node, part


def _operation(node: Node, part: Partition) -> PlannedOperation:
    inputs = cost_input_specs(node, part)
    features = operation_features(node, inputs)
    row = node.row
    elementwise = row.elementwise or row.update_formula
    kind = PRODUCT if row.contraction is not None else ELEMENTWISE if elementwise else OTHER
    known = features is not None
    return PlannedOperation(
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


def _merged(operations: list[PlannedOperation]) -> tuple[PlannedOperation, ...]:
    """At most MOST_OPERATIONS: of more, those of a type become one with their means.

    Of still more, the types of the least time are left out.
    """
    ordered = sorted(operations, key=lambda one: -one.calls * one.constant_s)
    if len(ordered) <= MOST_OPERATIONS:
        return tuple(ordered)
    kept, groups = ordered[: MOST_OPERATIONS // 2], dict[object, list[PlannedOperation]]()
    for one in ordered[MOST_OPERATIONS // 2 :]:
        groups.setdefault(one[:5], []).append(one)
    kept += [_mean(group) for group in groups.values()]
    return tuple(kept[:MOST_OPERATIONS])


def _mean(alike: list[PlannedOperation]) -> PlannedOperation:
    count = sum(one.calls for one in alike)
    flops, nbytes = (
        sum(one.calls * getattr(one, name) for one in alike) // count
        for name in ("flops", "nbytes")
    )
    seconds = sum(one.calls * one.constant_s for one in alike) / count
    return alike[0]._replace(flops=flops, nbytes=nbytes, constant_s=seconds, calls=count)


def _nbytes(specs: Iterator[Spec]) -> int:
    return sum(spec.nbytes for spec in specs if spec.sized)
