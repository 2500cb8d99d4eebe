"""Baseline of a page: a value of a metric, or a run, beside which the runs are drawn."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpcflow.errors import LaunchError
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report.run_summary import RunSummary, load


class Baseline(NamedTuple):
    """Values of metrics by name, and runs."""

    values: Mapping[str, float]
    runs: Sequence[RunSummary]


NO_BASELINE = Baseline({}, [])


def baseline_of(words: Sequence[str]) -> Baseline:
    """The baseline of words `METRIC=VALUE` and run directories.

    Errors: LaunchError for a word that is neither.
    """
    values: dict[str, float] = {}
    runs: list[RunSummary] = []
    for word in words:
        if os.path.exists(word):
            (run,) = load([word])
            if not run.rows:
                raise LaunchError(
                    f"--baseline {escape_line(word)}: it has no metrics.csv with rows"
                )
            runs.append(run)
            continue
        name, equals, text = word.rpartition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not equals or not name or not math.isfinite(value):
            raise LaunchError(
                f"--baseline {escape_line(word)} is neither METRIC=VALUE nor a run directory",
                hint="write --baseline accuracy=0.97, or give the --run-dir of an earlier run",
            )
        values[name] = value
    return Baseline(values, runs)


def check_names(baseline: Baseline, names: Sequence[str]) -> None:
    """Errors: LaunchError for a value of a metric that no run has; `names` are what they have."""
    for name in baseline.values:
        if name not in names:
            raise LaunchError(
                f"--baseline {escape_line(name)}: no run has this metric",
                hint=f"they have {', '.join(sorted(names)) or 'none'}",
            )
