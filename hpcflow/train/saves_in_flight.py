"""Saves in flight: at most one save of a session, in the background or in the foreground.

A failed background save is logged as a warning and training continues. The next save is waited for,
so that two failures in a row raise an error on every rank at the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hpcflow.checkpoint.async_checkpoint import AsyncSave
from hpcflow.checkpoint.checkpoint_directory import step_of
from hpcflow.checkpoint.participating_ranks import error_from_answer
from hpcflow.errors import CheckpointError, CheckpointStorageError
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.train import run_records

SLOW_S = 1.0  # a longer wait for the previous save is logged


class SaveDurations(NamedTuple):
    """Seconds of a save: training blocked, and from its start to each stage."""

    held: float
    durable: float  # flushed to disk
    verified: float  # read back and verified; as `durable` without verification
    published: float  # renamed


class SavesInFlight:
    """The saves of a session, on every rank that runs the script.

    `saved` is called with each complete checkpoint, `failed` when a save has failed.

    Ranks: all that run the script call all methods except `poll` together, between steps.
    """

    def __init__(
        self,
        context: RankContext,
        saved: Callable[[Path, SaveDurations], None],
        failed: Callable[[], None],
    ) -> None:
        self._context, self._saved, self._failed = context, saved, failed
        self._async_save: AsyncSave | None = None  # until its outcome arrives
        self._since = self._blocked_s = 0.0
        self._waits = False
        self.failing = False  # the last save failed; after `finish` all ranks know
        self._count = self._failures = 0
        self._total = 0.0
        self.last = self._longest = SaveDurations(0.0, 0.0, 0.0, 0.0)

    @property
    def is_saving(self) -> bool:
        """Whether a background save is in progress, as far as this rank knows."""
        return self._async_save is not None

    @property
    def waited(self) -> bool:
        """Whether training waits or has waited for the background save."""
        return self._waits

    def poll(self) -> None:
        """Check the background save, between two steps."""
        if self._async_save is not None:
            self._async_save.poll()

    def finish(self) -> None:
        """Wait for the background save; a long wait is logged."""
        self._since = time.perf_counter()
        behind = self._async_save
        if behind is None:
            return
        if not behind.finish(self._since + SLOW_S):
            if self._context.is_chief:
                text = "training waits: the checkpoint of step %d is still being written"
                logger.info(text, behind.step)
            behind.finish()

    def in_foreground(self, save: Callable[[], Path]) -> Path:
        """Save by `save()` in the foreground, after `finish`; returns the checkpoint."""
        path = save()
        took = time.perf_counter() - self._since
        self._record_save(path, SaveDurations(took, took, took, took))
        return path

    def in_background(self, begin: Callable[[AsyncSave], None], waits: bool) -> Path | None:
        """Save by `begin(behind)`, after `finish`; returns the checkpoint if waited for, else None.

        Errors: CheckpointError on all ranks, from a save that is waited for or cannot start.
        """
        self._waits = waits or self.failing
        behind = AsyncSave(self._context, lambda outcome: self._take(), self._waits)
        try:
            begin(behind)
        except CheckpointStorageError as error:
            self._lost(error)
            if self._waits:
                raise
            return None
        self._blocked_s, self._async_save = time.perf_counter() - self._since, behind
        if self._waits:
            behind.finish()
        self._context.executor.run_locked(self._take, lambda: True)  # it may have arrived
        outcome = behind.outcome
        if not self._waits or outcome is None:
            return None
        if "error" in outcome:
            raise error_from_answer(outcome)
        return Path(outcome["value"]["path"])

    def _take(self) -> None:
        """Take the outcome if it has arrived, while holding the progress lock."""
        behind = self._async_save
        if behind is None or behind.outcome is None:
            return
        self._async_save = None
        if "error" in behind.outcome:
            self._lost(error_from_answer(behind.outcome), f"of step {behind.step} ")
            return
        facts = behind.outcome["value"]
        times = (facts[name] for name in ("durable", "verified", "published"))
        blocked = time.perf_counter() - self._since if self._waits else self._blocked_s
        self._record_save(Path(facts["path"]), SaveDurations(blocked, *times))

    def _record_save(self, path: Path, took: SaveDurations) -> None:
        self.failing, self.last = False, took
        self._count += 1
        self._total += took.held
        self._longest = SaveDurations(*map(max, self._longest, took))
        self._saved(path, took)  # before the log message, whose readers may rely on it
        if self._context.is_chief:
            text, times = "saved %s: training waited %s", [took.held]
            if took.verified > took.durable:
                text += "; on the disk after %s, read back after %s"
                times += took[1:3]
            logger.info(text, path.name, *map(format_seconds, times))
            self._record(
                run_records.SAVE, f"{path.name}, training waited {format_seconds(took.held)}", path
            )

    def _record(self, event: str, text: str, path: Path | None = None) -> None:
        """Record an event in the run directory, on the chief."""
        log = run_records.run_log_of(self._context)
        if log is not None:
            log.events.add(event, text, None if path is None else step_of(path))

    def _lost(self, error: CheckpointError, which: str = "") -> None:
        self.failing = True
        self._failures += 1
        self._failed()
        self._record(run_records.SAVE_FAILED, f"{which}{error.message}")
        if self._context.is_chief and not self._waits:
            hint = f"; {error.hint}" if error.hint else ""
            logger.warning(
                "the checkpoint %sis not written: %s%s. Training continues; it waits for the next "
                "save, which is an error if it fails too",
                *(which, error.message, hint),
            )

    def report(self) -> dict[str, Any]:
        """The statistics of saves, for the result of a run."""
        longest = {name: round(value, 6) for name, value in self._longest._asdict().items()}
        return {
            "written": self._count,
            "failed": self._failures,
            "held_seconds": round(self._total, 6),
            "longest_seconds": longest,
        }
