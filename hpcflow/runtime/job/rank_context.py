"""Rank context: compiles steps and runs barriers, serving, reports and shutdown of a rank."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpcflow.codegen import kernel_cache
from hpcflow.comm.communicator import GATHER_TAGS, Communicator
from hpcflow.comm.polling_backoff import wait_for_requests
from hpcflow.errors import DeathError, HpcflowError, LonelyCollectiveError, RangeError
from hpcflow.lowering.kernel_metadata import LoweredPartition
from hpcflow.plan.distribution.sync_program_split import rule_attributes
from hpcflow.platform import cpu_threads, rank_logging
from hpcflow.platform.heap import keep_freed_memory
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.device.memory_accounting import ExpectedMemory, memory_report
from hpcflow.runtime.device.shared_arena import ArenaLeases
from hpcflow.runtime.dynamic_types import Json
from hpcflow.runtime.failure import abort_on_error, replica_loss_recovery
from hpcflow.runtime.failure.replica_loss_recovery import ReplicaLossRecovery
from hpcflow.runtime.job import service_registry
from hpcflow.runtime.job.control_messages import MessageDispatcher
from hpcflow.runtime.job.message_headers import (
    FIRST_DATA_TAG,
    DriverLeaves,
    Header,
    ProgramEnds,
    WaitsAtBarrier,
)
from hpcflow.runtime.job.rank_monitoring import RankMonitoring
from hpcflow.runtime.job.rank_role import RankRole
from hpcflow.runtime.job.service_registry import Reply
from hpcflow.runtime.profile.variable_traffic_counters import VariableTrafficCounters
from hpcflow.runtime.session.session_seed import SessionSeed
from hpcflow.runtime.state.state_store import StateStore
from hpcflow.runtime.step.plan_cache import PlanCache, PlanPreview
from hpcflow.runtime.step.step_instance import CompiledPartition, StepObserver
from hpcflow.settings import Settings

if TYPE_CHECKING:
    from hpcflow.runtime.device.cuda_graph_capture import CudaGraphs
    from hpcflow.runtime.profile.job_trace import JobTrace
    from hpcflow.runtime.profile.profiler import Profiler


OnPlan = Callable[[PlanPreview], None]


class BackgroundWork(Protocol):
    """Background work of this rank, such as an asynchronous save."""

    def finish(self) -> bool:
        """Wait for its end."""
        ...

    def handle_message(self, message: Json) -> None:
        """Handle a message of another rank about it; called with the progress lock held."""
        ...


class Prefetching(Protocol):
    """A step with prefetched values."""

    def discard(self) -> None:
        """Discard the values: they are about to change."""
        ...


class RankContext(RankRole):
    """The context of this rank: plans and steps, barriers of the drivers, reports, shutdown."""

    def __init__(
        self,
        settings: Settings,
        world: Communicator | None = None,
        crowded: bool = False,
        crowded_hosts: frozenset[str] = frozenset(),
        simulated_ranks: int = 0,
        on_plan: OnPlan | None = None,
    ) -> None:
        """As of `Rank`. With `on_plan` steps are planned and passed to it, but do not run."""
        kernel_cache.use(settings.kernel_cache)
        keep_freed_memory()
        super().__init__(settings, world, crowded, crowded_hosts, simulated_ranks)
        self.expected, self.counts, self.plans = (
            ExpectedMemory(),
            VariableTrafficCounters(),
            PlanCache(self),
        )
        self.survival: ReplicaLossRecovery | None = None  # replica loss recovery
        self.control: MessageDispatcher | None = None
        self.watching: RankMonitoring | None = None
        self.on_plan = on_plan
        self.prefetching_steps: set[Prefetching] = set()
        self.repeated: set[str] = set()  # names of the updates whose plans the servers repeat
        self.saving: BackgroundWork | None = None  # the last asynchronous save of this rank
        self.profile: Profiler | None = None
        self.trace: JobTrace | None = None
        self.graphs: CudaGraphs | None = None  # CUDA graphs
        self._plans = 0
        self._tag = 0
        self._has_left = False
        self._install()
        if world is not None and self.size > 1:
            self._join(world)

    def _install(self) -> None:
        """Install trace, profile, CUDA graphs and fault injection as the settings ask.

        Fault injection is the last, so that it wraps what the others run.
        """
        runs = self.on_plan is None
        if self.settings.trace and runs:
            from hpcflow.runtime.profile.job_trace import JobTrace

            self.trace = JobTrace(self)
        if self.settings.profile and runs:
            from hpcflow.runtime.profile import profiler

            self.profile = profiler.install_profiler(self)
            if self.profile is not None:
                self.observe(self.profile)
        elif self.settings.cuda_graphs and not (self.settings.one_by_one or self.settings.inject):
            for device in self.devices.values():
                if device.captures:
                    from hpcflow.runtime.device.cuda_graph_capture import CudaGraphs

                    self.graphs = CudaGraphs(device, self.rank)
                    self.observe(self.graphs)
        if self.settings.inject and runs:
            from hpcflow.runtime.failure import fault_injection

            fault_injection.install_faults(self)

    def _join(self, world: Communicator) -> None:
        # communicators of their own: a driver that waits here must not match a collective of a step
        if self.settings.survive:
            self.names = tuple(self.task_name(rank) for rank in range(self.size))
            job = replica_loss_recovery.tolerant(self, world)
            self.spare_ranks, self.drivers, self.meetings = job
        else:
            self.drivers = world.split(self.roles.drivers)
            self.meetings = world.split(self.roles.drivers)
        for k in range(self.settings.tasks_per_replica):
            group = world.split(self.roles.peers_of(k))
            if group is not None and self.settings.survive and self.replicas_sum:
                self.survival = ReplicaLossRecovery(
                    self, group, self.set_allreduce_group, self._send
                )
            if group is not None:
                self.set_allreduce_group(group)
        self.control = MessageDispatcher(self.executor, self, ArenaLeases(self))

    def answer(self, request: Json, reply: Reply) -> None:
        """Call the service of this rank that `request` names."""
        service_registry.answer_service(self, request, reply)

    def _send(self, rank: int, header: Header) -> None:
        assert self.control is not None
        self.control.send(rank, header)

    def lose(self, rank: int) -> None:
        """Handle the death of `rank`. Errors: DeathError if the job cannot continue."""
        if not self.settings.survive:
            raise DeathError(f"rank {rank} has died")
        abort_on_error.on_rank_loss(self, rank)
        if self.survival is not None:
            self.survival.lose(rank)

    def set_allreduce_group(self, group: Communicator) -> None:
        """Use `group` for the allreduces of this mode, if it has any. All its ranks call it."""
        self.group = self._allreduce_communicator(group) if self.replicas_sum else group

    def _allreduce_communicator(self, group: Communicator) -> Communicator:
        """The communicator for allreduces, selected by the setting `comm` and the machine."""
        from hpcflow.comm.allreduce_selection import choose_allreduce, without_nccl

        on_gpu = self.on_gpu
        kind = zlib.crc32(self.cluster.devices[0].partition(":")[0].encode())
        both = np.array([kind, -kind], np.int64)
        wait_for_requests(group.all_reduce(both, "max"), label="on what devices the others run")
        if both[0] != -both[1]:
            # the plans, too, must sum on the hosts: the kinds of device differ
            self.settings, on_gpu = without_nccl(group, self.settings), False
        return choose_allreduce(group, self.settings, on_gpu)

    @contextlib.contextmanager
    def begins_saving(self, saving: BackgroundWork) -> Iterator[None]:
        """Inside, an asynchronous save begins; it is the last one unless that fails."""
        self.saving = saving
        try:
            yield
        except BaseException:
            self.saving = None
            raise

    def watch(self) -> None:
        """Open this rank's wait ledger and start its monitoring. All ranks call it."""
        self.watching = RankMonitoring(self)

    # -- making steps

    def compile(
        self,
        lowered: LoweredPartition,
        store: StateStore | None = None,
        label: str = "",
        driver: int = -1,
        trains: bool = False,
        seed: Sequence[int] | None = None,
        observers: Sequence[StepObserver] = (),
    ) -> CompiledPartition:
        """Make a partition ready to run on this rank, with variables in `store`, for `driver`.

        A random op continues one sequence of draws in all partitions of one `label` (the fetches).
        `trains` is True if a step of the plan changes variables, other than by initialization.
        `seed` is that of the driver's session, by default that of `store`. `observers` of this
        partition are called after those of the rank.
        """
        store = self.store if store is None else store
        store.compile_for(driver, None if seed is None else SessionSeed(*seed))
        compiled = CompiledPartition(
            lowered, self.devices, store, label, (*self.observers, *observers)
        )
        compiled.trains = trains
        compiled.expected_memory = self.expected
        self.expected.plan(compiled.memory, compiled.constants)
        for observer in self.observers:
            observer.bind_partition(compiled)
        return compiled

    def compile_part(
        self, data: bytes, driver: int, session: int, **about: Any
    ) -> CompiledPartition:
        """Make a partition ready that a session of rank `driver` has sent."""
        from hpcflow.plan.serialization import partition_codec

        lowered = self.plans.code(partition_codec.decode_partition(data), data)
        return self.compile(lowered, self.store_for(driver, session), driver=driver, **about)

    def number(self, channels: int, instances: int) -> tuple[int, int]:
        """The number of a new plan of this driver, and the first of its message tags."""
        assert self.world is not None
        self._plans += 1
        block = (self.world.max_tag - GATHER_TAGS - FIRST_DATA_TAG) // self.roles.replicas
        need = channels * instances
        if self._tag + need > block:
            self._tag = 0
        first = FIRST_DATA_TAG + self.replica * block + self._tag
        self._tag += need
        return self._plans, first

    # -- collectives of the drivers

    def meet(self, purpose: str) -> None:
        """Barrier of all drivers; `purpose` names its purpose.

        Errors: LonelyCollectiveError on all of them if the purposes differ.
        """
        meetings = self.meetings
        self.discard_prefetched()
        self._step_aside()
        if meetings is None or meetings.size == 1:
            return
        self._notify_next_driver(WaitsAtBarrier, purpose)
        number = zlib.crc32(purpose.encode())
        both = np.array([number, -number], np.int64)
        self.executor.finish(meetings.all_reduce(both, "max"), purpose)
        if self.control is not None:
            self.control.collective_guard.barrier_over()
        if both[0] == -both[1]:
            return
        texts = meetings.gather_text(purpose)
        merged = rank_logging.merge_warnings([{text: 1} for text in texts or []])
        each = "; ".join(f"{text} ({ranks.partition(', ')[2]})" for text, ranks in merged.items())
        raise LonelyCollectiveError(
            "the replicas called different collectives: " + meetings.broadcast_text(each or None),
            rank=self.rank,
            hint="call it on every rank (not under is_chief), and end all ranks at the same place",
        )

    def recover_replicas(self) -> bool:
        """Recover from the death of replicas, if any has died; whether one had.

        Ranks: all drivers, each between the same two joint steps.
        """
        return self.survival is not None and self.survival.recover()

    def discard_prefetched(self, but: Prefetching | None = None) -> None:
        """Discard the prefetched values of steps other than `but`: they are about to change."""
        for step in [step for step in self.prefetching_steps if step is not but]:
            step.discard()

    def _step_aside(self) -> None:
        """PS mode: leave the synchronous updates until the barrier.

        Returns when all gradients of this worker are applied or dropped.
        """
        sync = self.cluster.sync
        if self.control is None or self.cluster.mode != "ps":
            return
        if not (sync.joins or sync.counts_steps):
            return
        request = {
            "service": "rounds",
            "worker": self.replica,
            "attrs": rule_attributes(self.cluster),
        }
        self.control.call({self.roles.servers[0]: request})()

    def barrier(self) -> None:
        """Barrier of all drivers."""
        self.meet("waiting for each other")

    def report(self) -> Json:
        """The report of this rank: updates, bytes and messages sent, compile time, memory."""
        traffic = self.world.traffic if self.world else None
        if self.profile is not None:  # a report is requested at the end of the job
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
            "warnings": rank_logging.warning_counts(),
            "state": self.store.reports(),
            "compile": dataclasses.asdict(self.plans.costs),
            "memory": memory_report(self.devices.values(), self.expected),
            **({} if self.graphs is None else {"cuda_graphs": self.graphs.report()}),
            **self.counts.report(traffic),
        }

    def reports(self, local_report: Json | None = None) -> list[Json] | None:
        """The reports of all ranks, on the chief; None elsewhere. All drivers call it.

        `local_report` is merged into this driver's report.
        """
        import json

        own_report = {**self.report(), **(local_report or {})}
        if self.control is None:
            return [own_report]
        self.meet("gathering the results")
        reports = [own_report]
        for rank in self._served():
            if rank in self.roles.servers and not self.is_chief:
                continue
            reports.append(self.control.ask_report(rank))
        if self.drivers is None or self.drivers.size == 1:
            return reports
        texts = self.drivers.gather_text(json.dumps(reports))
        if texts is None:
            return None
        return sorted((r for text in texts for r in json.loads(text)), key=lambda r: r["rank"])

    def _served(self) -> list[int]:
        """The ranks that run partitions of this driver's steps."""
        return [r for r in self.roles.ranks_of(self.replica).values() if r != self.rank]

    def table(self) -> str:
        """The table of ranks, hosts, tasks, devices and cores; ranks that are alike share a line.

        Devices have their numbers on the node.

        Collective over all ranks; logs their warnings about cores.
        """
        chosen = cpu_threads.chosen_threads()
        devices = ", ".join(f"{d.partition(':')[0]}:{self.devices[d].index}" for d in self.devices)
        thread_text = f"{devices}  threads {chosen.threads} ({chosen.reason}), "
        texts = [f"{thread_text}cores {chosen.cores}\n{chosen.warning or ''}"]
        if self.world is not None:
            texts = self.world.gather_text(texts[0]) or []
        rows = [text.split("\n") for text in texts]
        for words, ranks in rank_logging.merge_warnings(
            [{row[1]: 1} if row[1] else {} for row in rows]
        ).items():
            logger.warning("%s (%s)", words, ranks)
        alike: dict[tuple[str, str, str], dict[int, int]] = {}
        for rank, row in enumerate(rows):
            job, _, task = self.task_name(rank).rpartition(":")
            alike.setdefault((self.hosts[rank], job, row[0]), {})[rank] = int(task)
        return "\n".join(
            f"  {rank_logging.rank_spans(ranks)}  {host}  {job}:"
            f"{rank_logging.number_spans(ranks.values())}  {resources}"
            for (host, job, resources), ranks in alike.items()
        )

    # -- the end

    def check_indices(self) -> None:
        """Wait for the GPUs. Errors: RangeError if a kernel on one has found a wrong index."""
        for device in self.devices.values():
            if device.wrong_indices:
                device.finish()
                device.check_indices()

    def leave(self) -> None:
        """Leave the job, once: drivers wait for each other and release the ranks they use."""
        if self._has_left:
            return
        try:
            self.check_indices()
        except RangeError as error:  # of the last steps, whose values nobody has fetched
            logger.error("%s", error)
        if self.saving is not None:
            self.saving.finish()
        if self.profile is not None:
            self.profile.finish()
        if self.control is None or self.world is None:
            if self.profile is not None:
                self.profile.report()
            if self.trace is not None:
                self._has_left = True
                self.trace.gather()
                self.trace.close()
            return
        self._has_left = True
        rank_logging.hand_over_counts()
        if self.is_driver:
            if self.profile is not None:
                self.profile.ask([r for r in self._served() if r not in self.roles.servers])
            self.control.cancel_driven()
            self._notify_next_driver(ProgramEnds)
            self._last_barrier()
            if self.profile is not None:
                self.profile.report()
            for rank in self.roles.ranks_of(self.replica).values():
                if rank != self.rank:
                    self._send_message(rank, DriverLeaves())
        if self.trace is not None:
            self.trace.close()
        self.control.close()
        if self.watching is not None:
            self.watching.end()
        self.world.close()

    def _last_barrier(self) -> None:
        """The last barrier of the drivers, and then the chief gathers the trace.

        On an error it aborts the job, which must not hang.
        """
        try:
            self.meet("the end of the program")
            if self.trace is not None:
                self.trace.gather()
        except HpcflowError as error:
            abort_on_error.on_error(
                self, sys.__excepthook__, type(error), error, error.__traceback__
            )
            raise

    def _notify_next_driver(
        self, header: type[WaitsAtBarrier] | type[ProgramEnds], purpose: str = ""
    ) -> None:
        """Notify the next driver, so that one that still waits in a collective fails with a reason.

        It does nothing where replicas do not sum.
        """
        drivers, control = self.roles.drivers, self.control
        if len(drivers) > 1 and self.replicas_sum and control is not None:
            message = header(
                control.collective_guard.barriers_passed, control.collective_guard.collectives_begun
            )
            self._send_message(
                drivers[(self.replica + 1) % len(drivers)], message, purpose.encode()
            )

    def _send_message(self, rank: int, message: Header, body: bytes = b"") -> None:
        assert self.control is not None
        control, executor = self.control, self.executor
        executor.run_locked(
            lambda: control.send(rank, message, body),
            lambda: not any(what in ("header", "body") for _, _, what in executor.waits),
        )

    def serve(self) -> None:
        """Run the steps that drivers request until all of them have left."""
        assert self.control is not None
        control = self.control
        expected = self.roles.replicas if self.is_server else 1
        self.stop.install_handlers()
        self.executor.run_locked(lambda: None, lambda: len(control.ended) >= expected)
        control.pause_driven_plans()
        self.executor.run_locked(self.executor.finish_tiled, lambda: True)
        if self.stop.number:
            self.stop.leave()
        self.stop.restore_handlers()
        self.leave()
