"""Step stats: the times of the operations of a traced step, for `RunMetadata.step_stats`.

A traced step has its own version of the generated code, in which each statement is timed.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence

from hpcflow.lowering.fusion import fused_node_label
from hpcflow.monitoring.stack_dump import OPS
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.dynamic_types import Value
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.profile.profiler import clock_after_devices
from hpcflow.runtime.profile.timed_code import timed
from hpcflow.runtime.session.config_proto import DeviceStepStats, NodeExecStats, StepStats
from hpcflow.runtime.step.observer import Segments
from hpcflow.runtime.step.step_instance import StepInstance, StepObserver


class StepTrace(StepObserver):
    """The events of traced steps of one plan on this rank."""

    def __init__(self, context: RankContext) -> None:
        accelerators = [d for d in context.devices.values() if d.kind != "cpu"]
        self._clock: Callable[[], int] = time.perf_counter_ns
        if accelerators:
            self._clock = functools.partial(clock_after_devices, accelerators)
        self._rank_task = context.task_name(context.rank)
        self._nodes: list[Node | None] = []
        self._events: list[tuple[int, int, int, int]] = []  # place, start, end, thread
        self._offset = time.time_ns() - time.perf_counter_ns()

    def bind_segments(
        self, instance: StepInstance, segments: Segments, objects: Sequence[Value]
    ) -> Segments:
        """The timed code."""
        compiled, code = instance.compiled, instance.code

        def place(line: int, kind: str) -> int:
            of_node = kind in ("op", "messages", "results")
            self._nodes.append(compiled.part.nodes.get(code.lines[line - 1]) if of_node else None)
            return len(self._nodes) - 1

        def note(number: int, start: int) -> None:
            self._events.append((number, start, self._clock(), threading.get_native_id()))

        make = timed(code, compiled.file, {OPS: code.lines}, self._clock, note, place)
        runs, release = make(*objects)
        return runs, release

    def begin(self) -> None:
        """Discard the events so far."""
        self._events.clear()

    def stats(self) -> StepStats:
        """The recorded events as StepStats."""
        by_device: dict[str, DeviceStepStats] = {}
        for number, start, end, thread in self._calls():
            node = self._nodes[number]
            if node is not None:
                device = f"{self._rank_task}/{node.device.rpartition('/')[2]}"
                stats = by_device.setdefault(device, DeviceStepStats(device=device))
                stats.node_stats.append(
                    _node_stats(node, start + self._offset, end - start, thread)
                )
        return StepStats(dev_stats=list(by_device.values()))

    def _calls(self) -> list[tuple[int, int, int, int]]:
        """The events; those of consecutive statements of one operation are merged."""
        merged: list[tuple[int, int, int, int]] = []
        for event in list(self._events):
            if merged and merged[-1][0] < event[0] and merged[-1][3] == event[3]:
                last = merged[-1]
                if self._nodes[last[0]] is self._nodes[event[0]]:
                    merged[-1] = (event[0], last[1], event[2], event[3])
                    continue
            merged.append(event)
        return merged


def _node_stats(node: Node, start: int, took: int, thread: int) -> NodeExecStats:
    micros = max(1, round(took / 1000))
    inputs = ", ".join(ref.node for ref in node.inputs)
    return NodeExecStats(
        node_name=node.name,
        all_start_micros=start // 1000,
        op_end_rel_micros=micros,
        all_end_rel_micros=micros,
        all_start_nanos=start,
        op_end_rel_nanos=took,
        all_end_rel_nanos=took,
        scheduled_micros=start // 1000,
        scheduled_nanos=start,
        thread_id=thread,
        timeline_label=f"{node.name} = {fused_node_label.node_label(node)}({inputs})",
    )
