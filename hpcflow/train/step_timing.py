"""Step timing: separates a worker's own work from its waiting for other ranks.

A step lasts from the end of the previous step or save to its own end. Waiting is counted by the
engine: steps are in flight, nothing is ready to run, and it polls for messages and sums of other
ranks. All other time is the worker's own work: computation, input, and the script.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hpcflow.runtime.executor.executor import Executor


class TimingRow(NamedTuple):
    """A worker's report on some steps; times are seconds per step."""

    steps: int
    work: float  # without the longest step, as an outlier
    wait: float
    samples: float  # per step, for the steps in `work`
    mean_work: float  # of all steps
    input: float  # part of `mean_work`: waiting for batches of `hf.data`


class TimingWindow:
    """Accumulates steps for a `row`; `source` is their dataset, if they have only one."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset the sums."""
        self.steps = self._samples = 0
        self._work = self._wait = self._input = 0.0
        self._longest, self._its_samples = -1.0, 0
        self.source: Any = None

    def add(self, work: float, wait: float, batch: Any, fed: float = 0.0) -> None:
        """Count a step on a batch of `hf.data`, or on other feeds; `fed` of `work` for input."""
        samples, source = getattr(batch, "size", 0), getattr(batch, "source", None)
        self.source = source if source is self.source or not self.steps else None
        self.steps += 1
        self._work += work
        self._wait += wait
        self._input += fed
        self._samples += samples
        if work > self._longest:
            self._longest, self._its_samples = work, samples

    def row(self) -> TimingRow:
        """The report on the accumulated steps."""
        work, samples = self._work, self._samples
        if self.steps > 1:
            work, samples = work - self._longest, samples - self._its_samples
        count, steps = max(self.steps - 1, 1), max(self.steps, 1)
        means = (one / steps for one in (self._work, self._input))
        return TimingRow(self.steps, work / count, self._wait / steps, samples / count, *means)


class StepTiming:
    """Measures a worker's steps: `begin` once and after pauses, `end` at the end of each step.

    `work` and `wait` are seconds of the last step, `work_seconds` and `wait_seconds` of all.
    `input_seconds` tells how long this worker has waited for batches so far.
    """

    def __init__(
        self, executor: Executor, input_seconds: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._engine, self._input_seconds = executor, input_seconds
        self.work = self.wait = 0.0
        self.work_seconds = self.wait_seconds = 0.0
        self.window = TimingWindow()
        self.ended = 0.0  # clock at the end of the last step
        self._waited = self._fed = 0.0  # and the waiting time of the engine, and for input

    def begin(self) -> None:
        """A step begins now."""
        self.ended, self._waited = time.perf_counter(), self._engine.waited
        self._fed = self._input_seconds()

    def end(self, batch: Any) -> None:
        """A step on `batch` has ended, and the next one begins."""
        now, waited, fed = time.perf_counter(), self._engine.waited, self._input_seconds()
        self.wait = wait = waited - self._waited
        self.work = work = now - self.ended - wait
        self.work_seconds += work
        self.wait_seconds += wait
        self.window.add(work, wait, batch, fed - self._fed)
        self.ended, self._waited, self._fed = now, waited, fed
