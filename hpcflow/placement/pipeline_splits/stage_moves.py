"""Stage moves: simulated annealing over contiguous splits.

A stage is the place of a part in the order of the cuts. A move gives a block to a stage that is not
before those of the blocks that it needs, nor after those of the blocks that need it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from hpcflow.placement.pipeline_splits.split_problem import (
    Part,
    SplitProblem,
    fits,
    followers,
    greatest_load,
)
from hpcflow.placement.pipeline_splits.split_search import Devices, anneal, spare_parts

HOT = (1.0, 0.1, 0.01)  # first temperatures of coolings, relative to the energy


def improved_stages(
    problem: SplitProblem, parts: Sequence[Part], moves: int, rng: random.Random
) -> list[Part]:
    """Return the split with the least greatest load found by so many moves, or `parts`.

    Parts are in the order of the cuts. Devices without blocks get a random stage.
    """
    best, least = list(parts), greatest_load(problem, parts)
    for part in spare_parts(problem, parts):
        best.insert(rng.randint(0, len(best)), part)
    after = followers(problem.before)
    for hot in HOT:
        devices = Devices(problem, best)
        found = anneal(devices, rng, moves // len(HOT), hot, _stages(problem, devices, after, rng))
        load = greatest_load(problem, found)
        if load < least and all(fits(problem, part) for part in found):
            best, least = found, load
    return [part for part in best if part.blocks]


def _stages(
    problem: SplitProblem, devices: Devices, after: Sequence[Sequence[int]], rng: random.Random
) -> Callable[[int], int]:
    """Return a function that gives a random stage that the order of the cuts allows a block."""
    of_block, end = devices.of_block, len(devices.kinds) - 1

    def stage(block: int) -> int:
        first = max([of_block[other] for other in problem.before[block]], default=0)
        last = min([of_block[other] for other in after[block]], default=end)
        return first if first == last else rng.randint(first, last)

    return stage
