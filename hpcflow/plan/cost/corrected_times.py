"""Corrected times: seconds of a plan's operations, scaled for fusion and by the learned correction.

A plan has operations before fusion. Their seconds are scaled twice: so that their sum is that of
the operations after fusion, and so that it is the own work that `step_correction.py` predicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.graph.device_names import parse_device
from hpcflow.graph.static_shape import Spec
from hpcflow.placement.durations import Seconds
from hpcflow.plan.cost.replay_of_plan import NodeSeconds, own_seconds
from hpcflow.plan.cost.step_correction import (
    StepCorrection,
    corrected_own_work,
    correction,
    seconds_from_rows,
    sum_of_operations,
)
from hpcflow.plan.ir.program import Node, Plan
from hpcflow.plan.serialization.graph_fingerprint import plan_digest
from hpcflow.platform.machine_profile import MachineProfile
from hpcflow.platform.measured_step_costs import StepFeatures


class CorrectedTimes(NamedTuple):
    """The corrected times of operations, and the learned correction, None if there is none."""

    seconds: NodeSeconds
    correction: StepCorrection | None


def corrected_times(
    plan: Plan,
    step: StepFeatures,
    known: MachineProfile,
    seconds: NodeSeconds,
    threads: int,
    ranks_on_node: int,
) -> CorrectedTimes:
    """Return `seconds` scaled for fusion, and by the correction that the rows of `known` give.

    `step` has the features of the driver's step (`step_features`). The ratio of the driver's time
    after fusion to that before scales the operations of workers, but not those of servers. The
    correction scales all operations, and its spread replaces their intervals. It is None if the
    machine profile has no comparable rows. Nothing is scaled if no operation takes time.
    """
    operation_seconds = seconds_from_rows(known.operations)
    fused = sum_of_operations(step, operation_seconds, threads)
    unfused = own_seconds(plan, seconds).median
    if not fused or not unfused:
        return CorrectedTimes(seconds, None)
    found = correction(known.steps, operation_seconds, step, plan_digest(plan), threads)
    learned, spread = 1.0, 0.0
    if found is not None:
        own_work = corrected_own_work(found, step, operation_seconds, threads, ranks_on_node)
        learned, spread = own_work / fused, found.spread

    def corrected(node: Node, inputs: Sequence[Spec]) -> Seconds:
        is_server = node.device != "" and parse_device(node.device).job == "ps"
        value = seconds(node, inputs).scaled(learned * (1.0 if is_server else fused / unfused))
        if found is None:
            return value
        return Seconds(
            value.median, value.median * math.exp(-spread), value.median * math.exp(spread)
        )

    return CorrectedTimes(corrected, found)
