"""Server loads: the chief measures how much of the training each parameter server works.

A server counts the time in which it is idle: nothing is ready to run, and it polls for messages.
All other time is its own work: it applies updates, computes, and packs and copies messages. The
chief requests the counters from time to time, from its first step until all workers are done, and
waits for no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.runtime.job.message_headers import RequestLoad, ServerLoad
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.train.speed_exchange import MOST_TOLD, TELL_S


class LoadRow(NamedTuple):
    """Seconds of own work and of idle waiting of a server since the first step."""

    server: int
    work: float
    wait: float


class ServerLoads:
    """The loads of all servers during one training session; `step` after each step of the chief."""

    def __init__(self, context: RankContext) -> None:
        """Only on the chief of a job with servers."""
        assert context.control is not None
        self._executor, self._control = context.executor, context.control
        self._servers = context.roles.servers
        self._interval_s = max(TELL_S, len(self._servers) / MOST_TOLD)
        self._due = 0.0  # clock at which to ask next
        self._before: dict[int, ServerLoad | None] = {}  # rank -> the last one before it was asked
        self._first: dict[int, ServerLoad] = {}

    def step(self, now: float) -> list[LoadRow]:
        """After a step that ended at `now`: ask if that is due; returns the loads so far."""
        if now < self._due:
            return []
        self._due = now + self._interval_s
        rows = self.rows()
        loads, before = self._control.server_loads, self._before
        self._ask([r for r in self._servers if r not in before or loads.get(r) is not before[r]])
        return rows

    def finish(self) -> None:
        """All workers are done: ask for the last time, also servers that have not answered yet."""
        self.rows()
        self._ask(self._servers)

    def _ask(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._before[rank] = self._control.server_loads.get(rank)

        def send() -> None:
            for rank in ranks:
                self._control.send(rank, RequestLoad())

        self._executor.run_locked(send, lambda: True)

    def rows(self) -> list[LoadRow]:
        """The loads of the servers that have answered at least twice, by server."""
        found = []
        for server, rank in enumerate(self._servers):
            load = self._control.server_loads.get(rank)
            if load is None or rank not in self._before:
                continue
            if rank not in self._first:
                if load is not self._before[rank]:  # not the answer to another session
                    self._first[rank] = load
                continue
            first = self._first[rank]
            seconds, idle = load.clock_ns - first.clock_ns, load.idle_ns - first.idle_ns
            if seconds > 0:
                found.append(LoadRow(server, max(seconds - idle, 0) / 1e9, idle / 1e9))
        return found

    def report(self) -> dict[str, list[float]]:
        """The fields of result.json; 0 of a server whose load is not known."""
        known = {row.server: row for row in self.rows()}
        rows = [known.get(k, LoadRow(k, 0.0, 0.0)) for k in range(len(self._servers))]
        return {
            "server_work_seconds": [round(row.work, 6) for row in rows],
            "server_wait_seconds": [round(row.wait, 6) for row in rows],
        }
