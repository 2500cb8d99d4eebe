"""Memory for rows that is used again: fresh pages cost more than reading into them."""

from __future__ import annotations

import sys
import threading

import numpy as np

GRAIN = 64 << 10
_UNUSED = 2  # references to a buffer that only its pool knows: the list's and getrefcount's own


class Buffers:
    """Arrays whose memory is given out again when no array refers to it any more.

    A view of an array refers to the memory below, so counting its references is enough.
    """

    def __init__(self) -> None:
        self._owners: list[np.ndarray] = []
        self._lock = threading.Lock()
        # Without the interpreter's lock, references are not counted exactly.
        self._can_reuse = getattr(sys, "_is_gil_enabled", lambda: True)()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array with any content."""
        size = int(np.prod(shape)) * dtype.itemsize
        if size < GRAIN or not self._can_reuse:
            return np.empty(shape, dtype)
        with self._lock:
            owner = self._free(size)
            return owner[:size].view(dtype).reshape(shape)

    def _free(self, size: int) -> np.ndarray:
        owners = self._owners
        free = [i for i in range(len(owners)) if sys.getrefcount(owners[i]) == _UNUSED]
        fitting = [i for i in free if owners[i].nbytes >= size]
        if fitting:
            return owners[min(fitting, key=lambda i: owners[i].nbytes)]
        if free:  # all too small: one of them makes room
            del owners[free[0]]
        owners.append(np.empty(-(-size // GRAIN) * GRAIN, np.uint8))
        return owners[-1]

    def clear(self) -> None:
        """Let go of all memory; arrays that are in use keep theirs."""
        with self._lock:
            self._owners.clear()
