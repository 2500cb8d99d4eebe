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
from hpcflow.runtime.device.memory_accounting import ExpectedMemory
from hpcflow.runtime.device.out_of_memory import out_of_memory_error
from hpcflow.runtime.dynamic_types import DeviceArray
from hpcflow.runtime.step.step_instance import Allocator, CompiledPartition, StepInstance


class ArenaOwner(Protocol):
    """The rank that owns the memory."""

    devices: dict[str, Device]
    expected: ExpectedMemory
    rank: int


class _ArenaMemory:
    """The current arenas, by device; `allocator` allocates from them sequentially."""

    def __init__(self, arenas: dict[str, tuple[Device, DeviceArray]]) -> None:
        self.arenas = arenas

    def allocator(self) -> Allocator:
        offsets = collections.Counter[str]()

        def take(device: str, size: int) -> DeviceArray:
            start = offsets[device]
            offsets[device] += size
            kind, arena = self.arenas[device]
            return kind.view(arena, (size,), np.dtype(np.uint8), start)

        return take


class SharedArena:
    """Arenas as large as the largest plan needs. All calls hold the rank's progress lock."""

    def __init__(self, owner: ArenaOwner) -> None:
        self._devices, self._expected, self._rank = owner.devices, owner.expected, owner.rank
        self._sizes: dict[str, int] = {}
        self._memory = _ArenaMemory({})
        self.bound_steps: weakref.WeakSet[Any] = weakref.WeakSet()  # users with buffers here

    def allocator_for(self, compiled: CompiledPartition) -> Allocator:
        """An allocator for the memory of one instance of a plan, partition by partition.

        If the plan needs more than the arenas have, they are reallocated. All owners of the old
        ones `unbind`, and call `allocator_for` again before their next run.

        Errors: OutOfMemoryError; no arenas are left then.
        """
        needed = compiled.arenas
        if any(size > self._sizes.get(device, -1) for device, size in needed.items()):
            try:
                self._grow(needed)
            except MemoryError as error:
                raise out_of_memory_error(compiled, error, None, self._rank) from error
        return self._memory.allocator()

    @property
    def nbytes(self) -> int:
        """Size of the arenas of all devices together."""
        return sum(self._sizes.values())

    def _grow(self, required_sizes: Mapping[str, int]) -> None:
        names = {**self._sizes, **required_sizes}
        most = {name: max(required_sizes.get(name, 0), self._sizes.get(name, 0)) for name in names}
        self.close()
        arenas = {name: self._arena(name, size) for name, size in most.items()}
        self._sizes, self._memory = most, _ArenaMemory(arenas)
        self._expected.step(self._memory, sum(size + ALIGNED for size in most.values()))

    def _arena(self, name: str, size: int) -> tuple[Device, DeviceArray]:
        device = self._devices[name.rpartition("/")[2]]
        return device, device.arena(size)

    def close(self) -> None:
        """Release the arenas; no tenant runs."""
        for tenant in self.bound_steps:
            tenant.unbind()
        self.bound_steps.clear()
        self._sizes, self._memory = {}, _ArenaMemory({})


class ArenaLease(SharedArena):
    """An arena for instances of which at most one is in flight."""

    busy: bool = False  # whether a step in flight has buffers in it


class ArenaLeases:
    """The arenas of steps that wait. All calls but `leave` hold the rank's progress lock.

    An instance stays in its first lane. If that lane is busy when a step begins, the instance moves
    to a new one. Instances that once collided are therefore separated for good, and none waits for
    another.
    """

    def __init__(self, owner: ArenaOwner) -> None:
        self._make_arena = functools.partial(ArenaLease, owner)
        self._leases: list[ArenaLease] = []

    def enter(
        self,
        compiled: CompiledPartition,
        last: StepInstance | None,
        make: Callable[[Allocator | None], StepInstance],
    ) -> StepInstance:
        """The instance that a step of `compiled` may run in: `last`, or a new one from `make`.

        Its buffers are exclusive until it leaves. Errors: OutOfMemoryError.
        """
        if not any(compiled.arenas.values()):
            return last or make(None)
        lane = self._fitting(compiled) if last is None else last.arena_lease
        if lane is None or lane.busy:
            lane = self._make_arena()
            self._leases.append(lane)
        if last is None or not last.is_bound or last.arena_lease is not lane:
            if last is not None:
                last.unbind()
            last = make(lane.allocator_for(compiled))
            last.arena_lease = lane
            lane.bound_steps.add(last)
        lane.busy = True
        return last

    def _fitting(self, compiled: CompiledPartition) -> ArenaLease | None:
        """The largest free lane without an instance of the same plan.

        If a plan has several instances, they are in flight together and must not share a lane.
        """
        lanes = (lane for lane in self._leases if not lane.busy)
        alone = [one for one in lanes if all(t.compiled is not compiled for t in one.bound_steps)]
        return max(alone, key=lambda lane: lane.nbytes, default=None)

    def leave(self, instance: StepInstance) -> None:
        """The step of `instance` has ended: others may use the memory of its buffers."""
        if instance.arena_lease is not None:
            instance.arena_lease.busy = False

    def lose(self, instance: StepInstance) -> None:
        """The step of `instance` never ends: the memory of its buffers is not reused."""
        self._leases = [lane for lane in self._leases if lane is not instance.arena_lease]

    def trim(self) -> None:
        """Release lanes in which no instance has buffers."""
        self._leases = [
            lane for lane in self._leases if lane.busy or any(t.is_bound for t in lane.bound_steps)
        ]
