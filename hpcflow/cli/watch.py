"""Watch a run, all runs of a folder, or a sweep: progress, rate, loss, slow ranks, queue.

Several runs are a table: those that run first, then those with a fault, the finished ones last.

It reads the files of the run directories, so it works on a login node and over NFS, and needs no
port. It waits for a run that has not begun: DIR may be missing, empty, or a folder that a job uses
without records yet. Ctrl-C ends it; the runs go on. Exit code: 0, 1 if there is no run (with --once
also if it has not begun), 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcflow.cli.terminal_output import clear_screen, err, out
from hpcflow.errors import HpcflowError

LONGEST_S = 1e6  # between looks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow watch`."""
    parser.add_argument("folder", metavar="DIR", help="a run, a folder of runs, or a sweep")
    parser.add_argument("--once", action="store_true", help="print what is known, and end")
    parser.add_argument("--json", action="store_true", help="as JSON, one line each time")
    parser.add_argument(
        "--every", type=float, default=1.0, metavar="S", help="seconds between looks (1)"
    )


def main(args: argparse.Namespace) -> int:
    """Print until Ctrl-C, or until all runs have ended."""
    if not 0 < args.every < LONGEST_S:
        err(f"hpcflow watch: --every {args.every:g}: give a time of more than 0 seconds")
        return 2
    is_terminal = sys.stdout.isatty() and not args.json
    try:
        if not _has_begun(args):
            return 1
        look = _look_at(Path(args.folder))
        while True:
            data, text, goes_on = look()
            if is_terminal:
                clear_screen()
            out(json.dumps(data, allow_nan=False) if args.json else text())
            if args.once or not goes_on:
                return 0
            time.sleep(args.every)
    except KeyboardInterrupt:
        return 0
    except HpcflowError as error:
        err(f"hpcflow watch: {error}")
        return 1


def _has_begun(args: argparse.Namespace) -> bool:
    """Wait until the folder has records of a run; with --once, say if it has none."""
    from hpcflow.report import run_watch
    from hpcflow.sweep import run_ledger

    folder, is_told = Path(args.folder), False
    while not run_ledger.is_sweep(folder) and run_watch.is_to_begin(folder):
        if args.once:
            err(f"hpcflow watch: {args.folder} has not begun: no step or state is recorded yet")
            return False
        if not is_told:
            err(f"hpcflow watch: waiting for {args.folder} to begin; Ctrl-C ends this")
            is_told = True
        time.sleep(args.every)
    return True


Look = tuple[dict[str, Any], Callable[[], str], bool]  # as JSON, as text, whether a run goes on


def _look_at(folder: Path) -> Callable[[], Look]:
    """A function that looks once: at a run, the runs of a folder, or those of a sweep."""
    from hpcflow.sweep import run_ledger, sweep_table, sweep_watch

    if not run_ledger.is_sweep(folder):
        return _of_runs(folder)
    watched = sweep_watch.WatchedSweep(folder)

    def look() -> Look:
        ledger, found, known = watched.look()
        data = sweep_table.as_data(ledger, found)
        return (
            {**data, "running": list(map(_plain, known))},
            lambda: sweep_watch.as_text(ledger, found, known),
            not sweep_watch.is_over(ledger, found),
        )

    return look


def _of_runs(folder: Path) -> Callable[[], Look]:
    from hpcflow.report import run_watch

    runs: dict[Path, run_watch.WatchedRun] = {}

    def look() -> Look:
        for place in run_watch.runs_in(folder):  # new ones may have begun
            runs.setdefault(place, run_watch.WatchedRun(place))
        known = [run.look() for run in runs.values()]
        text = run_watch.as_table if len(known) > 1 else lambda all_of: run_watch.shown(all_of[0])
        data = {"format": "hpcflow-watch-1", "runs": list(map(_plain, known))}
        return data, lambda: text(known), any(map(_goes_on, known))

    return look


def _goes_on(known: dict[str, Any]) -> bool:
    """Whether a run has not ended, or its job waits in the queue for its next start."""
    from hpcflow.report.run_outcome import RUNNING

    return known["state"] == RUNNING or bool(known["queue"])


def _plain(known: dict[str, Any]) -> dict[str, Any]:
    """What is known, as JSON: null for values that are no numbers."""
    plain = {name: value for name, value in known.items() if name != "curve"}
    values = {n: v if math.isfinite(v) else None for n, v in known["values"].items()}
    return {**plain, "values": values}
