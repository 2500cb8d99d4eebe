"""How often a job has been started again, counted in the folder of its checkpoints by the chief."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcflow.errors import HpcflowError
from hpcflow.platform.rank_logging import logger
from hpcflow.platform.record_files import read_table
from hpcflow.train.result_files import write_json

STARTS = "starts.json"


class Starts:
    """What one start of a job leaves for the next: their number, and what a save took.

    Starts with `resume` count, from the first one that has saved until the training has ended.
    SLURM counts too, also what ended before it came here: the larger number is taken.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / STARTS
        self._facts: dict[str, Any] = {}
        self._took: tuple[float | None, float] | None = None
        self._begun = False  # only a job that goes on by itself keeps count

    def begin(self, environ: Mapping[str, str] = os.environ) -> int:
        """This start is one more: how many were before it."""
        is_new = False
        try:
            found = read_table(self._path)
            is_new = found is None
            self._facts = {"ended": True} if found is None else found
            again = 0 if self._facts["ended"] else int(self._facts["restarts"]) + 1
            self._took = _took(self._facts)
        except (HpcflowError, ValueError, KeyError, TypeError, OverflowError) as error:
            logger.warning(
                "%s is not read, the count of restarts begins anew: %s", self._path, error
            )
            self._facts, again = {}, 0
        told = environ.get("SLURM_RESTART_COUNT", "")
        again = max(again, int(told) if told.isdigit() else 0)
        self._facts |= {"restarts": again, "ended": False}
        self._begun = True
        if not is_new:  # else the first save makes it: a folder without checkpoints stays as it is
            self._write()
        return again

    @property
    def took(self) -> tuple[float | None, float] | None:
        """What saves took in the start before this one: of training, and until one was whole."""
        return self._took

    def saved(self, took: tuple[float | None, float]) -> None:
        """What they take now."""
        self._write(save_seconds={"held": took[0], "written": took[1]})

    def end(self) -> None:
        """The training has come to its end: the next start is a first one."""
        self._write(ended=True)

    def _write(self, **facts: Any) -> None:
        self._facts |= facts
        if not self._begun:
            return
        try:
            write_json(self._path, self._facts)
        except OSError as error:  # of no weight beside the checkpoints, which will say so
            logger.warning("%s cannot be written: %s", self._path, error.strerror)


def _took(facts: Mapping[str, Any]) -> tuple[float | None, float] | None:
    found = facts.get("save_seconds")
    if found is None:
        return None
    held = found["held"]
    return None if held is None else float(held), float(found["written"])
