"""Corrected seconds: the times of a plan's operations, scaled to a learned time of its step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from hpcflow.graph.static_shape import Spec
from hpcflow.placement.durations import Seconds
from hpcflow.plan.cost.replay_of_plan import NodeSeconds, own_seconds
from hpcflow.plan.cost.step_correction import (
    StepCorrection,
    corrected_seconds,
    correction,
    seconds_by,
)
from hpcflow.plan.ir.program import Node, Plan
from hpcflow.plan.serialization.graph_fingerprint import plan_digest
from hpcflow.platform.machine_profile import MachineProfile
from hpcflow.platform.measured_steps import PlannedStep


@dataclasses.dataclass(frozen=True)
class CorrectedSeconds:
    """Times of operations, and the correction that they are from."""

    seconds: NodeSeconds
    correction: StepCorrection

    def __str__(self) -> str:
        found = self.correction
        runs = "run" if found.runs == 1 else "runs"
        programs = "program" if found.programs == 1 else "programs"
        return (
            f"corrected by {found.runs} {runs} of {found.programs} {programs} on this machine, "
            f"{found.threads} threads a rank"
        )


def corrected_node_seconds(
    plan: Plan, step: PlannedStep, known: MachineProfile, seconds: NodeSeconds, threads: int
) -> CorrectedSeconds | None:
    """The times `seconds` of a plan, scaled so that its driver works as long as its rows say.

    `step` is the driver's step (`planned_step`). The interval is that of the correction. None if
    the machine profile has no comparable rows, or nothing takes time.
    """
    by = seconds_by(known.operations)
    found = correction(known.steps, by, step, plan_digest(plan), threads)
    uncorrected = own_seconds(plan, seconds).median
    if found is None or not uncorrected:
        return None
    factor = corrected_seconds(found, step, by, threads) / uncorrected
    low, high = factor * math.exp(-found.spread), factor * math.exp(found.spread)

    def corrected(node: Node, inputs: Sequence[Spec]) -> Seconds:
        value = seconds(node, inputs).median
        return Seconds(factor * value, low * value, high * value)

    return CorrectedSeconds(corrected, found)
