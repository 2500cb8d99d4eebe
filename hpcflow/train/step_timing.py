"""Step timing: separates a worker's own work from its waiting for other ranks.

A step lasts from the end of the previous step or save to its own end. Waiting is counted by the
engine: steps are in flight, nothing is ready to run, and it polls for messages and sums of other
ranks. All other time is the worker's own work: computation, input, and the script.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from hpcflow.runtime.executor.executor import Executor


class TimingRow(NamedTuple):
    """A worker's report on some steps; times are seconds per step."""

    steps: int
    work: float  # without the longest step, as an outlier
    wait: float
    samples: float  # per step, for the steps in `work`


class TimingWindow:
    """Accumulates steps for a `row`; `source` is their dataset, if they have only one."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset the sums."""
        self.steps = self._samples = 0
        self._work = self._wait = 0.0
        self._longest, self._its_samples = -1.0, 0
        self.source: Any = None

    def add(self, work: float, wait: float, batch: Any) -> None:
        """Count a step on a batch of `hf.data`, or on other feeds."""
        samples, source = getattr(batch, "size", 0), getattr(batch, "source", None)
        self.source = source if source is self.source or not self.steps else None
        self.steps += 1
        self._work += work
        self._wait += wait
        self._samples += samples
        if work > self._longest:
            self._longest, self._its_samples = work, samples

    def row(self) -> TimingRow:
        """The report on the accumulated steps."""
        work, samples = self._work, self._samples
        if self.steps > 1:
            work, samples = work - self._longest, samples - self._its_samples
        count = max(self.steps - 1, 1)
        return TimingRow(self.steps, work / count, self._wait / max(self.steps, 1), samples / count)


class StepTiming:
    """Measures a worker's steps: `begin` once and after pauses, `end` at the end of each step.

    `work` and `wait` are seconds of the last step, `work_seconds` and `wait_seconds` of all.
    """

    def __init__(self, executor: Executor) -> None:
        self._engine = executor
        self.work = self.wait = 0.0
        self.work_seconds = self.wait_seconds = 0.0
        self.window = TimingWindow()
        self.ended = 0.0  # clock at the end of the last step
        self._waited = 0.0  # and the engine's waiting time

    def begin(self) -> None:
        """A step begins now."""
        self.ended, self._waited = time.perf_counter(), self._engine.waited

    def end(self, batch: Any) -> None:
        """A step on `batch` has ended, and the next one begins."""
        now, waited = time.perf_counter(), self._engine.waited
        self.wait = wait = waited - self._waited
        self.work = work = now - self.ended - wait
        self.ended, self._waited = now, waited
        self.work_seconds += work
        self.wait_seconds += wait
        self.window.add(work, wait, batch)
