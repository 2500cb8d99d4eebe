"""Moves of a search for a placement: how it differs from the best one so far."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hpcflow.placement.makespan import Placement, StepProblem

Move = Callable[[Placement], Placement]


def moved_placements(
    problem: StepProblem,
    layers: Sequence[Sequence[int]],
    units: Sequence[Sequence[int]],
    seed: int,
) -> Iterator[Move]:
    """Yield moves without end: first each unit to each device, those of most work first.

    Then at random: a unit or a group to a device, all layers from one on to a device, two layers
    exchange their devices, or two devices exchange all that is free.
    """
    moves = _Moves(problem, layers, units, random.Random(seed))
    yield from moves.of_units()
    while True:
        yield moves.draw()


class _Moves:
    def __init__(
        self,
        problem: StepProblem,
        layers: Sequence[Sequence[int]],
        units: Sequence[Sequence[int]],
        rng: random.Random,
    ) -> None:
        self.rng, self.devices = rng, range(problem.choices)
        self.free = [g for g, device in enumerate(problem.fixed) if device is None]
        seconds = np.bincount(problem.group, problem.seconds, len(problem.fixed))
        self.units = self._loose(problem, units)
        self.units.sort(key=lambda unit: -float(seconds[unit].sum()))
        self.layers = self._loose(problem, layers)
        self.is_free = [device is None for device in problem.fixed]

    @staticmethod
    def _loose(problem: StepProblem, sets: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the free groups of each set that has some."""
        loose = [[g for g in groups if problem.fixed[g] is None] for groups in sets]
        return [groups for groups in loose if groups]

    def of_units(self) -> Iterator[Move]:
        """Yield the moves of each unit to each device."""
        for unit in self.units:
            for device in self.devices:
                yield self._to(unit, device)

    def draw(self) -> Move:
        """Return a random move."""
        rng = self.rng
        kind, device = rng.random(), rng.choice(self.devices)
        if kind < 0.35 and self.units:
            return self._to(rng.choice(self.units), device)
        if kind < 0.6 and len(self.layers) > 1:
            first, second = rng.sample(self.layers, 2)
            return lambda placement: _exchanged(placement, first, second)
        if kind < 0.75 and self.layers:
            start = rng.randrange(len(self.layers))
            return self._to([g for layer in self.layers[start:] for g in layer], device)
        if kind < 0.85:
            a, b = rng.sample(self.devices, 2)
            return lambda placement: self._renamed(placement, a, b)
        return self._to([rng.choice(self.free)], device)

    def _to(self, groups: Sequence[int], device: int) -> Move:
        def move(placement: Placement) -> Placement:
            devices = list(placement)
            for g in groups:
                devices[g] = device
            return tuple(devices)

        return move

    def _renamed(self, placement: Placement, a: int, b: int) -> Placement:
        """Return the placement with all free groups of two devices exchanged."""
        other = {a: b, b: a}
        return tuple(
            other.get(device, device) if free else device
            for device, free in zip(placement, self.is_free, strict=True)
        )


def _exchanged(placement: Placement, first: Sequence[int], second: Sequence[int]) -> Placement:
    """Return the placement with two layers on each other's devices: those of most of the groups."""
    devices = list(placement)
    homes = [_usual([placement[g] for g in layer]) for layer in (first, second)]
    for layer, home in ((first, homes[1]), (second, homes[0])):
        for g in layer:
            devices[g] = home
    return tuple(devices)


def _usual(devices: Sequence[int]) -> int:
    """Return the most frequent device."""
    return max(sorted(set(devices)), key=devices.count)
