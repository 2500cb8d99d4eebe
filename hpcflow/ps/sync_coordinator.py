"""Synchronization coordinator: runs a synchronization rule as a non-blocking state machine.

It decides which workers may begin a step and whose gradients an update uses. Each server has a
`Rounds`. That of server 0 is also the coordinator, which alone decides, so that all servers and
variables use the gradients of the same workers. A request that has to wait registers a callback.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np

from hpcflow.ps.active_workers import ActiveWorkers, FirstWorkers, WorkerClocks
from hpcflow.ps.sync_rule import Gradient, SyncRule

Callback = Callable[[], None]
# A waiting worker: its position in the order of release, the worker, the channel of the step that
# it will begin (None: it arrives at a barrier), and the callback.
Waiter = tuple[int, int, str | None, Callable[..., None]]
LEAVES = 1 << 62  # workers that arrive at a barrier are released after those that begin a step


@dataclasses.dataclass
class Contribution:
    """A worker's input to one sum. The worker must not reuse the arrays before `release`."""

    version: int
    arrays: tuple[Any, ...]
    release: Callback


class UpdateGroup:
    """Updates that are applied together, and the gradients for them.

    `version` counts the applied updates. Gradients carry the version that their worker read; those
    of an older version are late.
    """

    def __init__(self, workers: int, present: ActiveWorkers) -> None:
        self.version, self._present = 0, present
        self.contributed = [-1] * workers  # the newest version with gradients of each worker
        self.workers = workers
        self.arrived: list[Gradient] = []  # of this version, by arrival
        self.contributors: set[int] = set()  # the workers in `arrived`
        self.here = 0  # the number of active workers in `contributors`
        self.is_complete = False  # when the rule is asked: no other worker will contribute
        self.workers_owing = FirstWorkers(workers)  # active workers that are not in `contributors`
        self.picked_factors = False  # the update of this version is in progress
        self.closing = False  # no other worker will contribute to this version
        self.pick_callback: Callable[[np.ndarray], None] | None = None  # waits for enough gradients
        self.contributions: dict[str, dict[int, Contribution]] = {}  # sum -> worker -> contribution
        self.sums: dict[str, np.ndarray] = {}  # buffers of the sums
        # sum -> callbacks for its value
        self.sum_callbacks: dict[str, list[Callable[..., None]]] = {}
        # (version, callback at the end of its update)
        self.end_callbacks: list[tuple[int, Callback]] = []
        self.waiters: list[Waiter] = []  # workers to check again after this update

    @property
    def active(self) -> Set[int]:
        """The workers that make steps; see `PendingUpdate`."""
        return self._present.active


class SyncCoordinator:
    """The synchronous updates of one server, and on server 0 the clocks of all workers.

    No request of one worker scans all workers or all waiters.
    """

    def __init__(self, rule: SyncRule, workers: int) -> None:
        self.rule, self.workers = rule, workers
        self.channels: dict[str, UpdateGroup] = {}
        # by worker
        self.used_gradients, self.late = [0] * workers, [0] * workers
        self.dropped_gradients = [0] * workers
        self.lead = 0  # the maximum steps a worker was ahead of the slowest when it began one
        self.ranks = [-1] * workers  # worker -> rank; -1 before its first step
        self.repeated: set[str] = set()  # names of the updates whose plans the servers repeat
        self._counts_steps = rule.counts_steps
        self._present, self._clocks = ActiveWorkers(workers), WorkerClocks(workers)
        self._slowest = FirstWorkers(workers)
        self._waiters: dict[Callable[..., None], Waiter] = {}  # by callback
        # clock -> workers that wait with this clock
        self._waiters_by_clock: dict[int, list[Waiter]] = {}
        self._numbers = itertools.count()

    def channel(self, name: str) -> UpdateGroup:
        """The channel of this name, created on first use."""
        group = self.channels.get(name)
        if group is None:
            group = self.channels[name] = UpdateGroup(self.workers, self._present)
        return group

    # -- the coordinator

    def begin(self, worker: int, channel: str, go: Callable[[int], None]) -> None:
        """Call `go(version)` when the worker may begin a step."""
        version = self.channel(channel).version
        wait_list = self._wait_for(worker, False)
        if wait_list is None:
            go(version)
        else:
            self._add_waiter(worker, channel, go, wait_list)

    def withdraw(self, go: Callable[..., None]) -> None:
        """Withdraw the request of the callback `go`."""
        self._waiters.pop(go, None)

    def ready(self, worker: int, channel: str, version: int, share: float) -> None:
        """All gradients of a worker's step are on the servers; late ones are counted and dropped.

        `share` is the fraction of the global batch that the step used.
        """
        group = self.channel(channel)
        group.contributed[worker] = max(version, group.contributed[worker])
        if version < group.version or group.picked_factors:
            self.late[worker] += 1
            self.dropped_gradients[worker] += 1
            return
        group.arrived.append((worker, share))
        if worker not in group.contributors:
            group.contributors.add(worker)
            group.here += worker in self._present.active
        self._pick(group)

    def pick(self, channel: str, go: Callable[[np.ndarray], None]) -> None:
        """Call `go(factors)` when an update may start; a factor for each worker, 0: not used."""
        group = self.channel(channel)
        group.pick_callback = go
        self._pick(group)

    def tick(self, worker: int) -> None:
        """Count a step of a worker, which has been applied."""
        if self._clocks.tick(worker, worker in self._present.active):
            self._minimum_changed()

    def leave_until_barrier(self, worker: int, go: Callback) -> None:
        """A worker arrives at a barrier: others do not wait for it until all have arrived.

        `go` is called when all its gradients are applied or dropped.
        """
        self._leave(worker, self._present.times[worker] + 1)
        wait_list = self._wait_for(worker, True)
        if wait_list is None:
            go()
        else:
            self._add_waiter(worker, None, go, wait_list)

    def _leave(self, worker: int, times: int) -> None:
        was_active = worker in self._present.active
        if self._present.arrive_at_barrier(worker, times):  # the last worker has arrived
            self._end_barrier()
        elif was_active:
            for channel in self.channels.values():
                channel.here -= worker in channel.contributors
            if self._clocks.leave(worker):
                self._minimum_changed()
        for channel in list(self.channels.values()):
            self._pick(channel)

    def _end_barrier(self) -> None:
        """All workers have arrived at the barrier: restart the clocks."""
        active = self._present.active
        self._clocks.restart(len(active))
        for channel in self.channels.values():
            channel.closing = bool(channel.arrived)
            channel.here = len(channel.contributors & active)
            channel.workers_owing.reset()
        self._slowest.reset()
        self._release_at_clocks(list(self._waiters_by_clock))

    def lose(self, worker: int) -> None:
        """A worker has died: treat it as arrived at this and at all later barriers.

        Its gradients that are complete on all servers are used; others are never picked.
        """
        for go in [go for _, blocked, _, go in self._waiters.values() if blocked == worker]:
            self.withdraw(go)
        self._leave(worker, sys.maxsize)

    def missing(self) -> tuple[str, int] | None:
        """What workers wait for here, as text, and the rank of the first worker that delays them.

        None if no worker waits for another.
        """
        slow = self._first_slow_worker() if self._counts_steps else self._first_owing_workers()
        if not slow:
            return None
        names = ", ".join(map(str, slow[:3])) + (", ..." if len(slow) > 3 else "")
        return f"what worker {names} is to bring", self.ranks[slow[0]]

    def _first_slow_worker(self) -> list[int]:
        """The first of the slowest workers, if others wait for them to begin a step."""
        if not self._waiters:
            return []
        active, clocks = self._present.active, self._clocks
        return self._slowest.select(lambda w: w in active and clocks.steps[w] == clocks.least)

    def _first_owing_workers(self) -> list[int]:
        """The first workers whose gradients are missing in an update that has some."""
        workers: set[int] = set()
        for channel in self.channels.values():
            if channel.arrived and not channel.picked_factors:
                workers.update(
                    channel.workers_owing.select(functools.partial(self._is_owing, channel))
                )
        return sorted(workers)

    def _is_owing(self, channel: UpdateGroup, worker: int) -> bool:
        return worker in self._present.active and worker not in channel.contributors

    # -- waiting workers

    def _wait_for(self, worker: int, leaves: bool) -> list[Waiter] | None:
        """The list in which a worker waits to begin a step or to pass a barrier; None: no wait."""
        if not self._counts_steps or leaves:  # an update is in progress or has its gradients
            for channel in self.channels.values():
                if channel.picked_factors or channel.contributed[worker] >= channel.version:
                    return channel.waiters
            return None
        clock = self._clocks.steps[worker]
        if not self.rule.may_begin(clock, self._clocks.least):
            return self._waiters_by_clock.setdefault(clock, [])
        self.lead = max(self.lead, clock - self._clocks.least)
        return None

    def _add_waiter(
        self, worker: int, channel: str | None, go: Callable[..., None], waiters: list[Waiter]
    ) -> None:
        order = next(self._numbers) + (LEAVES if channel is None else 0)
        self._waiters[go] = waiter = (order, worker, channel, go)
        waiters.append(waiter)

    def _minimum_changed(self) -> None:
        """The minimum clock has changed: release the workers that are no longer too far ahead."""
        self._slowest.reset()
        may_begin, least = self.rule.may_begin, self._clocks.least
        self._release_at_clocks(
            [clock for clock in self._waiters_by_clock if may_begin(clock, least)]
        )

    def _release_at_clocks(self, clocks: list[int]) -> None:
        """Check the workers that wait with these clocks."""
        self._release_waiters(
            [waiter for clock in clocks for waiter in self._waiters_by_clock.pop(clock)]
        )

    def _release_waiters(self, waiters: list[Waiter]) -> None:
        """Release the waiters that need not wait any more; append the others to their next list."""
        registered, wait_for = self._waiters, self._wait_for
        for waiter in sorted(waiters):
            _, worker, channel, go = waiter
            if registered.get(go) is not waiter:  # withdrawn
                continue
            wait_list = wait_for(worker, channel is None)
            if wait_list is not None:
                wait_list.append(waiter)
                continue
            del registered[go]
            if channel is None:
                go()
            else:
                go(self.channels[channel].version)

    def _pick(self, channel: UpdateGroup) -> None:
        """Start an update if the rule selects gradients, or if no more of them will arrive."""
        if channel.pick_callback is None or channel.picked_factors or not channel.arrived:
            return
        channel.is_complete = channel.closing or channel.here >= len(self._present.active)
        chosen = self.rule.select(channel) or (channel.arrived if channel.is_complete else ())
        if not chosen:
            return
        for worker, _ in channel.arrived:
            self.dropped_gradients[worker] += 1
        for worker, _ in chosen:
            self.used_gradients[worker] += 1
            self.dropped_gradients[worker] -= 1
        total = sum(share for _, share in chosen)
        factor = 1.0 if len(chosen) == self.workers or not total else 1 / total
        factors = np.zeros(self.workers)
        factors[[worker for worker, _ in chosen]] = factor
        channel.picked_factors, channel.closing = True, False
        channel.arrived, channel.contributors, channel.here = [], set(), 0
        channel.workers_owing.reset()
        picker, channel.pick_callback = channel.pick_callback, None
        picker(factors)

    # -- every server

    def add(self, channel: str, name: str, worker: int, contribution: Contribution) -> None:
        """Hold a contribution to a sum until its update; a late one is released at once."""
        group = self.channel(channel)
        if contribution.version < group.version:
            contribution.release()
            return
        by_worker = group.contributions.setdefault(name, {})
        before, by_worker[worker] = by_worker.get(worker), contribution
        if before is not None:  # of a step that failed before all its gradients arrived
            before.release()

    def total(
        self, channel: str, name: str, reduction: str, factors: np.ndarray
    ) -> tuple[Any, ...]:
        """The sum of the picked workers' contributions, by worker number; releases these."""
        group = self.channel(channel)
        by_worker = group.contributions[name]
        contributions = [by_worker.pop(int(worker)) for worker in np.flatnonzero(factors)]
        values = JOIN[reduction](
            group, name, [g.arrays for g in contributions], float(factors.max())
        )
        for contribution in contributions:
            contribution.release()
        for tell in group.sum_callbacks.pop(name, ()):
            tell(*(np.array(value) for value in values))
        return values

    def request_sum(self, channel: str, name: str, callback: Callable[..., None]) -> None:
        """Call `callback(*values)` with a copy of the next sum."""
        self.channel(channel).sum_callbacks.setdefault(name, []).append(callback)

    def after(self, channel: str, version: int, go: Callback) -> None:
        """Call `go` when the update of a version has ended on this server."""
        group = self.channel(channel)
        if version < group.version:
            go()
        else:
            group.end_callbacks.append((version, go))

    def end(self, channel: str) -> None:
        """All updates of this version are applied: begin the next version."""
        group = self.channel(channel)
        group.version += 1
        group.picked_factors = False
        for by_worker in group.contributions.values():
            for worker in [w for w, g in by_worker.items() if g.version < group.version]:
                by_worker.pop(worker).release()
        over = [go for version, go in group.end_callbacks if version < group.version]
        group.end_callbacks = [end for end in group.end_callbacks if end[0] >= group.version]
        for go in over:
            go()
        waiters, group.waiters = group.waiters, []
        self._release_waiters(waiters)

    def report(self) -> dict[str, Any]:
        """The counts of the coordinator, by worker."""
        counts: dict[str, Any] = {"rule": str(self.rule)}
        if self._counts_steps:
            return {**counts, "lead": self.lead}
        return {
            **counts,
            "used": self.used_gradients,
            "late": self.late,
            "dropped": self.dropped_gradients,
        }


def _sum_contributions(
    channel: UpdateGroup, name: str, contributions: Sequence[tuple[np.ndarray, ...]], factor: float
) -> tuple[np.ndarray, ...]:
    """The sum of the contributions, from left to right, times the factor."""
    first = contributions[0][0]
    out = channel.sums.get(name)
    if out is None or out.shape != first.shape:
        out = channel.sums[name] = np.empty_like(first)
    if len(contributions) == 1:
        out[...] = first
    else:
        np.add(first, contributions[1][0], out=out)
    for (addend,) in contributions[2:]:
        np.add(out, addend, out=out)
    if factor != 1:
        np.multiply(out, out.dtype.type(factor), out=out)
    return (out,)


def _concat_row_contributions(
    channel: UpdateGroup, name: str, contributions: Sequence[tuple[np.ndarray, ...]], factor: float
) -> tuple[np.ndarray, ...]:
    """The concatenated rows of all contributions, times the factor, and their indices."""
    values = np.concatenate([rows for rows, _ in contributions])
    if factor != 1:
        np.multiply(values, values.dtype.type(factor), out=values)
    return values, np.concatenate([indices for _, indices in contributions])


def _first_contribution(
    channel: UpdateGroup, name: str, contributions: Sequence[tuple[np.ndarray, ...]], factor: float
) -> tuple[np.ndarray, ...]:
    """The value of the first picked worker."""
    return (np.array(contributions[0][0]),)


JOIN = {"sum": _sum_contributions, "rows": _concat_row_contributions, "first": _first_contribution}
