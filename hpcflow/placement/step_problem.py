"""Step problem: operations, values and devices of one step, which `placement=auto` schedules.

`plan/distribution/step_problem_builder.py` makes it of a program. `heft.py` and the search of
`placement_search.py` place its operations, and `segment_schedule.py` predicts the time of a placed
step.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.placement.device_links import Links

Placement = tuple[int, ...]  # the device of each group


@dataclasses.dataclass(frozen=True)
class Device:
    """A device. An operation takes its seconds times `slowdown` on it.

    Its first operation starts no earlier than `start` seconds after the start of the step. The
    step ends no earlier than `end` seconds after its last operation.
    """

    memory: float = np.inf  # bytes
    slowdown: float = 1.0
    start: float = 0.0
    end: float = 0.0


@dataclasses.dataclass(frozen=True)
class Value:
    """A value: the operation that computes it and those that use it, which come later.

    `has_buffer`: it has memory of its own on the device of its producer. A device that receives it
    has a buffer for it during the whole step.
    """

    producer: int
    nbytes: int
    users: tuple[int, ...]
    has_buffer: bool = True


class MemoryReservation(NamedTuple):
    """Bytes that `groups` require: once on each device that has one or more of them."""

    nbytes: float
    groups: frozenset[int]


@dataclasses.dataclass(frozen=True)
class StepProblem:
    """Operations in topological order, the values between them, and the devices for them.

    `seconds[i]` is the time of operation i on a device of slowdown 1, `group[i]` its group. The
    operations of a group share a device. Group g has `state_bytes[g]` bytes of variables. It is on
    device `fixed[g]`; if that is None, the group is free. A free group may be on the devices
    `allowed[g]`, else on the first `candidate_count` devices. Its default is the first of them.
    """

    seconds: tuple[float, ...]
    values: tuple[Value, ...]
    devices: tuple[Device, ...]
    group: tuple[int, ...]
    fixed: tuple[int | None, ...]
    state_bytes: tuple[float, ...]
    links: Links
    candidate_count: int
    allowed: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    reservations: tuple[MemoryReservation, ...] = ()

    def candidates_of(self, group: int) -> Sequence[int]:
        """Return the devices that a free group may be on, the default first."""
        return self.allowed.get(group) or range(self.candidate_count)

    def default_device(self, group: int) -> int:
        """Return the device of a group by default: the fixed one, else the first allowed."""
        fixed = self.fixed[group]
        return self.candidates_of(group)[0] if fixed is None else fixed

    def permitted(self, placement: Placement, otherwise: Placement) -> Placement:
        """Return `placement`, with groups on devices that are not `allowed` as in `otherwise`."""
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
    def inputs_with_producers(self) -> list[list[tuple[int, int]]]:
        """Of each operation: pairs of a value that it uses and the operation that computes it."""
        return [[(i, self.producers[i]) for i in inputs] for inputs in self.inputs]

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
    def message_seconds(self) -> list[float]:
        """The seconds of each value as a message, averaged over the pairs of devices."""
        links = self.links
        per_byte = links.mean_seconds_per_byte
        return [links.mean_latency + value.nbytes * per_byte for value in self.values]

    @functools.cached_property
    def order(self) -> list[int]:
        """The operations by falling upward rank; those of equal rank keep their order.

        The upward rank of HEFT is the longest time from the start of an operation to the end of the
        step, if each value is a message.
        """
        rank, longest = [0.0] * len(self.seconds), [0.0] * len(self.seconds)
        mean = sum(device.slowdown for device in self.devices) / len(self.devices)
        for op in reversed(range(len(self.seconds))):
            for i in self.outputs[op]:
                after = max((rank[user] for user in self.values[i].users), default=0.0)
                longest[op] = max(longest[op], self.message_seconds[i] + after)
            rank[op] = self.seconds[op] * mean + longest[op]
        return sorted(range(len(rank)), key=lambda op: (-rank[op], op))

    @functools.cached_property
    def _use_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of a value and an operation that uses it, as two arrays."""
        pairs = [(i, user) for i, value in enumerate(self.values) for user in value.users]
        both = np.array(pairs, np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def peaks(self, placement: Sequence[int]) -> np.ndarray:
        """Return the most bytes that each device holds at once, with group g on `placement[g]`.

        A value is held from its producer to its last user there, in the order of the operations.
        Reservations cover what their groups hold and receive, unless that is more.
        """
        place = np.asarray(placement, np.int64)
        peaks = self._peaks(place, np.zeros(len(self.state_bytes), bool))
        if not self.reservations:
            return peaks
        covered = np.zeros(len(self.state_bytes), bool)
        reserved = np.zeros(len(self.devices))
        for nbytes, groups in self.reservations:
            members = list(groups)
            covered[members] = True
            reserved[np.unique(place[members])] += nbytes
        return np.maximum(peaks, self._peaks(place, covered) + reserved)

    def _peaks(self, place: np.ndarray, covered: np.ndarray) -> np.ndarray:
        """Return the most bytes of each device at once, without those of `covered` groups."""
        count, size = len(self.devices), len(self.seconds)
        base = np.bincount(place, np.where(covered, 0.0, self.state_bytes), count)
        if not self.values:
            return base
        position = np.empty(size, np.int64)
        position[self.order] = np.arange(size)
        group = np.asarray(self.group)
        where, counted = place[group], ~covered[group]
        makers = np.array(self.producers)
        nbytes = np.array([value.nbytes for value in self.values], float)
        value, user = self._use_pairs
        home = where[makers]
        here = where[user] == home[value]
        last = position[makers]
        np.maximum.at(last, value[here], position[user[here]])
        sent = np.zeros((len(self.values), count), bool)
        away = ~here & counted[user]
        sent[value[away], where[user[away]]] = True
        base = base + nbytes @ sent
        held = np.flatnonzero([v.has_buffer for v in self.values] & counted[makers])
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
