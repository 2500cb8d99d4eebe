"""What a job asks of SLURM: when it will be ended, and to be queued again."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import time
from collections.abc import Mapping

TEMPORARY_FAILURE = 75  # exit code, of sysexits.h: try again
GONE = re.compile(r"Invalid job id|not found", re.IGNORECASE)  # said of a job or of a step
LIVE = {
    *("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"),
    *("CONFIGURING", "COMPLETING", "STAGE_OUT"),
}  # states of jobs that have, or may have, processes
AGAIN = f"start again with resume=True (exit code {TEMPORARY_FAILURE})"


def job_of(environ: Mapping[str, str] = os.environ) -> str | None:
    """The number of the job that this process is in; of a heterogeneous one the first."""
    return environ.get("SLURM_HET_JOB_ID") or environ.get("SLURM_JOB_ID")


def end_of_job(environ: Mapping[str, str] = os.environ) -> float | None:
    """When SLURM will end this job, in seconds since 1970; None if nobody says.

    `SLURM_JOB_END_TIME`, and where that is not set, or is over since the limit was raised, what
    `scontrol show job` says; of a heterogeneous job the first component that ends.
    """
    told = environ.get("SLURM_JOB_END_TIME", "")
    if told.isdigit() and int(told) > time.time():
        return float(told)
    job = job_of(environ)
    if job is None or shutil.which("scontrol") is None:
        return None
    said = scontrol("show", "job", job)[1]
    found = re.findall(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", said)
    return min((datetime.datetime.fromisoformat(text).timestamp() for text in found), default=None)


def runs(job: str, step: str | None = None) -> bool | None:
    """Whether a job, or its step, still has processes; None if SLURM does not answer."""
    if shutil.which("scontrol") is None:
        return None
    failed, said = scontrol("show", "job", job)
    if failed:
        return False if GONE.search(said) else None
    if not LIVE.intersection(re.findall(r"\bJobState=(\w+)", said)):
        return False
    if step is None:
        return True
    failed, said = scontrol("show", "step", f"{job}.{step}")
    return "State=RUNNING" in said if not failed else not GONE.search(said)


def requeue(environ: Mapping[str, str] = os.environ) -> str:
    """Ask SLURM to queue this job again; what came of it, for people.

    A job that is already ending is left alone: cancelled by its owner, or requeued by SLURM.
    """
    job = job_of(environ)
    if job is None:
        return f"saved; {AGAIN}"
    if shutil.which("scontrol") is None:
        return f"saved; no scontrol on this node to requeue job {job}: {AGAIN}"
    state = re.search(r"JobState=(\w+)", scontrol("show", "job", job)[1])
    now = state.group(1) if state is not None else "unknown"
    if now != "RUNNING":
        return f"saved; the state of job {job} is {now}, so it does not requeue itself"
    failed, text = scontrol("requeue", job)
    if failed:
        return f"saved; SLURM does not requeue job {job} ({text.strip()}): {AGAIN}"
    return f"saved; SLURM has requeued job {job}"


def scontrol(*words: str) -> tuple[int, str]:
    """Its exit code and what it prints; times as they are by default, in this process's zone."""
    environ = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    import subprocess

    try:
        done = subprocess.run(
            ["scontrol", *words], capture_output=True, text=True, timeout=30, env=environ
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, done.stdout + done.stderr
