"""Shared arenas: buffers of several plans in the same memory, used one after the other.

Steps of a single segment share one arena, because only one of them runs at a time. Several steps
that wait may be in flight: each has an arena for itself from its begin until its messages have been
sent.
"""

from __future__ import annotations

import collections
import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from hpcflow.lowering.arena_allocation import ALIGNED
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.device.memory_accounting import Expected
from hpcflow.runtime.device.out_of_memory import exhausted
from hpcflow.runtime.dynamic_types import DeviceArray
from hpcflow.runtime.step.step_instance import Compiled, Instance, Take


class Owner(Protocol):
    """The rank that owns the memory."""

    devices: dict[str, Device]
    expected: Expected
    rank: int


class _Room:
    """The current arenas, by device; `taker` allocates from them sequentially."""

    def __init__(self, arenas: dict[str, tuple[Device, DeviceArray]]) -> None:
        self.arenas = arenas

    def taker(self) -> Take:
        taken = collections.Counter[str]()

        def take(device: str, size: int) -> DeviceArray:
            start = taken[device]
            taken[device] += size
            kind, arena = self.arenas[device]
            return kind.view(arena, (size,), np.dtype(np.uint8), start)

        return take


class SharedArena:
    """Arenas as large as the largest plan needs. All calls hold the rank's progress lock."""

    def __init__(self, owner: Owner) -> None:
        self._devices, self._expected, self._rank = owner.devices, owner.expected, owner.rank
        self._sizes: dict[str, int] = {}
        self._room = _Room({})
        self.tenants: weakref.WeakSet[Any] = weakref.WeakSet()  # users with buffers here

    def lend(self, compiled: Compiled) -> Take:
        """An allocator for the memory of one instance of a plan, partition by partition.

        If the plan needs more than the arenas have, they are reallocated. All `tenants` of the old
        ones `unbind`, and call `lend` again before their next run.

        Errors: OutOfMemoryError; no arenas are left then.
        """
        needed = compiled.arenas
        if any(size > self._sizes.get(device, -1) for device, size in needed.items()):
            try:
                self._grow(needed)
            except MemoryError as error:
                raise exhausted(compiled, error, None, self._rank) from error
        return self._room.taker()

    @property
    def nbytes(self) -> int:
        """Size of the arenas of all devices together."""
        return sum(self._sizes.values())

    def _grow(self, needed: Mapping[str, int]) -> None:
        names = {**self._sizes, **needed}
        most = {name: max(needed.get(name, 0), self._sizes.get(name, 0)) for name in names}
        self.close()
        arenas = {name: self._arena(name, size) for name, size in most.items()}
        self._sizes, self._room = most, _Room(arenas)
        self._expected.step(self._room, sum(size + ALIGNED for size in most.values()))

    def _arena(self, name: str, size: int) -> tuple[Device, DeviceArray]:
        device = self._devices[name.rpartition("/")[2]]
        return device, device.arena(size)

    def close(self) -> None:
        """Release the arenas; no tenant runs."""
        for tenant in self.tenants:
            tenant.unbind()
        self.tenants.clear()
        self._sizes, self._room = {}, _Room({})


class Lane(SharedArena):
    """An arena for instances of which at most one is in flight."""

    busy = False


class Lanes:
    """The arenas of steps that wait. All calls but `leave` hold the rank's progress lock.

    An instance stays in its first lane. If that lane is busy when a step begins, the instance moves
    to a new one. Instances that once collided are therefore separated for good, and none waits for
    another.
    """

    def __init__(self, owner: Owner) -> None:
        self._new = functools.partial(Lane, owner)
        self._lanes: list[Lane] = []

    def enter(
        self, compiled: Compiled, last: Instance | None, make: Callable[[Take | None], Instance]
    ) -> Instance:
        """The instance that a step of `compiled` may run in: `last`, or a new one from `make`.

        Its buffers are exclusive until it leaves. Errors: OutOfMemoryError.
        """
        if not any(compiled.arenas.values()):
            return last or make(None)
        lane = self._fitting(compiled) if last is None else last.lane
        if lane is None or lane.busy:
            lane = self._new()
            self._lanes.append(lane)
        if last is None or not last.is_bound or last.lane is not lane:
            if last is not None:
                last.unbind()
            last = make(lane.lend(compiled))
            last.lane = lane
            lane.tenants.add(last)
        lane.busy = True
        return last

    def _fitting(self, compiled: Compiled) -> Lane | None:
        """The largest free lane without an instance of the same plan.

        If a plan has several instances, they are in flight together and must not share a lane.
        """
        lanes = (lane for lane in self._lanes if not lane.busy)
        alone = [one for one in lanes if all(t.compiled is not compiled for t in one.tenants)]
        return max(alone, key=lambda lane: lane.nbytes, default=None)

    def leave(self, instance: Instance) -> None:
        """The step of `instance` has ended: others may use the memory of its buffers."""
        if instance.lane is not None:
            instance.lane.busy = False

    def lose(self, instance: Instance) -> None:
        """The step of `instance` never ends: the memory of its buffers is not reused."""
        self._lanes = [lane for lane in self._lanes if lane is not instance.lane]

    def trim(self) -> None:
        """Release lanes in which no instance has buffers."""
        self._lanes = [
            lane for lane in self._lanes if lane.busy or any(t.is_bound for t in lane.tenants)
        ]
