"""Remotely driven plans: this rank runs its partition of steps that another rank drives."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable

from hpcflow.runtime.device.shared_arena import ArenaLeases
from hpcflow.runtime.executor.executor import Executor
from hpcflow.runtime.step.step_channels import MissingValueError, PartitionPeers
from hpcflow.runtime.step.step_instance import Allocator, CompiledPartition, StepInstance


class RemotelyDrivenPlan:
    """This rank's partition of a plan, and its instances in flight."""

    def __init__(
        self,
        compiled: CompiledPartition,
        link: PartitionPeers,
        failed: Callable[[StepInstance], None],
        arena_leases: ArenaLeases,
        is_followed: bool = False,
    ) -> None:
        """`is_followed`: a server drives the plan, so that its waits may be long."""
        self.compiled, self.link, self.failed, self.arena_leases = (
            compiled,
            link,
            failed,
            arena_leases,
        )
        self._uses_shared_arena = any(
            compiled.arenas.values()
        )  # whether its buffers lie in a shared arena
        nodes = compiled.part.nodes.values()
        self.patient = is_followed or any(n.row.patient for n in nodes)
        self.abandoned = False  # its driver has died
        self.forgotten = False  # its driver runs no more steps
        self.cancelled: set[tuple[int, int]] = set()  # (slot, step) to cancel when they begin
        self.instances: dict[int, StepInstance] = {}
        self.queued_steps: dict[int, collections.deque[int]] = {}

    def step(self, executor: Executor, slot: int, step: int) -> None:
        """Begin a step on instance `slot`, now or after the instance's last step has ended."""
        if self.abandoned:
            return
        instance = self.instances.get(slot)
        if instance is not None and (instance.unfinished or self.queued_steps[slot]):
            self.queued_steps[slot].append(step)
        elif instance is None or self._uses_shared_arena or self.cancelled:
            self._start(executor, slot, step)
        else:
            executor.start(instance, step)

    def _maker(self, executor: Executor, slot: int) -> Callable[[Allocator | None], StepInstance]:
        def make(take: Allocator | None) -> StepInstance:
            on_done = functools.partial(self._end_step, executor)
            return StepInstance(
                self.compiled,
                self.link,
                slot,
                take,
                on_done=on_done,
                failed=self.failed,
                patient=self.patient,
            )

        return make

    def cancel(self, executor: Executor, slot: int, step: int) -> None:
        """The driver cancels a step: it fails here now, or as soon as it begins."""
        if self.abandoned:
            return
        instance = self.instances[slot]
        if instance.step == step:
            executor.fail(instance, MissingValueError())
        elif step in self.queued_steps[slot] or instance.step < step:
            self.cancelled.add((slot, step))

    def forget(self) -> None:
        """The driver runs no more steps: release all buffers and channels.

        If steps are in flight, the last one to end does it.
        """
        self.forgotten = True
        if self.abandoned or any(instance.unfinished for instance in self.instances.values()):
            return
        if not any(self.queued_steps.values()):
            for instance in self.instances.values():
                instance.unbind()
            self.instances.clear()
            self.arena_leases.trim()

    def abandon(self, executor: Executor) -> None:
        """The driver has died: abandon the steps in flight and begin no more."""
        self.abandoned = True
        for instance in self.instances.values():
            if instance.unfinished:
                self.arena_leases.lose(instance)
                executor.abandon(instance)

    def _start(self, executor: Executor, slot: int, step: int) -> None:
        if self.abandoned:
            return
        last = self.instances.get(slot)
        self.queued_steps.setdefault(slot, collections.deque())
        instance = self.arena_leases.enter(self.compiled, last, self._maker(executor, slot))
        self.instances[slot] = instance
        executor.start(instance, step)
        if (slot, step) in self.cancelled:
            self.cancelled.discard((slot, step))
            executor.fail(instance, MissingValueError())

    def _end_step(self, executor: Executor, instance: StepInstance) -> None:
        if instance.is_broken and instance.error is not None:
            raise instance.error
        instance.release()
        if self._uses_shared_arena:
            self.arena_leases.leave(instance)
        if self.queued_steps[instance.slot]:
            step = self.queued_steps[instance.slot].popleft()
            executor.inbox.append(functools.partial(self._start, executor, instance.slot, step))
        elif self.forgotten:
            executor.inbox.append(self.forget)
