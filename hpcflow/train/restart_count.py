"""Restart count: starts of a job, counted by the chief in the checkpoint folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcflow.errors import HpcflowError
from hpcflow.platform.rank_logging import logger
from hpcflow.platform.record_files import read_json_object
from hpcflow.train.result_files import write_json

STARTS = "starts.json"


class RestartCount:
    """Data that one start of a job leaves for the next: number of starts, duration of a save.

    Starts with `resume` count, from the first that saved until the end of training. SLURM also
    counts restarts, including those that ended before this point; the larger number is used.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / STARTS
        self._facts: dict[str, Any] = {}
        self._took: tuple[float | None, float] | None = None
        self._begun = False  # only a job that resumes by itself counts

    def begin(self, environ: Mapping[str, str] = os.environ) -> int:
        """Count this start; returns the number of earlier ones."""
        is_new = False
        try:
            record = read_json_object(self._path)
            is_new = record is None
            self._facts = {"ended": True} if record is None else record
            restarts = 0 if self._facts["ended"] else int(self._facts["restarts"]) + 1
            self._took = _took(self._facts)
        except (HpcflowError, ValueError, KeyError, TypeError, OverflowError) as error:
            logger.warning(
                "%s cannot be read, so the count of restarts starts at 0: %s", self._path, error
            )
            self._facts, restarts = {}, 0
        slurm_count = environ.get("SLURM_RESTART_COUNT", "")
        restarts = max(restarts, int(slurm_count) if slurm_count.isdigit() else 0)
        self._facts |= {"restarts": restarts, "ended": False}
        self._begun = True
        if not is_new:  # otherwise the first save creates the file
            self._write()
        return restarts

    @property
    def record_durations(self) -> tuple[float | None, float] | None:
        """The duration of saves in the previous start: blocked training, and until complete."""
        return self._took

    def record_save(self, took: tuple[float | None, float]) -> None:
        """Store the present duration of saves."""
        self._write(save_seconds={"held": took[0], "written": took[1]})

    def end(self) -> None:
        """The training is complete: the next start counts as the first."""
        self._write(ended=True)

    def _write(self, **facts: Any) -> None:
        self._facts |= facts
        if not self._begun:
            return
        try:
            write_json(self._path, self._facts)
        except OSError as error:  # not fatal: a failing checkpoint will report it
            logger.warning("%s cannot be written: %s", self._path, error.strerror)


def _took(facts: Mapping[str, Any]) -> tuple[float | None, float] | None:
    seconds = facts.get("save_seconds")
    if seconds is None:
        return None
    blocked = seconds["held"]
    return None if blocked is None else float(blocked), float(seconds["written"])
