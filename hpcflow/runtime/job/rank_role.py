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
from hpcflow.comm.fault_tolerant_collectives import Chaired
from hpcflow.comm.polling_backoff import finish
from hpcflow.errors import HpcflowError
from hpcflow.graph.device_names import parse
from hpcflow.kernels.kernel_registry import wish
from hpcflow.monitoring.failure_detector import say_next
from hpcflow.plan.distribution.task_assignment import Roles, assign
from hpcflow.plan.ir.program import Cluster
from hpcflow.ps import sync_rules
from hpcflow.ps.sync_rule import SyncRule
from hpcflow.runtime.device import device
from hpcflow.runtime.dynamic_types import Json
from hpcflow.runtime.executor.executor import Engine
from hpcflow.runtime.job.stop_signal import Stop
from hpcflow.runtime.profile.variable_traffic_counters import measured
from hpcflow.runtime.session.session_seed import Seed
from hpcflow.runtime.state.state_store import Store
from hpcflow.runtime.step.step_instance import StepObserver
from hpcflow.settings import Settings, as_bytes, new_seed


class Follower(Protocol):
    """An object that depends on the number of replicas."""

    def replicas_changed(self) -> None:
        """Called when replicas have been lost; `Rank.roles` has the rest."""
        ...


class Rank:
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
        serving, self.seed = _told(settings, world)
        if simulated_ranks:
            self.hosts, serving = ("planned",) * simulated_ranks, []
        self.roles: Roles = assign(self.hosts, settings.ps, settings.tasks_per_replica, serving)
        self.task, self.replica = self.roles.task_of(self.rank)
        self._sessions = itertools.count()
        self._hosted: dict[tuple[int, int], Store] = {}  # by (driver, number of its session)
        self.stores: weakref.WeakSet[Store] = weakref.WeakSet()
        self.store = self.new_store()  # state that this rank hosts for the steps of others
        self.devices = {
            name: device.make(name) for name in device.names(self.is_server, self._index_on_node())
        }
        for one in self.devices.values():
            one.wish = wish(settings.kernels, settings.exact, settings.allow_tf32)
            one.limit(as_bytes(settings.memory_limit))
        self.cluster: Cluster = self.roles.cluster(list(self.devices))
        if settings.placement and self.cluster.servers:
            self.cluster = dataclasses.replace(self.cluster, measured=measured(settings, world))
        self.keep_step_as_set()
        self.engine = Engine(world, crowded, self._goes_on)
        if len(self.devices) > 1:  # a GPU: kernels of the CPU are synchronous
            self.engine.computes = self._computes
        self.stop = Stop(self.rank, self.roles, self.cluster.mode == "collective")
        self.group: Communicator | None = None  # the replicas' ranks with this rank's task number
        self.drivers: Communicator | Chaired | None = None  # the ranks that run the script
        self.meetings: Communicator | Chaired | None = None  # the same ranks, for `Context.meet`
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()  # notified of lost replicas
        self.crowded = crowded_hosts
        self.spares: frozenset[int] = frozenset()  # ranks whose death the job may survive
        self.lost: list[Json] = []  # ranks that have died: rank, task, host
        self.names: tuple[str, ...] = ()  # task names of all ranks at the start of the job
        self.rebuilding = False
        self.checkpoint = ""  # path of the newest checkpoint
        self.steps: Callable[[], int | None] = _nobody_counts  # training steps, for reports
        self.observers: list[StepObserver] = []  # of the set-up of all partitions

    def observe(self, observer: StepObserver) -> None:
        """Report the set-up of partitions that are compiled from now on."""
        self.observers.append(observer)

    def task_name(self, rank: int) -> str:
        """The task of a rank for users, as `/job:worker/task:3`: numbered over all replicas."""
        task, replica = self.roles.task_of(rank)
        name = parse(task)
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

    def is_spare(self, rank: int) -> bool:
        """Whether the job continues if `rank` dies: a worker other than the chief, with `survive`.

        The synchronization rule may limit how many workers die.
        """
        if rank not in self.spares:
            return False
        most, lost = self.cluster.sync.max_deaths, {rank, *(self.world.lost if self.world else ())}
        return most is None or len(lost) <= most

    def _goes_on(self) -> bool:
        """Whether the job continues without the ranks that have died."""
        world = self.world
        return self.settings.survive and world is not None and all(map(self.is_spare, world.lost))

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
            assert isinstance(together, Chaired)
            together.go_on(workers)

    def say_next(self, text: str, checkpoint: str = "") -> None:
        """Record, for failure reports, the advice `text` and the newest checkpoint."""
        self.checkpoint = checkpoint
        if self.engine.ledger is not None:
            say_next(self.engine.ledger.directory, text, checkpoint)

    def keep_step_as_set(self) -> None:
        """Use the synchronization rule of the setting `sync`; requires `roles`.

        Errors: those of `keep_step`; HpcflowError if the job has no servers.
        """
        sync = self.settings.sync
        if sync and not self.roles.servers:
            raise HpcflowError(
                f"sync={sync} says how workers of parameter servers keep step, and none of the "
                f"{self.size} rank{'s' if self.size > 1 else ''} of this job serves variables",
                rank=self.rank,
                hint="start servers (--ps 1, or --serve on some of the ranks), or leave --sync out:"
                " replicas without servers make each step together",
            )
        self.keep_step(sync_rules.rule(sync or "async"))

    def keep_step(self, rule: SyncRule) -> None:
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

    def new_store(self) -> Store:
        """A new store of variables: one for each session, as names are unique only in a graph."""
        number = next(self._sessions)
        store = Store(Seed(self.seed, number), number)
        self.stores.add(store)
        return store

    def store_for(self, driver: int, number: int) -> Store:
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


def _nobody_counts() -> None:
    return None


def _told(settings: Settings, world: Communicator | None) -> tuple[list[int], int]:
    """The ranks that were started with the setting `serve`, and the seed; collective.

    The seed is that of rank 0: the setting `random_seed`, or a new one.
    """
    seed = new_seed() if settings.random_seed < 0 else settings.random_seed
    serves = np.array([settings.serve], np.int32)
    if world is None or world.size == 1:
        return serves.nonzero()[0].tolist(), seed
    seed = int(world.broadcast_text(str(seed) if world.rank == 0 else None))
    finish(world.all_reduce(serves, "max"), what="whether ranks were started with --serve")
    if not serves[0]:
        return [], seed
    serves = np.zeros(world.size, np.int32)
    serves[world.rank] = settings.serve
    finish(world.all_reduce(serves, "max"), what="which ranks were started with --serve")
    return serves.nonzero()[0].tolist(), seed
