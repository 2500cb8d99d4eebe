"""Watch a run, or all runs of a folder, while they go on: progress, rate, loss, slow ranks, queue.

Several runs are a table: those that run first, then those with a fault, the finished ones last.

It reads the files of the run directories, so it works on a login node and over NFS, and needs no
port. Ctrl-C ends it; the runs go on. Exit code: 0, 1 if there is no run, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from hpcflow.cli.terminal_output import clear_screen, err, out
from hpcflow.errors import HpcflowError

LONGEST_S = 1e6  # between looks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow watch`."""
    parser.add_argument("folder", metavar="DIR", help="a run directory, or a folder of them")
    parser.add_argument("--once", action="store_true", help="print what is known, and end")
    parser.add_argument("--json", action="store_true", help="as JSON, one line each time")
    parser.add_argument(
        "--every", type=float, default=1.0, metavar="S", help="seconds between looks (1)"
    )


def main(args: argparse.Namespace) -> int:
    """Print until Ctrl-C, or until all runs have ended."""
    from hpcflow.report import run_watch

    if not 0 < args.every < LONGEST_S:
        err(f"hpcflow watch: --every {args.every:g}: give a time of more than 0 seconds")
        return 2
    runs: dict[Path, run_watch.WatchedRun] = {}
    is_terminal = sys.stdout.isatty() and not args.json
    try:
        while True:
            for folder in run_watch.runs_in(Path(args.folder)):  # new ones may have begun
                runs.setdefault(folder, run_watch.WatchedRun(folder))
            known = [run.look() for run in runs.values()]
            if args.json:
                plain = [_plain(one) for one in known]
                out(json.dumps({"format": "hpcflow-watch-1", "runs": plain}, allow_nan=False))
            else:
                if is_terminal:
                    clear_screen()
                out(run_watch.as_table(known) if len(known) > 1 else run_watch.shown(known[0]))
            if args.once or not any(map(_goes_on, known)):
                return 0
            time.sleep(args.every)
    except KeyboardInterrupt:
        return 0
    except HpcflowError as error:
        err(f"hpcflow watch: {error}")
        return 1


def _goes_on(known: dict[str, Any]) -> bool:
    """Whether a run has not ended, or its job waits in the queue for its next start."""
    from hpcflow.report.run_outcome import RUNNING

    return known["state"] == RUNNING or bool(known["queue"])


def _plain(known: dict[str, Any]) -> dict[str, Any]:
    """What is known, as JSON: null for values that are no numbers."""
    plain = {name: value for name, value in known.items() if name != "curve"}
    values = {n: v if math.isfinite(v) else None for n, v in known["values"].items()}
    return {**plain, "values": values}
