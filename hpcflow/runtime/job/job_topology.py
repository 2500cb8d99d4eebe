"""Job topology: the file of the setting `topology`, for the tasks of a replica and its network."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from hpcflow.comm.communicator import Communicator
from hpcflow.errors import DataError, HpcflowError
from hpcflow.placement.network import Network
from hpcflow.placement.topology import Topology, read_description, topology_of
from hpcflow.plan.distribution.task_assignment import TaskAssignment


def job_topology(
    path: str, world: Communicator | None, roles: TaskAssignment, is_measured: bool
) -> tuple[Topology, Network]:
    """Return the topology of the tasks of a replica, and the network of all workers; collective.

    Rank 0 reads the file and broadcasts it. `is_measured`: times of operations were measured on
    rank 0's machine, so speeds are relative to that of rank 0.
    Errors: DataError on all ranks if it cannot be read or describes another number of ranks.
    """
    text = _checked_text(path) if world is None or world.rank == 0 else None
    if world is not None and world.size > 1:
        text = world.broadcast_text(text)
    data = json.loads(text or "")
    if isinstance(data, str):
        raise DataError(f"setting topology: {data}", hint="`hpcflow help placement` has the format")
    topology = topology_of(data)
    size = len(roles.workers) + len(roles.servers)
    if topology.size != size:
        raise DataError(
            f"setting topology: {path} describes {topology.size} ranks, but the job has {size}",
            hint="describe each rank of the job, servers included",
        )
    if is_measured:
        speeds = tuple(speed / topology.speeds[0] for speed in topology.speeds)
        topology = dataclasses.replace(topology, speeds=speeds)
    tasks = [list(roles.ranks_of(replica).values()) for replica in range(roles.replicas)]
    return topology.of_tasks(tasks), Network.between(topology, roles.workers)


def _checked_text(path: str) -> str:
    """Return the file as JSON; instead a JSON string with the error, if there is one."""
    try:
        return json.dumps(read_description(Path(path)))
    except HpcflowError as error:
        return json.dumps(error.message)
