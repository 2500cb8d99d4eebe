"""Pair loads: the load of the difference of two closed sets, for many pairs by one matrix product.

Let I' be a subset of I, both closed, and D = I - I' the blocks of a device. Each part of its load
depends on two facts: which of some blocks are in I, and which are in I'. So it is a bilinear form
in indicators of the two sets. The features of a set are an indicator of each block and a constant,
and, for a transfer whose blocks are not in one order, an indicator of each state of it that occurs:
whether the set has the producer, and how many consumers. With F the features and K the form of a
type of device, loads = F[later] K F[earlier]^T.
"""

from __future__ import annotations

import itertools

import numpy as np

from hpcflow.placement.pipeline_splits.closed_sets import packed, unpacked
from hpcflow.placement.pipeline_splits.split_problem import (
    SplitProblem,
    Transfer,
    topological_order,
)


class PairLoads:
    """Loads of differences of `sets` on each type of device."""

    def __init__(self, problem: SplitProblem, sets: list[int]) -> None:
        self._problem, self._sets = problem, packed(sets, problem.size)
        self._states: list[tuple[Transfer, np.ndarray]] = []
        size, ancestors = problem.size, _ancestors(problem)
        tables: list[np.ndarray] = []
        communication = np.zeros((size + 1, size + 1))
        for transfer in problem.transfers:
            blocks = {transfer.producer, *transfer.consumers}
            order = sorted(blocks, key=lambda block: ancestors[block].bit_count())
            if all(ancestors[b] >> a & 1 for a, b in itertools.pairwise(order)):
                _add_ordered(communication, transfer, order)
            else:
                states = _states(sets, transfer)
                self._states.append((transfer, states))
                tables.append(_costs(transfer, states))
        self._communication = _joined(communication, tables)
        self._total = sum(transfer.cost for transfer in problem.transfers)

    def forms(self, bound: float) -> list[np.ndarray]:
        """Return the bilinear form of each type of device.

        Loads above `bound` need not be exact, but are above it; so are those of pairs of which the
        earlier is no subset of the later, or whose difference has a block that cannot run there.
        """
        size, forms = self._problem.size, []
        for device, times in zip(self._problem.devices, self._problem.times, strict=True):
            total = self._total * device.transfer_factor
            forbidden = 2 * (bound + total)
            finite = np.where(np.isfinite(times), times, forbidden)
            penalty = forbidden + total + finite.sum()
            form = device.transfer_factor * self._communication
            form[:size, size] += finite
            form[size, :size] += penalty - finite
            form[range(size), range(size)] -= penalty
            forms.append(form)
        return forms

    def features(self, indices: np.ndarray) -> np.ndarray:
        """Return the features of these sets, a row each."""
        members = unpacked(self._sets[indices], self._problem.size)
        columns = [members, np.ones((len(indices), 1))]
        for transfer, states in self._states:
            found = _state(members[:, transfer.producer], members[:, list(transfer.consumers)])
            columns.append((found[:, None] == states[None, :]).astype(np.float64))
        return np.hstack(columns)


def _ancestors(problem: SplitProblem) -> list[int]:
    """Return for each block the mask of all that come before it, directly or not."""
    found = [0] * problem.size
    for block in topological_order(problem.before):
        for other in problem.before[block]:
            found[block] |= found[other] | 1 << other
    return found


def _state(produced: np.ndarray, consumers: np.ndarray) -> np.ndarray:
    """Return states of a transfer: the number of consumers, negative without the producer."""
    count: np.ndarray = consumers.sum(axis=1)
    return np.where(produced > 0, count, count - consumers.shape[1] - 1).astype(np.int64)


def _states(sets: list[int], transfer: Transfer) -> np.ndarray:
    """Return which states of the transfer occur."""
    mask, size = sum(1 << block for block in transfer.consumers), len(transfer.consumers)
    found = {
        (closed & mask).bit_count() - (0 if closed >> transfer.producer & 1 else size + 1)
        for closed in sets
    }
    return np.array(sorted(found))


def _costs(transfer: Transfer, states: np.ndarray) -> np.ndarray:
    """Return the cost of a device for [state of I, state of I'], 0 if impossible."""
    size = len(transfer.consumers)
    produced, count = (states >= 0).astype(int), np.where(states < 0, states + size + 1, states)
    sends = produced[:, None] - produced[None, :]
    uses = count[:, None] - count[None, :]
    crosses = np.where(sends > 0, uses < size, uses > 0)
    return transfer.cost * (crosses & (sends >= 0) & (uses >= 0))


def _add_ordered(form: np.ndarray, transfer: Transfer, blocks: list[int]) -> None:
    """Add the cost of a transfer whose blocks are ordered: a set has the first k of them.

    The indicator of "exactly the first k" is the difference of those of the k-th and the next.
    """
    combinations = np.tri(len(blocks) + 1, len(blocks), -1)
    indicators = np.eye(len(blocks) + 1) - np.eye(len(blocks) + 1, k=1)
    rows = [len(form) - 1, *blocks]
    producer = combinations[:, blocks.index(transfer.producer)]
    consumers = combinations[:, [i for i, b in enumerate(blocks) if b in transfer.consumers]]
    costs = _costs(transfer, _state(producer, consumers))
    form[np.ix_(rows, rows)] += indicators.T @ costs @ indicators


def _joined(communication: np.ndarray, tables: list[np.ndarray]) -> np.ndarray:
    """Return a block diagonal matrix."""
    size = len(communication) + sum(len(table) for table in tables)
    joined, start = np.zeros((size, size)), 0
    for table in (communication, *tables):
        stop = start + len(table)
        joined[start:stop, start:stop] = table
        start = stop
    return joined
