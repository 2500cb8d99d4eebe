"""One arena a device for the steps of a session that run in one go: one of them runs at a time."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcflow.plan.arena import ALIGNED
from hpcflow.runtime.device import Device
from hpcflow.runtime.held import Expected
from hpcflow.runtime.instance import Take


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
    """As large as the step needs that needs most. All calls are made under the rank's baton."""

    def __init__(self, devices: Mapping[str, Device], expected: Expected) -> None:
        self._devices, self._expected = devices, expected
        self._sizes: dict[str, int] = {}
        self._room = _Room({})
        self._steps: weakref.WeakSet[Any] = weakref.WeakSet()

    def lend(self, step: Any) -> Take:
        """What gives one instance of `step` its memory, part after part.

        Where that is more than there is, the arenas are made anew, and all steps that had the old
        ones `unbind`: when they run next, they ask again.
        Errors: MemoryError; there are no arenas then.
        """
        needed: Mapping[str, int] = step.compiled.arenas
        if any(size > self._sizes.get(device, -1) for device, size in needed.items()):
            self._grow(needed)
        self._steps.add(step)
        return self._room.taker()

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
        """Let go of the arenas; no step of it runs."""
        for step in self._steps:
            step.unbind()
        self._steps.clear()
        self._sizes, self._room = {}, _Room({})
