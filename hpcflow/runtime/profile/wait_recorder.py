"""Wait recorder: the begin and the end of each wait of the executor, for profiles."""

from __future__ import annotations

import time

from hpcflow.comm.communicator import Request
from hpcflow.runtime.executor.wait_timestamps import WaitTarget
from hpcflow.runtime.step.step_instance import StepInstance, StepObserver

Event = tuple[str, str, str, int, int, int]  # ph, cat, name, step, ns, number


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
