"""Trace recorder: the events of a rank's executor as rows of its part of the trace."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcflow.comm.communicator import Request
from hpcflow.plan.ir.program import Node
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.dynamic_types import KernelFunction, Value
from hpcflow.runtime.executor.wait_timestamps import WaitTarget
from hpcflow.runtime.profile import trace_part
from hpcflow.runtime.profile.trace_part import TracePart
from hpcflow.runtime.step.observer import Segments
from hpcflow.runtime.step.step_instance import StepInstance, StepObserver

SENDS = ("send", "send_sized", "send_loose")  # hooks of generated code that send a message
WRITE_NS = 250_000_000  # between two writes of the part
MEMORY_NS = 10_000_000  # between two samples of the memory
PREFETCH = "hpcflow.data.prefetch_threads"  # counted if a dataset has loaded it


class TraceRecorder(StepObserver):
    """Records segments, waits, sums, messages and counters in `part`, by `clock`."""

    def __init__(self, context: Any, part: TracePart, clock: Callable[[], int]) -> None:
        self._context, self._part, self._clock = context, part, clock
        self._starts: list[int] = []  # of the segments that run: one may run inside another
        self._number = 0
        self._begun: dict[int, int] = {}  # id of a request -> number of its wait
        self._sums: tuple[int, int] = (0, 0)  # recovery, and sums begun since then
        self._counts: dict[str, int] = {}
        self._write_at = self._sample_at = 0
        self._is_over = False

    def stop(self) -> None:
        """Listen to the executor no more."""
        if not self._is_over:
            self._is_over = True
            self._context.executor.ignore(self)

    # -- set-up

    def bind_hook(self, instance: StepInstance, name: str, hook: KernelFunction) -> KernelFunction:
        """Record each message that the generated code sends."""
        if name not in SENDS:
            return hook
        return functools.partial(self._send, instance, hook)

    def bind_segments(
        self, instance: StepInstance, segments: Segments, objects: Sequence[Value]
    ) -> Segments:
        """Record the single segment of a step that does not use the executor."""
        runs, release = segments
        if instance.outer is not None or not instance.code.is_single_segment:
            return segments
        return (functools.partial(self._run_alone, instance, runs[0]),), release

    def _run_alone(self, instance: StepInstance, run: KernelFunction, *feeds: Value) -> Value:
        if self._starts or self._is_over:  # the executor runs it, and reports it
            return run(*feeds)
        self.segment_begin(instance, 0)
        try:
            return run(*feeds)
        finally:
            self.segment_end(instance, 0)

    # -- segments

    def segment_begin(self, instance: StepInstance, index: int) -> None:
        """Note the time."""
        self._starts.append(self._clock())

    def segment_end(self, instance: StepInstance, index: int) -> None:
        """Record the segment, the counters, and write what has gathered."""
        start, now = self._starts.pop(), self._clock()
        plan = instance.compiled.label
        self._add([trace_part.SEGMENT, f"segment {index}", plan, instance.step, start, now], now)
        self._count(now)
        if not self._starts and (self._part.is_due or now >= self._write_at):
            self._write()

    def slice_begin(self, instance: StepInstance, index: int) -> None:
        """Note the time."""
        self.segment_begin(instance, index)

    def slice_end(self, instance: StepInstance, index: int) -> None:
        """Record the turn of a segment that yields between tiles."""
        self.segment_end(instance, index)

    def idle(self, start: int, end: int) -> None:
        """Write what has gathered: nothing else can run."""
        if not self._starts and self._clock() >= self._write_at:
            self._count(self._clock())
            self._write()

    # -- messages and waits

    def _send(self, instance: StepInstance, send: KernelFunction, index: int, *more: Value) -> None:
        if self._is_over:
            send(index, *more)
            return
        destination, tag = instance.channels.address[index]
        name, now = instance.code.sends_info[index].node, self._clock()
        self._add([trace_part.SEND, name, destination, tag, instance.step, now], now)
        send(index, *more)

    def wait_begin(
        self, request: Request, instance: StepInstance | None, target: WaitTarget
    ) -> None:
        """Record the begin of a wait, or of a sum over replicas."""
        self._number += 1
        self._begun[id(request)] = self._number
        step, now = instance.step if instance is not None else 0, self._clock()
        if instance is None or target not in instance.buckets:
            name = "send" if target is None else str(target)
            self._add([trace_part.WAIT, self._number, name, step, now], now)
            return
        survival, (recovery, ordinal) = self._context.survival, self._sums
        latest = survival.round if survival is not None else 0
        self._sums = latest, ordinal + 1 if latest == recovery else 1
        self._add([trace_part.SUM, self._number, target, step, now, *self._sums], now)

    def wait_end(self, request: Request, instance: StepInstance | None, target: WaitTarget) -> None:
        """Record the end of a wait; if it is a receive, the message."""
        number, now = self._begun.pop(id(request), None), self._clock()
        if number is not None:
            self._add([trace_part.END, number, now], now)
        if instance is None or not isinstance(target, str):
            return
        node: Node | None = instance.part.nodes.get(target)
        if node is not None and node.row.message == "receive":
            source = instance.link.ranks[node.attrs["source"]]
            tag = instance.link.tag_of(instance, node)
            self._add([trace_part.RECEIVE, target, source, tag, instance.step, now], now)

    # -- counters

    def _count(self, now: int) -> None:
        executor = self._context.executor
        watched = len(executor.watch) if executor.watch is not None else 0
        self._counter("segments ready", now, len(executor.ready))
        self._counter("waits pending", now, len(executor.polled_waits) + watched)
        if now < self._sample_at:
            return
        self._sample_at = now + MEMORY_NS
        self._counter("resident memory (bytes)", now, _resident_bytes())
        for name, device in self._context.devices.items():
            self._counter(f"held memory of {name} (bytes)", now, device.held_memory.total)
        if PREFETCH in sys.modules:
            ahead = sys.modules[PREFETCH].results_ahead()
            self._counter("batches prefetched", now, ahead)

    def _counter(self, name: str, now: int, value: int) -> None:
        if self._counts.get(name) != value:
            self._counts[name] = value
            self._add([trace_part.COUNTER, name, now, value], now)

    # -- the part

    def _add(self, row: trace_part.Row, now: int) -> None:
        self._part.add(row, now)

    def _write(self) -> None:
        start = self._clock()
        self._part.flush()
        now = self._clock()
        self._write_at = now + WRITE_NS
        self._add([trace_part.SEGMENT, "writing the trace", "", 0, start, now], now)
        if self._part.is_full and not self._is_over:
            self.stop()
            reason = self._part.error or "it has reached its limit of events"
            logger.warning("rank %d traces no more: %s", self._context.rank, reason)


def _resident_bytes() -> int:
    """The resident memory of this process. Linux only, as the rest of hpcflow's monitoring."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
