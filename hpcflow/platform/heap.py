"""The heap of the C library: memory that is freed stays with the process, up to a limit.

By default glibc returns freed memory to the kernel soon. A step that needs as much as the last one,
such as a loop whose iterations keep values for the gradient, then gets fresh pages, which the
kernel clears one by one: 2.7 GB/s.
"""

from __future__ import annotations

import ctypes
import functools
import os

KEPT_BYTES = 256 << 20  # freed memory at the end of the heap
LARGEST_BYTES = 32 << 20  # of an array in the heap, the most that glibc allows; others are mapped
PAD_BYTES = 1 << 20  # by which the heap grows at least
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # parameters of mallopt(3)
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> None:
    """Set the limits, unless the user has set some, or the C library is not glibc."""
    libc = ctypes.CDLL(None)
    if any(name in os.environ for name in _VARIABLES) or not hasattr(libc, "gnu_get_libc_version"):
        return
    libc.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    libc.mallopt(_TOP_PAD, PAD_BYTES)
    libc.mallopt(_MMAP_THRESHOLD, LARGEST_BYTES)
