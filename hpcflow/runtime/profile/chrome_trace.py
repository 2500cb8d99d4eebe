"""Chrome trace of segments and waits: a file per rank for Perfetto or chrome://tracing.

It is written if the setting `trace` names a file (`HPCFLOW_TRACE=FILE`). Without the setting
nothing here runs, and the executor has no overhead.
"""

from __future__ import annotations

import atexit
import json
import os
import time

from hpcflow.comm.communicator import Request
from hpcflow.runtime.dynamic_types import Json
from hpcflow.runtime.executor.executor import Executor
from hpcflow.runtime.executor.wait_timestamps import WaitTarget
from hpcflow.runtime.step.step_instance import StepInstance, StepObserver

Event = tuple[str, str, str, int, int, int]  # ph, cat, name, step, ns, duration or number


def install_trace(executor: Executor, file: str) -> None:
    """Record what `executor` does from now on; `FILE.RANK.json` is written at exit.

    Segments are complete events (`ph: X`), waits are asynchronous ones (`b` and `e`): the wait of a
    collective begins at its start and ends when a poll finds it complete. Times are of the host's
    clock.
    """
    record = ChromeTrace(executor.rank, file)
    executor.observe(record)
    atexit.register(record.write)


class WaitRecorder(StepObserver):
    """Records in `events` the begin and the end of each wait."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self._number = 0
        self._begun: dict[int, tuple[str, int, int]] = {}  # id of a request -> its wait

    def wait_begin(
        self, request: Request, instance: StepInstance | None, target: WaitTarget
    ) -> None:
        """Record the begin of a wait."""
        self._number += 1
        step = instance.step if instance is not None else 0
        wait = self._begun[id(request)] = str(target or "send"), step, self._number
        self._note("b", wait)

    def wait_end(self, request: Request, instance: StepInstance | None, target: WaitTarget) -> None:
        """Record the end of a wait that has begun since this observer listens."""
        wait = self._begun.pop(id(request), None)
        if wait is not None:
            self._note("e", wait)

    def _note(self, ph: str, wait: tuple[str, int, int]) -> None:
        name, step, number = wait
        self.events.append((ph, "wait", name, step, time.time_ns(), number))


class ChromeTrace(WaitRecorder):
    """The events of one rank, and the file that they are written to."""

    def __init__(self, rank: int, file: str) -> None:
        super().__init__([])
        self.path, self.rank = f"{file}.{rank}.json", rank
        self._starts: list[int] = []  # of the segments that run: one may run inside another

    def segment_begin(self, instance: StepInstance, index: int) -> None:
        """Note the time."""
        self._starts.append(time.time_ns())

    def segment_end(self, instance: StepInstance, index: int) -> None:
        """Record the segment."""
        start = self._starts.pop()
        took = time.time_ns() - start
        self.events.append(("X", "strand", f"strand {index}", instance.step, start, took))

    def slice_begin(self, instance: StepInstance, index: int) -> None:
        """Note the time."""
        self.segment_begin(instance, index)

    def slice_end(self, instance: StepInstance, index: int) -> None:
        """Record the turn of a segment that yields between tiles."""
        self.segment_end(instance, index)

    def write(self) -> None:
        """Write the file atomically."""
        with open(self.path + ".part", "w") as out:
            json.dump({"traceEvents": [self._event(*event) for event in self.events]}, out)
        os.replace(self.path + ".part", self.path)

    def _event(self, ph: str, cat: str, name: str, step: int, ns: int, last: int) -> Json:
        extra = {"dur": last / 1e3} if ph == "X" else {"id": last}
        event = {"ph": ph, "cat": cat, "name": name, "pid": self.rank, "tid": 0, "ts": ns / 1e3}
        return event | extra | {"args": {"step": step}}
