"""Metric of a run: the value by which a sweep compares its runs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path

from hpcflow.monitoring.failure_json import NAME as FAILURE
from hpcflow.report import run_summary
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.train import run_records
from hpcflow.train.job_result import FIELDS

BEST = "best:"  # before the name of a metric


def is_finished(folder: Path) -> bool:
    """Whether a run that has ended has written that its training finished."""
    manifest = FileFacts(folder / run_records.MANIFEST, [])
    return bool(manifest.get("finished", bool, False)) and not (folder / FAILURE).exists()


def metric_of(folder: Path, name: str, mode: str = "") -> tuple[float | None, str]:
    """The value of metric `name`, and "" or why there is none; without a name neither.

    It is what the script gave to `session.result(name=value)`; else the last value in metrics.csv.
    Of `best:name` it is the best value in metrics.csv, by `mode`, min or max.
    """
    if not name:
        return None, ""
    if name.startswith(BEST):
        return _best_of(folder, name.removeprefix(BEST), mode)
    faults: list[str] = []
    said = FileFacts(folder / run_summary.RESULT, faults).said
    (run,) = run_summary.load([str(folder)], is_over=True)
    if name in said:
        value = said[name]
        with contextlib.suppress(OverflowError):  # a whole number beyond any float
            if type(value) in (int, float) and math.isfinite(value):
                return float(value), ""
        return None, f"the metric {name} is no finite number: {str(value)[:40]}"
    series = run.curve("step", name)[1]
    if series:
        value = series[-1]
        return (value, "") if math.isfinite(value) else (None, f"the metric {name} is {value}")
    return None, _none(name, [*(key for key in said if key not in FIELDS), *run.values])


def _best_of(folder: Path, name: str, mode: str) -> tuple[float | None, str]:
    (run,) = run_summary.load([str(folder)], is_over=True)
    series = [value for value in run.curve("step", name)[1] if math.isfinite(value)]
    if not series:
        return None, _none(name, run.values)
    return (max(series) if mode == "max" else min(series)), ""


def _none(name: str, names: Sequence[str]) -> str:
    known = ", ".join(dict.fromkeys(names))
    return f"there is no metric {name}; it has {known or 'written none'}"
