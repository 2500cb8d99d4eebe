"""Submit a job script to SLURM, as `sbatch SCRIPT ARGUMENTS`, with checks and remedies.

The command first checks for certain failures: a script that is missing or not Python, too few tasks
for a worker, more nodes or time than available, a stop signal right at the start.

hpcflow submit --sbatch="--account=PROJECT --nodes=8" jobs/slurm/train.sbatch examples/digits.py
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Sequence

from hpcflow.cli import job_feasibility
from hpcflow.cli.terminal_output import err, error_text, out
from hpcflow.errors import HpcflowError, LaunchError
from hpcflow.sweep.slurm_arrays import options_of
from hpcflow.sweep.slurm_states import user_name

TAKES_SCRIPT = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow submit`."""
    parser.usage = "%(prog)s [options] SCRIPT [arguments of the script]"
    parser.add_argument("--sbatch", metavar="OPTIONS", default="", help="options for sbatch")
    parser.add_argument("--no-check", action="store_true", help="submit without checking the job")


def main(args: argparse.Namespace) -> int:
    """Print the job number; the exit code is 1 if there is none."""
    try:
        options = options_of(args.sbatch)
        out(submit(args.script, args.script_args, options, not args.no_check))
    except HpcflowError as error:
        err(f"hpcflow submit: {error}")
        return 1
    return 0


def submit(
    script: str, arguments: Sequence[str], options: Sequence[str] = (), checks: bool = True
) -> str:
    """Submit a job script; returns the output of sbatch. Warnings are printed before.

    Errors: LaunchError with a remedy, for example if the site requires an account and none is
            given, or if `checks` is set and the job is certain to fail.
    """
    if not os.path.isfile(script):
        raise LaunchError(f"there is no job script {script}", hint="give one of jobs/slurm/")
    if shutil.which("sbatch") is None:
        raise LaunchError(
            "the command sbatch is not available here",
            hint="log in to a host with SLURM, or use hpcflow run -n N",
        )
    for doubt in job_feasibility.check(script, arguments, options, os.environ) if checks else ():
        err(f"hpcflow submit: {doubt}")
    path = (
        script if not script.startswith("-") else os.path.join(".", script)
    )  # not an option of sbatch
    words = ["sbatch", *options, path, *arguments]
    try:
        completed = subprocess.run(words, capture_output=True, text=True, errors="replace")
    except (OSError, ValueError) as error:  # a broken program, or a word that none can have
        raise LaunchError(f"sbatch cannot be started: {error_text(error)}") from None
    if completed.returncode:
        reply = completed.stderr.strip() or completed.stdout.strip()
        raise LaunchError(f"sbatch refused {script}: {reply}", hint=_cure(script, reply.lower()))
    return completed.stdout.strip()


def _cure(script: str, said: str) -> str:
    """The remedy for an error message of sbatch."""
    if "account" in said:
        some = _accounts()
        return (
            f"in {script} write `#SBATCH --account=PROJECT` with one '#', or give "
            "--sbatch=--account=PROJECT"
            + (f"; yours: {', '.join(some)}" if some else "; `sacctmgr show assoc` lists yours")
        )
    if "partition" in said:
        return f"in {script} write `#SBATCH --partition=NAME` with one '#'; sinfo -s lists them"
    if "time limit" in said or "node" in said or "memory" in said:
        return f"ask for less in {script}, or by --sbatch; sinfo -l lists the limits"
    return f"change the lines of #SBATCH in {script}, or give options by --sbatch"


def _accounts() -> list[str]:
    """The user's accounts as SLURM reports them; empty if it reports none."""
    words = ["sacctmgr", "-nP", "show", "assoc", f"user={user_name()}", "format=account"]
    try:
        completed = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return sorted({*completed.stdout.split()}) if completed.returncode == 0 else []
