"""Watch of runs: what their files tell while they go on, by one small read a second of each.

Only the end of `metrics.csv` is read, and `manifest.json` when it has changed, whatever the number
of ranks.
"""

from __future__ import annotations

import csv
import datetime
import io
import math
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcflow.errors import HpcflowError
from hpcflow.monitoring.failure_json import NAME as FAILURE
from hpcflow.platform.record_files import open_plain
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report import run_outcome
from hpcflow.report.run_directory_reader import FileFacts, seconds_left
from hpcflow.report.run_summary import RESULT, SLOW
from hpcflow.report.run_tables import duration
from hpcflow.train.run_records import COLUMNS, MANIFEST, METRICS, STEPS_IN_ALL

HEADER_BYTES, TAIL_BYTES = 4 << 10, 32 << 10  # of metrics.csv
QUEUE_EVERY_S = 15.0  # between questions to squeue
QUEUE_LIMIT_S = 5.0
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


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (MANIFEST, METRICS, RESULT, FAILURE))


class WatchedRun:
    """One run; `look` reads what is new and returns what is known, as plain data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifest, self._seen = FileFacts.none(), 0
        self._queue: tuple[float, str] = (-math.inf, "")

    def look(self) -> dict[str, Any]:
        """What is known now."""
        faults: list[str] = []
        self._read_manifest(faults)
        manifest = self._manifest
        rows = tail_rows(self.folder / METRICS)
        last = rows[-1] if rows else {}
        failure, result = FileFacts(self.folder / FAILURE, faults), FileFacts.none()
        state, ended = run_outcome.outcome_of(self.folder, manifest, failure, result)
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
                f"worker {row['worker']} on {escape_line(row['host'])}: {row['factor']:.2g} times"
                for row in manifest.get("stragglers", [SLOW], [])
            ],
            "queue": self._asked_queue(manifest) if state == run_outcome.RUNNING else "",
            "faults": faults,
            "curve": next((s for n, s in values.items() if "loss" in n), []),
        }

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
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUEUE_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return escape_line(done.stdout.strip().splitlines()[0]) if done.stdout.strip() else ""


def tail_rows(path: Path) -> list[dict[str, float]]:
    """The last rows of metrics.csv, as numbers; [] if there are none."""
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
    rows: list[dict[str, float]] = []
    for words in csv.reader(line for line in lines if line.endswith("\n")):
        if len(words) != len(names):
            continue
        try:
            row = {n: float(w) for n, w in zip(names, words, strict=True) if w != ""}
        except ValueError:
            continue
        if all(math.isfinite(row.get(n, 0.0)) for n in COLUMNS) and {"step", "seconds"} <= set(row):
            rows.append({escape_line(name): value for name, value in row.items()})
    return rows


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
            text += f", {duration(left)} left, until {end:%H:%M}"
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
        lines.append(f"  no step was recorded for {duration(age)}")
    lines += [f"  slow: {text}" for text in known["slow"]]
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
