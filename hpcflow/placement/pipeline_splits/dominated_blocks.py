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

import numpy as np

from hpcflow.placement.pipeline_splits.reduced_problem import ReducedProblem
from hpcflow.placement.pipeline_splits.split_problem import SplitProblem, Transfer, followers


class _Merger:
    """The problem while blocks are removed, with the transfers of each block."""

    def __init__(self, problem: SplitProblem) -> None:
        self.problem = problem
        self.before = [set(blocks) for blocks in problem.before]
        self.after = [set(blocks) for blocks in followers(problem.before)]
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
                elif not self.of_block[block] and len(self.members) > 1:
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
    return ReducedProblem.of(
        problem,
        [frozenset(merger.members[block]) for block in kept],
        [merger.before[block] for block in kept],
        merger.transfers.values(),
    )


def _ends(transfer: Transfer) -> set[int]:
    return {transfer.producer, *transfer.consumers}
