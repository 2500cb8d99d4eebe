"""Who works slowly for long: named, with the host, so that a sick node is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.runtime.context import Context
from hpcflow.train.exchange import Rows

FACTOR = 1.5  # times the median of all workers' own work,
LEAST_S = 1e-3  # and so many seconds more a step, is slow;
STEPS, TIMES = 20, 3  # for so many steps and exchanges in a row, it is slow for long


class Stragglers:
    """Follows the rows of all workers, and finds those who are slow for long."""

    def __init__(self, context: Context) -> None:
        roles = context.roles
        self._places = [(rank, context.hosts[rank]) for rank in roles.drivers]
        self._work: dict[int, float] = {}  # of each worker, when it was last told
        self._slow: dict[int, tuple[int, int]] = {}  # slow ones: for how many steps and exchanges
        self._factors: dict[int, float] = {}

    def add(self, rows: Rows) -> list[str]:
        """A line for each worker that is now found to be slow for long, and was not before."""
        self._work.update((worker, row.work) for worker, row in rows)
        usual = sorted(self._work.values())[(len(self._work) - 1) // 2] if rows else 0.0
        lines = []
        for worker, row in rows:
            if row.work <= FACTOR * usual or row.work - usual < LEAST_S:
                self._slow.pop(worker, None)
                continue
            steps, times = self._slow.get(worker, (0, 0))
            self._slow[worker] = steps, times = steps + int(row.steps), times + 1
            if steps < STEPS or times < TIMES:
                continue
            is_new = worker not in self._factors
            self._factors[worker] = round(row.work / usual, 2)
            if is_new:
                lines.append(self._line(worker, steps, row.work, usual))
        return lines

    def _line(self, worker: int, steps: int, work: float, usual: float) -> str:
        rank, host = self._places[worker]
        return (
            f"worker {worker} (rank {rank} on {host}) is slow: for {steps} steps its own work has "
            f"taken {work / usual:.1f} times the median of {len(self._places)} workers, "
            f"{work:.3g} s of {usual:.3g} s a step"
        )

    def found(self) -> list[dict[str, Any]]:
        """Who was slow for long, and how much when that was last so."""
        return [
            {"worker": w, "rank": self._places[w][0], "host": self._places[w][1], "factor": factor}
            for w, factor in sorted(self._factors.items())
        ]


def told(found: Sequence[dict[str, Any]]) -> list[str]:
    """`found` in words, for a report."""
    return [
        "worker {worker} (rank {rank} on {host}) was slow for long: its own work took {factor:g} "
        "times the median of all".format(**one)
        for one in found
    ]
