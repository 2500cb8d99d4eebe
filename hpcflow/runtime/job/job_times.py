"""Job times: measured times of operations for placement=auto, from the profile of a machine."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from hpcflow.comm.communicator import Communicator
from hpcflow.kernels.machine_facts import own_profile
from hpcflow.plan.cost.measured_rows import MeasuredRows


def job_times(
    folder: str, world: Communicator | None, devices: Collection[str], threads: int
) -> MeasuredRows | None:
    """Return the rows of the profile of rank 0's machine; collective. None if it has no rows.

    `folder` is the setting `cost_cache`, `devices` are those of a worker, the default first,
    `threads` those of this rank. Rank 0 reads the profile and broadcasts its rows and threads, so
    that all replicas make one plan. A damaged profile is a warning.
    """
    kinds = [name.partition(":")[0] for name in devices]
    text = None
    if world is None or world.rank == 0:
        text = json.dumps([threads, _rows(folder, kinds)])
    if world is not None and world.size > 1:
        text = world.broadcast_text(text)
    threads, rows = json.loads(text or "")
    return MeasuredRows.of(rows, threads, kinds[0]) if rows else None


def _rows(folder: str, kinds: Collection[str]) -> list[Any]:
    """Return the rows of operations on these kinds of devices, as JSON."""
    known = own_profile(folder, "placement=auto uses the times of the cost model")
    return [row.as_data() for row in known.operations if row.key.device in kinds]
