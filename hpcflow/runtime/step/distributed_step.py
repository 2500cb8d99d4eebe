"""Distributed steps: steps that wait for other ranks, collectives or state; and their failures."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import CancelledError, CommError, DeadlineExceededError, HpcflowError
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.plan.distribution.sync_program_split import rule_attributes
from hpcflow.plan.ir.node_effects import updates_other_tasks, updates_servers
from hpcflow.plan.ir.program import Plan
from hpcflow.runtime.device.shared_arena import ArenaLeases, SharedArena
from hpcflow.runtime.dynamic_types import Json, Value
from hpcflow.runtime.failure.replica_loss_recovery import StepInterrupted, snapshot_draws
from hpcflow.runtime.job.message_headers import CancelStep, ForgetPlan, StartStep, StepStartMessages
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.profile.variable_traffic_counters import messages_sent_by
from hpcflow.runtime.step.planned_step import ExecutableStep, LocalStep
from hpcflow.runtime.step.step_channels import CollectiveBuffers, MissingValueError, PartitionPeers
from hpcflow.runtime.step.step_deadline import NOT_BEGUN, StepDeadline, pending_waits_text
from hpcflow.runtime.step.step_instance import Allocator, CompiledPartition, StepInstance

LATE_S = 0.05  # how long a run waits after its deadline for the end of its step on all ranks
REPEATED_PLAN_OFFSET = 1 << 32  # offset of the numbers of plans that a server repeats
ENDING_S = 10.0  # how long an interrupted step may take to end on all its ranks


class DistributedStep(ExecutableStep):
    """A step that waits for partitions on other ranks, for collectives, or for state."""

    def __init__(
        self,
        context: RankContext,
        compiled: CompiledPartition,
        tensors: int,
        plan: Plan,
        sums_number: int,
        sums: CollectiveBuffers | None,
        lanes: ArenaLeases,
    ) -> None:
        super().__init__(context, compiled, tensors)
        # most instances in flight; collectives have one storage, so one instance
        self.limit = limit = context.settings.max_in_flight if sums is None else 1
        ranks = context.roles.ranks_of(context.replica)
        self.peers = [ranks[task] for task in plan.parts if task != plan.driver]
        self.released_after_run = compiled.initializes_large and not self.peers
        self.arena_leases = ArenaLeases(context) if self.released_after_run else lanes
        self.number, tag = 0, 0
        if self.peers:
            self.number, tag = context.number(len(plan.edges), limit)
        self.survival = context.survival if sums is not None else None
        self.link = PartitionPeers(
            context.executor, ranks, tag, len(plan.edges), sums, context.replica
        )
        self.instances: list[StepInstance] = []
        self.starts: list[StepStartMessages] = []  # start messages of each instance
        self.free: list[StepInstance] = []
        self.late: list[StepInstance] = []  # instances of late steps that have not ended
        self.returned = threading.Condition()  # an instance is free, or the step is broken
        self.waiting_runs = 0  # threads that wait for `returned`
        self.ordinal = 0
        # instance of a prefetched step, begun on the peers only
        self.prefetched: StepInstance | None = None
        self.updates = updates_other_tasks(plan)
        self.prefetches = updates_servers(plan) and _may_prefetch(context, plan)
        self.broken: BaseException | None = None
        self.closed = ""  # why no step can begin
        self.patient = any(n.row.patient for p in plan.parts.values() for n in p.nodes.values())
        self.collective_guard = _collective_guard(context, plan, self.patient)
        if self.peers:
            assert context.control is not None
            context.control.driven[self.number] = self
            facts = {"sums": sums_number, "fetches": compiled.label, "instances": limit}
            facts |= {"trains": compiled.trains, "seed": [compiled.seed.job, compiled.seed.session]}
            facts["session"] = compiled.store.number
            context.counts.count_driven(plan, ranks, tag, limit)
            register_plan(context, plan, self.number, tag, facts)

    def run(self, *arrays: np.ndarray) -> list[Value]:
        """Start the step on all its ranks and make progress until this rank's partition is over.

        Errors: what failed on any of the ranks; the next step can follow unless the step was torn.
        Interrupted if a replica has died and the others have to repeat this step.
        """
        return self._run(arrays, None)

    def run_within(self, deadline: StepDeadline, *arrays: np.ndarray) -> list[Value]:
        """`run` with a deadline.

        A late step is cancelled on all its ranks. If it has collectives, other replicas may
        complete it; then no step with collectives can follow.

        Errors: DeadlineExceededError if the deadline is missed.
        """
        return self._run(arrays, deadline)

    def _run(self, arrays: tuple[np.ndarray, ...], deadline: StepDeadline | None) -> list[Value]:
        self._check_open()
        executor, survival = self.executor, self.survival
        late = None if deadline is None else deadline.has_passed
        if survival is not None:
            survival.check()
            restore_draws = snapshot_draws(self.compiled.store.draws)
        if self.updates:
            self.context.discard_prefetched(but=self)
        in_use: list[StepInstance] = []
        begin = functools.partial(self._begin, in_use, arrays)
        over = _step_over(in_use, late)
        try:
            with self.collective_guard():
                executor.run_locked(begin, over, self.patient, late)
                while not in_use:  # other threads use all instances
                    self._wait_for_one(deadline)
                    executor.run_locked(begin, over, self.patient, late)
                if deadline is not None and not in_use[0].finished:
                    why = pending_waits_text(executor, in_use[0])
                    label = self.compiled.label
                    raise deadline.error(why, label, executor.rank, in_use[0].step)
                if in_use[0].error is not None:
                    raise in_use[0].error
        except StepInterrupted:
            restore_draws()
            raise
        except DeadlineExceededError as error:
            if in_use:
                self._cancel_late(in_use[0], error)
            raise
        except BaseException as error:
            if in_use and not self._ended(in_use[0], error):
                self._mark_broken(error)
            raise
        values = in_use[0].release()
        self._give_back(in_use[0])
        if self.prefetches:
            executor.run_locked(self._prefetch, lambda: True)
        return list(values)

    # -- prefetch of the next step's values

    def _prefetch(self) -> None:
        """Begin the next step on the other ranks, which send the values that it reads."""
        if self.prefetched is not None or self.closed or self.broken is not None:
            return
        instance = self._take()
        if instance is None:
            return
        self.prefetched = instance
        self.context.prefetching_steps.add(self)
        self._open(instance)

    def _open(self, instance: StepInstance) -> None:
        """Start a step on the other ranks and post its receives."""
        self.ordinal += 1
        starts = self.starts[instance.slot]
        starts.send(self.ordinal)
        self.executor.open(instance, self.ordinal)
        for channel in starts.unsent():
            instance.extend()
            self.executor.wait_for(channel, instance, None)

    def discard(self) -> None:
        """Discard prefetched values, which may be stale: end the begun step on all its ranks."""
        instance, self.prefetched = self.prefetched, None
        self.context.prefetching_steps.discard(self)
        if instance is not None and not self._ended(instance, CancelledError("pulled in vain")):
            raise CommError("prefetched values are not released", rank=self.executor.rank)

    def _begin(self, in_use: list[StepInstance], arrays: tuple[np.ndarray, ...]) -> None:
        """Start a step on a free instance and append that to `in_use`; nothing if none is free."""
        self._check_open()
        instance, self.prefetched = self.prefetched, None
        if instance is not None:  # a prefetched step has begun on the peers
            self.context.prefetching_steps.discard(self)
            in_use.append(instance)
        else:
            instance = self._take()
            if instance is None:
                return
            instance.step = 0
            in_use.append(instance)
            self._open(instance)
        if self.patient:
            instance.patient = threading.current_thread() is not threading.main_thread()
        self.executor.run_segment(instance, 0, arrays)

    # -- failed steps

    def _ended(self, instance: StepInstance, error: BaseException) -> bool:
        """End a failed or interrupted step on all its ranks; False if that fails."""
        if not instance.step:
            return False  # it was interrupted in its begin
        if not instance.finished:
            late = time.monotonic() + ENDING_S
            give_up = functools.partial(self.executor.fail_step, instance, error)
            with contextlib.suppress(BaseException):  # Ctrl-C again, or communication fails
                self.executor.run_locked(
                    give_up, lambda: instance.finished or time.monotonic() > late
                )
        if instance.is_broken or instance.unfinished:
            return False
        instance.release()
        self._give_back(instance)
        return True

    def _cancel_late(self, instance: StepInstance, error: DeadlineExceededError) -> None:
        """Cancel a late step on all its ranks; it may end after the run."""
        until = time.monotonic() + LATE_S
        self.late.append(instance)
        self.executor.call_in_holder(functools.partial(self.executor.fail_step, instance, error))
        with contextlib.suppress(HpcflowError):  # communication fails; the next step reports it
            self.executor.run_locked(
                lambda: None, lambda: instance.finished or time.monotonic() > until
            )
        if self.link.collective_buffers is not None:
            self._mark_broken(error)
        if not instance.finished and error.hint is None:
            error.hint = "its end on the other ranks comes later; the next run may wait for that"

    def _free_late(self) -> None:
        """Free the instances of late steps that have ended."""
        for instance in [instance for instance in self.late if instance.finished]:
            self.late.remove(instance)
            if instance.is_broken:
                self._mark_broken(instance.error or CancelledError("it was torn"))
            else:
                instance.release()
                self._give_back(instance)

    def _tell_peers(self, instance: StepInstance) -> None:
        """Cancel a failed step on its other ranks.

        If it failed on another rank, that rank's error follows.
        """
        control = self.context.control
        if not self.peers or control is None:
            return
        if isinstance(instance.error, MissingValueError):
            instance.extend()  # until `failed_elsewhere`
        for peer in self.peers:
            control.send(peer, CancelStep(self.number, instance.slot, instance.step))

    def failed_elsewhere(self, slot: int, step: int, error: HpcflowError) -> None:
        """Another rank reports that a step failed there."""
        instance = self.instances[slot]
        if instance.step != step or not instance.unfinished:
            return
        if isinstance(instance.error, MissingValueError):
            instance.learn_error(error)
            self.executor.mark_over(instance, None)
        else:
            self.executor.fail(instance, error)

    def cancel(self, reason: str) -> None:
        """Fail the steps in flight with a CancelledError of text `reason`, and begin no more."""
        with self.returned:
            self.closed = reason
            self.returned.notify_all()

        def fail_all() -> None:
            for instance in self.instances:
                self.executor.fail_step(instance, CancelledError(reason, rank=self.executor.rank))

        self.executor.run_locked(fail_all, lambda: True)

    def close(self) -> None:
        """Release buffers and channels on all ranks; the caller holds the progress lock.

        If a step was torn, or is in flight, they are retained until the job ends.
        """
        if self.in_flight or any(instance.is_broken for instance in self.instances):
            return
        self._free_late()
        self.prefetched = None
        self.context.prefetching_steps.discard(self)
        for starts in self.starts:
            starts.close()
        for instance in self.instances:
            instance.unbind()
        self.arena_leases.trim()
        self.compiled.close()
        control = self.context.control
        if self.peers and control is not None:
            for peer in self.peers:
                control.send(peer, ForgetPlan(self.number))
            control.driven.pop(self.number, None)
        for collection in (self.instances, self.free, self.late, self.starts):
            collection.clear()

    @property
    def in_flight(self) -> bool:
        """True while one of its steps has not ended."""
        return any(not instance.finished for instance in self.instances)

    def _take(self) -> StepInstance | None:
        """A free or new instance; None if `limit` instances are in use."""
        self._free_late()
        if self.free:
            return self._ready()
        slot = len(self.instances)
        if slot == self.limit:
            return None
        self.instances.append(self.arena_leases.enter(self.compiled, None, self._maker(slot)))
        comm: Any = self.executor.comm  # not None if there are peers
        self.starts.append(StepStartMessages(comm, StartStep(self.number, slot), self.peers))
        return self.instances[slot]

    def _ready(self) -> StepInstance:
        """The instance that was freed last, with an arena that no step in flight uses."""
        last = self.free.pop()  # atomic: others free instances without the progress lock
        try:
            instance = self.arena_leases.enter(self.compiled, last, self._maker(last.slot))
        except BaseException:
            self.free.append(last)
            raise
        self.instances[last.slot] = instance
        return instance

    def _maker(self, slot: int) -> Callable[[Allocator | None], StepInstance]:
        def make(take: Allocator | None) -> StepInstance:
            on_done = None if self.survival is None else self.survival.commit_step
            return StepInstance(
                self.compiled, self.link, slot, take, on_done=on_done, failed=self._tell_peers
            )

        return make

    def _give_back(self, instance: StepInstance) -> None:
        """Mark an instance as free."""
        if instance.error is not None:
            instance.forget_error()
        self.arena_leases.leave(instance)
        self.free.append(instance)
        if self.waiting_runs:  # incremented before a waiter tests `free`: no wakeup is lost
            with self.returned:
                self.returned.notify()

    def _wait_for_one(self, deadline: StepDeadline | None) -> None:
        """Wait until an instance is free, the step is broken or closed, or a late step has ended.

        Errors: DeadlineExceededError if the deadline has passed by then; as `_check_open`.
        """
        late = None if deadline is None else deadline.has_passed
        if self.late:

            def there() -> bool:
                ended = any(instance.finished for instance in self.late)
                ended = ended or bool(self.free or self.broken or self.closed)
                return ended or (late is not None and late())

            self.executor.run_locked(lambda: None, there, late=late)
        else:
            seconds_left = None if deadline is None else deadline.seconds_left()
            with self.returned:
                self.waiting_runs += 1
                self.returned.wait_for(
                    lambda: self.free or self.broken or self.closed, seconds_left
                )
                self.waiting_runs -= 1
        self._check_open()
        if deadline is not None and deadline.has_passed():
            raise deadline.error(self._blocked_reason(), self.compiled.label, self.executor.rank)

    def _blocked_reason(self) -> str:
        """Why no step can begin."""
        if self.late:
            return (
                "it has not begun; an earlier one, that was late, still ends: "
                + pending_waits_text(self.executor, self.late[0])
            )
        return NOT_BEGUN

    def _mark_broken(self, error: BaseException) -> None:
        """This rank's partition of a step is lost: mark the step as broken, none can follow."""
        with self.returned:
            self.broken = self.broken or error
            self.returned.notify_all()
        if self.link.collective_buffers is not None:
            self.executor.lose_sums(error)

    def _check_open(self) -> None:
        if self.closed:
            raise CancelledError(self.closed, rank=self.executor.rank)
        broken, which = self.broken, "of this fetch "
        if broken is None and self.link.collective_buffers is not None:  # they share one order
            broken, which = self.executor.collectives_error, "that sums "
        if broken is not None:
            why = broken.args[0] if broken.args else "interrupted"
            raise CommError(
                f"an earlier step {which}failed here while other ranks went on and wait for "
                f"what it would have sent: {type(broken).__name__}: {why}",
                rank=self.executor.rank,
                hint="end the job and start it again",
            )


def _step_over(in_use: list[StepInstance], late: Callable[[], bool] | None) -> Callable[[], bool]:
    """Whether the step in `in_use` is finished, absent, or late."""
    if late is None:
        return lambda: not in_use or in_use[0].finished
    return lambda: not in_use or in_use[0].finished or late()


def register_plan(context: RankContext, plan: Plan, number: int, tag: int, facts: Json) -> None:
    """Send the other ranks of a plan their partitions."""
    ranks, control = context.roles.ranks_of(context.replica), context.control
    assert control is not None
    facts = {**facts, "ranks": ranks, "tag": tag, "channels": len(plan.edges)}
    facts["replica"] = context.replica

    def tell() -> None:
        if context.roles.servers:
            control.declare(context.roles.servers[0], plan.parts.values())
        for task, part in plan.parts.items():
            if ranks[task] != context.rank:
                sends = messages_sent_by(plan, task, ranks)
                plan_facts = {**facts, "sends": sends}
                if ranks[task] in context.roles.servers:  # servers have one store for all sessions
                    plan_facts["session"] = 0
                control.register(ranks[task], number, part, plan_facts)

    context.executor.run_locked(tell, lambda: True)


def repeat_on_server(context: RankContext, plan: Plan, name: str) -> None:
    """Have the server that drives `plan` repeat it; plans of the same `name` are identical.

    The first replica to request it sends the plan.
    """
    ranks, control = context.roles.ranks_of(context.replica), context.control
    if name in context.repeated or control is None:
        return
    context.repeated.add(name)
    asks = {"service": "rounds", "updates": name, "attrs": rule_attributes(context.cluster)}
    server = ranks[plan.driver]
    if not control.call({server: asks})()[server]["is_first"]:
        return
    number, tag = context.number(len(plan.edges), 1)
    number += REPEATED_PLAN_OFFSET * (
        context.replica + 1
    )  # the server drives plans of several replicas
    peers = [ranks[task] for task in plan.parts if task != plan.driver]
    facts = {"sums": -1, "fetches": name, "driver": ranks[plan.driver], "peers": peers}
    facts |= {"instances": 1, "trains": True, "session": 0}
    register_plan(context, plan, number, tag, facts)


def _may_prefetch(context: RankContext, plan: Plan) -> bool:
    """Whether the values that the next step reads can be pulled after this step.

    Not if late gradients are dropped: the values could be stale by then. Not with
    collectives, which start in the order of steps. Not if a discarded step would change anything.
    """
    sync = context.cluster.sync
    needs_current_values = (sync.joins and not sync.in_step) or plan.collectives
    if not context.settings.prefetch or context.cluster.mode != "ps" or needs_current_values:
        return False
    from hpcflow.plan.verification.early_effects import may_be_discarded

    return may_be_discarded(plan)


def make_step(
    context: RankContext,
    plan: Plan,
    compiled: CompiledPartition,
    fetches: Sequence[Tensor | Operation],
    sums_number: int,
    sums: CollectiveBuffers | None,
    arena: SharedArena,
    lanes: ArenaLeases,
) -> ExecutableStep:
    """Create the step of a plan; `compiled` is this rank's partition, the other ranks get theirs.

    `arena` is for single-segment steps, `lanes` are for the others.
    """
    tensors = sum(isinstance(w, Tensor) for w in fetches)
    if compiled.code.is_single_segment and len(plan.parts) == 1:
        return LocalStep(context, compiled, tensors, arena)
    return DistributedStep(context, compiled, tensors, plan, sums_number, sums, lanes)


def _collective_guard(
    context: RankContext, plan: Plan, patient: bool
) -> Callable[[], contextlib.AbstractContextManager[object]]:
    """Return what a step enters while it runs: it reports ranks that do not join a collective."""
    if not plan.collectives or context.control is None:
        return contextlib.nullcontext
    nodes = (node for part in plan.parts.values() for node in part.nodes.values())
    node = next(node for node in nodes if node.row.collective)
    return functools.partial(context.control.collective_guard.guard, node.name, node.line, patient)
