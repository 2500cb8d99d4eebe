"""Check in a job script, before anything else is done, what would make the job fail or do harm.

hpcflow check-job OPTIONS OF HPCFLOW RUN SCRIPT ARGUMENTS
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hpcflow.cli import feasible, run
from hpcflow.cli.say import err
from hpcflow.comm import in_use
from hpcflow.errors import HpcflowError
from hpcflow.job_time import left_s
from hpcflow.settings import Settings

TAKES_SCRIPT = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow check-job`: those of `hpcflow run`."""
    run.add_arguments(parser)
    parser.usage = "%(prog)s [options of hpcflow run] SCRIPT [arguments of the script]"
    parser.add_argument(
        "--signal-before-end", type=float, metavar="S", help="the S of #SBATCH --signal=USR1@S"
    )


def main(args: argparse.Namespace) -> int:
    """0 if the job may begin, else 2 and why not."""
    try:
        check(args)
    except HpcflowError as error:
        err(f"hpcflow check-job: {type(error).__name__}: {error}")
        return 2
    return 0


def say(text: str) -> None:
    """A line in the log of the job."""
    err(f"hpcflow check-job: {text}")


def check(args: argparse.Namespace) -> None:
    """Raise an HpcflowError for what must not begin."""
    settings = Settings.from_environ({**os.environ, **run.chosen_settings(args)})
    feasible.check_script(args.script)
    left, lead = left_s(settings), args.signal_before_end
    if lead is not None and left <= lead:
        say(feasible.comes_at_once(left, lead) + ", unless sbatch was given another --signal")
    elif lead is not None and left <= feasible.LEAST_S:
        say(feasible.too_short(left))
    if settings.run_dir:
        in_use.refuse(Path(settings.run_dir), in_use.RUN_DIR)
