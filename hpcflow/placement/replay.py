"""Replay: a discrete-event simulation of tasks on resources and of messages through ports.

All steps have the same tasks, so a task is a number in its step, and `StepTasks` describes one
step by lists with an entry for each task. Only the seconds of a task differ from step to step.

A *resource* runs one task at a time, in the order in which they become ready. A *port* is one
direction of a network card, an uplink, a memory or a storage. It divides its bandwidth equally
among the *connections* that have messages in it, and the share of a connection equally among its
messages (processor sharing; the finish times in a port are kept in its virtual time, as in fair
queueing: Demers, Keshav and Shenker, SIGCOMM 1989). Two ranks have one TCP connection for all their
messages. A connection may serve its messages in order instead. A message arrives when its bytes
have passed all its ports, and its latency after that. Ports do not wait for each other, as if a
switch had unlimited buffers: a message that is slow in one port takes its equal share of the other.

A message may stand for several equal ones that start together: its *weight* in a port is how many
of them pass it, each of `nbytes`.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import heapq
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.errors import PlacementError

_NEVER = 1 << 60  # of `missing`: for tasks before the first step and after the last
_ROUNDING = 1e-9  # relative: a message that has so much of its bytes left has passed a port


class Message(NamedTuple):
    """A message: its `nbytes` pass each of `ports` (port, weight); `delay` seconds follow.

    It arrives `least` seconds after its start or later.
    The first port should be the one that the message leaves last: until it has left this port, its
    departures from the others are no events. Messages of one `connection` have equal weights; a
    message with -1 has a connection of its own. If `in_order`, a connection serves its messages one
    after the other, else all at once.
    """

    nbytes: float
    ports: tuple[tuple[int, float], ...]
    delay: float
    connection: int = -1
    in_order: bool = False
    least: float = 0.0


@dataclasses.dataclass(frozen=True)
class StepTasks:
    """The tasks of a step: work on a resource, messages, or points in time.

    Task i takes its seconds on the resource `resources[i]` (-1: it occupies none), or is the
    message `messages[i]`. At its end, `weights[i]` is subtracted from what is missing for each of
    its successors to begin. These are the tasks i + k for each k of `users[i]`, in ascending order;
    task j of the next step has the number j + len(users).
    """

    users: list[list[int]]
    weights: list[int]
    resources: list[int]
    messages: list[Message | None]


@dataclasses.dataclass(frozen=True)
class Times:
    """The ends of tasks, and how long each resource and each port was busy, in seconds.

    `ends[s, i]` is the end of task i in step s.
    """

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
    """Run as many steps as `seconds` and `missing` have rows.

    Task i of step s takes `seconds[s, i]` and begins when its predecessors have subtracted
    `missing[s, i]`, a count. `starts` has tasks of a step before the first, and when they end.
    `resources` is the number of resources, `bandwidths` has the bytes per second of each port.
    Errors: PlacementError if a task never begins, because its predecessors form a cycle or their
    weights are less than it needs, and for a bandwidth that is not positive.
    """
    if any(not rate > 0 for rate in bandwidths):
        raise PlacementError("the bandwidth of a port must be positive")
    return _Replay(tasks, seconds, missing, resources, bandwidths).run(starts)


class _Connection:
    """The messages of a connection in a port.

    `served` is the virtual time of the connection: the bytes of a message that has been in it from
    the start and is served. It was last advanced at the virtual time `port_served` of the port.
    `end` is the virtual time of the port at which the next message leaves. If `in_order`, `served`
    counts the bytes of all messages, and `last` is its value when the last message leaves.
    """

    __slots__ = ("departures", "end", "in_order", "last", "port_served", "served", "weight")

    def __init__(self, weight: float, port_served: float, in_order: bool) -> None:
        self.weight, self.port_served, self.in_order = weight, port_served, in_order
        self.served = self.end = self.last = 0.0
        self.departures: list[tuple[float, int]] = []  # (`served` at its end, message), a heap

    def advance(self, port_served: float) -> None:
        """Divide what the port has served since `port_served` among the messages."""
        served = port_served - self.port_served
        self.served += served if self.in_order else served / len(self.departures)
        self.port_served = port_served

    def schedule(self) -> float:
        """Set `end`, and return it."""
        count = 1 if self.in_order else len(self.departures)
        self.end = self.port_served + (self.departures[0][0] - self.served) * count
        return self.end


class _Port:
    """A port with processor sharing.

    `served` is the virtual time of the port: the bytes of a connection that has been in it from the
    start and is served. It was last advanced at the time `changed`. `weight` is that of all
    connections. `watched` are the messages whose departures are events; the others leave when the
    port is advanced. The first entry of `departures` is always valid, others may be outdated.
    """

    __slots__ = ("bandwidth", "busy", "changed", "connections", "departures", "messages",
                 "next_event", "served", "watched", "weight")  # fmt: skip

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.weight = self.served = self.changed = self.busy = 0.0
        self.departures: list[tuple[float, int]] = []  # (`end` of a connection, connection), a heap
        self.connections: dict[int, _Connection] = {}
        self.messages: set[int] = set()  # in the port
        self.watched: set[int] = set()
        self.next_event = math.inf  # the time of its next event

    def next_departure(self) -> float:
        """The time at which the next message leaves, if none enters before."""
        left = self.departures[0][0] - self.served
        return self.changed + left * self.weight / self.bandwidth if left > 0 else self.changed

    def advance(self, now: float) -> None:
        """Serve until now: messages leave that are not watched."""
        while self.departures:
            if self.watched or (end := self.next_departure()) > now:  # an event ends watched ones
                passed = now - self.changed
                self.served += passed * self.bandwidth / self.weight
                self.busy += passed
                break
            self.leave(end)
        self.changed = now

    def enter(self, number: int, message: Message, which: int, weight: float) -> None:
        """Let a message enter on connection `which`; the port has been advanced to now."""
        self.messages.add(number)
        connection = self.connections.get(which)
        if connection is None:
            connection = _Connection(weight, self.served, message.in_order)
            self.connections[which] = connection
            self.weight += weight
            connection.last = message.nbytes
            connection.departures.append((message.nbytes, number))
            connection.end = self.served + message.nbytes
            heapq.heappush(self.departures, (connection.end, which))
            return
        connection.advance(self.served)
        before = connection.last if connection.in_order else connection.served
        connection.last = before + message.nbytes
        heapq.heappush(connection.departures, (connection.last, number))
        heapq.heappush(self.departures, (connection.schedule(), which))
        self._drop_outdated()

    def leave(self, now: float) -> list[int]:
        """Let the next message leave, and those that leave with it; return the watched ones."""
        self.busy += now - self.changed
        self.changed = now
        self.served = max(self.served, self.departures[0][0])
        watched = []
        departures, connections, messages = self.departures, self.connections, self.messages
        limit = self.served * (1 + _ROUNDING)
        while departures and departures[0][0] <= limit:
            which = departures[0][1]
            connection = connections[which]
            if len(connection.departures) == 1:
                number = connection.departures[0][1]
                del connections[which]
                self.weight -= connection.weight
                heapq.heappop(departures)
            else:
                connection.advance(self.served)
                number = heapq.heappop(connection.departures)[1]
                heapq.heapreplace(departures, (connection.schedule(), which))
            self._drop_outdated()
            messages.discard(number)
            if number in self.watched:
                self.watched.discard(number)
                watched.append(number)
        if not departures:
            self.weight = self.served = 0.0
        return watched

    def _drop_outdated(self) -> None:
        """Let the first of `departures` be the next departure of a connection."""
        departures, connections = self.departures, self.connections
        while departures:
            end, first = departures[0]
            found = connections.get(first)
            if found is not None and found.end == end:
                return
            heapq.heappop(departures)


class _Replay:
    """The state of a replay. Task i of step s has the number (s + 1) * size + i.

    An event is (time, count, number of the task that ends), or -1 - port for a departure.
    """

    def __init__(
        self,
        tasks: StepTasks,
        seconds: np.ndarray,
        missing: np.ndarray,
        resources: int,
        bandwidths: Sequence[float],
    ) -> None:
        self.tasks, self.size = tasks, len(tasks.users)
        self.missing = [_NEVER] * self.size + missing.astype(int).ravel().tolist()
        self.seconds = array.array("d", np.append(np.full(self.size, np.inf), seconds).tobytes())
        self.ends = array.array("d", np.full(len(self.missing), np.nan).tobytes())
        self.missing += [_NEVER] * max((step for to in tasks.users for step in to), default=0)
        self.ports = [_Port(rate) for rate in bandwidths]
        self.queues: list[collections.deque[int]] = [collections.deque() for _ in range(resources)]
        self.is_free = [True] * resources
        self.in_ports: dict[int, int] = {}  # message -> ports in which it is watched
        self.earliest: dict[int, float] = {}  # message with `least` -> when it may arrive
        self.events: list[tuple[float, int, int]] = []  # a heap
        self.finished: collections.deque[int] = (
            collections.deque()
        )  # tasks that end now, without event
        self.count = itertools.count().__next__  # events of a time are handled in their order

    def run(self, starts: Sequence[tuple[int, float]]) -> Times:
        """Handle all events."""
        for number, time in starts:
            self._push(time, number)
        first = self.size
        missing = np.array(self.missing[first : len(self.ends)])
        for number in (np.flatnonzero(missing <= 0) + first).tolist():
            self._begin(number, 0.0)
        now = self._handle_events()
        ends = np.array(self.ends)[first:].reshape(-1, first)
        if np.isnan(ends).any():
            stuck = int(np.isnan(ends).argmax())
            raise PlacementError(
                f"task {stuck} of the replay never begins",
                hint="its predecessors form a cycle, or their weights are less than it needs",
            )
        for port in self.ports:
            port.advance(now)
        return Times(ends, self._resource_busy(), np.array([port.busy for port in self.ports]))

    def _resource_busy(self) -> np.ndarray:
        """The seconds of all tasks on each resource."""
        sums = np.array(self.seconds)[self.size :].reshape(-1, self.size).sum(axis=0)
        resources = np.array(self.tasks.resources, int) + 1  # from 1: 0 is no resource
        return np.bincount(resources, sums, len(self.queues) + 1)[1:]

    def _push(self, time: float, which: int) -> None:
        heapq.heappush(self.events, (time, self.count(), which))

    def _handle_events(self) -> float:
        """End tasks and begin others until there are no more events; returns the time of the last.

        Most time of a replay is spent here: hence the local names, and no calls for work that
        begins at once.
        """
        now, finished, events = 0.0, self.finished, self.events
        missing, ends, seconds = self.missing, self.ends, self.seconds
        users, weights, resources = self.tasks.users, self.tasks.weights, self.tasks.resources
        queues, is_free, size, count = self.queues, self.is_free, self.size, self.count
        pop, push = heapq.heappop, heapq.heappush
        while events or finished:
            if finished:
                number = finished.popleft()
                task = number % size
            else:
                now, _, number = pop(events)
                if number < 0:
                    self._serve(-1 - number, now)
                    continue
                task = number % size
                resource = resources[task]
                if resource >= 0:  # its work is done, and the next task has the resource
                    if queue := queues[resource]:
                        user = queue.popleft()
                        push(events, (now + seconds[user], count(), user))
                    else:
                        is_free[resource] = True
            ends[number] = now
            weight = weights[task]
            for step in users[task]:
                user = number + step
                missing[user] = left = missing[user] - weight
                if left <= 0 < left + weight:
                    resource = resources[user % size]
                    if resource < 0:
                        self._begin_without_resource(user, now)
                    elif is_free[resource]:
                        is_free[resource] = False
                        push(events, (now + seconds[user], count(), user))
                    else:
                        queues[resource].append(user)
        return now

    def _begin(self, number: int, now: float) -> None:
        """Begin a task, or let it wait for its resource."""
        resource = self.tasks.resources[number % self.size]
        if resource < 0:
            self._begin_without_resource(number, now)
        elif self.is_free[resource]:
            self.is_free[resource] = False
            self._push(now + self.seconds[number], number)
        else:
            self.queues[resource].append(number)

    def _begin_without_resource(self, number: int, now: float) -> None:
        """Begin a message, or a task that occupies nothing."""
        message = self.tasks.messages[number % self.size]
        if message is None:
            time = now + self.seconds[number]
        elif message.nbytes and message.ports:
            self._enter(number, message, now)
            return
        else:
            time = now + max(message.delay, message.least)
        if time > now:
            self._push(time, number)
        else:
            self.finished.append(number)

    def _enter(self, number: int, message: Message, now: float) -> None:
        """Let a message enter its ports."""
        connection = message.connection if message.connection >= 0 else -1 - number
        for place, (which, weight) in enumerate(message.ports):
            port = self.ports[which]
            port.advance(now)
            port.enter(number, message, connection, weight)
            if place == 0:
                port.watched.add(number)
            if port.watched:
                self._schedule_event(which)
        self.in_ports[number] = 1
        if message.least:
            self.earliest[number] = now + message.least

    def _schedule_event(self, which: int) -> None:
        """Add an event for the next departure from a port, unless it has an earlier event."""
        port = self.ports[which]
        end = port.next_departure()
        if end < port.next_event:
            port.next_event = end
            self._push(end, -1 - which)

    def _serve(self, which: int, now: float) -> None:
        """Handle the event of a port: messages leave, unless others have entered since."""
        port = self.ports[which]
        if port.next_event != now:
            return  # an earlier event has replaced this one
        port.next_event = math.inf
        if port.watched and port.next_departure() <= now:
            for number in port.leave(now):
                self._passed(number, now)
        if port.watched:
            self._schedule_event(which)

    def _passed(self, number: int, now: float) -> None:
        """A message has passed a port: it has arrived, or is watched in the others."""
        message = self.tasks.messages[number % self.size]
        assert message is not None
        self.in_ports[number] -= 1
        if not self.in_ports[number]:
            for which, _ in message.ports:
                port = self.ports[which]
                port.advance(now)
                if number in port.messages:
                    port.watched.add(number)
                    self.in_ports[number] += 1
                    self._schedule_event(which)
        if not self.in_ports[number]:
            del self.in_ports[number]
            end = now + message.delay
            if message.least:
                end = max(end, self.earliest.pop(number))
            self._push(end, number)
