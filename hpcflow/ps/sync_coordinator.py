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
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.ps.active_workers import Clocks, First, Present
from hpcflow.ps.sync_rule import Gradient, SyncRule

Go = Callable[[], None]
# A waiting worker: its position in the order of release, the worker, the channel of the step that
# it will begin (None: it arrives at a barrier), and the callback.
Waiter = tuple[int, int, str | None, Callable[..., None]]
LEAVES = 1 << 62  # workers that arrive at a barrier are released after those that begin a step


@dataclasses.dataclass
class Contribution:
    """A worker's input to one sum. The worker must not reuse the arrays before `release`."""

    version: int
    arrays: tuple[Any, ...]
    release: Go


class Channel:
    """Updates that are applied together, and the gradients for them.

    `version` counts the applied updates. Gradients carry the version that their worker read; those
    of an older version are late.
    """

    def __init__(self, workers: int) -> None:
        self.version = 0
        self.contributed = [-1] * workers  # the newest version with gradients of each worker
        self.workers = workers
        self.arrived: list[Gradient] = []  # of this version, by arrival
        self.contributors: set[int] = set()  # the workers in `arrived`
        self.here = 0  # the number of active workers in `contributors`
        self.is_complete = False  # when the rule is asked: no other worker will contribute
        self.owing = First(workers)  # active workers that are not in `contributors`
        self.picked = False  # the update of this version is in progress
        self.closing = False  # no other worker will contribute to this version
        self.picker: Callable[[np.ndarray], None] | None = None  # waits for enough gradients
        self.held: dict[str, dict[int, Contribution]] = {}  # sum -> worker -> contribution
        self.sums: dict[str, np.ndarray] = {}  # buffers of the sums
        self.wanted: dict[str, list[Callable[..., None]]] = {}  # sum -> callbacks for its value
        self.ends: list[tuple[int, Go]] = []  # (version, callback at the end of its update)
        self.waiters: list[Waiter] = []  # workers to check again after this update


class Rounds:
    """The synchronous updates of one server, and on server 0 the clocks of all workers.

    No request of one worker scans all workers or all waiters.
    """

    def __init__(self, rule: SyncRule, workers: int) -> None:
        self.rule, self.workers = rule, workers
        self.channels: dict[str, Channel] = {}
        self.used, self.late, self.dropped = [0] * workers, [0] * workers, [0] * workers
        self.lead = 0  # the maximum steps a worker was ahead of the slowest when it began one
        self.ranks = [-1] * workers  # worker -> rank; -1 before its first step
        self.repeated: set[str] = set()  # names of the updates whose plans the servers repeat
        self._counts_steps = rule.counts_steps
        self._present, self._clocks = Present(workers), Clocks(workers)
        self._slowest = First(workers)
        self._waiters: dict[Callable[..., None], Waiter] = {}  # by callback
        self._ahead: dict[int, list[Waiter]] = {}  # clock -> workers that wait with this clock
        self._numbers = itertools.count()

    def channel(self, name: str) -> Channel:
        """The channel of this name, created on first use."""
        found = self.channels.get(name)
        if found is None:
            found = self.channels[name] = Channel(self.workers)
        return found

    # -- the coordinator

    def begin(self, worker: int, channel: str, go: Callable[[int], None]) -> None:
        """Call `go(version)` when the worker may begin a step."""
        version = self.channel(channel).version
        where = self._wait_for(worker, False)
        if where is None:
            go(version)
        else:
            self._keep(worker, channel, go, where)

    def withdraw(self, go: Callable[..., None]) -> None:
        """Withdraw the request of the callback `go`."""
        self._waiters.pop(go, None)

    def ready(self, worker: int, channel: str, version: int, share: float) -> None:
        """All gradients of a worker's step are on the servers; late ones are counted and dropped.

        `share` is the fraction of the global batch that the step used.
        """
        found = self.channel(channel)
        found.contributed[worker] = max(version, found.contributed[worker])
        if version < found.version or found.picked:
            self.late[worker] += 1
            self.dropped[worker] += 1
            return
        found.arrived.append((worker, share))
        if worker not in found.contributors:
            found.contributors.add(worker)
            found.here += worker in self._present.active
        self._pick(found)

    def pick(self, channel: str, go: Callable[[np.ndarray], None]) -> None:
        """Call `go(factors)` when an update may start; a factor for each worker, 0: not used."""
        found = self.channel(channel)
        found.picker = go
        self._pick(found)

    def tick(self, worker: int) -> None:
        """Count a step of a worker, which has been applied."""
        if self._clocks.tick(worker, worker in self._present.active):
            self._slower()

    def step_aside(self, worker: int, go: Go) -> None:
        """A worker arrives at a barrier: others do not wait for it until all have arrived.

        `go` is called when all its gradients are applied or dropped.
        """
        self._go_aside(worker, self._present.times[worker] + 1)
        where = self._wait_for(worker, True)
        if where is None:
            go()
        else:
            self._keep(worker, None, go, where)

    def _go_aside(self, worker: int, times: int) -> None:
        was_active = worker in self._present.active
        if self._present.go(worker, times):  # the last worker has arrived
            self._meet()
        elif was_active:
            for channel in self.channels.values():
                channel.here -= worker in channel.contributors
            if self._clocks.leave(worker):
                self._slower()
        for channel in list(self.channels.values()):
            self._pick(channel)

    def _meet(self) -> None:
        """All workers have arrived at the barrier: restart the clocks."""
        active = self._present.active
        self._clocks.restart(len(active))
        for channel in self.channels.values():
            channel.closing = bool(channel.arrived)
            channel.here = len(channel.contributors & active)
            channel.owing.anew()
        self._slowest.anew()
        self._let_go_at(list(self._ahead))

    def lose(self, worker: int) -> None:
        """A worker has died: treat it as arrived at this and at all later barriers.

        Its gradients that are complete on all servers are used; others are never picked.
        """
        for go in [go for _, one, _, go in self._waiters.values() if one == worker]:
            self.withdraw(go)
        self._go_aside(worker, sys.maxsize)

    def missing(self) -> tuple[str, int] | None:
        """What workers wait for here, as text, and the rank of the first worker that delays them.

        None if no worker waits for another.
        """
        slow = self._who_is_slow() if self._counts_steps else self._who_owes()
        if not slow:
            return None
        names = ", ".join(map(str, slow[:3])) + (", ..." if len(slow) > 3 else "")
        return f"what worker {names} is to bring", self.ranks[slow[0]]

    def _who_is_slow(self) -> list[int]:
        """The first of the slowest workers, if others wait for them to begin a step."""
        if not self._waiters:
            return []
        active, clocks = self._present.active, self._clocks
        return self._slowest.of(lambda w: w in active and clocks.of[w] == clocks.least)

    def _who_owes(self) -> list[int]:
        """The first workers whose gradients are missing in an update that has some."""
        found: set[int] = set()
        for channel in self.channels.values():
            if channel.arrived and not channel.picked:
                found.update(channel.owing.of(functools.partial(self._owes, channel)))
        return sorted(found)

    def _owes(self, channel: Channel, worker: int) -> bool:
        return worker in self._present.active and worker not in channel.contributors

    # -- waiting workers

    def _wait_for(self, worker: int, leaves: bool) -> list[Waiter] | None:
        """The list in which a worker waits to begin a step or to pass a barrier; None: no wait."""
        if not self._counts_steps or leaves:  # an update is in progress or has its gradients
            for channel in self.channels.values():
                if channel.picked or channel.contributed[worker] >= channel.version:
                    return channel.waiters
            return None
        clock = self._clocks.of[worker]
        if not self.rule.may_begin(clock, self._clocks.least):
            return self._ahead.setdefault(clock, [])
        self.lead = max(self.lead, clock - self._clocks.least)
        return None

    def _keep(
        self, worker: int, channel: str | None, go: Callable[..., None], where: list[Waiter]
    ) -> None:
        order = next(self._numbers) + (LEAVES if channel is None else 0)
        self._waiters[go] = waiter = (order, worker, channel, go)
        where.append(waiter)

    def _slower(self) -> None:
        """The minimum clock has changed: release the workers that are no longer too far ahead."""
        self._slowest.anew()
        may_begin, least = self.rule.may_begin, self._clocks.least
        self._let_go_at([clock for clock in self._ahead if may_begin(clock, least)])

    def _let_go_at(self, clocks: list[int]) -> None:
        """Check the workers that wait with these clocks."""
        self._let_go([waiter for clock in clocks for waiter in self._ahead.pop(clock)])

    def _let_go(self, waiters: list[Waiter]) -> None:
        """Release the waiters that need not wait any more; append the others to their next list."""
        known, wait_for = self._waiters, self._wait_for
        for waiter in sorted(waiters):
            _, worker, channel, go = waiter
            if known.get(go) is not waiter:  # withdrawn
                continue
            where = wait_for(worker, channel is None)
            if where is not None:
                where.append(waiter)
                continue
            del known[go]
            if channel is None:
                go()
            else:
                go(self.channels[channel].version)

    def _pick(self, channel: Channel) -> None:
        """Start an update if the rule selects gradients, or if no more of them will arrive."""
        if channel.picker is None or channel.picked or not channel.arrived:
            return
        channel.is_complete = channel.closing or channel.here >= len(self._present.active)
        chosen = self.rule.select(channel) or (channel.arrived if channel.is_complete else ())
        if not chosen:
            return
        for worker, _ in channel.arrived:
            self.dropped[worker] += 1
        for worker, _ in chosen:
            self.used[worker] += 1
            self.dropped[worker] -= 1
        total = sum(share for _, share in chosen)
        factor = 1.0 if len(chosen) == self.workers or not total else 1 / total
        factors = np.zeros(self.workers)
        factors[[worker for worker, _ in chosen]] = factor
        channel.picked, channel.closing = True, False
        channel.arrived, channel.contributors, channel.here = [], set(), 0
        channel.owing.anew()
        picker, channel.picker = channel.picker, None
        picker(factors)

    # -- every server

    def add(self, channel: str, name: str, worker: int, given: Contribution) -> None:
        """Hold a contribution to a sum until its update; a late one is released at once."""
        found = self.channel(channel)
        if given.version < found.version:
            given.release()
            return
        held = found.held.setdefault(name, {})
        before, held[worker] = held.get(worker), given
        if before is not None:  # of a step that failed before all its gradients arrived
            before.release()

    def total(self, channel: str, name: str, how: str, factors: np.ndarray) -> tuple[Any, ...]:
        """The sum of the picked workers' contributions, by worker number; releases these."""
        found = self.channel(channel)
        held = found.held[name]
        given = [held.pop(int(worker)) for worker in np.flatnonzero(factors)]
        values = JOIN[how](found, name, [g.arrays for g in given], float(factors.max()))
        for contribution in given:
            contribution.release()
        for tell in found.wanted.pop(name, ()):
            tell(*(np.array(value) for value in values))
        return values

    def want(self, channel: str, name: str, tell: Callable[..., None]) -> None:
        """Call `tell(*values)` with a copy of the next sum."""
        self.channel(channel).wanted.setdefault(name, []).append(tell)

    def after(self, channel: str, version: int, go: Go) -> None:
        """Call `go` when the update of a version has ended on this server."""
        found = self.channel(channel)
        if version < found.version:
            go()
        else:
            found.ends.append((version, go))

    def end(self, channel: str) -> None:
        """All updates of this version are applied: begin the next version."""
        found = self.channel(channel)
        found.version += 1
        found.picked = False
        for held in found.held.values():
            for worker in [w for w, g in held.items() if g.version < found.version]:
                held.pop(worker).release()
        over = [go for version, go in found.ends if version < found.version]
        found.ends = [end for end in found.ends if end[0] >= found.version]
        for go in over:
            go()
        waiters, found.waiters = found.waiters, []
        self._let_go(waiters)

    def report(self) -> dict[str, Any]:
        """The counts of the coordinator, by worker."""
        found: dict[str, Any] = {"rule": str(self.rule)}
        if self._counts_steps:
            return {**found, "lead": self.lead}
        return {**found, "used": self.used, "late": self.late, "dropped": self.dropped}


def _sum(
    channel: Channel, name: str, given: Sequence[tuple[np.ndarray, ...]], factor: float
) -> tuple[np.ndarray, ...]:
    """The sum of the contributions, from left to right, times the factor."""
    first = given[0][0]
    out = channel.sums.get(name)
    if out is None or out.shape != first.shape:
        out = channel.sums[name] = np.empty_like(first)
    if len(given) == 1:
        out[...] = first
    else:
        np.add(first, given[1][0], out=out)
    for (more,) in given[2:]:
        np.add(out, more, out=out)
    if factor != 1:
        np.multiply(out, out.dtype.type(factor), out=out)
    return (out,)


def _rows(
    channel: Channel, name: str, given: Sequence[tuple[np.ndarray, ...]], factor: float
) -> tuple[np.ndarray, ...]:
    """The concatenated rows of all contributions, times the factor, and their indices."""
    values = np.concatenate([rows for rows, _ in given])
    if factor != 1:
        np.multiply(values, values.dtype.type(factor), out=values)
    return values, np.concatenate([indices for _, indices in given])


def _first(
    channel: Channel, name: str, given: Sequence[tuple[np.ndarray, ...]], factor: float
) -> tuple[np.ndarray, ...]:
    """The value of the first picked worker."""
    return (np.array(given[0][0]),)


JOIN = {"sum": _sum, "rows": _rows, "first": _first}
