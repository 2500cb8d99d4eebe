"""SLURM queries by scontrol: the end time of a job, whether a job runs, requeue."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import time
from collections.abc import Mapping

TEMPORARY_FAILURE = 75  # exit code EX_TEMPFAIL of sysexits.h: try again
MISSING_JOB = re.compile(
    r"Invalid job id|not found", re.IGNORECASE
)  # messages about a job or a step
LIVE = {
    *("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"),
    *("CONFIGURING", "COMPLETING", "STAGE_OUT"),
}  # states of jobs that may have processes
RESTART_HINT = f"start again with resume=True (exit code {TEMPORARY_FAILURE})"


def job_of(environ: Mapping[str, str] = os.environ) -> str | None:
    """The id of this process's job; of a heterogeneous job, the id of the first component."""
    return environ.get("SLURM_HET_JOB_ID") or environ.get("SLURM_JOB_ID")


def job_end_time(environ: Mapping[str, str] = os.environ) -> float | None:
    """When SLURM ends this job, in seconds since 1970; None if unknown.

    From `SLURM_JOB_END_TIME`. If that is not set, or is past because the limit was raised, from
    `scontrol show job`; of a heterogeneous job the first component that ends.
    """
    end_time = environ.get("SLURM_JOB_END_TIME", "")
    if end_time.isdigit() and int(end_time) > time.time():
        return float(end_time)
    job = job_of(environ)
    if job is None or shutil.which("scontrol") is None:
        return None
    reply = scontrol("show", "job", job)[1]
    ends = re.findall(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", reply)
    return min((datetime.datetime.fromisoformat(text).timestamp() for text in ends), default=None)


def is_job_running(job: str, step: str | None = None) -> bool | None:
    """Whether a job, or its step, still has processes; None if SLURM does not answer."""
    if shutil.which("scontrol") is None:
        return None
    failed, reply = scontrol("show", "job", job)
    if failed:
        return False if MISSING_JOB.search(reply) else None
    if not LIVE.intersection(re.findall(r"\bJobState=(\w+)", reply)):
        return False
    if step is None:
        return True
    failed, reply = scontrol("show", "step", f"{job}.{step}")
    return "State=RUNNING" in reply if not failed else not MISSING_JOB.search(reply)


def requeue(environ: Mapping[str, str] = os.environ) -> str:
    """Ask SLURM to requeue this job; returns the outcome for the log.

    A job that is already ending is not requeued: its owner has cancelled it, or SLURM requeues it.
    """
    job = job_of(environ)
    if job is None:
        return f"saved; {RESTART_HINT}"
    if shutil.which("scontrol") is None:
        return f"saved; no scontrol on this node to requeue job {job}: {RESTART_HINT}"
    state = re.search(r"JobState=(\w+)", scontrol("show", "job", job)[1])
    now = state.group(1) if state is not None else "unknown"
    if now not in ("RUNNING", "SIGNALING"):  # SLURM may still be delivering the stop signal
        return f"saved; the state of job {job} is {now}, so it does not requeue itself"
    failed, text = scontrol("requeue", job)
    if failed:
        return f"saved; SLURM does not requeue job {job} ({text.strip()}): {RESTART_HINT}"
    return f"saved; SLURM has requeued job {job}"


def scontrol(*words: str) -> tuple[int, str]:
    """Exit code and output of scontrol; times in its default format and the local time zone."""
    environ = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    import subprocess

    try:
        completed = subprocess.run(
            ["scontrol", *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            env=environ,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return completed.returncode, completed.stdout + completed.stderr
