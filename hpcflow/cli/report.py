"""Show what runs have done: a table, and a picture of loss, throughput and scaling.

RUN is a run directory (`hpcflow run --run-dir DIR`). Runs of one script that differ in their ranks
are compared: strong scaling where the joined batch is the same, weak where that of a worker is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpcflow.errors import HpcflowError, MissingPackageError
from hpcflow.report import picture, runs, text


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
    out = Path(args.out)
    try:
        found = runs.load(args.runs)
        curves = runs.scalings(found)
        table = text.as_text(found, curves)
        print(table, end="")
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.txt").write_text(table, encoding="utf-8")
        picture.draw(found, curves, out / "report.png")
        print(f"\nwritten: {out / 'report.png'}, {out / 'report.txt'}")
    except MissingPackageError as error:
        print(f"hpcflow: {error}\n  written  {out / 'report.txt'} alone", file=sys.stderr)
        return 1
    except (HpcflowError, OSError) as error:
        print(f"hpcflow: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0
