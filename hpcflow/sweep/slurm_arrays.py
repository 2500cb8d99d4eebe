"""Runs of a ledger as SLURM job arrays: an element of an array is a process of ledger_run.py.

Runs with the same number of ranks are in one array. The jobs are named after the ledger, so a
command that was killed after sbatch finds them in the queue, and submits nothing twice. A last
job, which begins when the others have ended, starts the command again: for the next group of runs,
and for the report.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpcflow.errors import LaunchError
from hpcflow.sweep import run_ledger, slurm_states
from hpcflow.sweep.local_runs import module_command
from hpcflow.sweep.run_ledger import Ledger, LedgerRun
from hpcflow.train.result_files import write_text

BLOCK = 1000  # elements of an array; SLURM's MaxArraySize is 1001 unless a site raises it
OF_SITE = ("SLURM_CONF", "SLURM_MPI_TYPE")  # variables that are not of the job that submits
FOLDER, NEXT = "slurm", "next"  # of job scripts and their output; name of the last job


class Submission(NamedTuple):
    """What was submitted: the numbers of the arrays, and how many runs wait or run already."""

    jobs: list[str]
    waiting: int


def check_slurm() -> None:
    """Errors: LaunchError without SLURM; OSError if squeue does not answer."""
    if shutil.which("sbatch") is None:
        raise LaunchError(
            "the command sbatch is not available here",
            hint="log in to a host with SLURM, or leave out --slurm",
        )
    slurm_states.jobs_in_queue("")


def options_of(text: str) -> list[str]:
    """The words of `--sbatch OPTIONS`. Errors: LaunchError for an unclosed quotation."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise LaunchError(f"--sbatch={text}: {error}") from None


def submit_arrays(
    ledger: Ledger,
    runs: Sequence[LedgerRun],
    options: Sequence[str],
    at_once: int | None,
    limit_s: float,
    again: Sequence[str],
    in_turn: bool = False,
) -> Submission:
    """Submit the runs that have not ended and are not in the queue, and then the last job.

    `options` are those of sbatch, `again` is the command of the last job. With `in_turn`, an array
    waits for the one before.
    Errors: LaunchError with what sbatch says; OSError if squeue does not answer.
    """
    prefix = f"hf-{ledger.id}-"
    queue = slurm_states.jobs_in_queue(prefix)
    queued = {(job.name, job.element) for job in queue}
    numbers = {run.name: number for number, run in enumerate(ledger.runs)}
    missing: dict[tuple[int, int], list[int]] = {}
    waiting = 0
    for run in runs:
        block, index = divmod(numbers[run.name], BLOCK)
        state = ledger.state(run.name).state
        if (f"{prefix}{block}", index) in queued or state == run_ledger.RUNNING:
            waiting += 1
        elif state not in run_ledger.ENDED:
            missing.setdefault((run.ranks, block), []).append(index)
    arrays = list(dict.fromkeys(job.job for job in queue if job.element is not None))
    jobs: list[str] = []
    try:
        for (ranks, block), indices in missing.items():
            script = _array_script(ledger, prefix, block, ranks, indices, at_once, limit_s)
            before = [*arrays, *jobs][-1:] if in_turn else []
            turn = [f"--dependency=afterany:{before[0]}"] if before else []
            jobs.append(_sbatch(script, [*options, *turn]))
    finally:  # also those of the arrays that were accepted
        own = os.environ.get("SLURM_JOB_ID")
        has_next = any(job.name == f"{prefix}{NEXT}" and job.job != own for job in queue)
        if jobs or (arrays and not has_next):
            _submit_next(_next_script(ledger, prefix, again), [*arrays, *jobs], options)
    return Submission(jobs, waiting)


def _submit_next(script: Path, jobs: Sequence[str], options: Sequence[str]) -> None:
    """Submit the job that goes on when all arrays have ended."""
    after = [f"--dependency=afterany:{':'.join(jobs)}"] if jobs else []
    _sbatch(script, [*options, *after, "--ntasks=1", "--nodes=1"])


def _array_script(
    ledger: Ledger,
    prefix: str,
    block: int,
    ranks: int,
    indices: Sequence[int],
    at_once: int | None,
    limit_s: float,
) -> Path:
    """The job script of an array; options on the command line of sbatch win over its lines."""
    most = f"%{at_once}" if at_once else ""
    folder = (ledger.folder / FOLDER).resolve()
    limit = [f"--limit={limit_s}"] if math.isfinite(limit_s) else []
    names = [run.name for run in ledger.runs[block * BLOCK : (block + 1) * BLOCK]]
    run = [*module_command(), "hpcflow.sweep.ledger_run", str(ledger.folder.resolve())]
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={prefix}{block} --array={_ranges(indices)}{most}",
        f"#SBATCH --ntasks={ranks} --requeue --open-mode=append",
        f"#SBATCH --output={_quoted(folder / '%A-%a.out')}",
        f"cd {shlex.quote(ledger.cwd)} || exit 1",
        f"names=({' '.join(map(shlex.quote, names))})",
        f'exec {shlex.join(run)} "${{names[$SLURM_ARRAY_TASK_ID]}}" {shlex.join(limit)}'.rstrip(),
    ]
    path = folder / f"runs-{block}-{ranks}.sbatch"
    write_text(path, "\n".join(lines) + "\n")
    return path


def _next_script(ledger: Ledger, prefix: str, again: Sequence[str]) -> Path:
    folder = (ledger.folder / FOLDER).resolve()
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={prefix}{NEXT} --open-mode=append",
        f"#SBATCH --output={_quoted(folder / 'next-%j.out')}",
        f"cd {shlex.quote(ledger.cwd)} || exit 1",
        f"exec {shlex.join(again)}",
    ]
    path = folder / "next.sbatch"
    write_text(path, "\n".join(lines) + "\n")
    return path


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)


def _ranges(indices: Sequence[int]) -> str:
    """Numbers as SLURM writes them: 0-3,7."""
    parts: list[list[int]] = []
    for index in sorted(indices):
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in parts)


def _sbatch(script: Path, options: Sequence[str]) -> str:
    """Submit a script, also from within a job; returns the number of the new job."""
    words = ["sbatch", "--parsable", *options, str(script)]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") or k in OF_SITE}
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", env=kept)
    if done.returncode:
        raise LaunchError(
            f"sbatch refused {script}: {done.stderr.strip() or done.stdout.strip()}",
            hint='give its options by --sbatch="--account=PROJECT --time=1:00:00"',
        )
    return done.stdout.strip().split(";")[0]
