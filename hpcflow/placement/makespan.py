"""Step problem: operations, values and devices of one step; the list schedule of HEFT.

`segment_schedule.py` predicts the time of a placed step. In the list schedule, by which HEFT places
operations, a device runs its operations one at a time, in one order for all devices: by falling
upward rank (Topcuoglu, Hariri and Wu, "Performance-Effective and Low-Complexity Task Scheduling for
Heterogeneous Computing", 2002). A value that another device uses is one message to it. A message
takes a latency plus its bytes over the least bandwidth of the links of its route, and occupies each
of them for the latency plus its bytes over the bandwidth of this link. Messages take the links in
the order of the operations that use them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.placement.topology import Link, Topology

Placement = tuple[int, ...]  # the device of each group


class Route(NamedTuple):
    """What messages from one device to another pass: numbers of links, and how long they take."""

    links: tuple[int, ...]
    latency: float
    seconds_per_byte: float


class Links:
    """The links between devices and the routes of messages.

    `seconds_per_byte[link]` is the inverse of the bandwidth of a link. `handling` is how long a
    message keeps its sender busy, and its receiver.
    """

    def __init__(
        self,
        seconds_per_byte: Sequence[float],
        routes: dict[tuple[int, int], Route],
        handling: float = 0.0,
    ) -> None:
        self.seconds_per_byte, self.routes = tuple(seconds_per_byte), routes
        self.handling = handling
        count = max(len(routes), 1)
        self.mean_latency = sum(route.latency for route in routes.values()) / count
        self.mean_seconds_per_byte = sum(r.seconds_per_byte for r in routes.values()) / count

    @classmethod
    def equal(cls, devices: int, latency: float, bandwidth: float, handling: float = 0.0) -> Links:
        """Equal devices, each with a port to send by and a port to receive by."""
        inverse = 1.0 / bandwidth
        routes = {
            (a, b): Route((a, devices + b), latency, inverse)
            for a in range(devices)
            for b in range(devices)
            if a != b
        }
        return cls([inverse] * 2 * devices, routes, handling)

    @classmethod
    def of(cls, topology: Topology, latency: float, handling: float = 0.0) -> Links:
        """The links of a topology, of which device d is rank d.

        `latency` is that of the software; that of the network comes to it.
        """
        numbers: dict[Link, int] = {}
        routes: dict[tuple[int, int], Route] = {}
        for a in range(topology.size):
            for b in range(topology.size):
                if a != b:
                    route = topology.route(a, b)
                    links = tuple(numbers.setdefault(link, len(numbers)) for link in route)
                    inverse = 1.0 / min(map(topology.bandwidth, route))
                    own = topology.message_seconds(a, b, 0)
                    routes[a, b] = Route(links, latency + own, inverse)
        return cls([1.0 / topology.bandwidth(link) for link in numbers], routes, handling)


@dataclasses.dataclass(frozen=True)
class Device:
    """A device; its first operation starts `start` seconds after the step.

    The step ends no earlier than `end` seconds after its last operation. An operation takes its
    seconds times `slowdown`.
    """

    memory: float = np.inf  # bytes
    slowdown: float = 1.0
    start: float = 0.0
    end: float = 0.0


@dataclasses.dataclass(frozen=True)
class Value:
    """A value: the operation that computes it and those that use it, which come later.

    `held`: it has memory of its own on the producer's device. A device that receives it has a
    buffer for it during the whole step.
    """

    producer: int
    nbytes: int
    users: tuple[int, ...]
    held: bool = True


class MemoryReservation(NamedTuple):
    """Bytes that groups require together, on each device that has one of them."""

    nbytes: float
    groups: frozenset[int]


@dataclasses.dataclass(frozen=True)
class StepProblem:
    """Operations in topological order, the values between them, and the devices for them.

    `group[i]` is the group of operation i; the operations of a group share a device. Group g must
    be on device `fixed[g]`, unless that is None, and holds `held[g]` bytes of state there. A free
    group in `allowed` may be on these devices only, and is on the first by default.
    """

    seconds: tuple[float, ...]
    values: tuple[Value, ...]
    devices: tuple[Device, ...]
    group: tuple[int, ...]
    fixed: tuple[int | None, ...]
    held: tuple[float, ...]
    links: Links
    choices: int  # free groups may be on the first so many devices
    allowed: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    reservations: tuple[MemoryReservation, ...] = ()

    def devices_of(self, group: int) -> Sequence[int]:
        """Return the devices that a free group may be on, its default first."""
        return self.allowed.get(group) or range(self.choices)

    def default_of(self, group: int) -> int:
        """Return the device of a group by default: the fixed one, else the first allowed."""
        fixed = self.fixed[group]
        return self.devices_of(group)[0] if fixed is None else fixed

    def permitted(self, placement: Placement, otherwise: Placement) -> Placement:
        """Return a placement with the groups that may not be where it has them as `otherwise`."""
        wrong = [g for g, those in self.allowed.items() if placement[g] not in those]
        if not wrong:
            return placement
        devices = list(placement)
        for g in wrong:
            devices[g] = otherwise[g]
        return tuple(devices)

    @functools.cached_property
    def inputs(self) -> list[list[int]]:
        """The values that each operation uses."""
        inputs: list[list[int]] = [[] for _ in self.seconds]
        for i, value in enumerate(self.values):
            for user in value.users:
                inputs[user].append(i)
        return inputs

    @functools.cached_property
    def outputs(self) -> list[list[int]]:
        """The values that each operation computes."""
        outputs: list[list[int]] = [[] for _ in self.seconds]
        for i, value in enumerate(self.values):
            outputs[value.producer].append(i)
        return outputs

    @functools.cached_property
    def producers(self) -> list[int]:
        """The operation that computes each value."""
        return [value.producer for value in self.values]

    @functools.cached_property
    def costs(self) -> list[float]:
        """The mean seconds of each value as a message between two devices."""
        links = self.links
        per_byte = links.mean_seconds_per_byte
        return [links.mean_latency + value.nbytes * per_byte for value in self.values]

    @functools.cached_property
    def order(self) -> list[int]:
        """The operations by falling upward rank.

        The rank is the longest time from the start of an operation to the end of the step if each
        value is sent. Operations of equal rank keep their order.
        """
        rank, longest = [0.0] * len(self.seconds), [0.0] * len(self.seconds)
        mean = sum(device.slowdown for device in self.devices) / len(self.devices)
        for op in reversed(range(len(self.seconds))):
            for i in self.outputs[op]:
                after = max((rank[user] for user in self.values[i].users), default=0.0)
                longest[op] = max(longest[op], self.costs[i] + after)
            rank[op] = self.seconds[op] * mean + longest[op]
        return sorted(range(len(rank)), key=lambda op: (-rank[op], op))

    @functools.cached_property
    def _uses(self) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of a value and an operation that uses it."""
        pairs = [(i, user) for i, value in enumerate(self.values) for user in value.users]
        both = np.array(pairs, np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def peaks(self, placement: Sequence[int]) -> np.ndarray:
        """Return the most bytes that each device holds at once, with group g on `placement[g]`.

        A value is held from its producer to its last user there, in the order of the operations.
        Reservations cover what their groups hold and receive, unless that is more.
        """
        place = np.asarray(placement, np.int64)
        peaks = self._peaks(place, np.zeros(len(self.held), bool))
        if not self.reservations:
            return peaks
        covered = np.zeros(len(self.held), bool)
        reserved = np.zeros(len(self.devices))
        for nbytes, groups in self.reservations:
            members = list(groups)
            covered[members] = True
            reserved[np.unique(place[members])] += nbytes
        return np.maximum(peaks, self._peaks(place, covered) + reserved)

    def _peaks(self, place: np.ndarray, covered: np.ndarray) -> np.ndarray:
        """Return the most bytes of each device at once, without those of `covered` groups."""
        count, size = len(self.devices), len(self.seconds)
        base = np.bincount(place, np.where(covered, 0.0, self.held), count)
        if not self.values:
            return base
        position = np.empty(size, np.int64)
        position[self.order] = np.arange(size)
        group = np.asarray(self.group)
        where, counted = place[group], ~covered[group]
        makers = np.array(self.producers)
        nbytes = np.array([value.nbytes for value in self.values], float)
        value, user = self._uses
        home = where[makers]
        here = where[user] == home[value]
        last = position[makers]
        np.maximum.at(last, value[here], position[user[here]])
        sent = np.zeros((len(self.values), count), bool)
        away = ~here & counted[user]
        sent[value[away], where[user[away]]] = True
        base = base + nbytes @ sent
        held = np.flatnonzero([v.held for v in self.values] & counted[makers])
        change = np.zeros((count, size + 1))
        np.add.at(change, (home[held], position[makers[held]]), nbytes[held])
        np.add.at(change, (home[held], last[held] + 1), -nbytes[held])
        return base + np.maximum(change.cumsum(axis=1).max(axis=1), 0.0)

    def overflow(self, placement: Sequence[int]) -> float:
        """Return the bytes above the memory of devices, summed."""
        if all(np.isinf(device.memory) for device in self.devices):
            return 0.0
        memory = np.array([device.memory for device in self.devices])
        return float(np.maximum(self.peaks(placement) - memory, 0.0).sum())


class Timeline:
    """A schedule that grows by one operation at a time, in `StepProblem.order`."""

    def __init__(self, problem: StepProblem) -> None:
        self.problem = problem
        self.where = [-1] * len(problem.seconds)
        self.finish = [0.0] * len(problem.seconds)
        self.free = [device.start for device in problem.devices]  # when a device is idle again
        self.idle = [0.0] * len(problem.links.seconds_per_byte)  # when each link is idle again
        self.arrived: dict[tuple[int, int], float] = {}  # (value, device) -> time

    def ready(
        self, op: int, device: int
    ) -> tuple[float, list[tuple[int, float]], dict[int, float]]:
        """Return when the inputs of an operation are on a device, and the messages for them.

        A message is a value and the time of its arrival. The dictionary says when each link that
        they pass is idle again.
        """
        problem, when = self.problem, 0.0
        messages: list[tuple[int, float]] = []
        idle: dict[int, float] = {}
        for i in problem.inputs[op]:
            producer = problem.producers[i]
            source, time = self.where[producer], self.finish[producer]
            if source != device:
                known = self.arrived.get((i, device))
                if known is None:
                    known = self._send(problem.values[i].nbytes, source, device, time, idle)
                    messages.append((i, known))
                time = known
            when = max(when, time)
        return when, messages, idle

    def _send(
        self, nbytes: int, source: int, dest: int, time: float, idle: dict[int, float]
    ) -> float:
        """Return when a message arrives that may begin at `time`; `idle` learns of its links."""
        links = self.problem.links
        route = links.routes[source, dest]
        begin = max(time, *(idle.get(link, self.idle[link]) for link in route.links))
        for link in route.links:
            idle[link] = begin + route.latency + nbytes * links.seconds_per_byte[link]
        return begin + route.latency + nbytes * route.seconds_per_byte

    def end_on(self, op: int, device: int) -> float:
        """Return when an operation would end on a device."""
        begin = max(self.ready(op, device)[0], self.free[device])
        return begin + self.problem.seconds[op] * self.problem.devices[device].slowdown

    def place(self, op: int, device: int) -> None:
        """Run an operation on a device, as early as possible."""
        when, messages, idle = self.ready(op, device)
        for i, arrival in messages:
            self.arrived[i, device] = arrival
        for link, time in idle.items():
            self.idle[link] = time
        begin = max(when, self.free[device])
        end = begin + self.problem.seconds[op] * self.problem.devices[device].slowdown
        self.where[op], self.finish[op], self.free[device] = device, end, end
