"""Allreduce selection: NCCL between GPUs, else shared-memory windows within a node, and rings of
messages or MPI between nodes."""

from __future__ import annotations

import dataclasses

from hpcflow.comm.communicator import Communicator
from hpcflow.errors import CommError
from hpcflow.platform.rank_logging import say_once
from hpcflow.settings import Settings


def choose_allreduce(group: Communicator, settings: Settings, on_gpu: bool) -> Communicator:
    """The communicator for allreduces over `group`; logs one line with the choice. Collective."""
    from hpcflow.comm.mpi_communicator import MpiCommunicator

    if not isinstance(group, MpiCommunicator) or group.size == 1:
        return group
    choice = settings.comm
    if on_gpu and choice in ("auto", "nccl"):
        from hpcflow.comm.nccl_allreduce import NcclCommunicator

        say_once("sums over replicas: NCCL, for the workers run on GPUs")
        return NcclCommunicator(group)
    if choice == "nccl":
        raise CommError(
            "comm=nccl needs workers that run on GPUs", hint="set HPCFLOW_COMM=auto or install cupy"
        )
    if choice == "mpi":
        say_once("sums over replicas: MPI, as asked")
        return group
    from hpcflow.comm.shared_memory_allreduce import SharedCommunicator

    say_once("sums over replicas: shared-memory windows within a node, messages between nodes")
    return SharedCommunicator(group)


def without_nccl(group: Communicator, settings: Settings) -> Settings:
    """Settings of a job whose workers run on different device types: allreduce in host memory.

    Errors: CommError if the setting `comm` is nccl.
    """
    if settings.comm == "nccl":
        raise CommError(
            "comm=nccl, but not all workers run on GPUs",
            rank=group.rank,
            hint="set HPCFLOW_COMM=auto: workers on CPUs and on GPUs then sum on their hosts",
        )
    say_once("workers run on unlike devices: their sums are made on the hosts")
    if settings.comm != "auto":
        return settings
    return dataclasses.replace(settings, comm="shared")
