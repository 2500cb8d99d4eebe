"""Replay: a discrete-event simulation of steps on resources and of messages through ports.

All steps have the same tasks, so a task is a number in its step, and what it does is a list by
this number (`StepTasks`). Only its seconds differ from step to step.

A *resource* runs one task at a time, in the order in which they become ready. A *port* is one
direction of a network card, an uplink, a memory or a storage. It divides its bandwidth equally
among the messages in it (processor sharing). A message has arrived when its bytes have passed all
its ports, and its latency after that. Ports do not wait for each other, as if a switch had
unlimited buffers: a message that is slow in one port takes its equal share of the other.

A message may stand for several equal ones that start together: its *weight* in a port is how many
of them pass it, each of `nbytes`.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.errors import PlacementError

_WORKED, _ENDED, _PORT = 0, 1, 2  # kinds of events
_ROUNDING = 1e-9  # of the bytes of a message: what is left of it is rounding


class Route(NamedTuple):
    """A message: `nbytes` pass each of `ports` (port, weight); `delay` seconds follow.

    The first port is the one that the message is expected to leave last: only it has events.
    """

    nbytes: float
    ports: tuple[tuple[int, float], ...]
    delay: float


@dataclasses.dataclass(frozen=True)
class StepTasks:
    """The tasks of a step, by number: work on a resource, messages, or points in time.

    A task takes its seconds on `resources[i]` (-1: without one), then it is sent on `routes[i]`.
    When it has ended, `weights[i]` is taken off what is missing for task `i + k` to begin, for each
    k of `users[i]`, in ascending order. Task j of the next step is `j + len(users)`.
    """

    users: list[list[int]]
    weights: list[float]
    resources: list[int]
    routes: list[Route | None]


@dataclasses.dataclass(frozen=True)
class Times:
    """When each task of each step ended, and how long each resource and each port was busy."""

    ends: np.ndarray
    resource_busy: np.ndarray
    port_busy: np.ndarray


def replay(
    tasks: StepTasks,
    seconds: np.ndarray,
    missing: np.ndarray,
    starts: Sequence[tuple[int, float]],
    resources: int,
    bandwidths: Sequence[float],
) -> Times:
    """Run the steps; `bandwidths` are bytes per second of the ports.

    `seconds[s, i]` and `missing[s, i]` are of task i in step s. A task begins when nothing is
    missing. `starts` are tasks of a step before the first, and when they end.
    Errors: PlacementError if a task never begins, because its predecessors form a cycle or their
    weights are less than it needs, and for a bandwidth that is not positive.
    """
    if any(not rate > 0 for rate in bandwidths):
        raise PlacementError("the bandwidth of a port must be positive")
    return _Replay(tasks, seconds, missing, resources, bandwidths).run(starts)


class _Port:
    """A port with processor sharing.

    `served` is how many bytes each message that was there from the start has passed (the virtual
    time of the queue). A message that enters at `served` v leaves at v + nbytes. `told` are the
    messages whose end is an event; the others leave when somebody looks.
    """

    __slots__ = ("bandwidth", "busy", "changed", "expected", "inside", "leaving", "served", "told",
                 "weight")  # fmt: skip

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.weight = self.served = self.changed = self.busy = 0.0
        self.leaving: list[tuple[float, int, float]] = []  # served at the end, task, weight
        self.inside: set[int] = set()
        self.told: set[int] = set()
        self.expected = math.inf  # the time of its event

    def next_end(self) -> float:
        """When the next message leaves, if none comes before."""
        left = self.leaving[0][0] - self.served
        return self.changed + left * self.weight / self.bandwidth if left > 0 else self.changed

    def catch_up(self, now: float) -> None:
        """Serve until now; messages leave of which nobody is told."""
        while self.leaving:
            end = self.next_end()
            if end > now or self.told:  # those have events
                self.served += (now - self.changed) * self.bandwidth / self.weight
                self.busy += now - self.changed
                break
            self.leave(end)
        self.changed = now

    def leave(self, now: float) -> list[int]:
        """Let the next message leave, and those that end with it; returns those that are told."""
        self.busy += now - self.changed
        self.changed = now
        self.served = max(self.served, self.leaving[0][0])
        told = []
        limit = self.served * (1 + _ROUNDING)
        while self.leaving and self.leaving[0][0] <= limit:
            _, number, weight = heapq.heappop(self.leaving)
            self.weight -= weight
            self.inside.discard(number)
            if number in self.told:
                self.told.discard(number)
                told.append(number)
        if not self.leaving:
            self.weight = self.served = 0.0
        return told


class _Replay:
    """The state of a replay. Task i of step s has the number (s + 1) * size + i."""

    def __init__(
        self,
        tasks: StepTasks,
        seconds: np.ndarray,
        missing: np.ndarray,
        resources: int,
        bandwidths: Sequence[float],
    ) -> None:
        self.tasks, self.size = tasks, len(tasks.users)
        before = np.full(self.size, np.inf)
        self.missing = array.array("d", np.append(before, missing).tobytes())
        self.seconds = array.array("d", np.append(before, seconds).tobytes())
        self.ends = array.array("d", np.full(len(self.missing), np.nan).tobytes())
        self.ports = [_Port(rate) for rate in bandwidths]
        self.queues: list[collections.deque[int]] = [collections.deque() for _ in range(resources)]
        self.is_free = [True] * resources
        self.busy = [0.0] * resources
        self.in_ports: dict[int, int] = {}  # message -> ports in which it is known to be
        self.events: list[tuple[float, int, int, int]] = []
        self.over: collections.deque[int] = collections.deque()  # tasks that end now
        self.count = 0

    def run(self, starts: Sequence[tuple[int, float]]) -> Times:
        """Handle all events."""
        for number, time in starts:
            self._push(time, _ENDED, number)
        now, first = 0.0, self.size
        for number in (np.flatnonzero(np.array(self.missing[first:]) <= 0) + first).tolist():
            self._begin(number, now)
        events, over, end, pop = self.events, self.over, self._end, heapq.heappop
        while events or over:
            if over:
                end(over.popleft(), now)
                continue
            now, _, kind, which = pop(events)
            if kind == _ENDED:
                end(which, now)
            elif kind == _WORKED:
                self._worked(which, now)
            else:
                self._serve(which, now)
        ends = np.array(self.ends)[first:].reshape(-1, self.size)
        if np.isnan(ends).any():
            stuck = int(np.isnan(ends).argmax())
            raise PlacementError(
                f"task {stuck} of the replay never begins",
                hint="its predecessors form a cycle, or their weights are less than it needs",
            )
        for port in self.ports:
            port.catch_up(now)
        busy = [port.busy for port in self.ports]
        return Times(ends, np.array(self.busy), np.array(busy))

    def _push(self, time: float, kind: int, which: int) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, kind, which))

    def _begin(self, number: int, now: float) -> None:
        resource = self.tasks.resources[number % self.size]
        if resource < 0:
            if seconds := self.seconds[number]:
                self._push(now + seconds, _WORKED, number)
            else:
                self._worked(number, now)
        elif self.is_free[resource]:
            self._occupy(resource, number, now)
        else:
            self.queues[resource].append(number)

    def _occupy(self, resource: int, number: int, now: float) -> None:
        seconds = self.seconds[number]
        self.is_free[resource] = False
        self.busy[resource] += seconds
        self._push(now + seconds, _WORKED, number)

    def _worked(self, number: int, now: float) -> None:
        """The seconds of a task are over; its bytes, if it has any, enter the ports."""
        task = number % self.size
        resource = self.tasks.resources[task]
        if resource >= 0:
            queue = self.queues[resource]
            self.is_free[resource] = True
            if queue:
                self._occupy(resource, queue.popleft(), now)
        route = self.tasks.routes[task]
        if route is None:
            self.over.append(number)
        elif route.nbytes and route.ports:
            self._enter(number, route, now)
        elif route.delay:
            self._push(now + route.delay, _ENDED, number)
        else:
            self.over.append(number)

    def _enter(self, number: int, route: Route, now: float) -> None:
        """Let a message enter its ports."""
        for place, (which, weight) in enumerate(route.ports):
            port = self.ports[which]
            port.catch_up(now)
            port.weight += weight
            heapq.heappush(port.leaving, (port.served + route.nbytes, number, weight))
            port.inside.add(number)
            if place == 0:
                port.told.add(number)
            if port.told:
                self._expect(which)
        self.in_ports[number] = 1

    def _expect(self, which: int) -> None:
        """Plan the next message that leaves a port, unless an earlier event will look at it."""
        port = self.ports[which]
        end = port.next_end()
        if end < port.expected:
            port.expected = end
            self._push(end, _PORT, which)

    def _serve(self, which: int, now: float) -> None:
        """Let the messages leave that have passed a port, unless others have come since."""
        port = self.ports[which]
        if port.expected != now:
            return  # an earlier event has replaced this one
        port.expected = math.inf
        if port.told and port.next_end() <= now:
            for number in port.leave(now):
                self._passed(number, now)
        if port.told:
            self._expect(which)

    def _passed(self, number: int, now: float) -> None:
        """A message has passed a port: it has arrived, or is watched in the others."""
        route = self.tasks.routes[number % self.size]
        assert route is not None
        self.in_ports[number] -= 1
        if not self.in_ports[number]:
            for which, _ in route.ports:
                port = self.ports[which]
                port.catch_up(now)
                if number in port.inside:
                    port.told.add(number)
                    self.in_ports[number] += 1
                    self._expect(which)
        if not self.in_ports[number]:
            del self.in_ports[number]
            self._push(now + route.delay, _ENDED, number)

    def _end(self, number: int, now: float) -> None:
        self.ends[number] = now
        tasks, missing = self.tasks, self.missing
        task = number % self.size
        weight = tasks.weights[task]
        for step in tasks.users[task]:
            user = number + step
            if user >= len(missing):
                return
            before = missing[user]
            missing[user] = before - weight
            if before > 0 >= before - weight:
                self._begin(user, now)
