"""Placements by hand of the programs of `testbed_programs.py`: a task for each block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Tasks = tuple[int, ...]
RANKS = 4
SPEEDS = {"equal": (1.0, 1.0, 1.0, 1.0), "unequal": (0.5, 1.0, 1.0, 0.25)}


class Fabric(NamedTuple):
    """Ports of the hosts in bits per second, and the uplink of two racks of two hosts."""

    ports: tuple[int, int, int, int]
    uplink: int | None = None


PORT = 80_000_000
SLOW_HOST = 2
FABRICS = {
    "equal ports": Fabric((PORT, PORT, PORT, PORT)),
    "slow port": Fabric((PORT, PORT, PORT // 8, PORT)),
    "two racks": Fabric((PORT, PORT, PORT, PORT), 2 * PORT // 4),
}

# The ranks that an expert prefers, the best first. A slow port comes last among equal ranks. With
# unlike ranks the fast one with the good port comes first; the driver at half the speed is next,
# unless the other fast one is as near.
PREFERRED: dict[tuple[str, str], Tasks] = {
    ("equal ports", "equal"): (0, 1, 2, 3),
    ("slow port", "equal"): (0, 1, 3, 2),
    ("two racks", "equal"): (0, 1, 2, 3),
    ("equal ports", "unequal"): (1, 2, 0, 3),
    ("slow port", "unequal"): (1, 0, 3, 2),
    ("two racks", "unequal"): (1, 0, 2, 3),
}

# For each block, its place in the order of preference: with many ranks, and with few. Chains stay
# together, branches are apart, and what joins branches is with the largest.
EXPERTS: dict[str, tuple[Tasks, Tasks]] = {
    "mlp": ((0, 0, 0, 1, 1, 1), (0, 0, 0, 0, 0, 0)),
    "lenet": ((0, 0, 1, 1), (0, 0, 0, 0)),
    "lstm": ((0, 0, 1, 1), (0, 0, 0, 0)),
    "gpt": ((0, 0, 0, 1, 1, 1), (0, 0, 0, 0, 0, 0)),
    "mobilenet": ((0, 0, 0, 1, 1, 1), (0, 0, 0, 0, 0, 0)),
    "unet": ((0, 1, 1, 1, 0, 0), (0, 0, 0, 0, 0, 0)),
    "dlrm": ((0, 0, 1, 2, 3, 1, 0), (0, 0, 0, 0, 1, 1, 0)),
    "tagger": ((0, 0, 1, 0), (0, 0, 0, 0)),
    "rows": ((0, 1, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0)),
    "two_towers": ((0, 0, 0, 0, 1, 1, 0), (0, 0, 0, 0, 0, 0, 0)),
    "pipeline": ((0, 1, 2, 3), (0, 0, 1, 1)),
    "memory": ((0, 0, 1, 1, 2, 2, 2), (0, 0, 0, 1, 1, 1, 1)),
}


def balanced(weights: Sequence[float], parts: int) -> Tasks:
    """The contiguous parts whose greatest weight is the least."""
    return min(_cuts(len(weights), parts), key=lambda cut: _loads(cut, weights, [1.0] * parts))


def _cuts(blocks: int, parts: int) -> Iterator[Tasks]:
    """All cuts of blocks in order into so many parts."""
    for ends in itertools.combinations(range(1, blocks), parts - 1):
        yield tuple(sum(k >= end for end in ends) for k in range(blocks))


def _loads(tasks: Tasks, weights: Sequence[float], speeds: Sequence[float]) -> list[float]:
    """The loads of ranks in seconds of speed 1, the greatest first."""
    loads = [0.0] * len(speeds)
    for task, weight in zip(tasks, weights, strict=True):
        loads[task] += weight / speeds[task]
    return sorted(loads, reverse=True)


def every_cut(blocks: int, speeds: Sequence[float]) -> list[list[Tasks]]:
    """All cuts into at most four parts, on ranks in order and the fastest first.

    One list for each order and number of parts.
    """
    fastest = sorted(range(RANKS), key=lambda rank: -speeds[rank])
    return [
        [tuple(order[part] for part in cut) for cut in _cuts(blocks, parts)]
        for order in dict.fromkeys((tuple(range(RANKS)), tuple(fastest)))
        for parts in range(1, min(RANKS, blocks) + 1)
    ]


def cuts(flops: Sequence[float], speeds: Sequence[float], most: int) -> list[Tasks]:
    """At most so many cuts of blocks: those with the least greatest load.

    As many of each number of parts and order of ranks.
    """
    kinds = [
        sorted(kind, key=lambda tasks: _loads(tasks, flops, speeds))
        for kind in every_cut(len(flops), speeds)
    ]
    turns = itertools.zip_longest(*kinds)
    return list(dict.fromkeys(tasks for turn in turns for tasks in turn if tasks))[:most]


def by_hand(
    program: str,
    fabric: str,
    ranks: str,
    counts: tuple[Sequence[int], Sequence[int]],
    cuts: Sequence[Tasks],
) -> dict[str, Tasks]:
    """The placements by name; `counts` are FLOPs and bytes of the blocks. Equal ones come once."""
    flops, nbytes = counts
    n, parts = len(flops), min(RANKS, len(flops))
    order = PREFERRED[fabric, ranks]
    named = {
        "default": (0,) * n,
        "by layer": tuple(k % RANKS for k in range(n)),
        "by FLOPs": balanced(flops, parts),
        "by bytes": balanced(nbytes, parts),
    }
    for name, places in zip(("expert, many", "expert, few"), EXPERTS[program], strict=True):
        named[name] = tuple(order[place] for place in places)
    for tasks in cuts:
        named[f"cut {''.join(map(str, tasks))}"] = tasks
    return {name: tasks for tasks, name in {t: k for k, t in reversed(named.items())}.items()}
