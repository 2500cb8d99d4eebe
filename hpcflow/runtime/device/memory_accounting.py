"""What a device holds for longer than a step: counted as it is given out, and limited."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from hpcflow.plan.cost.memory_estimate import Memory
from hpcflow.plan.listing.plan_text import nbytes as shown


class Held:
    """Bytes of a device by what they are for, from when they are asked for until nobody uses them.

    `peak` is the most there was at once; `limit` the most there may be, 0 for any.
    """

    def __init__(self, name: str) -> None:
        self.name, self.limit = name, 0
        self.now: collections.Counter[str] = collections.Counter()
        self.peak = 0
        self.most: dict[str, int] = {}  # what there was at the peak
        self._owners: dict[int, weakref.ref[Any]] = {}
        self._lock = threading.RLock()  # an owner may go while this thread has it

    @property
    def total(self) -> int:
        """Bytes that are held now."""
        return sum(self.now.values())

    def ask(self, what: str, nbytes: int) -> None:
        """MemoryError if so many bytes more would be above the limit."""
        if self.limit and self.total + nbytes > self.limit:
            parts = ", ".join(f"{shown(n)} of {kind}" for kind, n in self.now.most_common() if n)
            raise MemoryError(
                f"{self.name} holds {parts or 'nothing'}; {shown(nbytes)} more of {what} are "
                f"above its limit of {shown(self.limit)} (setting memory_limit)"
            )

    def keep(self, what: str, owner: Any, nbytes: int) -> None:
        """Count `nbytes` for as long as `owner` lives, once for each owner."""
        with self._lock:
            if id(owner) in self._owners:
                return
            self.ask(what, nbytes)
            key = id(owner)

            def gone(_: object) -> None:
                with self._lock:
                    self._owners.pop(key, None)
                    self.now[what] -= nbytes

            self._owners[key] = weakref.ref(owner, gone)
            self.now[what] += nbytes
            if self.total > self.peak:
                self.peak, self.most = self.total, dict(self.now)


class Expected:
    """What a rank was to need at once, as predicted for each of its plans before it ran."""

    def __init__(self) -> None:
        self._lasting: dict[str, int] = {}
        self._rest = Held("plans")

    def plan(self, memory: Memory, constants: Mapping[str, int]) -> None:
        """Variables are of all plans together; so are constants, which the graph keeps."""
        self._lasting.update({**constants, **memory.sizes})

    def step(self, owner: Any, nbytes: int, sums: Iterable[tuple[Any, int]] = ()) -> None:
        """It has buffers for one step more, and storage of sums, which plans may share."""
        self._rest.keep("steps", owner, nbytes)
        for storage, nbytes in sums:
            self._rest.keep("sums", storage, nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all variables and constants, and of all plans when they needed most."""
        return sum(self._lasting.values()) + self._rest.peak


def report(devices: Iterable[Any], expected: Expected) -> dict[str, Any]:
    """The most that each device of a rank held, with what for, beside what was expected."""
    most = collections.Counter[str]()
    for device in devices:
        most.update(device.held.most)
    found = {what.replace(" ", "_"): nbytes for what, nbytes in sorted(most.items())}
    reserved = sum(device.reserved() for device in devices)
    return {
        "predicted": expected.nbytes,
        "peak": sum(most.values()),
        **found,
        **({"reserved": reserved} if reserved else {}),
    }
