"""Contiguous split: exact dynamic programming over the closed sets of a split problem.

The state is a closed set and how many devices of each class have its blocks; its value is the
least possible greatest load (Tarnawski et al., 2020, section 5.1). Two things make it fast: loads
come from matrix products (`pair_loads`), and a bound on the value excludes most states, because
the devices that are left must be able to do the rest of the work. The bound starts just above the
work's share of a device, and is raised until a split is found; that split is the optimum.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import time

import numpy as np

from hpcflow.placement.closed_sets import closed_sets, packed, prefixes, unpacked
from hpcflow.placement.dominated_blocks import without_dominated_blocks
from hpcflow.placement.pair_loads import PairLoads
from hpcflow.placement.split_problem import Part, SplitProblem, greatest_load, topological_order

MOST_SETS = 400_000
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


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self.end:
            raise OutOfTimeError


def contiguous_split(problem: SplitProblem, seconds: float, seed: int = 0) -> Split | None:
    """Return the split along cuts with the least greatest load, None if none was found.

    It is exact if the closed sets can be listed and searched in time; otherwise the best found.
    """
    deadline = _Deadline(seconds)
    reduced = without_dominated_blocks(problem)
    search = _Search(reduced.problem, deadline)
    is_exact = search.run(random.Random(seed))
    if search.best is None:
        return None
    parts = tuple(reduced.expand(search.best))
    return Split(parts, greatest_load(problem, parts), is_exact)


class _Search:
    def __init__(self, problem: SplitProblem, deadline: _Deadline) -> None:
        self.problem, self.deadline = problem, deadline
        self.best: list[Part] | None = None
        finite = np.where(np.isfinite(problem.times), problem.times, 0)
        transfers = sum(transfer.cost for transfer in problem.transfers)
        self.bound = float(finite.max(axis=0).sum() + 2 * transfers) * (1 + SLACK) + 1e-300

    def run(self, rng: random.Random) -> bool:
        """Search until the optimum is found, then return True, or until the time is over."""
        try:
            before = self.problem.before
            self._try([topological_order(before), topological_order(before, lambda free: 0)])
            sets = closed_sets(self.problem.before, MOST_SETS)
            if sets is not None:
                self._search_all(sets)
                return True
            while True:
                self._try(self._orders(rng, 16))
        except OutOfTimeError:
            return False

    def _try(self, orders: list[list[int]]) -> None:
        """Search the closed sets along some orders."""
        sets = {0: None}
        for order in orders:
            sets.update(dict.fromkeys(prefixes(order)))
        self._improve(ChainSearch(self.problem, list(sets), self.deadline), self.bound)

    def _search_all(self, sets: list[int]) -> None:
        search = ChainSearch(self.problem, sets, self.deadline)
        least, gap = _least_load(self.problem), 0.02
        while not self._improve(search, min(least * (1 + gap), self.bound)):
            if least * (1 + gap) >= self.bound:
                return
            gap *= 2

    def _improve(self, search: ChainSearch, bound: float) -> bool:
        found = search.best_chain(bound)
        if found is not None:
            self.bound, self.best = found
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


def _speeds(problem: SplitProblem) -> np.ndarray:
    """Return how much longer blocks take on each class than on the first, as a median."""
    times = np.where(np.isfinite(problem.times), problem.times, 0)
    speeds = np.ones(len(times))
    for device in range(1, len(times)):
        both = (times[0] > 0) & (times[device] > 0)
        if both.any():
            speeds[device] = np.median(times[device][both] / times[0][both])
    return speeds


def _weights(problem: SplitProblem) -> np.ndarray:
    """Return the work of each block: no device of class c does more than its load / speed[c]."""
    weights: np.ndarray = np.min(problem.times / _speeds(problem)[:, None], axis=0)
    return weights


def _least_load(problem: SplitProblem) -> float:
    """Return a lower bound of the greatest load."""
    counts = np.array([device.count for device in problem.devices])
    usable = np.array([device.count > 0 for device in problem.devices])
    share = _weights(problem).sum() / (counts / _speeds(problem)).sum()
    alone = problem.times[usable].min(axis=0).max()
    return float(max(share, alone, 1e-300))


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

    def __init__(self, problem: SplitProblem, sets: list[int], deadline: _Deadline) -> None:
        self.problem, self.sets, self.deadline = problem, sets, deadline
        self.counts = np.array([device.count for device in problem.devices])
        self.speeds = _speeds(problem)
        self.loads = PairLoads(problem, sets)
        weights = np.stack([_weights(problem), problem.nbytes], axis=1)
        rows = packed(sets, problem.size)
        chunks = [
            unpacked(rows[i : i + CHUNK], problem.size) @ weights
            for i in range(0, len(sets), CHUNK)
        ]
        self.work, self.nbytes = np.concatenate(chunks).T
        self.total = float(weights[:, 0].sum())

    def best_chain(self, bound: float) -> tuple[float, list[Part]] | None:
        """Return the least greatest load of a chain of the sets below `bound`, and its parts."""
        table, forms = _Table(self.counts, len(self.sets)), self.loads.forms(bound)
        empty, full = self.sets.index(0), self.sets.index((1 << self.problem.size) - 1)
        table.value[(0,) * len(self.counts)][empty] = 0
        for state in table.states:
            for device, count in enumerate(self.counts):
                if state[device] < count:
                    self._extend(_Step(table, state, device, forms[device], bound))
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

    def _extend(self, step: _Step) -> None:
        """Give one more device the difference of a reached set and a larger one."""
        # The work of a device within the bound; what is left must fit the devices that are left.
        capacity = step.bound / self.speeds * (1 + SLACK)
        used, slack = np.array(step.target), SLACK * self.total
        most = (used * capacity).sum() + slack
        least = self.total - ((self.counts - used) * capacity).sum() - slack
        wanted = np.flatnonzero((self.work <= most) & (self.work >= least))
        reached = np.flatnonzero(step.table.value[step.state] < step.bound)
        if not len(reached) or not len(wanted):
            return
        reached = reached[np.argsort(self.work[reached], kind="stable")]
        wanted = wanted[np.argsort(self.work[wanted], kind="stable")]
        for i in range(0, len(wanted), CHUNK):
            later = wanted[i : i + CHUNK]
            ends = [
                self.work[later[0]] - capacity[step.device] - slack,
                self.work[later[-1]] + slack,
            ]
            low, high = np.searchsorted(self.work[reached], ends, "right")
            if low < high:
                self._relax(step, later, reached[low:high])

    def _relax(self, step: _Step, later: np.ndarray, reached: np.ndarray) -> None:
        """Improve the values of `later` by differences with `reached`."""
        weighted = self.loads.features(later) @ step.form
        limit = self.problem.devices[step.device].memory
        target = step.table.value[step.target]
        for i in range(0, len(reached), CHUNK):
            self.deadline.check()
            earlier = reached[i : i + CHUNK]
            values = weighted @ self.loads.features(earlier).T
            if np.isfinite(limit):
                held = self.nbytes[later][:, None] - self.nbytes[earlier][None, :]
                values[held > limit * (1 + SLACK)] = np.inf
            np.maximum(values, step.table.value[step.state][earlier][None, :], out=values)
            column = values.argmin(axis=1)
            value = values[np.arange(len(later)), column]
            better = (value < target[later]) & (value < step.bound)
            changed = later[better]
            target[changed] = value[better]
            step.table.device[step.target][changed] = step.device
            step.table.earlier[step.target][changed] = earlier[column[better]]


class _Step:
    """States whose sets use some devices of each class, and those with one device more."""

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
