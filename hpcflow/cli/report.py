"""Show what runs have done: a table, and a picture of loss, throughput and scaling.

RUN is a run directory (`hpcflow run --run-dir DIR`). Runs of one script that differ in their ranks
are compared: strong scaling where the joined batch is the same, weak where that of a worker is.
The exit code is 0, 1 if a file could not be read, or written, which is told, and 2 if misused.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hpcflow.cli.terminal_output import err, out
from hpcflow.errors import HpcflowError, MissingPackageError
from hpcflow.report import run_summary, run_tables, scaling_plots


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow report`."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories")
    parser.add_argument(
        "--out",
        metavar="DIR",
        default=".",
        help="where report.png and report.txt go (the current folder)",
    )


def main(args: argparse.Namespace) -> int:
    """Print the table and write both files; 1 if something was not done."""
    folder = Path(args.out)
    try:
        found = run_summary.load(args.runs)
        if not any(run.is_readable for run in found):
            raise HpcflowError(
                "\n".join(fault for run in found for fault in run.faults),
                hint="start it with `hpcflow run --run-dir DIR ...` and give DIR",
            )
        curves = run_summary.scalings(found)
        table = run_tables.as_text(found, curves)
        out(table, end="")
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "report.txt", table)
        scaling_plots.draw([run for run in found if run.is_readable], curves, folder / "report.png")
        out(f"\nwritten: {folder / 'report.png'}, {folder / 'report.txt'}")
    except MissingPackageError as error:
        err(f"hpcflow: {error}\n  written  {folder / 'report.txt'} alone")
        return 1
    except (HpcflowError, OSError) as error:
        err(f"hpcflow: {type(error).__name__}: {error}")
        return 1
    return int(any(run.faults for run in found))


def _write(path: Path, table: str) -> None:
    """Write under another name first: a pipe of this name is replaced, not waited for."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(table, encoding="utf-8")
    draft.replace(path)
