"""Search for the placement of the least makespan that fits the memory of the devices.

Candidates are the default (every free group on the driver, or on the first device that it may be
on), free groups beside the fixed groups of their layer, HEFT, and contiguous splits of the layers.
Moves of layers and groups improve the best of them. The number of schedules is bounded by the size
of the problem, never by wall time, and all choices are deterministic. So each rank finds the same
placement.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

import numpy as np

from hpcflow.placement.makespan import StepProblem, Timeline, schedule

DRIVER = 0  # the device of the default placement
LEAST_GAIN = 0.05  # predictions are rough: a smaller gain does not replace the default
MOST_MOVES = 300
OPERATIONS = 200_000  # that the moves schedule at most, in sum; but at least LEAST_MOVES moves
LEAST_MOVES = 20


@dataclasses.dataclass(frozen=True)
class ScoredPlacement:
    """A placement: the device of each group, the bytes above the memory, and the makespan."""

    devices: tuple[int, ...]
    overflow: float
    seconds: float

    @property
    def score(self) -> tuple[float, float]:
        """The objective: memory is a hard limit, so it comes first."""
        return self.overflow, self.seconds


def score(problem: StepProblem, devices: Sequence[int]) -> ScoredPlacement:
    """Return a placement with its predictions."""
    return ScoredPlacement(
        tuple(devices), problem.overflow(devices), schedule(problem, devices).makespan()
    )


def default_placement(problem: StepProblem) -> list[int]:
    """Return the placement with each free group on the driver, or where it is by default."""
    return [problem.default_of(g) for g in range(len(problem.fixed))]


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
    best = default
    for devices in _candidates(problem, layers):
        best = min(best, score(problem, devices), key=lambda found: found.score)
    best = _improve(problem, best, free, units, seed)
    too_little = best.seconds > default.seconds * (1 - LEAST_GAIN)
    return default if best.overflow >= default.overflow and too_little else best


def _candidates(problem: StepProblem, layers: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    yield _beside_fixed_groups(problem, layers)
    yield earliest_finish(problem)
    seconds = np.bincount(problem.group, problem.seconds, len(problem.fixed))
    for nbytes in (False, True):
        by_group = np.asarray(problem.held) if nbytes else seconds
        weights = [float(by_group[list(layer)].sum()) for layer in layers]
        for parts in _part_counts(problem.choices):
            yield _contiguous(problem, layers, cut(weights, parts))


def _part_counts(devices: int) -> list[int]:
    """Return the numbers of parts that are tried: 2, 3, 4, then by doubling."""
    counts = [2]
    while counts[-1] < devices:
        counts.append(counts[-1] + 1 if counts[-1] < 4 else 2 * counts[-1])
    return [count for count in counts if count < devices] + [devices]


def _beside_fixed_groups(problem: StepProblem, layers: Sequence[Sequence[int]]) -> list[int]:
    devices = default_placement(problem)
    for layer in layers:
        near = [problem.fixed[g] for g in layer]
        fixed = [d for d in near if d is not None and d < problem.choices]
        for g in layer if fixed else ():
            if problem.fixed[g] is None and fixed[-1] in problem.devices_of(g):
                devices[g] = fixed[-1]
    return devices


def earliest_finish(problem: StepProblem) -> list[int]:
    """Return the placement by HEFT.

    The first operation of a free group decides for the group: it takes the device on which it ends
    first, among those whose memory holds the state of the group.
    """
    placed: list[int | None] = list(problem.fixed)
    space = [device.memory for device in problem.devices]
    for g, device in enumerate(placed):
        if device is not None:
            space[device] -= problem.held[g]
    timeline = Timeline(problem)
    for op in problem.order:
        g = problem.group[op]
        device = placed[g]
        if device is None:
            choices = problem.devices_of(g)
            fitting = [d for d in choices if space[d] >= problem.held[g]]
            near = fitting or [max(choices, key=lambda d: (space[d], -d))]
            device = placed[g] = min(near, key=lambda d: (timeline.end_on(op, d), d))
            space[device] -= problem.held[g]
        timeline.place(op, device)
    return [problem.default_of(g) if d is None else d for g, d in enumerate(placed)]


def cut(weights: Sequence[float], parts: int) -> list[int]:
    """Return the part of each item: contiguous parts whose greatest weight is about the least."""
    low, high = max(weights, default=0.0), sum(weights)
    for _ in range(40):
        middle = (low + high) / 2
        if _fill(weights, middle)[-1:] < [parts]:
            high = middle
        else:
            low = middle
    return _fill(weights, high)


def _fill(weights: Sequence[float], limit: float) -> list[int]:
    """Return the part of each item if parts are filled up to a limit one after the other."""
    part, load, of_item = 0, 0.0, []
    for weight in weights:
        if load and load + weight > limit:
            part, load = part + 1, 0.0
        load += weight
        of_item.append(part)
    return of_item


def _contiguous(
    problem: StepProblem, layers: Sequence[Sequence[int]], parts: Sequence[int]
) -> list[int]:
    devices = default_placement(problem)
    for layer, part in zip(layers, parts, strict=True):
        for g in layer:
            device = min(part, problem.choices - 1)
            if problem.fixed[g] is None and device in problem.devices_of(g):
                devices[g] = device
    return devices


def _improve(
    problem: StepProblem,
    best: ScoredPlacement,
    free: Sequence[int],
    units: Sequence[Sequence[int]],
    seed: int,
) -> ScoredPlacement:
    """Move units, then single groups, to other devices while that improves the objective."""
    moves = min(MOST_MOVES, max(LEAST_MOVES, OPERATIONS // max(1, len(problem.seconds))))
    rng = random.Random(seed)
    for moved, device in _moves(problem, free, units, rng, moves):
        devices = list(best.devices)
        for g in moved:
            if device in problem.devices_of(g):
                devices[g] = device
        if tuple(devices) != best.devices:
            best = min(best, score(problem, devices), key=lambda found: found.score)
    return best


def _moves(
    problem: StepProblem,
    free: Sequence[int],
    units: Sequence[Sequence[int]],
    rng: random.Random,
    count: int,
) -> Iterator[tuple[list[int], int]]:
    """Yield so many moves: half of them of units, the longest first, the rest of random groups."""
    seconds = np.bincount(problem.group, problem.seconds, len(problem.fixed))
    loose = [[g for g in unit if problem.fixed[g] is None] for unit in units]
    loose = [unit for unit in loose if unit]
    loose.sort(key=lambda unit: -float(seconds[unit].sum()))
    devices = problem.choices
    of_units = [(unit, device) for unit in loose for device in range(devices)][: count // 2]
    yield from of_units
    for _ in range(count - len(of_units)):
        unit = rng.choice(loose) if loose and rng.random() < 0.5 else [rng.choice(free)]
        yield unit, rng.randrange(devices)
