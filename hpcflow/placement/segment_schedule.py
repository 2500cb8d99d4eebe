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

import bisect
import collections
import heapq
from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.placement.step_problem import StepProblem

# Kinds of events; at one time in this order.
_READY, _ARRIVES, _LEAVES, _ENDS = range(4)
SMALL_BYTES = 64 << 10  # a larger value has its own message


class _Segments:
    """The segments of a placed problem, in the order of their first operations.

    Segment s is on `device[s]` and computes for `load[s]` seconds, without the slowdown of the
    device. `sends[s]` has its messages in the order of departure, each as a pair: for how many
    seconds the segment has computed by then, and the number of the message. Message m has
    `nbytes[m]` bytes and goes to the device `dest[m]`.
    """

    def __init__(self, problem: StepProblem, placement: Sequence[int]) -> None:
        where = [placement[g] for g in problem.group]
        self.problem = problem
        self.device: list[int] = []
        self.load: list[float] = []
        self.nbytes: list[int] = []
        self.dest: list[int] = []
        self._last: list[int] = []  # the last operation of each message
        self._clock = [0.0] * len(where)  # seconds of the segment when an operation ends
        self._numbers: dict[tuple[int, int], int] = {}  # (value, device) -> message
        # (segment, device) -> small messages that may take more values: clock and number, sorted
        self._open: dict[tuple[int, int], list[tuple[float, int]]] = {}
        self._known: dict[tuple[int, int], int] = {}  # (device, messages waited for) -> segment
        self._waits: list[int] = []  # the messages that each segment waits for, as bits
        self._before: list[set[int]] = []
        self._arrivals: list[set[int]] = []
        self.segment = segment = [0] * len(where)
        clock, load, waits = self._clock, self.load, self._waits
        for op, (device, uses, seconds) in enumerate(
            zip(where, problem.inputs_with_producers, problem.seconds, strict=True)
        ):
            s, others = -1, []
            for _, producer in uses:  # most operations are in the last segment of their inputs
                if where[producer] != device:
                    s = -1
                    break
                other = segment[producer]
                if s < 0:
                    s = other
                elif other != s:
                    both = waits[s] | waits[other]
                    if both == waits[other]:
                        s, other = other, s
                    elif both != waits[s]:
                        s = -1
                        break
                    others.append(other)
            if s < 0:
                s = self._segment_of(device, where, uses)
            elif others:
                self._before[s].update(others)
            segment[op] = s
            load[s] = clock[op] = load[s] + seconds
        self.sends: list[list[tuple[float, int]]] = [[] for _ in self.device]
        for number in sorted(range(len(self.dest)), key=self._last.__getitem__):
            op = self._last[number]
            self.sends[segment[op]].append((self._clock[op], number))
        self._set_followers()

    def _segment_of(
        self, device: int, where: Sequence[int], uses: Sequence[tuple[int, int]]
    ) -> int:
        """Return the segment of an operation, which may wait for messages or other segments."""
        near: set[int] = set()
        far: list[int] = []
        segment, numbers, waits = self.segment, self._numbers, 0
        for i, producer in uses:
            if where[producer] == device:
                s = segment[producer]
                near.add(s)
                waits |= self._waits[s]
            else:
                known = numbers.get((i, device))
                number = self._new_message(i, device) if known is None else known
                far.append(number)
                waits |= 1 << number
        s = self._known.setdefault((device, waits), len(self.device))
        if s == len(self.device):
            self.device.append(device)
            self.load.append(0.0)
            self._waits.append(waits)
            self._before.append(set())
            self._arrivals.append(set())
        near.discard(s)
        self._before[s] |= near
        self._arrivals[s].update(far)
        return s

    def _set_followers(self) -> None:
        """Keep what each segment waits for: messages and other segments."""
        self.count = count = len(self.dest)  # of messages
        # segments that each message, then each segment, lets begin
        self.followers: list[list[int]] = [[] for _ in range(count + len(self.device))]
        for s, (numbers, others) in enumerate(zip(self._arrivals, self._before, strict=True)):
            for number in numbers:
                self.followers[number].append(s)
            for other in others:
                self.followers[count + other].append(s)
        self.received = [len(numbers) for numbers in self._arrivals]  # messages of each segment
        self.pending = [
            count + len(others) for count, others in zip(self.received, self._before, strict=True)
        ]

    @staticmethod
    def _open_message(near: list[tuple[float, int]], now: float, overhead: float) -> int:
        """Return the first message at most `overhead` seconds from `now`; -1 if there is none.

        `near` are sorted clocks and messages. Any two are further apart, so at most two are found.
        """
        if not near:
            return -1
        at = max(0, bisect.bisect_left(near, (now - overhead, -1)) - 1)
        found = [number for clock, number in near[at : at + 4] if abs(now - clock) <= overhead]
        return min(found, default=-1)

    def _new_message(self, value: int, device: int) -> int:
        """Return the message by which a value comes to a device to which it does not come yet."""
        producer, nbytes = self.problem.producers[value], self.problem.values[value].nbytes
        now, overhead = self._clock[producer], self.problem.links.overhead
        near = self._open.setdefault((self.segment[producer], device), [])
        is_small = overhead > 0 and nbytes <= SMALL_BYTES
        number = self._open_message(near, now, overhead) if is_small else -1
        if number >= 0:
            self.nbytes[number] += nbytes
            if now >= self._clock[self._last[number]]:
                self._last[number] = producer
        else:
            number = len(self.dest)
            self.dest.append(device)
            self.nbytes.append(nbytes)
            self._last.append(producer)
            if is_small:
                bisect.insort(near, (now, number))
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
        self.segments = segments = _Segments(problem, placement)
        self.device, self.pending = segments.device, segments.pending
        self.followers = segments.followers
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
        events, pop, count = self.events, heapq.heappop, self.segments.count
        while events:
            time, kind, a, b = pop(events)
            if kind == _READY:
                device = self.device[a]
                self.queues[device].append(a)
                self._next(device, time)
            elif kind == _ARRIVES:
                self._release(a, time)
            elif kind == _LEAVES:
                self._send(a, b, time)
            else:
                self._release(count + a, time)
                device = self.device[a]
                self.is_busy[device] = False
                self._next(device, time)
        return self.end

    def _release(self, target: int, time: float) -> None:
        """A message has arrived or a segment has ended."""
        pending = self.pending
        for s in self.followers[target]:
            pending[s] -= 1
            if not pending[s]:
                begin = max(time, self.problem.devices[self.device[s]].start)
                heapq.heappush(self.events, (begin, _READY, s, 0))

    def _next(self, device: int, time: float) -> None:
        """Run the next segment of an idle device."""
        queue = self.queues[device]
        if self.is_busy[device] or not queue:
            return
        s = queue.popleft()
        self.is_busy[device] = True
        problem, slowdown = self.problem, self.problem.devices[device].slowdown
        overhead = problem.links.overhead
        time += overhead * self.segments.received[s]
        events, push = self.events, heapq.heappush
        for computed, message in self.segments.sends[s]:
            time += overhead
            push(events, (time + computed * slowdown, _LEAVES, message, device))
        time += self.segments.load[s] * slowdown
        self.end = max(self.end, time + problem.devices[device].end)
        push(events, (time, _ENDS, s, 0))

    def _send(self, message: int, source: int, time: float) -> None:
        """A message leaves."""
        links, nbytes = self.problem.links, self.segments.nbytes[message]
        route = links.routes[source, self.segments.dest[message]]
        self.latencies += route.latency
        begin, idle = time, self.idle
        for link in route.links:
            if idle[link] > begin:
                begin = idle[link]
        for link in route.links:
            idle[link] = begin + nbytes * links.seconds_per_byte[link]
        arrival = begin + route.latency + nbytes * route.seconds_per_byte
        heapq.heappush(self.events, (arrival, _ARRIVES, message, 0))
