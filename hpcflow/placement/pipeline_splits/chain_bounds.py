"""Chain bounds: which closed sets some devices can have done, so that the others can do the rest.

Let a chain of closed sets contain I. The devices that have the blocks of I do their work, and send
each output that crosses the cut; the others do the rest, and receive each such output at least
once. How much work and transfers a device can take off the others within a load is bounded by the
fractional knapsack of its type (Dantzig, Discrete-variable extremum problems, 1957).
"""

from __future__ import annotations

import itertools

import numpy as np

from hpcflow.placement.pipeline_splits.closed_sets import bits, packed
from hpcflow.placement.pipeline_splits.split_problem import SplitProblem

CHUNK = 2048  # sets at a time
SLACK = 1e-9  # relative, for rounding


class ChainBounds:
    """Work, memory and transfers that cross the cut, of each of some closed sets.

    Work is the time on the first type that has devices, 0 for a block that cannot run there.
    """

    def __init__(self, problem: SplitProblem, sets: list[int]) -> None:
        self.problem = problem
        self.counts = np.array([device.count for device in problem.devices])
        self.weights = work_of_blocks(problem)
        rows, per_block = packed(sets, problem.size), np.stack([self.weights, problem.nbytes], 1)
        work, crossing = [], []
        for i in range(0, len(sets), CHUNK):
            members = bits(rows[i : i + CHUNK], problem.size)
            work.append(members.astype(np.float64) @ per_block)
            crossing.append(_crossing(problem, members))
        self.work, self.nbytes = np.concatenate(work).T
        self.sizes = np.array([closed.bit_count() for closed in sets])
        self.crossing = np.concatenate(crossing)
        self.total = float(self.weights.sum())
        self.slack = SLACK * (self.total + sum(transfer.cost for transfer in problem.transfers))
        self._sent, self._received = _paid_by_blocks(problem)

    def possible(self, used: tuple[int, ...], bound: float) -> np.ndarray:
        """Which sets so many devices of each type can have, each device within `bound`."""
        left = self.counts - used
        done = np.dot(used, self._capacities(bound, self._sent)) + self.slack
        rest = np.dot(left, self._capacities(bound, self._received)) + self.slack
        found = (self.work + self.crossing <= done) & (
            self.total - self.work + self.crossing <= rest
        )
        limits = np.array([device.memory for device in self.problem.devices])
        for devices, needed in ((used, self.nbytes), (left, self.nbytes.max() - self.nbytes)):
            most = sum(n * limit for n, limit in zip(devices, limits, strict=True) if n)
            found &= needed <= most * (1 + SLACK)
        return np.asarray(found)

    def possible_at_all(self, bound: float) -> np.ndarray:
        """Return the indices of the sets that some devices can have, each device within `bound`."""
        found = np.zeros(len(self.work), bool)
        for used in itertools.product(*(range(count + 1) for count in self.counts)):
            found |= self.possible(used, bound)
        # The empty set and that of all blocks are the ends of each chain.
        found[[self.sizes.argmin(), self.sizes.argmax()]] = True
        return np.flatnonzero(found)

    def most_work(self, bound: float) -> np.ndarray:
        """Return for each type the most work of one device within `bound`."""
        return np.array([most_within(self.weights, times, bound) for times in self.problem.times])

    def _capacities(self, bound: float, transfers: np.ndarray) -> np.ndarray:
        """Return for each type the most work and transfers of one device within `bound`."""
        capacities = self.most_work(bound)
        for kind, device in enumerate(self.problem.devices):
            times = self.problem.times[kind]
            more = most_within(self.weights + transfers, times, bound)
            if device.transfer_factor:
                more = min(more, capacities[kind] + bound / device.transfer_factor)
            if device.transfer_factor >= 1 and (times >= self.weights).all():
                more = min(more, bound)
            capacities[kind] = more
        return capacities


def work_of_blocks(problem: SplitProblem) -> np.ndarray:
    """Return the time of each block on the first type that has devices, 0 if it cannot run."""
    first = next(k for k, device in enumerate(problem.devices) if device.count)
    return np.where(np.isfinite(problem.times[first]), problem.times[first], 0.0)


def least_load(problem: SplitProblem) -> float:
    """Return a lower bound of the greatest load."""
    usable = np.array([device.count > 0 for device in problem.devices])
    weights, alone = work_of_blocks(problem), problem.times[usable].min(axis=0).max()
    total = float(weights.sum())
    low, high = 0.0, total
    for _ in range(60):
        middle = (low + high) / 2
        most = sum(
            device.count * most_within(weights, times, middle)
            for device, times in zip(problem.devices, problem.times, strict=True)
        )
        low, high = (low, middle) if most >= total else (middle, high)
    return float(max(low, alone, 1e-300))


def most_within(values: np.ndarray, times: np.ndarray, bound: float) -> float:
    """Return the greatest sum of values of blocks, or fractions of them, with times to `bound`."""
    able = (values > 0) & (times <= bound)
    free = able & (times == 0)
    able &= times > 0
    order = np.flatnonzero(able)
    order = order[np.argsort(-values[order] / times[order], kind="stable")]
    ends, sums = np.cumsum(times[order]), np.cumsum(values[order])
    inside = int(np.searchsorted(ends, bound, "right"))
    found = float(values[free].sum()) + (float(sums[inside - 1]) if inside else 0.0)
    if inside < len(order):
        left = bound - (float(ends[inside - 1]) if inside else 0.0)
        found += float(values[order[inside]] / times[order[inside]]) * left
    return found


def _crossing(problem: SplitProblem, members: np.ndarray) -> np.ndarray:
    """Return the costs of the outputs of blocks of each set that blocks elsewhere use."""
    if not problem.transfers:
        return np.zeros(len(members))
    consumers = [sorted(transfer.consumers) for transfer in problem.transfers]
    starts = np.cumsum([0] + [len(found) for found in consumers[:-1]])
    used = members[:, [block for found in consumers for block in found]]
    inside = np.bitwise_and.reduceat(used, starts, axis=1)
    sent = members[:, [transfer.producer for transfer in problem.transfers]] & ~inside & 1
    costs = np.array([transfer.cost for transfer in problem.transfers])
    return np.asarray(sent @ costs)


def _paid_by_blocks(problem: SplitProblem) -> tuple[np.ndarray, np.ndarray]:
    """Return the costs of the outputs that each block produces, and of those that it uses."""
    sent, received = np.zeros(problem.size), np.zeros(problem.size)
    for transfer in problem.transfers:
        sent[transfer.producer] += transfer.cost
        received[list(transfer.consumers)] += transfer.cost
    return sent, received
