"""The last lines of a job that failed or stopped: why, after what mpirun prints when a rank fails.

`hpcflow run -n N` makes a folder and passes its path to mpirun's ranks. The first rank that fails
writes the reason there, and so does the chief of a job that saves and stops. A rank on another host
cannot; then `failure.json` in the run directory has the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcflow.launch.stop_cause import FOLDER
from hpcflow.monitoring import failure_json
from hpcflow.monitoring.wait_ledger import ledger_folder
from hpcflow.platform.rank_logging import rank_spans

_NAME = "summary"
MOST_BYTES = 1 << 14  # of a summary


def write_summary(ranks: Iterable[int], cause: str, line: str | None, hint: str | None) -> None:
    """Write why the job failed on `ranks`, unless another rank has; without a folder do nothing.

    `line` is the user's line, `hint` the remedy.
    """
    _write(summary_text(ranks, cause, line, hint))


def write_stop(cause: str, said: str) -> None:
    """Write that the job stopped in order, why, and how it goes on (`said`)."""
    _write(f"the job was stopped by {cause}\n  next  {said}")


def _write(text: str) -> None:
    folder = os.environ.get(FOLDER)
    if folder:
        with contextlib.suppress(OSError), open(os.path.join(folder, _NAME), "x") as file:
            file.write(text)


def summary_text(ranks: Iterable[int], cause: str, line: str | None, hint: str | None) -> str:
    """`the job failed on ranks 0-1: ShapeError: ... (train.py:6)` and, below, the remedy."""
    at = f" ({line})" if line and line not in cause else ""
    remedy = f"\n  next  {hint}" if hint else ""
    return f"the job failed on {rank_spans(ranks)}: {cause}{at}{remedy}"


class SummaryReader:
    """The side of `hpcflow run`: a context that owns the folder, and reads it in the end."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir, self._since = run_dir, time.time()
        self._folder = ""

    def __enter__(self) -> SummaryReader:
        self._folder = tempfile.mkdtemp(prefix="hpcflow-summary-", dir=ledger_folder())
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def variables(self) -> dict[str, str]:
        """Environment variables for the ranks."""
        return {FOLDER: self._folder}

    def last_lines(self, code: int) -> str:
        """Why the job ended with `code`, in one or two lines."""
        text = self._written() or self._recorded()
        return text or f"the job ended with exit code {code}, see above (hpcflow help exit-codes)"

    def _written(self) -> str:
        try:
            with open(os.path.join(self._folder, _NAME), errors="replace") as file:
                return file.read(MOST_BYTES)
        except OSError:
            return ""

    def _recorded(self) -> str:
        """The summary of `failure.json`, if this job has written one."""
        path = Path(self._run_dir, failure_json.NAME)
        try:
            if not self._run_dir or path.stat().st_mtime < self._since:
                return ""
            return _of_facts(json.loads(path.read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return ""


def _of_facts(facts: Mapping[str, Any]) -> str:
    return summary_text(
        facts.get("ranks") or [int(facts["rank"])],
        str(facts["cause"]),
        facts.get("line"),
        facts["hint"],
    )
