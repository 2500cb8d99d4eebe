"""Dominated blocks: remove blocks without work whose best device is known in every split.

Models have many operations that do nothing but pass values on. They multiply the number of cuts
without giving better ones. Two rules remove them, and no optimum is lost:

* A block v without work that comes only after u, or only before u, joins u if the transfers between
  the two alone cost at least as much as those of v with blocks other than u. If v is on another
  device than u, moving it there takes the former off both devices and adds at most the latter.
* A block without work and without costs of transfers can be on any device.

Memory could forbid both. They apply to blocks without memory, and if one device holds everything.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from hpcflow.placement.split_problem import Part, SplitProblem, Transfer, topological_order


@dataclasses.dataclass(frozen=True)
class ReducedProblem:
    """A smaller problem with the same optimum.

    `members[b]` are the original blocks of block b. An original block that is in none can be on any
    device that keeps the order.
    """

    original: SplitProblem
    problem: SplitProblem
    members: tuple[frozenset[int], ...]

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
        return [Part(part.device, frozenset(b)) for part, b in zip(parts, blocks, strict=True)]


class _Merger:
    """The problem while blocks are removed, with the transfers of each block."""

    def __init__(self, problem: SplitProblem) -> None:
        self.problem = problem
        self.before = [set(blocks) for blocks in problem.before]
        self.after = _followers(problem.before)
        self.members = {block: {block} for block in range(problem.size)}
        self.transfers = {i: t for i, t in enumerate(problem.transfers) if t.cost > 0}
        self.of_block: dict[int, set[int]] = collections.defaultdict(set)
        for i, transfer in self.transfers.items():
            for block in _ends(transfer):
                self.of_block[block].add(i)
        least = min(device.memory for device in problem.devices)
        roomy = problem.nbytes.sum() <= least
        idle = ~problem.times.any(axis=0) & (roomy | (problem.nbytes == 0))
        self.idle = [int(block) for block in np.flatnonzero(idle)]

    def reduce(self) -> None:
        """Apply the rules until no block is left that one applies to."""
        going = True
        while going:
            going = False
            for block in [block for block in self.idle if block in self.members]:
                host = next((h for h in self._hosts(block) if self._is_dominated(block, h)), None)
                if host is not None:
                    self._join(block, host)
                elif not self.of_block[block]:
                    self._remove(block)
                going = going or block not in self.members

    def _hosts(self, block: int) -> list[int]:
        sides = (self.before[block], self.after[block])
        return [next(iter(side)) for side in sides if len(side) == 1]

    def _is_dominated(self, block: int, host: int) -> bool:
        saved = added = 0.0
        for i in self.of_block[block]:
            ends = _ends(self.transfers[i])
            if host not in ends:
                added += self.transfers[i].cost
            elif len(ends) == 2:
                saved += self.transfers[i].cost
        return added <= saved

    def _join(self, block: int, host: int) -> None:
        self.members[host] |= self.members.pop(block)
        for i in self.of_block.pop(block):
            old = self.transfers[i]
            producer = host if old.producer == block else old.producer
            consumers = frozenset(host if b == block else b for b in old.consumers) - {producer}
            if consumers:
                self.transfers[i] = Transfer(producer, consumers, old.cost)
                self.of_block[host].add(i)
            else:
                del self.transfers[i]
                self.of_block[host].discard(i)
        for other in self._unlink(block, self.before, self.after) - {host}:
            self._order(other, host)
        for other in self._unlink(block, self.after, self.before) - {host}:
            self._order(host, other)

    def _remove(self, block: int) -> None:
        del self.members[block]
        earlier = self._unlink(block, self.before, self.after)
        for later in self._unlink(block, self.after, self.before):
            for other in earlier:
                self._order(other, later)

    def _unlink(self, block: int, near: list[set[int]], back: list[set[int]]) -> set[int]:
        others, near[block] = near[block], set()
        for other in others:
            back[other].discard(block)
        return others

    def _order(self, first: int, second: int) -> None:
        self.after[first].add(second)
        self.before[second].add(first)


def without_dominated_blocks(problem: SplitProblem) -> ReducedProblem:
    """Return the problem without blocks whose best device is known."""
    merger = _Merger(problem)
    merger.reduce()
    kept = sorted(merger.members)
    number = {block: i for i, block in enumerate(kept)}
    members = tuple(frozenset(merger.members[block]) for block in kept)
    costs: dict[tuple[int, frozenset[int]], float] = collections.defaultdict(float)
    for transfer in merger.transfers.values():
        consumers = frozenset(number[block] for block in transfer.consumers)
        costs[number[transfer.producer], consumers] += transfer.cost
    reduced = SplitProblem(
        problem.devices,
        problem.times[:, kept],
        np.array([problem.nbytes[sorted(blocks)].sum() for blocks in members]),
        tuple(frozenset(number[b] for b in merger.before[block]) for block in kept),
        tuple(Transfer(*ends, cost) for ends, cost in costs.items()),
    )
    return ReducedProblem(problem, reduced, members)


def _ends(transfer: Transfer) -> set[int]:
    return {transfer.producer, *transfer.consumers}


def _followers(before: Sequence[frozenset[int]]) -> list[set[int]]:
    after: list[set[int]] = [set() for _ in before]
    for block, needed in enumerate(before):
        for other in needed:
            after[other].add(block)
    return after
