"""Segment schedule: the predicted time of a placed step as the executor runs it.

The operations of a device that depend on the same messages are a segment, as in
`lowering/segments_between_waits.py`. A device runs one segment at a time, in the order in which
they become ready, and the operations of a segment in the order of the program. A message leaves
when its value is computed, and takes the links of its route in the order of departure. It keeps
each of them busy for its bytes alone; its latency delays only itself. It also keeps the sender busy
for a while, and the receiver. Small values of one segment to one device share a message if they are
computed within this while (`plan/communication/message_coalescing.py`).
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.placement.makespan import StepProblem

# Kinds of events; at one time in this order.
_READY, _ARRIVES, _LEAVES, _ENDS = range(4)
SMALL_BYTES = 64 << 10  # a larger value has its own message


class _Segments:
    """The segments of a placed problem, in the order of their first operations.

    `sends[op]` are the messages that leave behind an operation, which is the last one whose value
    they carry; message m has `nbytes[m]` for the device `dest[m]`.
    """

    def __init__(self, problem: StepProblem, placement: Sequence[int]) -> None:
        where = [placement[g] for g in problem.group]
        self.device: list[int] = []
        self.operations: list[list[int]] = []
        self.problem = problem
        self.nbytes: list[int] = []
        self.dest: list[int] = []
        self._last: list[int] = []  # the last operation of each message
        self._clock = [0.0] * len(where)  # seconds of the segment when an operation ends
        self._numbers: dict[tuple[int, int], int] = {}  # (value, device) -> message
        self._open: dict[tuple[int, int], list[tuple[float, int]]] = {}
        waits, self.segment = [0] * len(where), [0] * len(where)
        known: dict[tuple[int, int], int] = {}
        before: list[set[int]] = []
        arrivals: list[set[int]] = []
        for op, device in enumerate(where):
            near, far, mask = [], [], 0
            for i in problem.inputs[op]:
                producer = problem.producers[i]
                if where[producer] == device:
                    mask |= waits[producer]
                    near.append(producer)
                else:
                    number = self._message(i, device)
                    mask |= 1 << number
                    far.append(number)
            waits[op] = mask
            s = known.setdefault((device, mask), len(known))
            if s == len(self.device):
                self.device.append(device)
                self.operations.append([])
                before.append(set())
                arrivals.append(set())
            self.segment[op] = s
            earlier = self.operations[s][-1:]
            before_op = self._clock[earlier[0]] if earlier else 0.0
            self._clock[op] = before_op + problem.seconds[op]
            self.operations[s].append(op)
            before[s].update(self.segment[p] for p in near if self.segment[p] != s)
            arrivals[s].update(far)
        self.sends: dict[int, list[int]] = {}
        for number, op in enumerate(self._last):
            self.sends.setdefault(op, []).append(number)
        self._set_followers(arrivals, before)

    def _set_followers(self, arrivals: list[set[int]], before: list[set[int]]) -> None:
        """Keep what each segment waits for: messages and other segments."""
        self.count = count = len(self.dest)  # of messages
        # segments that each message, then each segment, lets begin
        self.followers: list[list[int]] = [[] for _ in range(count + len(before))]
        for s, numbers in enumerate(arrivals):
            for number in numbers:
                self.followers[number].append(s)
            for other in before[s]:
                self.followers[count + other].append(s)
        self.pending = [len(a) + len(b) for a, b in zip(arrivals, before, strict=True)]
        self.received = [len(numbers) for numbers in arrivals]  # messages of each segment

    def _message(self, value: int, device: int) -> int:
        """Return the message by which a value comes to a device."""
        known = self._numbers.get((value, device))
        if known is not None:
            return known
        producer, nbytes = self.problem.producers[value], self.problem.values[value].nbytes
        now, handling = self._clock[producer], self.problem.links.handling
        near = self._open.setdefault((self.segment[producer], device), [])
        is_small = handling > 0 and nbytes <= SMALL_BYTES
        for clock, number in near if is_small else ():
            if abs(now - clock) <= handling:
                self.nbytes[number] += nbytes
                if now >= self._clock[self._last[number]]:
                    self._last[number] = producer
                break
        else:
            number = len(self.dest)
            self.dest.append(device)
            self.nbytes.append(nbytes)
            self._last.append(producer)
            if is_small:
                near.append((now, number))
        self._numbers[value, device] = number
        return number


class StepTime(NamedTuple):
    """The seconds of a step, and the sum of the latencies of its messages."""

    seconds: float
    latencies: float


def step_time(problem: StepProblem, placement: Sequence[int]) -> StepTime:
    """Return the time of the step, with group g on device `placement[g]`."""
    simulation = _Simulation(problem, placement)
    return StepTime(simulation.run(), simulation.latencies)


class _Simulation:
    """Events by time: segments become ready and end, messages leave and arrive."""

    def __init__(self, problem: StepProblem, placement: Sequence[int]) -> None:
        self.problem = problem
        self.segments = _Segments(problem, placement)
        devices = problem.devices
        self.queues: list[collections.deque[int]] = [collections.deque() for _ in devices]
        self.is_busy = [False] * len(devices)
        self.idle = [0.0] * len(problem.links.seconds_per_byte)  # when each link is idle again
        self.end = self.latencies = 0.0
        self.events: list[tuple[float, int, int, int]] = []
        for s, count in enumerate(self.segments.pending):
            if not count:
                device = self.segments.device[s]
                self.events.append((devices[device].start, _READY, s, 0))
        heapq.heapify(self.events)

    def run(self) -> float:
        """Return when all devices have ended."""
        while self.events:
            time, kind, a, b = heapq.heappop(self.events)
            if kind == _READY:
                device = self.segments.device[a]
                self.queues[device].append(a)
                self._next(device, time)
            elif kind == _ARRIVES:
                self._release(a, time)
            elif kind == _LEAVES:
                self._send(a, b, time)
            else:
                self._release(self.segments.count + a, time)
                self.is_busy[self.segments.device[a]] = False
                self._next(self.segments.device[a], time)
        return self.end

    def _release(self, target: int, time: float) -> None:
        """A message has arrived or a segment has ended."""
        for s in self.segments.followers[target]:
            self.segments.pending[s] -= 1
            if not self.segments.pending[s]:
                begin = max(time, self.problem.devices[self.segments.device[s]].start)
                heapq.heappush(self.events, (begin, _READY, s, 0))

    def _next(self, device: int, time: float) -> None:
        """Run the next segment of an idle device."""
        queue = self.queues[device]
        if self.is_busy[device] or not queue:
            return
        s = queue.popleft()
        self.is_busy[device] = True
        problem, slowdown = self.problem, self.problem.devices[device].slowdown
        handling = problem.links.handling
        time += handling * self.segments.received[s]
        for op in self.segments.operations[s]:
            time += problem.seconds[op] * slowdown
            for message in self.segments.sends.get(op, ()):
                time += handling
                heapq.heappush(self.events, (time, _LEAVES, message, device))
        self.end = max(self.end, time + problem.devices[device].end)
        heapq.heappush(self.events, (time, _ENDS, s, 0))

    def _send(self, message: int, source: int, time: float) -> None:
        """A message leaves."""
        links, nbytes = self.problem.links, self.segments.nbytes[message]
        route = links.routes[source, self.segments.dest[message]]
        self.latencies += route.latency
        begin = max(time, *(self.idle[link] for link in route.links))
        for link in route.links:
            self.idle[link] = begin + nbytes * links.seconds_per_byte[link]
        arrival = begin + route.latency + nbytes * route.seconds_per_byte
        heapq.heappush(self.events, (arrival, _ARRIVES, message, 0))
