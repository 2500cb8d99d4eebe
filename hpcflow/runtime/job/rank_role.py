"""Rank: the role of this process in its job, its devices and executor, and the lost ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from hpcflow.comm.communicator import Communicator
from hpcflow.comm.fault_tolerant_collectives import FaultTolerantCollectives
from hpcflow.comm.polling_backoff import wait_for_requests
from hpcflow.errors import HpcflowError, LaunchError
from hpcflow.graph.device_names import parse_device
from hpcflow.kernels.kernel_registry import kernel_preferences
from hpcflow.monitoring.failure_detector import set_next_advice
from hpcflow.plan.distribution.task_assignment import TaskAssignment, assign_tasks
from hpcflow.plan.ir.program import Cluster
from hpcflow.platform import cpu_threads
from hpcflow.ps import sync_rules
from hpcflow.ps.sync_rule import SyncRule
from hpcflow.runtime.device import device
from hpcflow.runtime.dynamic_types import Json
from hpcflow.runtime.executor.executor import Executor
from hpcflow.runtime.job.stop_signal import StopSignal
from hpcflow.runtime.profile.variable_traffic_counters import measured_traffic
from hpcflow.runtime.session.session_seed import SessionSeed
from hpcflow.runtime.state.state_store import StateStore
from hpcflow.runtime.step.step_instance import StepObserver
from hpcflow.settings import Settings, as_bytes, new_seed


class ReplicaObserver(Protocol):
    """An object that depends on the number of replicas."""

    def replicas_changed(self) -> None:
        """Called when replicas have been lost; `RankRole.roles` has the rest."""
        ...


class RankRole:
    """The identity, role and resources of this rank."""

    def __init__(
        self,
        settings: Settings,
        world: Communicator | None = None,
        crowded: bool = False,
        crowded_hosts: frozenset[str] = frozenset(),
        simulated_ranks: int = 0,
    ) -> None:
        """`crowded`: this host has more ranks than cores; `crowded_hosts` are all such hosts.

        With `simulated_ranks` it is rank 0 of a job of so many ranks that is only planned.
        """
        self.settings, self.world = settings, world
        self.rank, self.size = (world.rank, world.size) if world else (0, simulated_ranks or 1)
        self.hosts: tuple[str, ...] = world.hosts if world else (os.uname().nodename,)
        serving, self.seed = _serving_ranks(settings, world)
        if simulated_ranks:
            self.hosts, serving = ("planned",) * simulated_ranks, []
        self.roles: TaskAssignment = assign_tasks(
            self.hosts, settings.ps, settings.tasks_per_replica, serving
        )
        self.task, self.replica = self.roles.task_of(self.rank)
        self._sessions = itertools.count()
        self._hosted: dict[tuple[int, int], StateStore] = {}  # by (driver, number of its session)
        self.stores: weakref.WeakSet[StateStore] = weakref.WeakSet()
        self.store = self.new_store()  # state that this rank hosts for the steps of others
        self.devices = self._make_devices()
        self.cluster: Cluster = self._make_cluster(simulated_ranks)
        self.apply_sync_setting()
        # none without a GPU: kernels of the CPU are synchronous
        is_busy = self._computes if len(self.devices) > 1 else None
        self.executor = Executor(world, crowded, self._goes_on, is_busy)
        self.stop = StopSignal(self.rank, self.roles, self.cluster.mode == "collective")
        self.group: Communicator | None = None  # the replicas' ranks with this rank's task number
        # the ranks that run the script; the same ranks, for `RankContext.meet`
        self.drivers: Communicator | FaultTolerantCollectives | None = None
        self.meetings: Communicator | FaultTolerantCollectives | None = None
        self.followers: weakref.WeakSet[ReplicaObserver] = weakref.WeakSet()  # of lost replicas
        self.crowded_hosts = crowded_hosts
        self.spare_ranks: frozenset[int] = frozenset()  # ranks whose death the job may survive
        self.lost: list[Json] = []  # ranks that have died: rank, task, host
        self.names: tuple[str, ...] = ()  # task names of all ranks at the start of the job
        self.rebuilding = False
        self.checkpoint = ""  # path of the newest checkpoint
        self.steps: Callable[[], int | None] = _no_update_counts  # training steps, for reports
        self.observers: list[StepObserver] = []  # of the set-up of all partitions
        self.before_abort: list[Callable[[], object]] = []  # called before it aborts the job

    def _make_cluster(self, simulated_ranks: int) -> Cluster:
        """The ranks that plans are made for, with what files tell of them; collective."""
        settings, cluster = self.settings, self.roles.cluster(list(self.devices))
        if cluster.servers:
            measured = measured_traffic(settings, self.world)
            cluster = dataclasses.replace(cluster, measured=measured)
        elif settings.placement and not settings.automatic:
            raise HpcflowError(
                f"setting placement={settings.placement!r} is a file by which servers get "
                "variables, and the job has no servers",
                hint="write placement=auto, start servers (--ps 1), or leave placement out",
            )
        if settings.automatic:
            from hpcflow.runtime.job.job_times import job_times

            if simulated_ranks:
                threads = cpu_threads.planned_threads(simulated_ranks, settings.threads)
            else:
                threads = cpu_threads.chosen_threads().threads
            times = job_times(settings.cost_cache, self.world, cluster.devices, threads)
            cluster = dataclasses.replace(cluster, times=times)
        if settings.topology:
            from hpcflow.runtime.job.job_topology import job_topology

            is_measured = cluster.times is not None
            topology, network = job_topology(settings.topology, self.world, self.roles, is_measured)
            cluster = dataclasses.replace(cluster, topology=topology, network=network)
        if settings.automatic:
            from hpcflow.runtime.job.job_speeds import job_speeds

            speeds = job_speeds(settings.run_dir, self.world, self.roles, self.hosts)
            cluster = dataclasses.replace(cluster, speeds=speeds)
        return cluster

    def _make_devices(self) -> dict[str, device.Device]:
        """The devices of this rank by name, with the settings of kernels and memory.

        Each rank names its GPU gpu:0, whatever its number on the node: plans name the devices of
        all workers alike.
        """
        settings = self.settings
        names = device.device_names(self.is_server, self._index_on_node())
        preferences = kernel_preferences(settings.kernels, settings.exact, settings.allow_tf32)
        limit = as_bytes(settings.memory_limit)
        kinds = [name.partition(":")[0] for name in names]
        made = [device.make_device(name, preferences, limit) for name in names]
        return {f"{kind}:0": each for kind, each in zip(kinds, made, strict=True)}

    def observe(self, observer: StepObserver) -> None:
        """Report the set-up of partitions that are compiled from now on."""
        self.observers.append(observer)

    def task_name(self, rank: int) -> str:
        """The task of a rank for users, as `/job:worker/task:3`: numbered over all replicas."""
        task, replica = self.roles.task_of(rank)
        name = parse_device(task)
        if name.job == "ps":
            return task
        return f"/job:worker/task:{replica * self.settings.tasks_per_replica + (name.task or 0)}"

    @property
    def is_server(self) -> bool:
        """True on ranks that host variables for all replicas."""
        return self.rank in self.roles.servers

    @property
    def is_driver(self) -> bool:
        """True on ranks that run the script."""
        return self.rank in self.roles.drivers

    @property
    def is_chief(self) -> bool:
        """True on the first driver, which logs and saves for the job."""
        return self.rank == self.roles.drivers[0]

    @property
    def is_spread(self) -> bool:
        """True if a replica has several ranks."""
        return self.settings.tasks_per_replica > 1

    def _index_on_node(self) -> int:
        """The index of this worker among the workers of its node; 0 on a server."""
        here = [r for r in self.roles.workers if self.hosts[r] == self.hosts[self.rank]]
        return here.index(self.rank) if self.rank in here else 0

    def _computes(self) -> bool:
        return any(device.computes() for device in self.devices.values())

    @property
    def replicas_sum(self) -> bool:
        """Whether replicas allreduce gradients among themselves."""
        return self.cluster.mode == "collective" or self.settings.dense == "replicas"

    @property
    def on_gpu(self) -> bool:
        """Whether this rank is a worker whose first device is a GPU."""
        return not self.is_server and self.cluster.devices[0].startswith("gpu")

    @property
    def devices_sum(self) -> bool:
        """Whether the allreduces of this replica run on its GPU, by NCCL."""
        return self.on_gpu and self.replicas_sum and self.settings.comm in ("auto", "nccl")

    def survives_without(self, rank: int) -> bool:
        """Whether the job continues if `rank` dies: a worker other than the chief, with `survive`.

        The synchronization rule may limit how many workers die.
        """
        if rank not in self.spare_ranks:
            return False
        most, lost = self.cluster.sync.max_deaths, {rank, *(self.world.lost if self.world else ())}
        return most is None or len(lost) <= most

    def _goes_on(self) -> bool:
        """Whether the job continues without the ranks that have died."""
        world = self.world
        return (
            self.settings.survive
            and world is not None
            and all(map(self.survives_without, world.lost))
        )

    @contextlib.contextmanager
    def rebuilds(self) -> Iterator[None]:
        """Inside, the allreduces are rebuilt, by MPI calls that another death may leave hanging."""
        self.rebuilding = True
        yield
        self.rebuilding = False

    def shrink(self, workers: tuple[int, ...]) -> None:
        """The replicas of a job without servers are now these ranks."""
        self.roles = dataclasses.replace(self.roles, workers=workers)
        self.replica = workers.index(self.rank)
        self.cluster = dataclasses.replace(self.cluster, workers=len(workers))
        for together in (self.drivers, self.meetings):
            assert isinstance(together, FaultTolerantCollectives)
            together.continue_with(workers)

    def set_restart_advice(self, text: str, checkpoint: str = "") -> None:
        """Record, for failure reports, the advice `text` and the newest checkpoint."""
        self.checkpoint = checkpoint
        if self.executor.ledger is not None:
            set_next_advice(self.executor.ledger.directory, text, checkpoint)

    def apply_sync_setting(self) -> None:
        """Use the synchronization rule of the setting `sync`; requires `roles`.

        Errors: those of `set_sync_rule`; HpcflowError if the job has no servers.
        """
        sync = self.settings.sync
        if sync and not self.roles.servers:
            raise HpcflowError(
                f"sync={sync} is a rule for workers of parameter servers, and none of the "
                f"{self.size} rank{'s' if self.size > 1 else ''} of this job serves variables",
                rank=self.rank,
                hint="start servers (--ps 1, or --serve on some of the ranks), or leave --sync out:"
                " replicas without servers run each step together",
            )
        self.set_sync_rule(sync_rules.rule(sync or "async"))

    def set_sync_rule(self, rule: SyncRule) -> None:
        """Set the synchronization rule of the workers of parameter servers.

        Ranks:  all drivers, before the first step that uses the rule.
        Errors: HpcflowError if the rule needs more workers, or servers where there are none.
        """
        if self.cluster.mode == "ps":
            rule.check(self.roles.replicas)
        elif rule.needs_servers and self.cluster.mode == "collective":
            raise HpcflowError(
                f"sync={rule} needs parameter servers; these replicas sum their gradients",
                rank=self.rank,
                hint="start with --ps 1, or leave it out",
            )
        self.cluster = dataclasses.replace(self.cluster, sync=rule)

    def new_store(self) -> StateStore:
        """A new store of variables: one for each session, as names are unique only in a graph."""
        number = next(self._sessions)
        store = StateStore(SessionSeed(self.seed, number), number)
        self.stores.add(store)
        return store

    def store_for(self, driver: int, number: int) -> StateStore:
        """The store of a session of rank `driver` on this rank; servers have one for all."""
        if self.is_server:
            return self.store
        if (driver, number) not in self._hosted:
            self._hosted[driver, number] = self.new_store()
        return self._hosted[driver, number]

    def close_store(self, driver: int, number: int) -> None:
        """Close the store of a session that was closed; on servers it does nothing."""
        if (driver, number) in self._hosted:
            self._hosted[driver, number].close()


def _no_update_counts() -> None:
    return None


def _serving_ranks(settings: Settings, world: Communicator | None) -> tuple[list[int], int]:
    """The ranks that were started with the setting `serve`, and the seed; collective.

    The seed is that of rank 0: the setting `random_seed`, or a new one.
    Errors: LaunchError if only some ranks have the setting `trace`, which all record together.
    """
    seed = new_seed() if settings.random_seed < 0 else settings.random_seed
    serves = np.array([settings.serve], np.int32)
    agreed = np.array([settings.serve, bool(settings.trace), not settings.trace], np.int32)
    if world is None or world.size == 1:
        return serves.nonzero()[0].tolist(), seed
    seed = int(world.broadcast_text(str(seed) if world.rank == 0 else None))
    wait_for_requests(
        world.all_reduce(agreed, "max"), label="whether ranks were started with --serve"
    )
    if agreed[1] and agreed[2]:
        raise LaunchError(
            "some ranks of this job have the setting trace, and others have not",
            rank=world.rank,
            hint="give it to all commands that start ranks of this job",
        )
    if not agreed[0]:
        return [], seed
    serves = np.zeros(world.size, np.int32)
    serves[world.rank] = settings.serve
    wait_for_requests(
        world.all_reduce(serves, "max"), label="which ranks were started with --serve"
    )
    return serves.nonzero()[0].tolist(), seed
