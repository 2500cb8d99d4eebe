"""Placement moves: random changes of a placement, for simulated annealing."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import numpy as np

from hpcflow.placement.group_levels import group_levels
from hpcflow.placement.step_problem import Placement, StepProblem


class Moves:
    """Random moves of free groups, and of sets of free groups, between devices.

    Sets are the layers and the scopes, which together are a level twice, and those of the levels of
    `group_levels.py`. All levels are equally likely, whether they have few sets or many.
    """

    def __init__(
        self,
        problem: StepProblem,
        layers: Sequence[Sequence[int]],
        scopes: Sequence[Sequence[int]],
        rng: random.Random,
        moves: int,
    ) -> None:
        """`moves` are about as many as will be drawn. A level of more sets is left out."""
        self.problem, self.rng, self.devices = problem, rng, range(problem.candidate_count)
        self.free = [g for g, device in enumerate(problem.fixed) if device is None]
        self.is_free = [device is None for device in problem.fixed]
        loose = [tuple(g for g in groups if self.is_free[g]) for groups in (*layers, *scopes)]
        known: list[Sequence[int]] = [groups for groups in dict.fromkeys(loose) if groups]
        singles: list[Sequence[int]] = [[g] for g in self.free]
        levels: list[Sequence[Sequence[int]]] = [known, known, *group_levels(problem)]
        self.levels = [sets for sets in levels if 0 < len(sets) <= moves] or [[self.free]]
        self.singles = singles if len(singles) <= moves else self.levels[0]
        self.work = np.bincount(problem.group, problem.seconds, len(problem.fixed))
        self.slowdowns = np.array([device.slowdown for device in problem.devices])

    def draw(self, placement: Placement) -> Placement:
        """Return `placement` after a random move, which may change nothing.

        Most moves take a set, or one group, to a random device, to the device of a neighbor or to
        the device with the least work. Others exchange the devices of two sets, or all free groups
        of two devices. Groups for which the new device is not allowed do not move.
        """
        rng, kind = self.rng, self.rng.random()
        if kind < 0.1:
            moved = self._swap_sets(placement, self._set(), self._set())
        elif kind < 0.12:
            moved = self._swap_devices(placement, *rng.sample(self.devices, 2))
        else:
            groups = self._set()
            moved = _moved(placement, groups, self._target(placement, groups))
        return self.problem.permitted(moved, placement)

    def _set(self) -> Sequence[int]:
        """Return a random set of one group, or a random set of a random level."""
        if self.rng.random() < 0.25:
            return self.rng.choice(self.singles)
        return self.rng.choice(self.rng.choice(self.levels))

    def _target(self, placement: Placement, groups: Sequence[int]) -> int:
        """Return the device that a set moves to."""
        kind = self.rng.random()
        if kind < 0.5:
            return self._neighboring(placement, groups)
        return self.rng.choice(self.devices) if kind < 0.8 else self._least_loaded(placement)

    def _least_loaded(self, placement: Placement) -> int:
        """Return the candidate device with the least seconds of work."""
        loads = np.bincount(placement, self.work, len(self.problem.devices)) * self.slowdowns
        return int(np.argmin(loads[: len(self.devices)]))

    def _neighboring(self, placement: Placement, groups: Sequence[int]) -> int:
        """Return the device of a random neighbor of a random group of a set.

        Without a neighbor, or if its device is no candidate, return a random device.
        """
        near = self.neighbors[self.rng.choice(groups)]
        device = placement[self.rng.choice(near)] if near else -1
        return device if device in self.devices else self.rng.choice(self.devices)

    @functools.cached_property
    def neighbors(self) -> list[list[int]]:
        """The groups with which each group shares a value, once for each value."""
        near: list[list[int]] = [[] for _ in self.problem.fixed]
        for value in self.problem.values:
            a = self.problem.group[value.producer]
            for b in dict.fromkeys(self.problem.group[user] for user in value.users):
                if a != b:
                    near[a].append(b)
                    near[b].append(a)
        return near

    def _swap_devices(self, placement: Placement, a: int, b: int) -> Placement:
        """Return the placement with all free groups of two devices exchanged."""
        other = {a: b, b: a}
        return tuple(
            other.get(device, device) if free else device
            for device, free in zip(placement, self.is_free, strict=True)
        )

    @staticmethod
    def _swap_sets(placement: Placement, first: Sequence[int], second: Sequence[int]) -> Placement:
        """Return the placement with each set on the device of the other's first group."""
        a, b = placement[first[0]], placement[second[0]]
        return _moved(_moved(placement, first, b), second, a)


def _moved(placement: Placement, groups: Sequence[int], device: int) -> Placement:
    """Return the placement with groups on a device."""
    devices = list(placement)
    for g in groups:
        devices[g] = device
    return tuple(devices)
