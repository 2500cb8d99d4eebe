"""Watch of runs: what their files tell while they go on, by one small read a second of each.

Only the ends of `metrics.csv` and `events.csv` are read, and `manifest.json`, each when it has
changed, whatever the number of ranks.
"""

from __future__ import annotations

import csv
import datetime
import io
import math
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcflow.errors import HpcflowError
from hpcflow.monitoring import run_directory_lock
from hpcflow.monitoring.failure_json import NAME as FAILURE
from hpcflow.platform.quantity_text import format_ratio, format_seconds
from hpcflow.platform.record_files import open_plain
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report import run_outcome
from hpcflow.report.run_comparison import value_text
from hpcflow.report.run_directory_reader import FileFacts, seconds_left
from hpcflow.report.run_events import LATEST, clock_text, event_of_row
from hpcflow.report.run_summary import RESULT, SLOW
from hpcflow.report.run_tables import loss_name, table
from hpcflow.train.run_records import (
    COLUMNS,
    EVENTS,
    MANIFEST,
    METRICS,
    STEPS_IN_ALL,
    WARNING,
)

HEADER_BYTES, TAIL_BYTES = 4 << 10, 32 << 10  # of a table
QUEUE_EVERY_S = 15.0  # between questions to squeue
QUEUE_LIMIT_S = 5.0
LONGEST_WARNING = 160  # characters
STATES = (run_outcome.RUNNING, run_outcome.STALLED, run_outcome.FAILED, run_outcome.DIED,
          run_outcome.CANCELLED, run_outcome.STOPPED, run_outcome.UNREADABLE, run_outcome.ENDED,
          run_outcome.FINISHED)  # fmt: skip
QUEUED = (run_outcome.RUNNING, run_outcome.STOPPED)  # a job that has stopped may be queued again
SPARKS = "▁▂▃▄▅▆▇█"
WIDTH = 24  # of a bar and of a line of sparks


def runs_in(folder: Path) -> list[Path]:
    """The run directories: the folder itself, or those in it, by name.

    Errors: HpcflowError if there are none.
    """
    if not folder.is_dir():
        raise HpcflowError(f"{folder} is no folder", hint="give the --run-dir of a run")
    if _is_run(folder):
        return [folder]
    found = sorted(entry for entry in folder.iterdir() if entry.is_dir() and _is_run(entry))
    if not found:
        raise HpcflowError(
            f"there is no run in {folder}: neither {MANIFEST} nor {METRICS}",
            hint="start it with `hpcflow run --run-dir DIR ...` and give DIR",
        )
    return found


def is_to_begin(folder: Path) -> bool:
    """Whether a run may begin here: a folder that is missing, empty, or used by a job.

    False once it, or a folder in it, has records, and for a folder of other files.
    """
    try:
        entries = list(folder.iterdir())
    except FileNotFoundError:
        return True
    except OSError:  # a file, or a folder that may not be read: runs_in tells
        return False
    if any(map(_is_run, [folder, *entries])):
        return False
    return not entries or not all(map(run_directory_lock.is_free, [folder, *entries]))


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (MANIFEST, METRICS, RESULT, FAILURE))


class WatchedRun:
    """One run; `look` reads what is new and returns what is known, as plain data."""

    def __init__(self, folder: Path, is_over: bool | None = None) -> None:
        """`is_over` is False for a run that is known to go on."""
        self.folder, self._is_over = folder, is_over
        self._manifest, self._seen = FileFacts.none(), 0
        self._read: dict[Path, tuple[tuple[int, int], Any]] = {}  # of files that may be unchanged
        self._queue: tuple[float, str] = (-math.inf, "")

    def look(self) -> dict[str, Any]:
        """What is known now."""
        faults: list[str] = []
        self._read_manifest(faults)
        manifest = self._manifest
        rows = self._unless_same(self.folder / METRICS, tail_rows, [])
        last = rows[-1] if rows else {}
        failure, result = FileFacts(self.folder / FAILURE, faults), FileFacts.none()
        state, ended = run_outcome.outcome_of(self.folder, manifest, failure, result, self._is_over)
        values = {
            name: [row[name] for row in rows if name in row]
            for name in (rows[-1] if rows else {})
            if name not in COLUMNS
        }
        total, rate = manifest.count(STEPS_IN_ALL), last.get("samples_per_second")
        return {
            "name": escape_line(self.folder.name),
            "state": state,
            "ended": ended,
            "mode": manifest.text("mode"),
            "ranks": len(manifest.get("roles", [str], [])),
            "step": int(last.get("step", 0)),
            "steps": total or None,
            "epoch": int(last.get("epoch", 0)),
            "seconds": last.get("seconds", 0.0),
            "left_seconds": seconds_left(rows, total),
            "age_seconds": round(time.time() - last["time"], 1) if "time" in last else None,
            "samples_per_second": rate,
            "values": {name: series[-1] for name, series in values.items() if series},
            "slow": [
                f"worker {row['worker']} on {escape_line(row['host'])}: "
                f"{format_ratio(row['factor'])}"
                for row in manifest.get("stragglers", [SLOW], [])
            ],
            "queue": self._asked_queue(manifest) if state in QUEUED else "",
            "warning": self._unless_same(self.folder / EVENTS, last_warning, ""),
            "faults": faults,
            "curve": values.get(loss_name(list(values)), []),
        }

    def _unless_same(self, path: Path, read: Callable[[Path], Any], none: Any) -> Any:
        """What `read` makes of a file, which is read again only if it has changed."""
        try:
            descriptor = open_plain(path)  # NFS asks the server when a file is opened
        except OSError:
            return none
        facts = os.fstat(descriptor)
        os.close(descriptor)
        key = facts.st_mtime_ns, facts.st_size
        if self._read.get(path, (None, None))[0] != key:
            self._read[path] = key, read(path)
        return self._read[path][1]

    def _read_manifest(self, faults: list[str]) -> None:
        path = self.folder / MANIFEST
        try:
            seen = path.stat().st_mtime_ns
        except OSError:
            return
        if seen != self._seen:
            self._manifest, self._seen = FileFacts(path, faults), seen

    def _asked_queue(self, manifest: FileFacts) -> str:
        """The state of the SLURM job: state, time left and reason; "" without SLURM."""
        job = str(manifest.get("environment", {}, {}).get("SLURM_JOB_ID", ""))
        if not job.isdigit():
            return ""
        asked, text = self._queue
        if time.monotonic() - asked > QUEUE_EVERY_S:
            self._queue = time.monotonic(), _squeue(job)
        return self._queue[1] or text


def _squeue(job: str) -> str:
    command = ["squeue", "--noheader", "--jobs", job, "--format", "%T, %L left (%r)"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=QUEUE_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return escape_line(done.stdout.strip().splitlines()[0]) if done.stdout.strip() else ""


def tail_rows(path: Path) -> list[dict[str, float]]:
    """The last rows of metrics.csv, as numbers; [] if there are none."""
    rows: list[dict[str, float]] = []
    for words in tail_texts(path):
        try:
            row = {name: float(word) for name, word in words.items() if word != ""}
        except ValueError:
            continue
        if all(math.isfinite(row.get(n, 0.0)) for n in COLUMNS) and {"step", "seconds"} <= set(row):
            rows.append({escape_line(name): value for name, value in row.items()})
    return rows


def tail_texts(path: Path) -> list[dict[str, str]]:
    """The last rows of a table, without one that is not complete; [] if there are none."""
    try:
        with open(open_plain(path), "rb") as file:
            head = file.readline(HEADER_BYTES).decode("utf-8", "replace")
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    names = next(csv.reader(io.StringIO(head, newline="")), [])
    lines = text.splitlines(keepends=True)[1:]  # the first is the header, or the end of a row
    rows = csv.reader(line for line in lines if line.endswith("\n"))
    return [dict(zip(names, words, strict=True)) for words in rows if len(words) == len(names)]


def last_warning(path: Path) -> str:
    """The last warning in events.csv, with its time; "" if there is none."""
    for row in reversed(tail_texts(path)):
        event = event_of_row(row)
        if event is not None and event.kind == WARNING and 0 < event.time < LATEST:
            return f"{clock_text(event.time)[5:]} {event.text[:LONGEST_WARNING]}"
    return ""


def as_table(known: Sequence[dict[str, Any]]) -> str:
    """Several runs as a table: those that run first, then those with a fault, the finished last."""
    rows = sorted(known, key=lambda one: (STATES.index(one["state"]), one["name"]))
    head = ["run", "state", "ranks", "step", "of", "left", "value", "samples/s", "queue",
            "warning or end"]  # fmt: skip
    return table(head, [_table_row(one) for one in rows])


def _table_row(known: dict[str, Any]) -> list[str]:
    name, value = next(iter(known["values"].items()), ("", math.nan))
    left, rate = known["left_seconds"], known["samples_per_second"]
    runs = known["state"] == run_outcome.RUNNING
    return [
        known["name"],
        known["state"],
        str(known["ranks"] or "-"),
        f"{known['step']:,}",
        f"{known['steps']:,}" if known["steps"] else "-",
        format_seconds(left) if runs and left is not None else "-",
        f"{name} {value:.4g}" if name else "-",
        f"{rate:,.0f}" if rate else "-",
        known["queue"] or "-",
        value_text(known["warning"] or known["ended"]) or "-",
    ]


def shown(known: dict[str, Any]) -> str:
    """What is known of a run, in a few lines."""
    where = f"{known['mode']}, {known['ranks']} ranks" if known["ranks"] else known["mode"]
    lines = [f"{known['name']}: {known['state']}" + (f" ({where})" if where else "")]
    step, total = known["step"], known["steps"]
    if total:
        filled = min(WIDTH, WIDTH * step // total)
        left = known["left_seconds"]
        text = f"  [{'#' * filled}{'.' * (WIDTH - filled)}] step {step:,} of {total:,}"
        if left is not None and known["state"] == run_outcome.RUNNING:
            end = datetime.datetime.now() + datetime.timedelta(seconds=left)
            text += f", {format_seconds(left)} left, until {end:%H:%M}"
        lines.append(text)
    elif step:
        lines.append(f"  step {step:,}")
    values = [f"{name} {value:.4g}" for name, value in known["values"].items()]
    if known["samples_per_second"]:
        values.append(f"{known['samples_per_second']:,.0f} samples/s")
    if values:
        lines.append(f"  {', '.join(values)}  {sparks(known['curve'])}".rstrip())
    age = known["age_seconds"]
    if known["state"] == run_outcome.RUNNING and age is not None and age > 60:
        lines.append(f"  no step was recorded for {format_seconds(age)}")
    lines += [f"  slow: {text}" for text in known["slow"]]
    lines += [f"  warning at {known['warning']}"] if known["warning"] else []
    lines += [f"  queue: {known['queue']}"] if known["queue"] else []
    lines += [f"  {known['ended']}"] if known["ended"] else []
    return "\n".join([*lines, *(f"  {escape_line(fault)}" for fault in known["faults"])])


def sparks(values: Sequence[float]) -> str:
    """A curve as a line of blocks, the newest value last."""
    finite = [v for v in values if math.isfinite(v)]
    if len(finite) < 2:
        return ""
    size = max(1, math.ceil(len(finite) / WIDTH))
    means = [
        sum(finite[i : i + size]) / len(finite[i : i + size]) for i in range(0, len(finite), size)
    ]
    low, high = min(means), max(means)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((v - low) * scale)] for v in means)
