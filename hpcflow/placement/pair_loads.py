"""Pair loads: the load of the difference of two closed sets, for many pairs by one matrix product.

Let I' be a subset of I, both closed, and D = I - I' the blocks of a device. Each part of its load
depends on two facts: which of some blocks are in I, and which are in I'. So it is a bilinear form
in indicators of the two sets. The features of a set are an indicator of each block and a constant,
and, for a transfer whose blocks are not in one order, an indicator of each combination of them that
occurs. With F the features and K the form of a class of devices, loads = F[later] K F[earlier]^T.
"""

from __future__ import annotations

import itertools

import numpy as np

from hpcflow.placement.closed_sets import packed, unpacked
from hpcflow.placement.split_problem import SplitProblem, Transfer, topological_order


class PairLoads:
    """Loads of differences of `sets` on each class of devices."""

    def __init__(self, problem: SplitProblem, sets: list[int]) -> None:
        self._problem, self._sets = problem, packed(sets, problem.size)
        self._combinations: list[tuple[list[int], np.ndarray]] = []
        size, ancestors = problem.size, _ancestors(problem)
        tables: list[np.ndarray] = []
        communication = np.zeros((size + 1, size + 1))
        for transfer in problem.transfers:
            blocks = {transfer.producer, *transfer.consumers}
            order = sorted(blocks, key=lambda block: ancestors[block].bit_count())
            if all(ancestors[b] >> a & 1 for a, b in itertools.pairwise(order)):
                _add_ordered(communication, transfer, order)
            else:
                combinations = _combinations(sets, order)
                self._combinations.append((order, combinations))
                tables.append(_costs(transfer, order, combinations))
        self._communication = _joined(communication, tables)
        self._total = sum(transfer.cost for transfer in problem.transfers)

    def forms(self, bound: float) -> list[np.ndarray]:
        """Return the bilinear form of each class of devices.

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
        for blocks, combinations in self._combinations:
            mismatch = members[:, blocks] @ (1 - combinations.T)
            mismatch += (1 - members[:, blocks]) @ combinations.T
            columns.append((mismatch == 0).astype(np.float64))
        return np.hstack(columns)


def _ancestors(problem: SplitProblem) -> list[int]:
    """Return for each block the mask of all that come before it, directly or not."""
    found = [0] * problem.size
    for block in topological_order(problem.before):
        for other in problem.before[block]:
            found[block] |= found[other] | 1 << other
    return found


def _combinations(sets: list[int], blocks: list[int]) -> np.ndarray:
    """Return which combinations of the blocks occur, as rows of zeros and ones."""
    mask = sum(1 << block for block in blocks)
    occurring = sorted({closed & mask for closed in sets})
    rows = [[closed >> block & 1 for block in blocks] for closed in occurring]
    return np.array(rows, np.float64)


def _costs(transfer: Transfer, blocks: list[int], combinations: np.ndarray) -> np.ndarray:
    """Return the cost of a device for [combination in I, combination in I'], 0 if impossible."""
    inside = combinations[:, None, :] - combinations[None, :, :]
    possible = (inside >= 0).all(axis=2)
    sends = inside[:, :, blocks.index(transfer.producer)] > 0
    uses = inside[:, :, [blocks.index(b) for b in sorted(transfer.consumers)]] > 0
    crosses = np.where(sends, ~uses.all(axis=2), uses.any(axis=2))
    return transfer.cost * (crosses & possible)


def _add_ordered(form: np.ndarray, transfer: Transfer, blocks: list[int]) -> None:
    """Add the cost of a transfer whose blocks are ordered: a set has the first k of them.

    The indicator of "exactly the first k" is the difference of those of the k-th and the next.
    """
    combinations = np.tri(len(blocks) + 1, len(blocks), -1)
    indicators = np.eye(len(blocks) + 1) - np.eye(len(blocks) + 1, k=1)
    rows = [len(form) - 1, *blocks]
    costs = _costs(transfer, blocks, combinations)
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
