"""This rank among the ranks of its job: role, devices, state and engine."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpcflow import consistency, logs, threads
from hpcflow.comm import waiting
from hpcflow.comm.base import Communicator
from hpcflow.comm.chaired import Chaired
from hpcflow.comm.deaths import Deaths, say_next
from hpcflow.comm.ledger import PREFIX, Ledger, base, remove, sweep
from hpcflow.comm.nodes import Nodes
from hpcflow.comm.watchdog import Times, Watchdog
from hpcflow.consistency import Async, Backup, Rule, Stale
from hpcflow.errors import HpcflowError, LonelyCollectiveError
from hpcflow.graph.device import parse
from hpcflow.kernels.table import wish
from hpcflow.logs import logger
from hpcflow.native import kept
from hpcflow.plan.code import Generated
from hpcflow.plan.ir import Cluster, Plan
from hpcflow.plan.roles import Roles, assign
from hpcflow.plan.rounds import attrs_of
from hpcflow.runtime import device, failing, services, survival
from hpcflow.runtime.control import Control
from hpcflow.runtime.counted import Counts, measured
from hpcflow.runtime.engine import Engine
from hpcflow.runtime.headers import BYE, CLOSING, FIRST_DATA_TAG, MEETING, header
from hpcflow.runtime.held import Expected, report
from hpcflow.runtime.instance import Compiled
from hpcflow.runtime.plans import Plans
from hpcflow.runtime.shared_arena import Lanes
from hpcflow.runtime.state import Store
from hpcflow.runtime.stop import Stop
from hpcflow.runtime.survival import Follower, Survival
from hpcflow.settings import Settings, as_bytes

if TYPE_CHECKING:
    from hpcflow.runtime.profile import Profile


class Unfinished(Protocol):
    """What goes on behind the steps of this rank."""

    def finish(self) -> bool:
        """Wait for its end."""
        ...

    def heard(self, told: dict[str, Any]) -> None:
        """Another rank tells of it; under the baton."""
        ...


class Context:
    """This rank among the ranks of the job: its role, devices, state and engine."""

    def __init__(
        self, settings: Settings, world: Communicator | None = None, crowded: bool = False
    ) -> None:
        self.settings, self.world = settings, world
        kept.use(settings.kernel_cache)
        self.rank, self.size = (world.rank, world.size) if world else (0, 1)
        self.hosts: tuple[str, ...] = world.hosts if world else (os.uname().nodename,)
        self.roles: Roles = assign(
            self.hosts, settings.ps, settings.tasks_per_replica, _serving(settings, world)
        )
        self.task, self.replica = self.roles.task_of(self.rank)
        self.expected = Expected()
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
        self.counts = Counts()
        self.plans = Plans(self)
        self.keep_step(consistency.rule(settings.sync))
        self.engine = Engine(world, crowded)
        if len(self.devices) > 1:  # not the CPU alone, whose kernels end where they are called
            self.engine.computes = self._computes
        self.stop = Stop(self.rank, self.roles, self.cluster.mode == "collective")
        if settings.inject:
            from hpcflow.runtime import inject

            inject.install(self)
        if settings.trace:
            from hpcflow.runtime import trace

            trace.install(self.engine, settings.trace)
        self.profile: Profile | None = None
        if settings.profile:
            from hpcflow.runtime import profile

            self.profile = profile.install(self)
        self.group: Communicator | None = None  # the replicas' ranks with this rank's task number
        self.drivers: Communicator | Chaired | None = None  # the ranks that run the script
        self.meetings: Communicator | Chaired | None = None  # they too, for `meet` alone
        self.survival: Survival | None = None  # of replicas that go on without the dead
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()  # are told of it
        self.spares: frozenset[int] = frozenset()  # ranks without which the job goes on
        self.lost: list[dict[str, Any]] = []  # those that have died: rank, task, host
        self.names: tuple[str, ...] = ()  # of all ranks when the job began
        self.control: Control | None = None
        self.watchdog: Watchdog | None = None
        self.deaths: Deaths | None = None
        self.on_plan: Callable[[Plan], None] | None = None  # planning: called instead of running
        self.checkpoint = ""  # the newest
        self.steps: Callable[[], int | None] = _nobody_counts  # of training, for reports
        self.ahead: set[Any] = set()  # steps whose values were pulled ahead
        self.repeated: set[str] = set()  # names of the updates whose rounds the servers have
        self.saving: Unfinished | None = None  # the last save behind training that this rank began
        self._plans = 0
        self._tag = 0
        self._left = False
        if world is not None and self.size > 1:
            self._join(world)

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

    def _index_on_node(self) -> int:
        """The number of this worker among the workers of its node."""
        here = [r for r in self.roles.workers if self.hosts[r] == self.hosts[self.rank]]
        return here.index(self.rank) if self.rank in here else 0

    @property
    def _sums(self) -> bool:
        """Whether replicas sum among themselves."""
        return self.cluster.mode == "collective" or self.settings.dense == "replicas"

    @property
    def devices_sum(self) -> bool:
        """Whether this replica's sums are made on its GPU."""
        on_gpu = not self.is_server and self.cluster.devices[0].startswith("gpu")
        return on_gpu and self._sums and self.settings.comm in ("auto", "nccl")

    def _join(self, world: Communicator) -> None:
        # apart from the sums: a driver that waits here must not meet another's collective
        if self.settings.survive:
            self.names = tuple(self.task_name(rank) for rank in range(self.size))
            survival.bear(self, world)
        else:
            self.drivers = world.split(self.roles.drivers)
            self.meetings = world.split(self.roles.drivers)
        for k in range(self.settings.tasks_per_replica):
            group = world.split(self.roles.peers_of(k))
            if group is not None and self.settings.survive and self._sums:
                self.survival = Survival(self, group)
            if group is not None:
                self.join_sums(group)
        self.control = Control(
            self.engine, self._serve, self.report, self.group, self.stop, self.counts, Lanes(self)
        )
        self.control.answer = functools.partial(services.answer, self)
        if self.settings.survive:
            self.control.survival = self.survival
            self.control.lose = functools.partial(failing.on_loss, self)

    def join_sums(self, group: Communicator) -> None:
        """Sum from now on over the replicas' ranks in `group`, if this mode sums. All call it."""
        self.group = self._summing(group) if self._sums else group
        if self.control is not None:
            self.control.group = self.group

    @property
    def is_spread(self) -> bool:
        """True if a replica has several ranks."""
        return self.settings.tasks_per_replica > 1

    def is_spare(self, rank: int) -> bool:
        """Whether the job goes on if `rank` dies: a worker other than the chief, if so asked.

        By the rule `Backup` as many may die as it does without.
        """
        if rank not in self.spares:
            return False
        if self.survival is not None:
            return True
        rule, lost = self.cluster.sync, {rank, *(self.world.lost if self.world else ())}
        return not isinstance(rule, Backup) or len(lost) <= rule.extra

    def _summing(self, group: Communicator) -> Communicator:
        """The communicator that sums over replicas, as the setting `comm` and the machine say."""
        from hpcflow.comm.choose import choose, without_nccl

        on_gpu = not self.is_server and self.cluster.devices[0].startswith("gpu")
        if len(set(group.all_gather_text(self.cluster.devices[0].partition(":")[0]))) > 1:
            # also for plans: all must sum on their hosts
            self.settings, on_gpu = without_nccl(group, self.settings), False
        return choose(group, self.settings, on_gpu)

    def _computes(self) -> bool:
        return any(device.computes() for device in self.devices.values())

    def watch(self) -> None:
        """Open this rank's ledger of waits and the watchdog that reads it. All ranks call it."""
        assert self.world is not None
        token = self.world.broadcast_text(os.urandom(16).hex())
        sweep(base(), self.hosts[self.rank])
        folder = os.path.join(base(), PREFIX + token)
        host, task = self.hosts[self.rank], self.task_name(self.rank)
        place = -1 if self.is_server else parse(self.task).task or 0
        ledger = self.engine.ledger = Ledger(folder, self.rank, host, task, place)
        waiting.ledger = ledger
        run_dir = Path(self.settings.run_dir)
        nodes = Nodes(ledger.directory, run_dir, host) if len(set(self.hosts)) > 1 else None
        logs.share(folder, str(nodes.folder) if nodes is not None else None)
        self.watchdog = Watchdog(
            ledger,
            self.size,
            run_dir,
            Times(self.settings.stall_s, self.settings.stall_abort_s),
            functools.partial(failing.on_stall, self),
            moves=None if self.is_server else self.engine.sees_an_end,
            nodes=nodes,
            leads=self.hosts.index(host) == self.rank,
        )
        if hasattr(os, "pidfd_open"):
            tell = functools.partial(failing.on_death, self)
            self.deaths = Deaths(ledger.directory, host, self.rank, tell)

    def say_next(self, text: str, checkpoint: str = "") -> None:
        """What to do if a rank fails from now on, and from which checkpoint, for the report."""
        self.checkpoint = checkpoint
        if self.engine.ledger is not None:
            say_next(self.engine.ledger.directory, text, checkpoint)

    def _unwatch(self) -> None:
        if self.deaths is not None:
            self.deaths.stop()
        if self.watchdog is not None:
            self.watchdog.stop()
        if (ledger := self.engine.ledger) is not None:
            self.engine.ledger = waiting.ledger = None
            logs.share(None)
            ledger.close()
            remove(ledger.directory)

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

    # -- making steps

    def new_store(self) -> Store:
        """A place for variables: each session has its own, as its graph's names are its own."""
        store = Store()
        self.stores.add(store)
        return store

    def compile(
        self,
        made: Generated,
        store: Store | None = None,
        label: str = "",
        driver: int = -1,
        trains: bool = False,
    ) -> Compiled:
        """A part that this rank runs, ready, with variables in `store`, for rank `driver`.

        Parts of one `label` (what is fetched) draw from one series of random numbers each. `trains`
        says that a step of its plan changes variables, initial values apart.
        """
        store = self.store if store is None else store
        store.driver = driver
        compiled = Compiled(made, self.devices, store, label)
        compiled.trains = trains
        if self.profile is not None:
            self.profile.adopt(compiled)
        compiled.expected = self.expected
        self.expected.plan(compiled.memory, compiled.constants)
        return compiled

    def _serve(self, data: bytes, **about: Any) -> Compiled:
        """The part that a driver has sent, made ready."""
        from hpcflow.plan import codec

        return self.compile(self.plans.code(codec.decode(data), data), **about)

    def number(self, channels: int, instances: int) -> tuple[int, int]:
        """The number of a new plan of this driver, and the first of its message tags."""
        assert self.world is not None
        self._plans += 1
        block = (self.world.max_tag - FIRST_DATA_TAG) // self.roles.replicas
        need = channels * instances
        if self._tag + need > block:
            self._tag = 0
        first = FIRST_DATA_TAG + self.replica * block + self._tag
        self._tag += need
        return self._plans, first

    # -- together

    def meet(self, what: str) -> None:
        """Wait until every rank that runs the script is here, for the same thing `what`.

        Errors: LonelyCollectiveError on all of them if one came for something else.
        """
        meetings = self.meetings
        self.discard_ahead()
        self._step_aside()
        if meetings is None or meetings.size == 1:
            return
        self._say_alone(MEETING, what)
        number = zlib.crc32(what.encode())
        both = np.array([number, -number], np.int64)
        self.engine.finish(meetings.all_reduce(both, "max"), what)
        if self.control is not None:
            self.control.over()
        if both[0] == -both[1]:
            return
        texts = meetings.gather_text(what)
        told = logs.together([{text: 1} for text in texts or []])
        each = "; ".join(f"{text} ({who.partition(', ')[2]})" for text, who in told.items())
        raise LonelyCollectiveError(
            "the replicas came together for different things: "
            + meetings.broadcast_text(each or None),
            rank=self.rank,
            hint="call it on every rank (not under is_chief), and end all ranks at the same place",
        )

    def mend(self) -> bool:
        """Go on without replicas that have died; whether any had.

        Ranks: all that run the script, each between the same two joint steps.
        """
        return self.survival is not None and self.survival.mend()

    def discard_ahead(self, but: Any = None) -> None:
        """Let go of what steps, other than `but`, have pulled ahead: it is about to change."""
        for step in [step for step in self.ahead if step is not but]:
            step.discard()

    def _step_aside(self) -> None:
        """Until all have met no round waits for this worker; what it gave has had its own."""
        sync = self.cluster.sync
        if self.control is None or self.cluster.mode != "ps" or isinstance(sync, Async):
            return
        request = {"service": "rounds", "worker": self.replica, "attrs": attrs_of(self.cluster)}
        self.control.call({self.roles.servers[0]: request})()

    def barrier(self) -> None:
        """Wait until every rank that runs the script is here."""
        self.meet("waiting for each other")

    def report(self) -> dict[str, Any]:
        """What this rank did: updates applied, bytes and messages sent, by whom."""
        traffic = self.world.traffic if self.world else None
        if self.profile is not None:  # who asks has come to the end
            self.profile.finish()
        return {
            "rank": self.rank,
            "pid": os.getpid(),
            "host": self.hosts[self.rank],
            "task": self.task,
            "replica": self.replica,
            "updates": {k: n for store in self.stores for k, n in store.updates().items()},
            "bytes_sent": traffic.total_bytes if traffic else 0,
            "messages_sent": sum(traffic.messages.values()) if traffic else 0,
            "warnings": logs.warned(),
            "state": self.store.reports(),
            "compile": dataclasses.asdict(self.plans.spent),
            "memory": report(self.devices.values(), self.expected),
            **self.counts.report(traffic),
        }

    def reports(self, mine: dict[str, Any] | None = None) -> list[dict[str, Any]] | None:
        """The reports of all ranks, on the chief; None elsewhere. All drivers call it.

        `mine` is added to this driver's own.
        """
        import json

        own = {**self.report(), **(mine or {})}
        if self.control is None:
            return [own]
        self.meet("gathering the results")
        told = [own]
        for rank in self._served():
            if rank in self.roles.servers and not self.is_chief:
                continue
            told.append(self.control.ask_report(rank))
        if self.drivers is None or self.drivers.size == 1:
            return told
        texts = self.drivers.gather_text(json.dumps(told))
        if texts is None:
            return None
        return sorted((r for text in texts for r in json.loads(text)), key=lambda r: r["rank"])

    def _served(self) -> list[int]:
        """The ranks that have parts of this driver's steps."""
        return [r for r in self.roles.ranks_of(self.replica).values() if r != self.rank]

    def table(self) -> str:
        """rank -> host -> task -> device -> cores; a line for neighbours that differ in no more."""
        chosen = threads.chosen()
        own = f"{', '.join(self.devices)}  threads {chosen.threads} ({chosen.why}), "
        told = [f"{own}cores {chosen.cores}\n{chosen.warning or ''}"]
        if self.world is not None:
            told = self.world.gather_text(told[0]) or []
        rows = [text.split("\n") for text in told]
        for words, who in logs.together([{row[1]: 1} if row[1] else {} for row in rows]).items():
            logger.warning("%s (%s)", words, who)
        alike: dict[tuple[str, str, str], dict[int, int]] = {}
        for rank, row in enumerate(rows):
            job, _, task = self.task_name(rank).rpartition(":")
            alike.setdefault((self.hosts[rank], job, row[0]), {})[rank] = int(task)
        return "\n".join(
            f"  {logs.spans(who)}  {host}  {job}:{logs.numbers(who.values())}  {rest}"
            for (host, job, rest), who in alike.items()
        )

    # -- the end

    def leave(self) -> None:
        """End this rank's part in the job: drivers wait for each other and release the served."""
        if self._left:
            return
        if self.saving is not None:
            self.saving.finish()
        if self.profile is not None:
            self.profile.finish()
        if self.control is None or self.world is None:
            if self.profile is not None:
                self.profile.tell()
            return
        self._left = True
        logs.hand_over()
        if self.is_driver:
            if self.profile is not None:
                self.profile.ask([r for r in self._served() if r not in self.roles.servers])
            self.control.cancel_driven()
            self._say_alone(CLOSING)
            self._meet_last()
            if self.profile is not None:
                self.profile.tell()
            for rank in self.roles.ranks_of(self.replica).values():
                if rank != self.rank:
                    self._tell(rank, header(BYE))
        self.control.close()
        self._unwatch()
        self.world.close()

    def _meet_last(self) -> None:
        """All drivers end here; if one is elsewhere the job cannot end well, and must not hang."""
        try:
            self.meet("the end of the program")
        except HpcflowError as error:
            failing.on_error(self, sys.__excepthook__, type(error), error, error.__traceback__)
            raise

    def _say_alone(self, kind: int, what: str = "") -> None:
        """Tell the next driver, so that one who still waits in a collective learns why."""
        drivers, control = self.roles.drivers, self.control
        if len(drivers) > 1 and self._sums and control is not None:
            body = what.encode()
            message = header(kind, slot=control.met, step=control.together, body=len(body))
            self._tell(drivers[(self.replica + 1) % len(drivers)], message, body)

    def _tell(self, rank: int, message: Any, body: bytes = b"") -> None:
        assert self.control is not None
        control, engine = self.control, self.engine
        engine.with_baton(
            lambda: control.tell(rank, message, body),
            lambda: not any(what in ("header", "body") for _, _, what in engine.waits),
        )

    def serve(self) -> None:
        """Run the steps that drivers ask for until all of them have left."""
        assert self.control is not None
        control = self.control
        expected = self.roles.replicas if self.is_server else 1
        self.stop.heed()
        self.engine.with_baton(lambda: None, lambda: len(control.ended) >= expected)
        control.rest()
        self.engine.with_baton(self.engine.settle, lambda: True)
        if self.stop.number:
            self.stop.leave()
        self.stop.unheed()
        self.leave()


def _nobody_counts() -> None:
    return None


def _serving(settings: Settings, world: Communicator | None) -> list[int]:
    """The ranks that were started with the setting `serve`; collective."""
    told = [str(int(settings.serve))]
    if world is not None and world.size > 1:
        told = world.all_gather_text(told[0])
    return [rank for rank, text in enumerate(told) if text == "1"]
