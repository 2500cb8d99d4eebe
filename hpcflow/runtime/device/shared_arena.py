"""Arenas that several plans have their buffers in, one after the other.

Steps that run in one go share one, for one of them runs at a time. Of steps that wait several may
be in flight: each has an arena to itself from its begin to its end, when its messages have left.
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
from hpcflow.runtime.step.step_instance import Compiled, Instance, Take


class Owner(Protocol):
    """The rank whose memory it is."""

    devices: dict[str, Device]
    expected: Expected
    rank: int


class _Room:
    """The arenas there are, by device; `take` gives them out from their first byte on."""

    def __init__(self, arenas: dict[str, tuple[Device, Any]]) -> None:
        self.arenas = arenas

    def taker(self) -> Take:
        taken = collections.Counter[str]()

        def take(device: str, size: int) -> Any:
            start = taken[device]
            taken[device] += size
            kind, arena = self.arenas[device]
            return kind.view(arena, (size,), np.dtype(np.uint8), start)

        return take


class SharedArena:
    """As large as the plan needs that needs most. All calls are made under the rank's baton."""

    def __init__(self, owner: Owner) -> None:
        self._devices, self._expected, self._rank = owner.devices, owner.expected, owner.rank
        self._sizes: dict[str, int] = {}
        self._room = _Room({})
        self.tenants: weakref.WeakSet[Any] = weakref.WeakSet()  # who has buffers here

    def lend(self, compiled: Compiled) -> Take:
        """What gives one instance of a plan its memory, part after part.

        Where that is more than there is, the arenas are made anew, and all `tenants` that had the
        old ones `unbind`: before they run next, they ask again.
        Errors: OutOfMemoryError; there are no arenas then.
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
        """How large the arenas are, of all devices together."""
        return sum(self._sizes.values())

    def _grow(self, needed: Mapping[str, int]) -> None:
        names = {**self._sizes, **needed}
        most = {name: max(needed.get(name, 0), self._sizes.get(name, 0)) for name in names}
        self.close()
        arenas = {name: self._arena(name, size) for name, size in most.items()}
        self._sizes, self._room = most, _Room(arenas)
        self._expected.step(self._room, sum(size + ALIGNED for size in most.values()))

    def _arena(self, name: str, size: int) -> tuple[Device, Any]:
        device = self._devices[name.rpartition("/")[2]]
        return device, device.arena(size)

    def close(self) -> None:
        """Let go of the arenas; no tenant runs."""
        for tenant in self.tenants:
            tenant.unbind()
        self.tenants.clear()
        self._sizes, self._room = {}, _Room({})


class Lane(SharedArena):
    """One for instances of which one is in flight at a time."""

    busy = False


class Lanes:
    """The arenas of steps that wait. All calls but `leave` are made under the rank's baton.

    An instance stays in the lane where it was first. If that is busy when it begins, it moves to a
    new one: so instances that meet come apart once and for all, and none ever waits for another.
    """

    def __init__(self, owner: Owner) -> None:
        self._new = functools.partial(Lane, owner)
        self._lanes: list[Lane] = []

    def enter(
        self, compiled: Compiled, last: Instance | None, make: Callable[[Take | None], Instance]
    ) -> Instance:
        """What a step of `compiled` may run in now: `last`, or what `make` makes in its place.

        Nothing else uses its buffers until it leaves. Errors: OutOfMemoryError.
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
        """The largest lane that is free, but none with an instance of the same plan: where there
        are several, they are in flight together."""
        lanes = (lane for lane in self._lanes if not lane.busy)
        alone = [one for one in lanes if all(t.compiled is not compiled for t in one.tenants)]
        return max(alone, key=lambda lane: lane.nbytes, default=None)

    def leave(self, instance: Instance) -> None:
        """Its step has ended: others may have the memory of its buffers."""
        if instance.lane is not None:
            instance.lane.busy = False

    def lose(self, instance: Instance) -> None:
        """Its step never ends: nobody else has the memory of its buffers any more."""
        self._lanes = [lane for lane in self._lanes if lane is not instance.lane]

    def trim(self) -> None:
        """Let go of lanes in which no instance has buffers."""
        self._lanes = [
            lane for lane in self._lanes if lane.busy or any(t.is_bound for t in lane.tenants)
        ]
