"""Who is there, and who is slowest: kept with each change, so that no rule looks at all workers.

A job may have thousands of workers, and a rule is asked some times in each step of each. Each call
here takes a time that does not depend on the number of workers, taken over a round.
"""

from __future__ import annotations

import collections
from collections.abc import Callable

NAMED = 4  # of those whom others wait for: three stand in a report, the fourth says "and more"


class Present:
    """Who is not at a meeting: those that have gone to the fewest. Never nobody."""

    def __init__(self, workers: int) -> None:
        self.active = set(range(workers))
        self.times = [0] * workers  # how often each has gone to a meeting
        self._ahead: dict[int, set[int]] = {}  # how often -> who of the others has

    def go(self, worker: int, times: int) -> bool:
        """A worker has gone to its meeting number `times`; whether it was the last one to come.

        If it was, all who were at that meeting are active again.
        """
        before, self.times[worker] = self.times[worker], times
        if worker in self.active:
            self.active.remove(worker)
        else:
            self._take(before, worker)
        self._ahead.setdefault(times, set()).add(worker)
        if self.active:
            return False
        self.active = self._ahead.pop(min(self._ahead))
        return True

    def _take(self, times: int, worker: int) -> None:
        there = self._ahead[times]
        there.remove(worker)
        if not there:
            del self._ahead[times]


class Clocks:
    """Steps that each worker has done since all were together, and the least of the active's."""

    def __init__(self, workers: int) -> None:
        self.of = [0] * workers
        self.least = 0
        self._at = collections.Counter({0: workers})  # clock -> how many active workers have it

    def tick(self, worker: int, is_active: bool) -> bool:
        """A worker has done a step; whether the least has risen."""
        clock = self.of[worker]
        self.of[worker] = clock + 1
        if not is_active:
            return False
        self._at[clock + 1] += 1
        return self._drop(clock)

    def leave(self, worker: int) -> bool:
        """A worker is active no more, but another one is; whether the least has risen."""
        return self._drop(self.of[worker])

    def restart(self, active: int) -> None:
        """All have been together: so many go on, from zero."""
        self.of = [0] * len(self.of)
        self.least = 0
        self._at = collections.Counter({0: active})

    def _drop(self, clock: int) -> bool:
        at, before = self._at, self.least
        at[clock] -= 1
        if not at[clock]:
            del at[clock]
            while self.least not in at:  # no further, in all, than the slowest takes steps
                self.least += 1
        return self.least > before


class First:
    """The first few workers with a property that each loses once, until it begins `anew`."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.anew()

    def anew(self) -> None:
        """Any worker may have the property again."""
        self._found: list[int] = []
        self._next = 0

    def of(self, has: Callable[[int], bool]) -> list[int]:
        """The `NAMED` first of them, in order; fewer if there are no more."""
        self._found = [worker for worker in self._found if has(worker)]
        while len(self._found) < NAMED and self._next < self._workers:
            if has(self._next):
                self._found.append(self._next)
            self._next += 1
        return self._found
