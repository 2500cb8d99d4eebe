"""Size-class allocator: memory for values whose sizes are known only at run time.

Blocks are reused once no array refers to them.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable

import numpy as np

from hpcflow.runtime.dynamic_types import DeviceArray

MIN_POOLED_BYTES = 1 << 20  # bytes: NumPy's own allocator serves smaller ones without new pages
STEPS = 4  # size classes from one power of two to the next


class SizeClassPool:
    """Blocks of one device; a block is free when no array, nor view of one, refers to it.

    `hold(what, shape, dtype)` allocates a block, `view(block, shape, dtype)` is an array in it.
    """

    def __init__(self, hold: Callable[..., DeviceArray], view: Callable[..., DeviceArray]) -> None:
        self._hold, self._view = hold, view
        self._blocks: dict[int, list[DeviceArray]] = {}  # size class -> blocks
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
        """An uninitialized array.

        Errors: MemoryError.
        """
        size = size_class(math.prod(shape) * dtype.itemsize)
        with self._lock:
            block = _free_block(self._blocks.get(size, []), FREE_REFERENCES)
            if block is None:
                block = self._new_block(size)
                self._blocks.setdefault(size, []).append(block)
            return self._view(block, shape, dtype)

    def _new_block(self, size: int) -> DeviceArray:
        """A new block; if memory is exhausted, the pool first drops its blocks."""
        arguments = "values sized by a step", (size,), np.dtype(np.uint8)
        try:
            return self._hold(*arguments)
        except MemoryError:
            self._blocks.clear()
            return self._hold(*arguments)

    def clear(self) -> None:
        """Drop all blocks; those in use live as long as the arrays in them."""
        with self._lock:
            self._blocks.clear()


def _free_block(blocks: list[DeviceArray], references: int) -> DeviceArray:
    """The first block with at most `references` references; None if all have more."""
    for block in blocks:
        if sys.getrefcount(block) <= references:
            return block
    return None


# the reference count of a block that only its list refers to, as CPython counts it there
FREE_REFERENCES = next(n for n in range(1, 9) if _free_block([np.empty(0)], n) is not None)


def size_class(nbytes: int) -> int:
    """The smallest size class of at least `nbytes`; at most a quarter of it is wasted."""
    unit = max(1, (1 << max(0, nbytes - 1).bit_length()) // (2 * STEPS))
    return -(-nbytes // unit) * unit
