"""Job times: measured times of operations for placement=auto, from the profile of a machine."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from hpcflow.comm.communicator import Communicator
from hpcflow.errors import HpcflowError
from hpcflow.kernels.machine_facts import machine_facts
from hpcflow.plan.cost.measured_rows import MeasuredRows
from hpcflow.platform.cpu_threads import chosen_threads
from hpcflow.platform.machine_profile import profile_file
from hpcflow.platform.rank_logging import logger
from hpcflow.platform.terminal_escaping import escape_line


def job_times(
    folder: str, world: Communicator | None, devices: Collection[str]
) -> MeasuredRows | None:
    """Return the rows of the profile of rank 0's machine; collective. None if it has no rows.

    `folder` is the setting `cost_cache`, `devices` are those of a worker, the default first. Rank 0
    reads the profile and broadcasts its rows, so that all replicas make one plan. A damaged profile
    is a warning.
    """
    kinds = [name.partition(":")[0] for name in devices]
    text = None
    if world is None or world.rank == 0:
        text = json.dumps([chosen_threads().threads, _rows(folder, kinds)])
    if world is not None and world.size > 1:
        text = world.broadcast_text(text)
    threads, rows = json.loads(text or "")
    return MeasuredRows.of(rows, threads, kinds[0]) if rows else None


def _rows(folder: str, kinds: Collection[str]) -> list[Any]:
    """Return the rows of operations on these kinds of devices, as JSON."""
    file = profile_file(machine_facts(), folder)
    try:
        rows = file.read().operations if file is not None else ()
    except HpcflowError as error:
        told = f"{error.message}: placement=auto uses the times of the cost model"
        logger.warning("%s", escape_line(told))
        return []
    return [row.as_data() for row in rows if row.key.device in kinds]
