"""Check in a job script, before the ranks start, for errors that would make the job fail.

hpcflow check-job OPTIONS OF HPCFLOW RUN SCRIPT ARGUMENTS
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from hpcflow.cli import job_feasibility, run
from hpcflow.cli.terminal_output import err
from hpcflow.errors import HpcflowError, LaunchError
from hpcflow.launch.time_limit import seconds_left
from hpcflow.monitoring import run_directory_lock
from hpcflow.settings import Settings

TAKES_SCRIPT = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow check-job`: those of `hpcflow run`."""
    run.add_arguments(parser)
    parser.usage = "%(prog)s [options of hpcflow run] SCRIPT [arguments of the script]"
    parser.add_argument(
        "--signal-before-end",
        type=float,
        metavar="S",
        help="seconds before the end: S of #SBATCH --signal=USR1@S",
    )


def main(args: argparse.Namespace) -> int:
    """0 if the job may start; otherwise 2, with the reason on stderr."""
    try:
        check(args)
    except HpcflowError as error:
        err(f"hpcflow check-job: {type(error).__name__}: {error}")
        return 2
    return 0


def log_line(text: str) -> None:
    """Print a line to the log of the job."""
    err(f"hpcflow check-job: {text}")


def check(args: argparse.Namespace) -> None:
    """Raise HpcflowError for a job that must not start."""
    settings = Settings.from_environ({**os.environ, **run.chosen_settings(args)})
    lead = args.signal_before_end
    if lead is not None and not 0 <= lead < math.inf:
        raise LaunchError(f"--signal-before-end {lead:g}: give a number of seconds from 0 on")
    job_feasibility.check_script(args.script)
    left = seconds_left(settings)
    if lead is not None and left <= lead:
        log_line(
            job_feasibility.comes_at_once(left, lead) + ", unless sbatch was given another --signal"
        )
    elif lead is not None and left <= job_feasibility.LEAST_S:
        log_line(job_feasibility.too_short(left))
    if settings.run_dir:
        run_directory_lock.refuse_directory(Path(settings.run_dir), run_directory_lock.RUN_DIR)
