"""Job speeds: what earlier runs in the run directory have measured of the ranks of this job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hpcflow.comm.communicator import Communicator
from hpcflow.errors import HpcflowError
from hpcflow.placement.measured_speeds import (
    MeasuredSpeeds,
    RankSpeed,
    read_speeds,
    task_speeds,
)
from hpcflow.plan.distribution.task_assignment import TaskAssignment
from hpcflow.platform.rank_logging import logger


def job_speeds(
    run_dir: str, world: Communicator | None, roles: TaskAssignment, hosts: Sequence[str]
) -> tuple[float, ...]:
    """Return the measured speeds of the tasks of a replica, () if none is known; collective.

    Rank 0 reads the file and broadcasts it; it warns of a damaged one, which counts as none.
    Without `world` the job is only planned, for the hosts of the file.
    """
    text = None
    if world is None or world.rank == 0:
        text = json.dumps(sorted(_read(run_dir).ranks.items()))
    if world is not None and world.size > 1:
        text = world.broadcast_text(text)
    ranks = {rank: RankSpeed(*known) for rank, known in json.loads(text or "[]")}
    tasks = [roles.peers_of(k) for k in range(roles.tasks_per_replica)]
    return task_speeds(ranks, tasks, None if world is None else hosts)


def _read(run_dir: str) -> MeasuredSpeeds:
    if not run_dir:
        return MeasuredSpeeds()
    try:
        return read_speeds(Path(run_dir))
    except HpcflowError as error:
        logger.warning(
            "%s; placement=auto takes all ranks as equal: correct the file, or delete it",
            error.message,
        )
        return MeasuredSpeeds()
