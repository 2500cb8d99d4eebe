"""Progress bar: training progress as a bar on a terminal, or as occasional log lines."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Protocol, TextIO

from hpcflow.platform.rank_logging import say_once
from hpcflow.platform.terminal_detection import progress_stream
from hpcflow.runtime.job.job_membership import current_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.train import run_records

REDRAW_S = 0.1  # redraw interval in seconds
WIDTH = 24
FIND_NAN = (
    "`--set check_numerics=1` ends the run at the operation that made the first one, and names it"
)


class _BatchProgress(Protocol):
    @property
    def epoch(self) -> int: ...

    @property
    def step(self) -> int: ...

    @property
    def joined_size(self) -> int: ...


class _DatasetProgress(Protocol):
    @property
    def steps_per_epoch(self) -> int: ...

    def describe(self) -> str: ...


class Progress:
    """Shows the progress of training on `data` (of `hf.data`) for `epochs`, on the chief only.

    It first prints how a batch is sharded. The rate counts global batches of the chief's steps; in
    parameter-server mode it assumes that all workers are equally fast. `every_s` is the interval of
    log lines. `silent` prints nothing; the run directory gets its records all the same.
    """

    def __init__(
        self,
        data: _DatasetProgress,
        epochs: int,
        every_s: float = 5.0,
        stream: TextIO | None = None,
        context: RankContext | None = None,
        silent: bool = False,
    ) -> None:
        self.epochs, self.steps = epochs, data.steps_per_epoch
        self._stream = stream or sys.stdout
        context = context or current_context()
        self._records, self._speaks = context.is_chief, context.is_chief and not silent
        self._log = run_records.run_log_of(context)
        self._terminal = progress_stream(self._stream) if self._speaks else None
        self._pause = every_s if self._terminal is None else REDRAW_S
        self._begun = self._shown_at = time.perf_counter()
        self._samples = 0
        self._line = ""
        self._steps_done = 0
        self._is_shown = True
        if self._speaks:
            print(data.describe(), file=self._stream, flush=True)
        if self._log is not None:
            self._log.begin_training(data, epochs * self.steps)

    def update(self, batch: _BatchProgress, **values: float) -> None:
        """Count a step on `batch`; shows `values` by name, for example `loss=0.3`."""
        if not self._records:
            return
        now = time.perf_counter()
        for name, value in values.items():
            if value != value:
                say_once(f"{name} is NaN: {FIND_NAN}", logging.WARNING)
        self._samples += batch.joined_size
        rate = self._samples / max(now - self._begun, 1e-9)
        metrics = "".join(f"  {name} {float(value):.4g}" for name, value in values.items())
        position = f"epoch {batch.epoch + 1}/{self.epochs}  step {batch.step + 1}/{self.steps}"
        self._line = f"{position}{metrics}  {rate:,.0f} samples/s"
        self._steps_done = batch.epoch * self.steps + batch.step + 1
        self._is_shown = False
        if self._log is not None:
            ends = "epoch" if batch.step + 1 == self.steps else ""
            ends = "run" if self._steps_done == self.epochs * self.steps else ends
            self._log.add(self._steps_done, batch.epoch + 1, self._samples, values, ends)
        if self._speaks and now - self._shown_at >= self._pause:
            self._shown_at = now
            self._show()

    def end_epoch(self, text: str, values: Mapping[str, float]) -> None:
        """Print a line in place of the bar, and record `values`, at the end of an epoch.

        The loss is left out of the record, which has that of steps.
        """
        if self._speaks:
            self._is_shown, self._shown_at = True, time.perf_counter()
            start = "" if self._terminal is None else "\r\033[K"
            print(f"{start}{text}", file=self._terminal or self._stream, flush=True)
        if self._log is not None:
            epoch = -(-self._steps_done // max(1, self.steps))
            others = {name: value for name, value in values.items() if name != "loss"}
            self._log.add(self._steps_done, epoch, self._samples, others, "run")

    def close(self) -> None:
        """Show the last step."""
        if self._speaks and not self._is_shown:
            self._show()
        if self._terminal is not None:
            if self._line:
                print(file=self._terminal, flush=True)
            if self._terminal is not self._stream:
                self._terminal.close()

    def _show(self) -> None:
        self._is_shown = True
        if self._terminal is not None:
            filled = WIDTH * self._steps_done // max(1, self.epochs * self.steps)
            bar = "#" * filled + "." * (WIDTH - filled)
            print(f"\r[{bar}] {self._line}\033[K", end="", file=self._terminal, flush=True)
        else:
            print(self._line, file=self._stream, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if error[:1] == (None,) and self._speaks and not self._line:
            print(f"no steps are left of {self.epochs} epochs", file=self._stream, flush=True)
        self.close()
