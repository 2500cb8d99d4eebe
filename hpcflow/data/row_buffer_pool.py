"""Buffer pool for rows: reuses memory, because fresh pages cost more than reading into them."""

from __future__ import annotations

import sys
import threading

import numpy as np

GRAIN = 64 << 10
_UNUSED = 2  # getrefcount of a buffer in use by no array: the list's reference and its own


class RowBufferPool:
    """Arrays whose memory is reused when no array refers to it any more.

    A view of an array refers to its base, so a count of the base's references is enough.
    """

    def __init__(self) -> None:
        self._owners: list[np.ndarray] = []
        self._lock = threading.Lock()
        # Reference counts are exact only with the interpreter lock (GIL).
        self._can_reuse = getattr(sys, "_is_gil_enabled", lambda: True)()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An uninitialized array."""
        size = int(np.prod(shape)) * dtype.itemsize
        if size < GRAIN or not self._can_reuse:
            return np.empty(shape, dtype)
        with self._lock:
            owner = self._unused_buffer(size)
            return owner[:size].view(dtype).reshape(shape)

    def _unused_buffer(self, size: int) -> np.ndarray:
        owners = self._owners
        free = [i for i in range(len(owners)) if sys.getrefcount(owners[i]) == _UNUSED]
        fitting = [i for i in free if owners[i].nbytes >= size]
        if fitting:
            return owners[min(fitting, key=lambda i: owners[i].nbytes)]
        if free:  # all are too small: drop one
            del owners[free[0]]
        owners.append(np.empty(-(-size // GRAIN) * GRAIN, np.uint8))
        return owners[-1]

    def clear(self) -> None:
        """Release all memory; arrays in use keep theirs."""
        with self._lock:
            self._owners.clear()
