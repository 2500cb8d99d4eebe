"""Oracle of `hpcflow.placement.replay`: a discrete-event simulation of task objects.

A *resource* runs one task at a time, in the order in which they become ready. A *port* is one
direction of a network card, an uplink or a memory. It divides its bandwidth equally among the
connections that have messages in it, and the share of a connection among its messages (processor
sharing). A message has arrived when its bytes have passed all its ports, and its latency after
that. Ports do not wait for each other, as if a switch had unlimited buffers: a message that is slow
in one port takes its equal share of the other.

A message may stand for several equal ones that start together: its *weight* in a port is how many
of them pass it, each of `nbytes`.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.errors import PlacementError

_END, _PORT = 0, 1  # kinds of events
_ROUNDING = 1e-9  # of the bytes of a message: what is left of it is rounding


class Task(NamedTuple):
    """Work on a resource, a message, or a point in time if it has neither.

    It begins when all tasks in `after` have ended. With `needed` it begins when tasks in `after`
    with weights, `weights`, of this sum have ended. It takes `seconds` on `resource` (or without
    one), then `nbytes` pass each of `ports` (port, weight); `delay` follows. It ends `least` after
    its start or later. Messages of a `connection` have equal weights; a message without one has its
    own. If `in_order`, only the message of a connection that came first moves.
    """

    after: tuple[int, ...] = ()
    resource: int = -1
    seconds: float = 0.0
    nbytes: float = 0.0
    ports: tuple[tuple[int, float], ...] = ()
    delay: float = 0.0
    needed: float = 0.0
    weights: tuple[float, ...] = ()
    connection: int = -1
    in_order: bool = False
    least: float = 0.0


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
    """A port: `left` has the bytes of each message, `connections` the messages of each connection.

    `weights` has the weight of each connection.
    """

    __slots__ = ("bandwidth", "busy", "changed", "connections", "in_order", "left", "version",
                 "weights")  # fmt: skip

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.changed = self.busy = 0.0
        self.version = 0
        self.left: dict[int, float] = {}
        self.connections: dict[int, list[int]] = {}
        self.in_order: set[int] = set()  # connections
        self.weights: dict[int, float] = {}

    def rates(self) -> dict[int, float]:
        """Bytes per second of each message, one for each member of a group."""
        total = sum(self.weights[which] for which in self.connections)
        moving = {
            which: messages[:1] if which in self.in_order else messages
            for which, messages in self.connections.items()
        }
        return {
            number: self.bandwidth / total / len(messages)
            for messages in moving.values()
            for number in messages
        }

    def enter(self, number: int, task: Task, which: int, weight: float) -> None:
        """Let a message enter."""
        self.left[number] = task.nbytes
        self.connections.setdefault(which, []).append(number)
        self.weights[which] = weight
        if task.in_order:
            self.in_order.add(which)

    def advance(self, now: float) -> None:
        """Serve until now."""
        if self.left:
            self.busy += now - self.changed
            for number, rate in self.rates().items():
                self.left[number] -= (now - self.changed) * rate
        self.changed = now

    def next_end(self) -> float:
        """When the next message leaves, if none comes before."""
        rates = self.rates()
        return self.changed + min(max(0.0, self.left[n]) / rate for n, rate in rates.items())

    def leave(self, sizes: Callable[[int], float]) -> list[int]:
        """Let the messages leave of which nothing is left but rounding."""
        gone = [number for number, left in self.left.items() if left <= _ROUNDING * sizes(number)]
        for number in gone:
            del self.left[number]
        kept = {
            which: [number for number in messages if number not in gone]
            for which, messages in self.connections.items()
        }
        self.connections = {which: messages for which, messages in kept.items() if messages}
        return gone


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
        self.entered = [0.0] * len(tasks)  # when the seconds of each task were over
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
        self.entered[number] = now
        if not task.ports or not task.nbytes:
            if task.delay or task.least:
                self._push(now + max(task.delay, task.least), _END, number, 1)
            else:
                self.over.append(number)
            return
        connection = task.connection if task.connection >= 0 else -1 - number
        for which, weight in task.ports:
            port = self.ports[which]
            port.advance(now)
            port.enter(number, task, connection, weight)
            self._expect(which)

    def _expect(self, which: int) -> None:
        """Plan the next message that leaves a port."""
        port = self.ports[which]
        port.version += 1
        if port.left:
            self._push(port.next_end(), _PORT, which, port.version)

    def _serve(self, which: int, now: float) -> None:
        """Let the messages leave that have passed a port."""
        port = self.ports[which]
        port.advance(now)
        for number in port.leave(lambda number: self.tasks[number].nbytes):
            self.in_ports[number] -= 1
            if not self.in_ports[number]:
                task = self.tasks[number]
                end = max(now + task.delay, self.entered[number] + task.least)
                self._push(end, _END, number, 1)
        self._expect(which)

    def _end(self, number: int, now: float) -> None:
        self.ends[number] = now
        for user, weight in self.users[number]:
            before = self.missing[user]
            self.missing[user] = before - weight
            if before > 0 >= self.missing[user]:
                self._begin(user, now)
