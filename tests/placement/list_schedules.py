"""The time of a step by the list schedule that HEFT places operations by."""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.placement.heft import ListSchedule
from hpcflow.placement.step_problem import StepProblem


def list_makespan(problem: StepProblem, placement: Sequence[int]) -> float:
    """Return when the last device ends if operations run in the order of the list schedule."""
    schedule = ListSchedule(problem)
    for op in problem.order:
        schedule.place(op, placement[problem.group[op]])
    used = set(schedule.device_of)
    return max(schedule.device_idle[d] + problem.devices[d].end for d in used)
