"""Contiguous split: exact dynamic programming over the closed sets of a split problem.

The state is a closed set and how many devices of each type have its blocks; its value is the
least possible greatest load (Tarnawski et al., 2020, section 5.1). Two things make it fast: loads
come from matrix products (`pair_loads`), and a bound on the value excludes most states, because
the devices that are left must be able to do the rest of the work. The bound starts just above the
work's share of a device, and is raised until a split is found; that split is the optimum.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import time

import numpy as np

from hpcflow.placement.pipeline_splits.chain_bounds import ChainBounds, least_load
from hpcflow.placement.pipeline_splits.closed_sets import closed_sets, near_sets, prefixes
from hpcflow.placement.pipeline_splits.dominated_blocks import without_dominated_blocks
from hpcflow.placement.pipeline_splits.pair_loads import PairLoads
from hpcflow.placement.pipeline_splits.reduced_problem import without_equal_blocks
from hpcflow.placement.pipeline_splits.split_problem import (
    Part,
    SplitProblem,
    greatest_load,
    topological_order,
)
from hpcflow.placement.pipeline_splits.stage_moves import improved_stages

MOST_SETS = 400_000
FEW_SETS = 3000  # are searched at once
SETS_AT_ONCE = 2000  # about the sets that are searched together
SETS_AT_FIRST = 100  # are searched whatever the time
MOST_MOVES = 1 << 24  # of one annealing
CHUNK = 2048  # sets on each side of a matrix product
SLACK = 1e-9  # relative, for rounding


@dataclasses.dataclass(frozen=True)
class Split:
    """Parts in the order of the cuts, the greatest load, and whether none of this kind is less."""

    parts: tuple[Part, ...]
    load: float
    is_exact: bool


class OutOfTimeError(Exception):
    """The search has used its time."""


class Deadline:
    """The end of the time of a search."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left, 0 after the end."""
        return max(0.0, self.end - time.monotonic())

    def after(self, share: float) -> Deadline:
        """Return the end of a share of the time that is left."""
        return Deadline(share * self.left())

    def is_over(self) -> bool:
        """Whether no time is left."""
        return not self.left()

    def check(self) -> None:
        """Raise OutOfTimeError after the end."""
        if self.is_over():
            raise OutOfTimeError


def contiguous_split(problem: SplitProblem, seconds: float, seed: int = 0) -> Split | None:
    """Return the split along cuts with the least greatest load, None if none was found.

    It is exact if the closed sets can be listed and searched in time; otherwise the best found.
    """
    deadline = Deadline(seconds)
    reduced = without_dominated_blocks(problem)
    search = _Search(reduced.problem, deadline)
    is_exact = search.run(random.Random(seed))
    if search.best is None:
        return None
    parts = tuple(reduced.expand(search.best))
    return Split(parts, greatest_load(problem, parts), is_exact)


class _Search:
    """A search: the best split so far, and `bound`, the greatest load that others must be below."""

    def __init__(self, problem: SplitProblem, deadline: Deadline) -> None:
        self.problem, self.deadline = problem, deadline
        self.best: list[Part] | None = None
        finite = np.where(np.isfinite(problem.times), problem.times, 0)
        transfers = sum(transfer.cost for transfer in problem.transfers)
        self.bound = float(finite.max(axis=0).sum() + 2 * transfers) * (1 + SLACK) + 1e-300

    def run(self, rng: random.Random) -> bool:
        """Search until the optimum is found, then return True, or until the time is over."""
        try:
            before = self.problem.before
            first = [topological_order(before), topological_order(before, lambda free: 0)]
            # The time of a large problem may be over before any split is found.
            self._try(first[:1], SETS_AT_FIRST, Deadline(math.inf))
            self._try(first)
            sets = closed_sets(before, MOST_SETS, self.deadline.check)
            if sets is not None and len(sets) > FEW_SETS:
                self._search_some(rng, self.deadline.after(0.05))
            if sets is not None and self._search_all(sets, self.deadline.after(0.7)):
                return True
            self._search_some(rng, self.deadline)
        except OutOfTimeError:
            pass
        return False

    def _try(
        self,
        orders: list[list[int]],
        count: int = SETS_AT_ONCE,
        deadline: Deadline | None = None,
    ) -> None:
        """Search about `count` closed sets along some orders."""
        sets = {0: None, (1 << self.problem.size) - 1: None}
        step = 1 + self.problem.size * len(orders) // count
        for order in orders:
            sets.update(dict.fromkeys(prefixes(order)[::step]))
        self._improve(list(sets), deadline=deadline)

    def _search_all(self, sets: list[int], deadline: Deadline) -> bool:
        """Search all closed sets; return whether it was in time."""
        try:
            bounds = ChainBounds(self.problem, sets)
            least, gap = least_load(self.problem), 0.02  # a bound that is too low costs little
            while not self._improve(sets, bounds, least * (1 + gap), deadline):
                if least * (1 + gap) >= self.bound:
                    break
                gap *= 2
        except OutOfTimeError:
            return False
        return True

    def _search_some(self, rng: random.Random, deadline: Deadline) -> None:
        """Search sets along random orders, and move blocks between stages, in turns."""
        moves, count = 4096, SETS_AT_ONCE
        while not deadline.is_over():
            begin, bound = time.monotonic(), self.bound
            while self._search_near(rng, count) and not deadline.is_over():
                pass
            self._try(self._orders(rng, max(2, min(16, SETS_AT_ONCE // self.problem.size))))
            middle = time.monotonic()
            if self.best is not None:
                self._move(moves, rng)
            # About as much time for both.
            spent = max(time.monotonic() - middle, 1e-6)
            wanted = min(max(middle - begin, 0.2), deadline.left())
            moves = min(max(64, int(moves * min(4.0, wanted / spent))), MOST_MOVES)
            if self.bound == bound and middle - begin < deadline.left() / 8:
                count *= 2

    def _search_near(self, rng: random.Random, count: int) -> bool:
        """Search `count` sets near the cuts of the best split; return whether one is better."""
        if self.best is None:
            return False
        cuts, closed = [0], 0
        for part in self.best:
            closed |= sum(1 << block for block in part.blocks)
            cuts.append(closed)
        sets = dict.fromkeys(cuts)
        for cut in cuts[1:-1]:
            sets.update(dict.fromkeys(near_sets(self.problem.before, cut, count // len(cuts), rng)))
        return self._improve(list(sets))

    def _move(self, moves: int, rng: random.Random) -> None:
        best = improved_stages(self.problem, self.best or (), moves, rng)
        load = greatest_load(self.problem, best)
        if load < self.bound:
            self.bound, self.best = load, best

    def _improve(
        self,
        sets: list[int],
        bounds: ChainBounds | None = None,
        bound: float = np.inf,
        deadline: Deadline | None = None,
    ) -> bool:
        """Search sets for a split that is better than the best and below `bound`."""
        bound = min(bound, self.bound if self.best is None else self.bound * (1 - SLACK))
        bounds = bounds or ChainBounds(self.problem, sets)
        kept = [sets[i] for i in bounds.possible_at_all(bound)]
        reduced, kept = without_equal_blocks(self.problem, kept)
        search = ChainSearch(reduced.problem, kept, deadline or self.deadline)
        found = search.best_chain(bound)
        if found is not None:
            self.bound, self.best = found[0], reduced.expand(found[1])
        return found is not None

    def _orders(self, rng: random.Random, count: int) -> list[list[int]]:
        """Return random orders; all but the first keep the cuts of the best split so far."""
        stage = [0] * self.problem.size
        for i, part in enumerate(self.best or ()):
            for block in part.blocks:
                stage[block] = i
        orders = [_random_order(self.problem, [0] * self.problem.size, rng)]
        return orders + [_random_order(self.problem, stage, rng) for _ in range(count - 1)]


def _random_order(problem: SplitProblem, stage: list[int], rng: random.Random) -> list[int]:
    """Return a random topological order, by stages where the order allows it."""
    deep = rng.random()

    def pick(free: list[int]) -> int:
        first = min(stage[block] for block in free)
        choices = [i for i, block in enumerate(free) if stage[block] == first]
        return choices[-1] if rng.random() < deep else rng.choice(choices)

    return topological_order(problem.before, pick)


class _Table:
    """Values of the states and how they are reached: for each count of used devices, all sets."""

    def __init__(self, counts: np.ndarray, sets: int) -> None:
        shape = tuple(count + 1 for count in counts)
        self.value = np.full((*shape, sets), np.inf)
        self.device = np.full((*shape, sets), -1, np.int8)
        self.earlier = np.full((*shape, sets), -1, np.int32)
        self.states = sorted(itertools.product(*map(range, shape)), key=sum)


class ChainSearch:
    """Dynamic programming over given closed sets, with the empty set and that of all blocks."""

    def __init__(self, problem: SplitProblem, sets: list[int], deadline: Deadline) -> None:
        self.problem, self.sets, self.deadline = problem, sets, deadline
        self.counts = [device.count for device in problem.devices]
        self.loads = PairLoads(problem, sets)
        self.bounds = ChainBounds(problem, sets)
        self.work, self.nbytes = self.bounds.work, self.bounds.nbytes

    def best_chain(self, bound: float) -> tuple[float, list[Part]] | None:
        """Return the least greatest load of a chain of the sets below `bound`, and its parts."""
        table, forms = _Table(np.array(self.counts), len(self.sets)), self.loads.forms(bound)
        empty, full = self.sets.index(0), self.sets.index((1 << self.problem.size) - 1)
        table.value[(0,) * len(self.counts)][empty] = 0
        for state in table.states:
            for device, count in enumerate(self.counts):
                if state[device] < count:
                    self._extend(_Transition(table, state, device, forms[device], bound))
        value, last = min((float(table.value[state][full]), state) for state in table.states)
        if not np.isfinite(value):
            return None
        return value, self._parts(table, last, full)

    def _parts(self, table: _Table, last: tuple[int, ...], at: int) -> list[Part]:
        state, parts = list(last), []
        while any(state):
            device = int(table.device[tuple(state)][at])
            earlier = int(table.earlier[tuple(state)][at])
            difference = self.sets[at] & ~self.sets[earlier]
            blocks = frozenset(b for b in range(self.problem.size) if difference >> b & 1)
            parts.append(Part(device, blocks))
            state[device] -= 1
            at = earlier
        return parts[::-1]

    def _extend(self, transition: _Transition) -> None:
        """Give one more device the difference of a reached set and a larger one.

        Larger sets whose value cannot be below the bound are left out: those with more work than
        the used devices can do, and those that leave more than the other devices can do.
        """
        wanted = np.flatnonzero(self.bounds.possible(transition.target, transition.bound))
        reached = np.flatnonzero(transition.table.value[transition.state] < transition.bound)
        if not len(reached) or not len(wanted):
            return
        reached = reached[np.argsort(self.work[reached], kind="stable")]
        wanted = wanted[np.argsort(self.work[wanted], kind="stable")]
        slack = self.bounds.slack
        most = self.bounds.most_work(transition.bound)[transition.device] + slack
        for i in range(0, len(wanted), CHUNK):
            later = wanted[i : i + CHUNK]
            low = np.searchsorted(self.work[reached], self.work[later[0]] - most, "left")
            high = np.searchsorted(self.work[reached], self.work[later[-1]] + slack, "right")
            if low < high:
                self._relax(transition, later, reached[low:high])

    def _relax(self, transition: _Transition, later: np.ndarray, reached: np.ndarray) -> None:
        """Improve the values of the sets `later`, by their differences with reached sets."""
        weighted = self.loads.features(later) @ transition.form
        limit = self.problem.devices[transition.device].memory
        target = transition.table.value[transition.target]
        for i in range(0, len(reached), CHUNK):
            self.deadline.check()
            earlier = reached[i : i + CHUNK]
            values = weighted @ self.loads.features(earlier).T
            if np.isfinite(limit):
                held = self.nbytes[later][:, None] - self.nbytes[earlier][None, :]
                values[held > limit * (1 + SLACK)] = np.inf
            np.maximum(
                values, transition.table.value[transition.state][earlier][None, :], out=values
            )
            column = values.argmin(axis=1)
            value = values[np.arange(len(later)), column]
            better = (value < target[later]) & (value < transition.bound)
            changed = later[better]
            target[changed] = value[better]
            transition.table.device[transition.target][changed] = transition.device
            transition.table.earlier[transition.target][changed] = earlier[column[better]]


class _Transition:
    """A transition of the program: from the states with some used devices to one device more.

    `state` and `target` have the number of used devices of each type, before and after. `device` is
    the type of the device that is added, `form` its bilinear form of loads (`PairLoads.forms`).
    """

    def __init__(
        self, table: _Table, state: tuple[int, ...], device: int, form: np.ndarray, bound: float
    ) -> None:
        self.table, self.state, self.device, self.form, self.bound = (
            table,
            state,
            device,
            form,
            bound,
        )
        self.target = tuple(n + (i == device) for i, n in enumerate(state))
