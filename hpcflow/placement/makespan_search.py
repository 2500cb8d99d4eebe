"""Search for the placement of the least makespan that fits the memory of the devices.

Starts are the default (every free group on the driver, or on the first device that it may be on)
and those of `start_placements.py`. Moves of layers and groups improve the best of them
(`placement_moves.py`). The number of schedules is
bounded by the size of the problem, never by wall time, and all choices are deterministic. So each
rank finds the same placement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hpcflow.placement.makespan import StepProblem
from hpcflow.placement.placement_moves import moved_placements
from hpcflow.placement.segment_schedule import step_time
from hpcflow.placement.start_placements import default_placement, start_placements

LEAST_GAIN = 0.05  # predictions are rough: a smaller gain does not replace the default
MOST_MOVES = 600
OPERATIONS = 200_000  # that the moves schedule at most, in sum; but at least LEAST_MOVES moves
LEAST_MOVES = 20
STARTS = 3  # placements that moves improve
SMALL_GAIN = 1e-3  # of the step: less is no reason to move an operation


@dataclasses.dataclass(frozen=True)
class ScoredPlacement:
    """A placement: the device of each group, the bytes above the memory, and the makespan.

    `cost` is the makespan plus the latencies of all messages. Each message may be late, because a
    rank that waits sleeps and one that computes polls now and then. So a gain that needs many
    messages must be large.
    """

    devices: tuple[int, ...]
    overflow: float
    seconds: float
    cost: float

    @property
    def score(self) -> tuple[float, float]:
        """The objective: memory is a hard limit, so it comes first."""
        return self.overflow, self.cost


def score(problem: StepProblem, devices: Sequence[int]) -> ScoredPlacement:
    """Return a placement with its predictions."""
    seconds, latencies = step_time(problem, devices)
    overflow = problem.overflow(devices)
    return ScoredPlacement(tuple(devices), overflow, seconds, seconds + latencies)


def search(
    problem: StepProblem, layers: Sequence[Sequence[int]], units: Sequence[Sequence[int]], seed: int
) -> ScoredPlacement:
    """Return the best placement found; the default unless another is better by `LEAST_GAIN`.

    `layers` are groups in the order of the forward pass, each with those of its gradients and
    updates. `units` are sets of groups that moves try as a whole.
    """
    default = score(problem, default_placement(problem))
    free = [g for g, device in enumerate(problem.fixed) if device is None]
    if problem.choices == 1 or not free:
        return default
    moves = min(MOST_MOVES, max(LEAST_MOVES, OPERATIONS // max(1, len(problem.seconds))))
    found = {default.devices: default}
    for devices in start_placements(problem, layers, moves // 2):
        if tuple(devices) not in found:
            found[tuple(devices)] = score(problem, devices)
    starts = sorted(found.values(), key=lambda one: one.score)[:STARTS]
    improved = [
        _improve(problem, start, layers, units, seed, moves // len(starts)) for start in starts
    ]
    best = min(improved, key=lambda one: one.score)
    too_little = best.cost > default.cost * (1 - LEAST_GAIN)
    return default if best.overflow >= default.overflow and too_little else best


def _improve(
    problem: StepProblem,
    best: ScoredPlacement,
    layers: Sequence[Sequence[int]],
    units: Sequence[Sequence[int]],
    seed: int,
    moves: int,
) -> ScoredPlacement:
    """Return the placement after so many moves, of which those that improve it are kept."""
    trials = moved_placements(problem, layers, units, seed)
    devices = problem.permitted(next(trials)(best.devices), best.devices)
    for _ in range(moves):
        if devices != best.devices:
            trial = score(problem, devices)
            better = trial.cost < best.cost * (1 - SMALL_GAIN)
            if trial.overflow < best.overflow or (trial.overflow == best.overflow and better):
                best = trial
        devices = problem.permitted(next(trials)(best.devices), best.devices)
    return best
