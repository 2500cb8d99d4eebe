"""Job accounting: node-hours and queue wait of SLURM jobs by `sacct`, else by the clock."""

from __future__ import annotations

import datetime
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hpcflow.report.run_directory_reader import FileFacts, has_type
from hpcflow.report.run_events import time_of

SACCT_LIMIT_S = 5.0
MOST_JOBS = 100  # in one question
FIELDS = ("JobID", "Eligible", "Submit", "Start", "ElapsedRaw", "NNodes")
MOST_NODES, LONGEST_S = 1 << 20, 1e9  # more is damage


class JobRow(NamedTuple):
    """A start of a SLURM job (or of a component of a heterogeneous job)."""

    job: str
    queue_wait_s: float | None  # from when it could have started until its start
    elapsed_s: float
    nodes: int


class Usage(NamedTuple):
    """Node-hours of a run and how they are known; seconds in the queue if SLURM tells."""

    node_hours: float
    source: str
    queue_wait_s: float | None


def job_id(manifest: FileFacts) -> str:
    """The SLURM job of a run; "" if there is none."""
    environment = manifest.get("environment", {}, {})
    job = str(environment.get("SLURM_HET_JOB_ID") or environment.get("SLURM_JOB_ID") or "")
    return job if job.isascii() and job.isdigit() and len(job) < 12 else ""


def ask_sacct(jobs: Iterable[str]) -> list[JobRow]:
    """The accounting of some jobs, also of their earlier starts; [] if sacct does not answer."""
    known = sorted(set(jobs) - {""}, key=int)[-MOST_JOBS:]
    if not known:
        return []
    command = ["sacct", "--jobs", ",".join(known), "--allocations", "--duplicates", "--noheader",
               "--parsable2", "--format", ",".join(FIELDS)]  # fmt: skip
    environ = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=SACCT_LIMIT_S, env=environ, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return rows_of_sacct(done.stdout.decode("utf-8", "replace")) if done.returncode == 0 else []


def rows_of_sacct(text: str) -> list[JobRow]:
    """The rows of `sacct --parsable2` with FIELDS, without jobs that have not started."""
    rows = []
    for line in text.splitlines():
        words = dict(zip(FIELDS, line.split("|"), strict=False))
        numbers = words.get("ElapsedRaw", ""), words.get("NNodes", "")
        if not all(word.isascii() and word.isdigit() and len(word) < 12 for word in numbers):
            continue
        elapsed, nodes = map(int, numbers)
        start, eligible, submit = (_time(words[name]) for name in ("Start", "Eligible", "Submit"))
        if start is None or not nodes or nodes > MOST_NODES or elapsed > LONGEST_S:
            continue
        could = submit if eligible is None else eligible
        waited = None if could is None else max(0.0, (start - could).total_seconds())
        rows.append(JobRow(words["JobID"].partition("+")[0], waited, float(elapsed), nodes))
    return rows


def _time(text: str) -> datetime.datetime | None:
    """A time of sacct; None for `Unknown` and `None`."""
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return None


def usage_of(manifest: FileFacts, until: float | None, rows: Sequence[JobRow]) -> Usage | None:
    """What a run has used: by the rows of its job, else by its starts and ends; None if unknown.

    `until` is when a run without an end was last seen, in seconds since 1970.
    """
    job = job_id(manifest)
    mine = [row for row in rows if row.job == job] if job else []
    if mine:
        hours = sum(row.nodes * row.elapsed_s for row in mine) / 3600
        waits = [row.queue_wait_s for row in mine if row.queue_wait_s is not None]
        return Usage(hours, f"SLURM job {job}, by sacct", sum(waits) if waits else None)
    starts: list[Mapping[str, Any]] = [*manifest.get("earlier", [{}], []), manifest.said]
    seconds = [_node_seconds(one, until if one is manifest.said else None) for one in starts]
    total = sum(one for one in seconds if one is not None)
    return Usage(total / 3600, "nodes x time of the run", None) if total else None


def _node_seconds(start: Mapping[str, Any], until: float | None) -> float | None:
    nodes, begun, end = start.get("nodes"), time_of(start.get("start")), time_of(start.get("end"))
    if end != end and until is not None:  # NaN: it has no end
        end = until
    took = end - begun
    return len(nodes) * took if has_type(nodes, {}) and nodes and 0 <= took < LONGEST_S else None
