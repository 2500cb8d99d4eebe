"""Features of this host's CPU."""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path


@functools.cache
def converts_float16() -> bool:
    """Whether the CPU has instructions that convert float16 to float32 and back."""
    if platform.machine() in ("aarch64", "arm64"):
        return True
    try:
        found = re.search(r"^flags\s*:.*\bf16c\b", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        return False
    return found is not None
