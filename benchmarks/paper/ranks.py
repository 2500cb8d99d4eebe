"""What a worker of an experiment does: time steps, watch the cores, write what it has found."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

WARM_UP = 3  # steps before those that count; the first ones make plans


def busy_time() -> tuple[float, float]:
    """Ticks that the cores of this machine have worked, and all ticks, since it started."""
    with open("/proc/stat") as lines:
        ticks = [int(word) for word in next(lines).split()[1:9]]
    idle, waiting = ticks[3:5]
    return sum(ticks) - idle - waiting, sum(ticks)


class Cores:
    """How busy this machine's cores are from now on; other programs count, too."""

    def __init__(self) -> None:
        self._then = busy_time()

    def used(self) -> float:
        """The share of all cores' time in use, 0 to 1."""
        (busy, total), (was_busy, was_total) = busy_time(), self._then
        return (busy - was_busy) / max(total - was_total, 1)


def timed(
    session: Any, step: Callable[[], object], seconds: float, least: int = 4
) -> dict[str, Any]:
    """Seconds of each of this worker's steps while all workers step: for so long, `least` steps."""
    for _ in range(WARM_UP):
        step()
    session.context.barrier()
    cores, times = Cores(), []
    begun = last = time.perf_counter()
    while len(times) < least or last - begun < seconds:
        step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    found = {"times": times, "seconds": last - begun, "cpu": cores.used()}
    session.context.barrier()
    return found


def write(folder: str | None, session: Any, found: dict[str, Any]) -> None:
    """Write what this worker has found, in the folder of its job."""
    told = {"worker": session.worker, "host": os.uname().nodename, **found}
    out = pathlib.Path(folder or ".")
    out.mkdir(parents=True, exist_ok=True)
    (out / f"worker-{session.worker}.json").write_text(json.dumps(told))


def quantiles(values: Sequence[float], *at: float) -> list[float]:
    """Quantiles, by linear interpolation."""
    import numpy as np

    return [float(v) for v in np.quantile(values, at)]
