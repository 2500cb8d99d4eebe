"""Active workers and the slowest worker, updated incrementally.

A job may have thousands of workers, and each step of each worker queries the rule several times.
The amortized cost of a call here, over a synchronous update, is independent of the number of
workers.
"""

from __future__ import annotations

import collections
from collections.abc import Callable

# workers returned by `FirstWorkers.select`: a report names three, the fourth stands for "..."
MAX_NAMED_WORKERS = 4


class ActiveWorkers:
    """The active workers: those that have arrived at the fewest barriers. Never empty."""

    def __init__(self, workers: int) -> None:
        self.active = set(range(workers))
        self.times = [0] * workers  # number of barriers at which each worker has arrived
        self._barriers_ahead: dict[int, set[int]] = {}  # number of barriers -> inactive workers

    def arrive_at_barrier(self, worker: int, times: int) -> bool:
        """Record that a worker arrives at its barrier number `times`; True if it is the last.

        All workers at that barrier then become active again.
        """
        before, self.times[worker] = self.times[worker], times
        if worker in self.active:
            self.active.remove(worker)
        else:
            self._remove(before, worker)
        self._barriers_ahead.setdefault(times, set()).add(worker)
        if self.active:
            return False
        self.active = self._barriers_ahead.pop(min(self._barriers_ahead))
        return True

    def _remove(self, times: int, worker: int) -> None:
        there = self._barriers_ahead[times]
        there.remove(worker)
        if not there:
            del self._barriers_ahead[times]


class WorkerClocks:
    """Steps of each worker since the last barrier, and the minimum over the active workers."""

    def __init__(self, workers: int) -> None:
        self.steps = [0] * workers
        self.least = 0
        self._at = collections.Counter({0: workers})  # clock -> number of active workers

    def tick(self, worker: int, is_active: bool) -> bool:
        """Record a step of a worker; True if the minimum has risen."""
        clock = self.steps[worker]
        self.steps[worker] = clock + 1
        if not is_active:
            return False
        self._at[clock + 1] += 1
        return self._drop(clock)

    def leave(self, worker: int) -> bool:
        """Make a worker inactive while another is still active; True if the minimum has risen."""
        return self._drop(self.steps[worker])

    def restart(self, active: int) -> None:
        """Reset all clocks to zero after a barrier; `active` workers continue."""
        self.steps = [0] * len(self.steps)
        self.least = 0
        self._at = collections.Counter({0: active})

    def _drop(self, clock: int) -> bool:
        at, before = self._at, self.least
        at[clock] -= 1
        if not at[clock]:
            del at[clock]
            while self.least not in at:  # amortized: one iteration per step of the slowest worker
                self.least += 1
        return self.least > before


class FirstWorkers:
    """The first few workers with a property that each can only lose, until `anew` is called."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.reset()

    def reset(self) -> None:
        """Reset: any worker may have the property again."""
        self._matches: list[int] = []
        self._next = 0

    def select(self, has: Callable[[int], bool]) -> list[int]:
        """The first `MAX_NAMED_WORKERS` workers with the property, in order, or fewer."""
        self._matches = [worker for worker in self._matches if has(worker)]
        while len(self._matches) < MAX_NAMED_WORKERS and self._next < self._workers:
            if has(self._next):
                self._matches.append(self._next)
            self._next += 1
        return self._matches
