"""Device memory accounting: memory that outlives a step is counted by purpose, and limited."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from hpcflow.plan.cost.memory_estimate import MemoryEstimate
from hpcflow.platform.quantity_text import format_bytes
from hpcflow.runtime.dynamic_types import Json


class HeldMemory:
    """Held bytes of a device by purpose, each counted until its owner is garbage-collected.

    `peak` is the maximum of the total, `limit` its upper bound; 0: no bound.
    """

    def __init__(self, name: str) -> None:
        self.name, self.limit = name, 0
        self.current: collections.Counter[str] = collections.Counter()
        self.peak = 0
        self.maximum: dict[str, int] = {}  # held bytes by purpose at the peak
        self._owners: dict[int, weakref.ref[object]] = {}
        # reentrant: an owner may be collected while this thread holds the lock
        self._lock = threading.RLock()

    @property
    def total(self) -> int:
        """Bytes that are held now."""
        return sum(self.current.values())

    def limit_to(self, nbytes: int) -> None:
        """Refuse from now on what would exceed `nbytes`; 0: no bound."""
        self.limit = nbytes

    def ask(self, label: str, nbytes: int) -> None:
        """Errors: MemoryError if `nbytes` more would exceed the limit."""
        if self.limit and self.total + nbytes > self.limit:
            parts = ", ".join(
                f"{format_bytes(n)} of {kind}" for kind, n in self.current.most_common() if n
            )
            raise MemoryError(
                f"{self.name} holds {parts or 'nothing'}; {format_bytes(nbytes)} more of {label} "
                f"are above its limit of {format_bytes(self.limit)} (setting memory_limit)"
            )

    def keep(self, label: str, owner: object, nbytes: int) -> None:
        """Count `nbytes` for the lifetime of `owner`, once for each owner.

        Errors: MemoryError if they exceed the limit.
        """
        with self._lock:
            if id(owner) in self._owners:
                return
            self.ask(label, nbytes)
            key = id(owner)

            def gone(_: object) -> None:
                with self._lock:
                    self._owners.pop(key, None)
                    self.current[label] -= nbytes

            self._owners[key] = weakref.ref(owner, gone)
            self.current[label] += nbytes
            if self.total > self.peak:
                self.peak, self.maximum = self.total, dict(self.current)


class ExpectedMemory:
    """The memory that a rank needs at once, as predicted for each of its plans before it runs."""

    def __init__(self) -> None:
        self._lasting: dict[str, int] = {}
        self._plan_memory = HeldMemory("plans")

    def plan(self, memory: MemoryEstimate, constants: Mapping[str, int]) -> None:
        """Add a plan: variables and constants are shared by all plans, and counted once."""
        self._lasting.update({**constants, **memory.sizes})

    def step(self, owner: object, nbytes: int, sums: Iterable[tuple[object, int]] = ()) -> None:
        """Add the buffers of a step instance and the storage of its collectives.

        Plans may share the storage.
        """
        self._plan_memory.keep("steps", owner, nbytes)
        for storage, nbytes in sums:
            self._plan_memory.keep("sums", storage, nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all variables and constants, and the peak of the plans' buffers."""
        return sum(self._lasting.values()) + self._plan_memory.peak


def memory_report(devices: Iterable[Any], expected: ExpectedMemory) -> Json:
    """The peak memory of each device of a rank by purpose, beside the predicted memory."""
    most = collections.Counter[str]()
    for device in devices:
        most.update(device.held_memory.maximum)
    peaks = {purpose.replace(" ", "_"): nbytes for purpose, nbytes in sorted(most.items())}
    reserved = sum(device.reserved() for device in devices)
    return {
        "predicted": expected.nbytes,
        "peak": sum(most.values()),
        **peaks,
        **({"reserved": reserved} if reserved else {}),
    }
