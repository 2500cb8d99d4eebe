"""Reduced problem: a split problem of which groups of blocks became one block each."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from hpcflow.placement.pipeline_splits.closed_sets import bits, packed
from hpcflow.placement.pipeline_splits.split_problem import (
    Part,
    SplitProblem,
    Transfer,
    topological_order,
)


@dataclasses.dataclass(frozen=True)
class ReducedProblem:
    """A smaller problem, and what its blocks are in the original one.

    `members[b]` are the original blocks of block b. An original block that is in none can be on any
    device that keeps the order.
    """

    original: SplitProblem
    problem: SplitProblem
    members: tuple[frozenset[int], ...]

    @classmethod
    def of(
        cls,
        problem: SplitProblem,
        groups: Sequence[frozenset[int]],
        before: Sequence[Iterable[int]],
        transfers: Iterable[Transfer],
    ) -> ReducedProblem:
        """The problem with each group as one block.

        `before[i]` are blocks that come before group i; they and the blocks of `transfers` are in
        groups. Transfers with the same ends become one.
        """
        number = {block: i for i, group in enumerate(groups) for block in group}
        costs: dict[tuple[int, frozenset[int]], float] = collections.defaultdict(float)
        for transfer in transfers:
            producer = number[transfer.producer]
            consumers = frozenset(number[block] for block in transfer.consumers) - {producer}
            if consumers:
                costs[producer, consumers] += transfer.cost
        members = [sorted(group) for group in groups]
        smaller = SplitProblem(
            problem.devices,
            np.stack([problem.times[:, blocks].sum(axis=1) for blocks in members], axis=1),
            np.array([problem.nbytes[blocks].sum() for blocks in members]),
            tuple(
                frozenset(number[other] for other in others) - {i}
                for i, others in enumerate(before)
            ),
            tuple(Transfer(*ends, cost) for ends, cost in costs.items()),
        )
        return cls(problem, smaller, tuple(groups))

    def expand(self, parts: Sequence[Part]) -> list[Part]:
        """Return parts of the original problem for parts of the smaller one, in order."""
        blocks = [set().union(*(self.members[b] for b in part.blocks)) for part in parts]
        place = {block: i for i, members in enumerate(blocks) for block in members}
        missing = self.original.size - len(place)
        for block in topological_order(self.original.before) if missing else ():
            if block not in place:
                earlier = self.original.before[block]
                place[block] = max((place[other] for other in earlier), default=0)
                blocks[place[block]].add(block)
        return [Part(part.device_type, frozenset(b)) for part, b in zip(parts, blocks, strict=True)]


def without_equal_blocks(
    problem: SplitProblem, sets: Sequence[int]
) -> tuple[ReducedProblem, list[int]]:
    """Return the problem with blocks that no set separates as one block, and the sets in it."""
    members = bits(packed(sets, problem.size), problem.size)
    groups: dict[bytes, list[int]] = {}
    for block, column in enumerate(np.packbits(members, axis=0).T):
        groups.setdefault(column.tobytes(), []).append(block)
    before = [set().union(*(problem.before[b] for b in group)) for group in groups.values()]
    blocks = [frozenset(group) for group in groups.values()]
    reduced = ReducedProblem.of(problem, blocks, before, problem.transfers)
    firsts = members[:, [group[0] for group in groups.values()]]
    rows = np.packbits(firsts, axis=1, bitorder="little")
    return reduced, [int.from_bytes(row.tobytes(), "little") for row in rows]
