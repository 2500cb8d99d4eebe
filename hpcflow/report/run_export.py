"""Run export: runs as plain records, for other programs; and as one table of CSV."""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report.run_comparison import script_options, script_words
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.report.run_page import RunView
from hpcflow.train.job_result import FIELDS

COLUMNS = ("run", "step", "metric", "value")
COUNTS = ("epoch", "samples")  # columns of metrics.csv that hold integers
MOST_CHARACTERS = 6000  # of a text; MLflow's limit for parameters
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes a cell that begins so


class ExportedRun(NamedTuple):
    """A run: times are seconds since 1970, rows are those of metrics.csv; names are on one line."""

    name: str
    state: str  # a word of run_outcome.py
    ended: str  # details of the state, "" if unknown
    start: float | None
    end: float | None
    config: dict[str, str]  # by group/name: script, settings, versions, and the commit
    results: dict[str, float | str]  # of the job, and of its script as result/name
    rows: list[dict[str, float]]


def exported(view: RunView) -> ExportedRun:
    """The record of a run."""
    run, times = view.run, [row["time"] for row in view.run.rows if "time" in row]
    numbers = {
        "seconds": run.seconds,
        "seconds_to_first_step": run.seconds_to_first_step,
        "samples_per_second": run.rate,
        "steps": run.steps,
        "ranks": run.ranks,
        "workers": run.workers,
        "servers": run.servers,
        "nodes": run.nodes,
        "batch": run.batch,
        "input_wait_seconds": run.input_wait,
        "wait_seconds": run.waited,
    }
    results: dict[str, float | str] = {
        name: value if isinstance(value, int) else float(value)
        for name, value in numbers.items()
        if value is not None
    }
    said = {n: v for n, v in view.result.said.items() if n not in FIELDS}
    return ExportedRun(
        run.name,
        run.state,
        escape_line(run.ended),
        _seconds(view.manifest.text("start"), min(times, default=None)),
        _seconds(view.manifest.text("end"), max(times, default=None)),
        _config(view.manifest),
        results | {f"result/{escape_line(name)}": _plain(value) for name, value in said.items()},
        run.rows,
    )


def _config(manifest: FileFacts) -> dict[str, str]:
    """What the run was started with."""
    groups: dict[str, dict[str, Any]] = {
        "script": script_options(script_words(manifest)),
        "settings": manifest.get("settings", {}, {}),
        "versions": manifest.get("versions", {}, {}),
        "git": manifest.get("git", {}, {}),
    }
    config = {
        f"{group}/{escape_line(name)}": str(_plain(value))
        for group, values in groups.items()
        for name, value in values.items()
    }
    told = {name: manifest.text(name) for name in ("script", "mode", "launcher")}
    return {name: text for name, text in told.items() if text} | config


def _plain(value: Any) -> float | str:
    """A value of a JSON file as a number or a text on one line."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    text = escape_line(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def _seconds(text: str, otherwise: float | None) -> float | None:
    """A time of the manifest; `otherwise` if it is none."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return otherwise


def as_csv(runs: Sequence[ExportedRun]) -> str:
    """All runs as a table with a row for each value; values of a whole run have no step.

    A text that a spreadsheet would compute begins with an apostrophe.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        writer.writerows([_cell(run.name), *row] for row in _rows(run))
    return text.getvalue()


def _rows(run: ExportedRun) -> Iterator[tuple[str, str, str]]:
    """Step, metric and value."""
    facts: dict[str, float | str | None] = {"state": run.state, "ended": run.ended}
    facts |= {"start": run.start, "end": run.end, **run.results}
    facts |= {f"config/{name}": value for name, value in run.config.items()}
    for name, value in facts.items():
        if value is not None and value != "":
            yield "", _cell(name), _cell(value)
    for row in run.rows:
        for name, number in row.items():
            if name != "step":
                is_count = name in COUNTS and number.is_integer()
                yield f"{int(row['step'])}", _cell(name), repr(int(number) if is_count else number)


def _cell(value: float | str) -> str:
    if isinstance(value, (int, float)):
        return repr(value)
    return f"'{value}" if value.startswith(FORMULA) else value
