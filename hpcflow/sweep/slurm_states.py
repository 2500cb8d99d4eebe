"""SLURM states: how a job ended, and which jobs wait or run."""

from __future__ import annotations

import getpass
import os
import re
import subprocess
from typing import NamedTuple

from hpcflow.launch import slurm_requeue
from hpcflow.platform.terminal_escaping import escape_line

LIMIT_S = 30.0  # for an answer of squeue or sacct
ENDS = {  # states of SLURM that are no pre-emption -> states of a ledger
    "OUT_OF_MEMORY": "out_of_memory",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
}


def end_of_job(job: str) -> tuple[str, str]:
    """The state of a ledger, and its reason, of a job that runs no more; "" if unknown.

    A job that failed on its node, was cancelled, requeued or pre-empted may begin again.
    """
    failed, reply = slurm_requeue.scontrol("show", "job", job)
    found = re.search(r"\bJobState=(\w+)", reply) if not failed else None
    word = found[1] if found is not None else _accounted(job)
    if not word:
        return "", ""
    return ENDS.get(word, "preempted"), f"SLURM ended job {job}: {word}"


def _accounted(job: str) -> str:
    """The state of a job that scontrol has forgotten; "" without accounting."""
    reply = _ask(["sacct", "--noheader", "--allocations", "--parsable2", "--jobs", job,
                  "--format", "State"])  # fmt: skip
    return reply.split()[0] if reply.split() else ""


class QueuedJob(NamedTuple):
    """A job of this user that waits or runs, or an element of a job array."""

    name: str
    job: str  # the number that dependencies name
    element: int | None  # its index in the array


def user_name() -> str:
    """The name of this user, or the number if it has none, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def jobs_in_queue(name: str) -> list[QueuedJob]:
    """The jobs `name*` of this user that wait or run.

    Errors: OSError if squeue does not answer: then nothing may be submitted again.
    """
    command = ["squeue", "--noheader", "--array", "--user", user_name()]
    try:
        done = subprocess.run(
            [*command, "--format", "%j %F %K"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"squeue does not answer within {LIMIT_S:g} s") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise OSError(f"squeue does not answer: {escape_line(said)}")
    rows = [line.split() for line in done.stdout.splitlines()]
    return [
        QueuedJob(row[0], row[1], int(row[2]) if row[2].isdigit() else None)
        for row in rows
        if len(row) == 3 and row[0].startswith(name)
    ]


def _ask(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if not done.returncode else ""
