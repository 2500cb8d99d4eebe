"""The time of a step by the list schedule that HEFT places operations by."""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.placement.makespan import StepProblem, Timeline


def list_makespan(problem: StepProblem, placement: Sequence[int]) -> float:
    """Return when the last device ends if operations run in the order of the list schedule."""
    timeline = Timeline(problem)
    for op in problem.order:
        timeline.place(op, placement[problem.group[op]])
    used = set(timeline.where)
    return max(timeline.free[d] + problem.devices[d].end for d in used)
