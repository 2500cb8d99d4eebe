"""Search for the placement of the least makespan that fits the memory of the devices.

Starts are the default (every free group on the driver, or on the first device that it may be on)
and those of `start_placements.py`. Simulated annealing (Kirkpatrick, Gelatt and Vecchi,
"Optimization by Simulated Annealing", 1983) improves the best of them by the moves of
`placement_moves.py`. The number of schedules is bounded by the size of the problem, never by wall
time, and all choices are deterministic. So each rank finds the same placement.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence

from hpcflow.placement.placement_moves import Moves
from hpcflow.placement.segment_schedule import step_time
from hpcflow.placement.start_placements import default_placement, start_placements
from hpcflow.placement.step_problem import StepProblem

LEAST_GAIN = 0.05  # predictions are rough: a smaller gain does not replace the default
# Placements that the annealing schedules: at most these numbers, the second for each free group.
MOST_MOVES, MOVES_OF_GROUP = 7_000, 250
# Of large graphs fewer: so that the operations of all schedules are at most these, and the squares
# of the numbers of operations, because the choice of a move takes time too.
MOST_OPERATIONS, MOST_SQUARES = 850_000, 3_300_000_000
LEAST_MOVES = 20
MOST_STARTS = 600  # at most half as many contiguous splits are tried
DRAWS = 4  # moves drawn for each that is scheduled: many change nothing or are known
HOT, COLD = 0.02, 0.0005  # first and last temperature, relative to the cost
LONG = 2_000  # moves: a shorter annealing begins colder


@dataclasses.dataclass(frozen=True)
class ScoredPlacement:
    """A placement: the device of each group, and its predictions.

    `overflow` are the bytes above the memory of devices, `seconds` the time of the step (the
    makespan). `cost` is this time plus the latencies of all messages: each message may be late,
    because a rank that waits sleeps and one that computes polls now and then. So a gain that needs
    many messages must be large.
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
    problem: StepProblem,
    layers: Sequence[Sequence[int]],
    scopes: Sequence[Sequence[int]],
    seed: int,
    start: Sequence[int] | None = None,
) -> ScoredPlacement:
    """Return the best placement found; the default unless another is better by `LEAST_GAIN`.

    `layers` has the groups of each layer, gradients and updates included, in the order of the
    forward pass. `scopes` has sets of groups that moves may take as a whole. `start` is one more
    start placement, the result of an earlier search; with it the search makes half as many moves.
    """
    default = score(problem, default_placement(problem))
    free = [g for g, device in enumerate(problem.fixed) if device is None]
    if problem.candidate_count == 1 or not free:
        return default
    moves = _count_of_moves(len(problem.seconds), len(free)) // (1 if start is None else 2)
    found = {default.devices: default}
    starts = start_placements(problem, layers, min(moves, MOST_STARTS) // 2)
    for devices in itertools.chain([] if start is None else [start], starts):
        if tuple(devices) not in found:
            found[tuple(devices)] = score(problem, devices)
    first = min(found.values(), key=lambda one: one.score)
    rng = random.Random(seed)
    best = _annealed(problem, first, Moves(problem, layers, scopes, rng, moves), rng, moves)
    too_little = best.cost > default.cost * (1 - LEAST_GAIN)
    return default if best.overflow >= default.overflow and too_little else best


def _count_of_moves(operations: int, free: int) -> int:
    """Return how many placements the annealing schedules, for a number of free groups."""
    most = min(MOST_MOVES, MOST_OPERATIONS // operations, MOST_SQUARES // operations**2)
    return max(LEAST_MOVES, min(most, MOVES_OF_GROUP * free))


def _annealed(
    problem: StepProblem, best: ScoredPlacement, moves: Moves, rng: random.Random, schedules: int
) -> ScoredPlacement:
    """Return the best placement that simulated annealing finds, from `best`, in so many schedules.

    The temperature falls by one factor with each schedule. A short annealing begins colder, because
    it has no time to improve what it makes worse. No accepted move raises the overflow.
    """
    hot = COLD + (HOT - COLD) * min(1.0, schedules / LONG)
    known, current, count = {best.devices: best}, best, 0
    for _ in range(DRAWS * schedules):
        devices = moves.draw(current.devices)
        trial = known.get(devices)
        if trial is None:
            trial = known[devices] = score(problem, devices)
            count += 1
        temperature = best.cost * hot * (COLD / hot) ** (count / schedules)
        rise = trial.cost - current.cost
        accepted = rise <= 0 or rng.random() < math.exp(-rise / temperature)
        if trial.overflow < current.overflow or (trial.overflow == current.overflow and accepted):
            current = trial
            best = min(best, current, key=lambda one: one.score)
        if count == schedules:
            break
    return best
