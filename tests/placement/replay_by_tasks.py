"""Oracle of `hpcflow.placement.replay`: a discrete-event simulation of task objects.

A *resource* runs one task at a time, in the order in which they become ready. A *port* is one
direction of a network card, an uplink or a memory. It divides its bandwidth equally among the
messages in it (processor sharing). A message has arrived when its bytes have passed all its ports,
and its latency after that. Ports do not wait for each other, as if a switch had unlimited buffers:
a message that is slow in one port takes its equal share of the other.

A message may stand for several equal ones that start together: its *weight* in a port is how many
of them pass it, each of `nbytes`.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.errors import PlacementError

_END, _PORT = 0, 1  # kinds of events
_ROUNDING = 1e-9  # of the bytes of a message: what is left of it is rounding


class Task(NamedTuple):
    """Work on a resource, a message, or a point in time if it has neither.

    It begins when all tasks in `after` have ended. With `needed` it begins when tasks in `after`
    with weights, `weights`, of this sum have ended. It takes `seconds` on `resource` (or without
    one), then `nbytes` pass each of `ports` (port, weight); `delay` follows.
    """

    after: tuple[int, ...] = ()
    resource: int = -1
    seconds: float = 0.0
    nbytes: float = 0.0
    ports: tuple[tuple[int, float], ...] = ()
    delay: float = 0.0
    needed: float = 0.0
    weights: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Times:
    """When each task ended, and how long each resource and each port was busy."""

    ends: np.ndarray
    resource_busy: np.ndarray
    port_busy: np.ndarray


def replay(tasks: Sequence[Task], resources: int, bandwidths: Sequence[float]) -> Times:
    """Run the tasks; `bandwidths` are bytes per second of the ports.

    Errors: PlacementError if a task never begins, because its predecessors form a cycle or their
    weights are less than it needs, and for a bandwidth that is not positive.
    """
    if any(not rate > 0 for rate in bandwidths):
        raise PlacementError("the bandwidth of a port must be positive")
    return _Replay(tasks, resources, bandwidths).run()


class _Port:
    """A port with processor sharing.

    `served` is how many bytes each message that was there from the start has passed (the virtual
    time of the queue). A message that enters at `served` v leaves at v + nbytes.
    """

    __slots__ = ("bandwidth", "busy", "changed", "leaving", "served", "version", "weight")

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.weight = self.served = self.changed = self.busy = 0.0
        self.version = 0
        self.leaving: list[tuple[float, int, float]] = []  # served at the end, task, weight

    def advance(self, now: float) -> None:
        """Serve until now."""
        if self.weight:
            self.served += (now - self.changed) * self.bandwidth / self.weight
            self.busy += now - self.changed
        self.changed = now

    def next_end(self) -> float:
        """When the next message leaves, if none comes before."""
        left = max(0.0, self.leaving[0][0] - self.served)
        return self.changed + left * self.weight / self.bandwidth


class _Replay:
    """The state of a replay."""

    def __init__(self, tasks: Sequence[Task], resources: int, bandwidths: Sequence[float]) -> None:
        self.tasks = tasks
        self.ends = [np.nan] * len(tasks)
        self.ports = [_Port(rate) for rate in bandwidths]
        self.queues: list[collections.deque[int]] = [collections.deque() for _ in range(resources)]
        self.is_free = [True] * resources
        self.busy = [0.0] * resources
        self.missing = [task.needed or float(len(task.after)) for task in tasks]
        self.in_ports = [len(task.ports) for task in tasks]
        self.users: list[list[tuple[int, float]]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            weights = task.weights or (1.0,) * len(task.after)
            for before, weight in zip(task.after, weights, strict=True):
                self.users[before].append((number, weight))
        self.events: list[tuple[float, int, int, int, int]] = []
        self.over: collections.deque[int] = collections.deque()  # tasks that end now
        self.count = 0

    def run(self) -> Times:
        """Handle all events."""
        now = 0.0
        for number, missing in enumerate(self.missing):
            if missing <= 0:
                self._begin(number, now)
        while self.events or self.over:
            if self.over:
                self._end(self.over.popleft(), now)
                continue
            now, _, kind, which, version = heapq.heappop(self.events)
            if kind == _PORT:
                if version == self.ports[which].version:
                    self._serve(which, now)
            elif version:
                self._end(which, now)
            else:
                self._worked(which, now)
        ends = np.array(self.ends)
        if np.isnan(ends).any():
            stuck = int(np.isnan(ends).argmax())
            raise PlacementError(
                f"task {stuck} of the replay never begins",
                hint="its predecessors form a cycle, or their weights are less than it needs",
            )
        busy = [port.busy for port in self.ports]
        return Times(ends, np.array(self.busy), np.array(busy))

    def _push(self, time: float, kind: int, which: int, version: int) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, kind, which, version))

    def _begin(self, number: int, now: float) -> None:
        task = self.tasks[number]
        resource = task.resource
        if resource < 0:
            if task.seconds:
                self._push(now + task.seconds, _END, number, 0)
            else:
                self._worked(number, now)
        elif self.is_free[resource]:
            self._occupy(resource, number, now)
        else:
            self.queues[resource].append(number)

    def _occupy(self, resource: int, number: int, now: float) -> None:
        seconds = self.tasks[number].seconds
        self.is_free[resource] = False
        self.busy[resource] += seconds
        self._push(now + seconds, _END, number, 0)

    def _worked(self, number: int, now: float) -> None:
        """The seconds of a task are over; its bytes, if it has any, enter the ports."""
        task = self.tasks[number]
        if task.resource >= 0:
            queue = self.queues[task.resource]
            self.is_free[task.resource] = True
            if queue:
                self._occupy(task.resource, queue.popleft(), now)
        if not task.ports or not task.nbytes:
            if task.delay:
                self._push(now + task.delay, _END, number, 1)
            else:
                self.over.append(number)
            return
        for which, weight in task.ports:
            port = self.ports[which]
            port.advance(now)
            port.weight += weight
            heapq.heappush(port.leaving, (port.served + task.nbytes, number, weight))
            self._expect(which)

    def _expect(self, which: int) -> None:
        """Plan the next message that leaves a port."""
        port = self.ports[which]
        port.version += 1
        if port.leaving:
            self._push(port.next_end(), _PORT, which, port.version)

    def _serve(self, which: int, now: float) -> None:
        """Let the messages leave that have passed a port."""
        port = self.ports[which]
        port.advance(now)
        port.served = max(port.served, port.leaving[0][0])
        while port.leaving and port.leaving[0][0] <= port.served * (1 + _ROUNDING):
            _, number, weight = heapq.heappop(port.leaving)
            port.weight = port.weight - weight if port.leaving else 0.0
            self.in_ports[number] -= 1
            if not self.in_ports[number]:
                self._push(now + self.tasks[number].delay, _END, number, 1)
        if not port.leaving:
            port.served = 0.0
        self._expect(which)

    def _end(self, number: int, now: float) -> None:
        self.ends[number] = now
        for user, weight in self.users[number]:
            before = self.missing[user]
            self.missing[user] = before - weight
            if before > 0 >= self.missing[user]:
                self._begin(user, now)
