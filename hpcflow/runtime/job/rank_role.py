"""This rank among the ranks of its job: its role, its devices, its engine, and who has died."""

from __future__ import annotations

import dataclasses
import itertools
import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol

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
from hpcflow.ps.backup_workers import Backup
from hpcflow.ps.bounded_staleness import Stale
from hpcflow.ps.sync_rule import Rule
from hpcflow.runtime.device import device
from hpcflow.runtime.executor.executor import Engine
from hpcflow.runtime.job.stop_signal import Stop
from hpcflow.runtime.profile.variable_traffic_counters import measured
from hpcflow.runtime.session.session_seed import Seed
from hpcflow.runtime.state.state_store import Store
from hpcflow.runtime.step.step_instance import Compiled
from hpcflow.settings import Settings, as_bytes, new_seed


class Follower(Protocol):
    """What depends on how many replicas there are."""

    def replicas_changed(self) -> None:
        """There are fewer: `Rank.roles` says who."""
        ...


class Rank:
    """This rank among the ranks of the job."""

    def __init__(
        self, settings: Settings, world: Communicator | None = None, crowded: bool = False
    ) -> None:
        self.settings, self.world = settings, world
        self.rank, self.size = (world.rank, world.size) if world else (0, 1)
        self.hosts: tuple[str, ...] = world.hosts if world else (os.uname().nodename,)
        serving, self.seed = _told(settings, world)
        self.roles: Roles = assign(self.hosts, settings.ps, settings.tasks_per_replica, serving)
        self.task, self.replica = self.roles.task_of(self.rank)
        self._sessions = itertools.count()
        self._hosted: dict[tuple[int, int], Store] = {}  # (driver, number of its session)
        self.stores: weakref.WeakSet[Store] = weakref.WeakSet()
        self.store = self.new_store()  # what this rank hosts for the steps of others
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
        self.engine = Engine(world, crowded)
        if len(self.devices) > 1:  # not the CPU alone, whose kernels end where they are called
            self.engine.computes = self._computes
        self.stop = Stop(self.rank, self.roles, self.cluster.mode == "collective")
        self.group: Communicator | None = None  # the replicas' ranks with this rank's task number
        self.drivers: Communicator | Chaired | None = None  # the ranks that run the script
        self.meetings: Communicator | Chaired | None = None  # they too, for `Context.meet` alone
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()  # of how many replicas live
        self.crowded: frozenset[str] = frozenset()  # hosts whose ranks outnumber their cores
        self.spares: frozenset[int] = frozenset()  # ranks without which the job goes on
        self.lost: list[dict[str, Any]] = []  # those that have died: rank, task, host
        self.names: tuple[str, ...] = ()  # of all ranks when the job began
        self.rebuilding = False  # sums, with calls of MPI that another death may leave hanging
        self.checkpoint = ""  # the newest
        self.steps: Callable[[], int | None] = _nobody_counts  # of training, for reports
        self.rehearse: Callable[[Compiled], None] | None = None  # failures, in a part's steps

    def task_name(self, rank: int) -> str:
        """`/job:worker/task:3` as users count: workers over all replicas."""
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
        """True on the one rank that speaks for the job."""
        return self.rank == self.roles.drivers[0]

    @property
    def is_spread(self) -> bool:
        """True if a replica has several ranks."""
        return self.settings.tasks_per_replica > 1

    def _index_on_node(self) -> int:
        """The number of this worker among the workers of its node."""
        here = [r for r in self.roles.workers if self.hosts[r] == self.hosts[self.rank]]
        return here.index(self.rank) if self.rank in here else 0

    def _computes(self) -> bool:
        return any(device.computes() for device in self.devices.values())

    @property
    def replicas_sum(self) -> bool:
        """Whether replicas sum among themselves."""
        return self.cluster.mode == "collective" or self.settings.dense == "replicas"

    @property
    def on_gpu(self) -> bool:
        """Whether it is a worker whose first device is a GPU."""
        return not self.is_server and self.cluster.devices[0].startswith("gpu")

    @property
    def devices_sum(self) -> bool:
        """Whether this replica's sums are made on its GPU."""
        return self.on_gpu and self.replicas_sum and self.settings.comm in ("auto", "nccl")

    def is_spare(self, rank: int) -> bool:
        """Whether the job goes on if `rank` dies: a worker other than the chief, if so asked.

        By the rule `Backup` as many may die as it does without.
        """
        if rank not in self.spares:
            return False
        rule, lost = self.cluster.sync, {rank, *(self.world.lost if self.world else ())}
        return not isinstance(rule, Backup) or len(lost) <= rule.extra

    def say_next(self, text: str, checkpoint: str = "") -> None:
        """What to do if a rank fails from now on, and from which checkpoint, for the report."""
        self.checkpoint = checkpoint
        if self.engine.ledger is not None:
            say_next(self.engine.ledger.directory, text, checkpoint)

    def keep_step_as_set(self) -> None:
        """Keep step by the setting `sync`; the job's servers are known.

        Errors: those of `keep_step`; HpcflowError where nobody would follow the rule.
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

    def keep_step(self, rule: Rule) -> None:
        """From now on the workers of parameter servers keep step as `rule` says.

        Ranks:  all that run the script, before the first step that the rule is for.
        Errors: HpcflowError if there are too few workers, or no servers where it needs them.
        """
        if self.cluster.mode == "ps":
            rule.check(self.roles.replicas)
        elif isinstance(rule, (Backup, Stale)) and self.cluster.mode == "collective":
            raise HpcflowError(
                f"sync={rule} needs parameter servers; these replicas sum their gradients",
                rank=self.rank,
                hint="start with --ps 1, or leave it out",
            )
        self.cluster = dataclasses.replace(self.cluster, sync=rule)

    def new_store(self) -> Store:
        """A place for variables: each session has its own, as its graph's names are its own."""
        number = next(self._sessions)
        store = Store(Seed(self.seed, number), number)
        self.stores.add(store)
        return store

    def store_for(self, driver: int, number: int) -> Store:
        """Where a session of rank `driver` keeps what lives here; servers keep one for all."""
        if self.is_server:
            return self.store
        if (driver, number) not in self._hosted:
            self._hosted[driver, number] = self.new_store()
        return self._hosted[driver, number]

    def close_store(self, driver: int, number: int) -> None:
        """The session was closed: let go of what it has kept here. Servers keep it."""
        if (driver, number) in self._hosted:
            self._hosted[driver, number].close()


def _nobody_counts() -> None:
    return None


def _told(settings: Settings, world: Communicator | None) -> tuple[list[int], int]:
    """The ranks that were started with the setting `serve`, and the first rank's seed; collective.

    It is the setting, or drawn anew.
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
