"""HEFT: a placement by a list schedule, each operation where it ends first.

Topcuoglu, Hariri and Wu, "Performance-Effective and Low-Complexity Task Scheduling for
Heterogeneous Computing", 2002. A device runs its operations one at a time, in one order for all
devices, by falling upward rank. A value that another device uses is one message to it. Messages
take the links of their routes in the order of the operations that use them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.placement.step_problem import StepProblem


def heft_placement(problem: StepProblem) -> list[int]:
    """Return the placement by HEFT.

    The first operation of a free group decides for the group: it takes the device on which it ends
    first, among those whose memory holds the state of the group.
    """
    placed: list[int | None] = list(problem.fixed)
    space = [device.memory for device in problem.devices]
    for g, device in enumerate(placed):
        if device is not None:
            space[device] -= problem.state_bytes[g]
    schedule = ListSchedule(problem)
    for op in problem.order:
        g = problem.group[op]
        device = placed[g]
        if device is None:
            candidates = problem.candidates_of(g)
            fitting = [d for d in candidates if space[d] >= problem.state_bytes[g]]
            near = fitting or [max(candidates, key=lambda d: (space[d], -d))]
            device = placed[g] = _earliest_finish_device(schedule, op, near)
            space[device] -= problem.state_bytes[g]
        schedule.place(op, device)
    return [problem.default_device(g) if d is None else d for g, d in enumerate(placed)]


def _earliest_finish_device(schedule: ListSchedule, op: int, devices: Sequence[int]) -> int:
    """Return the device on which an operation ends first; of several, the first.

    A device is not tried if a lower bound of its finish time is above that of another device. The
    bound counts the last input, with the least latency of a message, and the work placed so far.
    """
    problem = schedule.problem
    producers = [problem.producers[i] for i in problem.inputs[op]]
    last = max(producers, key=lambda producer: schedule.end_of[producer], default=None)
    least = problem.links.least_latency
    bounds = []
    for d in devices:
        ready = 0.0
        if last is not None:
            ready = schedule.end_of[last] + (least if schedule.device_of[last] != d else 0.0)
        own = problem.seconds[op] * problem.devices[d].slowdown
        bounds.append((max(ready, schedule.device_idle[d]) + own, d))
    best = (math.inf, -1)
    for bound, d in sorted(bounds):
        if bound > best[0]:
            break
        best = min(best, (schedule.finish_time(op, d), d))
    return best[1]


class _Inputs(NamedTuple):
    """The inputs of an operation on a device, if it ran there.

    `ready` is when all are there. `messages` are those that it would need besides the messages
    sent so far: values, each with the time of its arrival. `link_idle` says when each link that
    they pass is idle again.
    """

    ready: float
    messages: list[tuple[int, float]]
    link_idle: dict[int, float]


class ListSchedule:
    """A schedule that grows by one operation at a time, in `StepProblem.order`.

    `device_of` and `end_of` have an entry for each operation, -1 and 0 before it is placed.
    `device_idle` and `link_idle` say when each device and link is idle again.
    """

    def __init__(self, problem: StepProblem) -> None:
        self.problem = problem
        self.device_of = [-1] * len(problem.seconds)
        self.end_of = [0.0] * len(problem.seconds)
        self.device_idle = [device.start for device in problem.devices]
        self.link_idle = [0.0] * len(problem.links.seconds_per_byte)
        self._arrivals: dict[tuple[int, int], float] = {}  # (value, device) -> time

    def finish_time(self, op: int, device: int) -> float:
        """Return when an operation would end on a device, as early as possible."""
        return self._finish_time(op, device, self._inputs(op, device).ready)

    def place(self, op: int, device: int) -> None:
        """Run an operation on a device, as early as possible."""
        inputs = self._inputs(op, device)
        for value, arrival in inputs.messages:
            self._arrivals[value, device] = arrival
        for link, time in inputs.link_idle.items():
            self.link_idle[link] = time
        end = self._finish_time(op, device, inputs.ready)
        self.device_of[op], self.end_of[op], self.device_idle[device] = device, end, end

    def _finish_time(self, op: int, device: int, ready: float) -> float:
        begin = max(ready, self.device_idle[device])
        return begin + self.problem.seconds[op] * self.problem.devices[device].slowdown

    def _inputs(self, op: int, device: int) -> _Inputs:
        problem, ready = self.problem, 0.0
        messages: list[tuple[int, float]] = []
        link_idle: dict[int, float] = {}
        for value in problem.inputs[op]:
            producer = problem.producers[value]
            source, time = self.device_of[producer], self.end_of[producer]
            if source != device:
                known = self._arrivals.get((value, device))
                if known is None:
                    known = self._send(value, source, device, time, link_idle)
                    messages.append((value, known))
                time = known
            ready = max(ready, time)
        return _Inputs(ready, messages, link_idle)

    def _send(
        self, value: int, source: int, dest: int, time: float, link_idle: dict[int, float]
    ) -> float:
        """Return when a value arrives that may leave at `time`.

        Its message occupies each link for the latency of the route and its bytes. `link_idle` has
        the times at which links are idle after the messages before it, and is updated.
        """
        links, nbytes = self.problem.links, self.problem.values[value].nbytes
        route = links.routes[source, dest]
        begin = max(time, *(link_idle.get(link, self.link_idle[link]) for link in route.links))
        for link in route.links:
            link_idle[link] = begin + route.latency + nbytes * links.seconds_per_byte[link]
        return begin + route.latency + nbytes * route.seconds_per_byte
