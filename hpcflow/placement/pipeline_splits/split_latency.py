"""Split latency: the time of one sample over a contiguous split, and the search for the least.

A device runs its part as one call when all its inputs are there: it receives them, computes and
sends its results, one after the other, so it is busy for its load. Parts that do not need each
other overlap. (Tarnawski et al., 2020, section 4: one call for each accelerator.)
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hpcflow.placement.pipeline_splits.split_problem import Part, SplitProblem, followers, load_of

HOT, COLD = 0.3, 1e-4  # temperatures, relative to the least latency


def latency_of(problem: SplitProblem, parts: Sequence[Part]) -> float:
    """Return the time of one sample; infinity if parts do not fit, or wait for each other."""
    of_block = {block: i for i, part in enumerate(parts) for block in part.blocks}
    inputs: list[set[int]] = [set() for _ in parts]
    for block, needed in enumerate(problem.before):
        inputs[of_block[block]] |= {of_block[other] for other in needed}
    finish: dict[int, float] = {}
    waiting = list(range(len(parts)))
    while waiting:
        ready = [i for i in waiting if inputs[i] <= finish.keys() | {i}]
        if not ready:
            return math.inf
        for i in ready:
            start = max((finish[other] for other in inputs[i] - {i}), default=0.0)
            finish[i] = start + load_of(problem, parts[i])
        waiting = [i for i in waiting if i not in finish]
    return max(finish.values(), default=0.0)


def least_latency(
    problem: SplitProblem, parts: Sequence[Part], moves: int, seed: int = 0
) -> list[Part]:
    """Return the split with the least latency found by so many moves, or `parts`.

    A move gives a block and all that come with it, on its device before or after it, to another
    device, so that parts stay contiguous. Moves to a greater latency are taken as in simulated
    annealing. The same arguments give the same split on every rank.
    """
    rng = random.Random(seed)
    slots = [k for k, device in enumerate(problem.devices) for _ in range(device.count)]
    after = [set(blocks) for blocks in followers(problem.before)]
    best = current = list(parts)
    least = value = latency_of(problem, parts)
    for step in range(moves if len(slots) > 1 else 0):
        changed = _moved(problem, current, slots, after, rng)
        moved_value = latency_of(problem, changed)
        if math.isinf(moved_value):
            continue
        heat = least * HOT * (COLD / HOT) ** (step / moves)
        if moved_value <= value or rng.random() < math.exp((value - moved_value) / heat):
            value, current = moved_value, changed
        if value < least:
            least, best = value, current
    return best


def _moved(
    problem: SplitProblem,
    parts: Sequence[Part],
    slots: Sequence[int],
    after: Sequence[set[int]],
    rng: random.Random,
) -> list[Part]:
    source = rng.randrange(len(parts))
    block = rng.choice(sorted(parts[source].blocks))
    near = rng.choice((problem.before, after))
    moving, todo = {block}, [block]
    while todo:
        fresh = (near[todo.pop()] & parts[source].blocks) - moving
        moving |= fresh
        todo += fresh
    used = [part.device_type for part in parts]
    spare = [k for k in sorted(set(slots)) if used.count(k) < slots.count(k)]
    if moving == parts[source].blocks:  # an equal device would make no difference
        spare = [k for k in spare if k != used[source]]
    targets = [i for i in range(len(parts) + len(spare)) if i != source]
    if not targets:
        return list(parts)
    target = rng.choice(targets)
    changed = [
        Part(part.device_type, part.blocks | moving if i == target else part.blocks - moving)
        for i, part in enumerate(parts)
    ]
    if target >= len(parts):
        changed.append(Part(spare[target - len(parts)], frozenset(moving)))
    return [part for part in changed if part.blocks]
