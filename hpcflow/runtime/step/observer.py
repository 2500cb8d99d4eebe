"""Observers: the interface by which traces, profiles, deadlines and fault injection see a step.

A listener is a subclass of `Observer` that overrides the events it needs; by default an event does
nothing. It is registered with what it listens to:

    RankContext.observe        events of set-up of all partitions that it compiles from then on
    CompiledPartition.observe  events of set-up of one partition
    StepInstance.observe       events of one step instance; some are given when the instance is made
    Executor.observe           events of execution: of all steps that the executor runs
    checkpoint_observers       `checkpoint_write`: of all checkpoints that the process writes

Order. `bind_partition` comes once for each compiled partition. `bind_kernel` and `bind_hook`, for
each kernel and each function of the runtime, and then `bind_segments` come once for each step
instance, `unbind` when its buffers are released. A step calls `step_begin`; then `wait_begin` for
each receive; then its segments run, each between `segment_begin` and `segment_end`, and start
waits; each wait that completes or fails has a `wait_end` before the segments that depend on it run.
A segment with tiled updates only begins between its two events; its tiles run between `slice_begin`
and `slice_end`, as often as needed. `idle` comes between segments. Listeners are called in the
order of their registration, for events named `*_end` in reverse order, so that their spans nest.

Threads. Events of execution come on the thread that holds the progress lock, or to which it is
lent, and never two at a time. Events of set-up come on the thread that makes the step.
`checkpoint_write` comes on any thread.

Cost. Events of set-up cost a step nothing. Without listeners, each of the others costs a test for
None (`step_begin`: of an empty tuple) and no call. A step of a single segment without waits does
not use the executor: it runs what `bind_segments` returned, without any test, and has no other
events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from hpcflow.comm.communicator import Request
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.dynamic_types import KernelFunction, Value

PartitionT = TypeVar("PartitionT")  # the compiled partition, and the step instance: type
InstanceT = TypeVar("InstanceT")  # variables, because both modules import this one
Segments = tuple[tuple[KernelFunction, ...], Callable[[], Value]]  # the segments, `release`


class Observer(Generic[PartitionT, InstanceT]):
    """The events of set-up and execution of steps; each does nothing by default."""

    # -- set-up

    def bind_partition(self, partition: PartitionT) -> None:
        """This rank has compiled its partition of a plan.

        It is not called for the partitions of loops and branches in it.
        """

    def bind_kernel(
        self, instance: InstanceT, node: Node, kernel: KernelFunction
    ) -> KernelFunction:
        """The kernel to run for `node` in the steps of an instance: `kernel`, or one around it."""
        return kernel

    def bind_hook(self, instance: InstanceT, name: str, hook: KernelFunction) -> KernelFunction:
        """The function of the runtime that the code calls by `name`: `hook`, or one around it.

        `lowering.instructions.HOOKS` has the names.
        """
        return hook

    def bind_segments(
        self, instance: InstanceT, segments: Segments, objects: Sequence[Value]
    ) -> Segments:
        """The code to run in the steps of an instance: `segments`, or code in place of it.

        `objects` are the arguments of the generated function that made `segments`.
        """
        return segments

    def unbind(self, instance: InstanceT) -> None:
        """An instance releases its buffers and does not run again."""

    # -- execution

    def step_begin(self, instance: InstanceT) -> None:
        """A step begins on an instance; nothing of it has run."""

    def segment_begin(self, instance: InstanceT, index: int) -> None:
        """A segment begins; it may be skipped in a failed step, or be deferred and begin again."""

    def segment_end(self, instance: InstanceT, index: int) -> None:
        """A segment returns, or has failed."""

    def slice_begin(self, instance: InstanceT, index: int) -> None:
        """Some tiles of a segment that has begun are about to run."""

    def slice_end(self, instance: InstanceT, index: int) -> None:
        """They have run, or one has failed."""

    def wait_begin(self, request: Request, instance: InstanceT | None, target: Any) -> None:
        """The executor begins to poll a request.

        `instance` is None for a request of no step. `target` is the node's name, None for a send.
        """

    def wait_end(self, request: Request, instance: InstanceT | None, target: Any) -> None:
        """The request has completed or failed.

        An abandoned request has no such event, nor has a sum that the death of a replica breaks.
        """

    def idle(self, start: int, end: int) -> None:
        """No segment ran from `start` to `end` (`time.perf_counter_ns`), as none was ready.

        Spans may overlap; polls and sleeps have their own, and so has a wait as a whole.
        """

    def checkpoint_write(self, fd: int, offset: int, nbytes: int) -> None:
        """Bytes are about to be written to a file of a checkpoint.

        An OSError that it raises is the error of the write.
        """


checkpoint_observers: list[Observer[Any, Any]] = []  # of this process


class Observers(Observer[PartitionT, InstanceT]):
    """Several observers of execution as one."""

    def __init__(self, observers: Sequence[Observer[PartitionT, InstanceT]]) -> None:
        self._forth, self._back = tuple(observers), tuple(reversed(observers))

    def segment_begin(self, instance: InstanceT, index: int) -> None:
        """Call each."""
        for observer in self._forth:
            observer.segment_begin(instance, index)

    def segment_end(self, instance: InstanceT, index: int) -> None:
        """Call each, in reverse order."""
        for observer in self._back:
            observer.segment_end(instance, index)

    def slice_begin(self, instance: InstanceT, index: int) -> None:
        """Call each."""
        for observer in self._forth:
            observer.slice_begin(instance, index)

    def slice_end(self, instance: InstanceT, index: int) -> None:
        """Call each, in reverse order."""
        for observer in self._back:
            observer.slice_end(instance, index)

    def wait_begin(self, request: Request, instance: InstanceT | None, target: Any) -> None:
        """Call each."""
        for observer in self._forth:
            observer.wait_begin(request, instance, target)

    def wait_end(self, request: Request, instance: InstanceT | None, target: Any) -> None:
        """Call each, in reverse order."""
        for observer in self._back:
            observer.wait_end(request, instance, target)

    def idle(self, start: int, end: int) -> None:
        """Call each."""
        for observer in self._forth:
            observer.idle(start, end)


def joined(
    observers: Sequence[Observer[PartitionT, InstanceT]],
) -> Observer[PartitionT, InstanceT] | None:
    """One observer in place of `observers`; None for none."""
    if len(observers) < 2:
        return observers[0] if observers else None
    return Observers(observers)
