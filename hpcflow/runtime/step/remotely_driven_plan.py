"""Remotely driven plans: this rank runs its partition of steps that another rank drives."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable

from hpcflow.runtime.device.shared_arena import Lanes
from hpcflow.runtime.executor.executor import Engine
from hpcflow.runtime.step.step_channels import Link, Lost
from hpcflow.runtime.step.step_instance import Compiled, Instance, Take


class Served:
    """This rank's partition of a plan, and its instances in flight."""

    def __init__(
        self,
        compiled: Compiled,
        link: Link,
        failed: Callable[[Instance], None],
        lanes: Lanes,
        is_followed: bool = False,
    ) -> None:
        """`is_followed`: a server drives the plan, so that its waits may be long."""
        self.compiled, self.link, self.failed, self.lanes = compiled, link, failed, lanes
        self._lends = any(compiled.arenas.values())  # whether its buffers lie in a shared arena
        nodes = compiled.part.nodes.values()
        self.patient = is_followed or any(n.row.patient for n in nodes)
        self.abandoned = False  # its driver has died
        self.forgotten = False  # its driver runs no more steps
        self.cancelled: set[tuple[int, int]] = set()  # (slot, step) to cancel when they begin
        self.instances: dict[int, Instance] = {}
        self.queued: dict[int, collections.deque[int]] = {}

    def step(self, engine: Engine, slot: int, step: int) -> None:
        """Begin a step on instance `slot`, now or after the instance's last step has ended."""
        if self.abandoned:
            return
        instance = self.instances.get(slot)
        if instance is not None and (instance.left or self.queued[slot]):
            self.queued[slot].append(step)
        elif instance is None or self._lends or self.cancelled:
            self._start(engine, slot, step)
        else:
            engine.start(instance, step)

    def _maker(self, engine: Engine, slot: int) -> Callable[[Take | None], Instance]:
        def make(take: Take | None) -> Instance:
            instance = Instance(self.compiled, self.link, slot, take)
            instance.done = functools.partial(self._done, engine)
            instance.failed, instance.patient = self.failed, self.patient
            return instance

        return make

    def cancel(self, engine: Engine, slot: int, step: int) -> None:
        """The driver cancels a step: it fails here now, or as soon as it begins."""
        if self.abandoned:
            return
        instance = self.instances[slot]
        if instance.step == step:
            engine.fail(instance, Lost())
        elif step in self.queued[slot] or instance.step < step:
            self.cancelled.add((slot, step))

    def forget(self) -> None:
        """The driver runs no more steps: release all buffers and channels.

        If steps are in flight, the last one to end does it.
        """
        self.forgotten = True
        if self.abandoned or any(one.left for one in self.instances.values()):
            return
        if not any(self.queued.values()):
            for instance in self.instances.values():
                instance.unbind()
            self.instances.clear()
            self.lanes.trim()

    def abandon(self, engine: Engine) -> None:
        """The driver has died: abandon the steps in flight and begin no more."""
        self.abandoned = True
        for instance in self.instances.values():
            if instance.left:
                self.lanes.lose(instance)
                engine.abandon(instance)

    def _start(self, engine: Engine, slot: int, step: int) -> None:
        if self.abandoned:
            return
        last = self.instances.get(slot)
        self.queued.setdefault(slot, collections.deque())
        instance = self.lanes.enter(self.compiled, last, self._maker(engine, slot))
        self.instances[slot] = instance
        engine.start(instance, step)
        if (slot, step) in self.cancelled:
            self.cancelled.discard((slot, step))
            engine.fail(instance, Lost())

    def _done(self, engine: Engine, instance: Instance) -> None:
        if instance.torn and instance.error is not None:
            raise instance.error
        instance.release()
        if self._lends:
            self.lanes.leave(instance)
        if self.queued[instance.slot]:
            step = self.queued[instance.slot].popleft()
            engine.inbox.append(functools.partial(self._start, engine, instance.slot, step))
        elif self.forgotten:
            engine.inbox.append(self.forget)
