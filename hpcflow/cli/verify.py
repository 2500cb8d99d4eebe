"""Verify checkpoints: all of a folder, or the given one.

The command compares every byte of every file with its digest and the parts with the index. It
checks that HDF5 shows the same arrays and that no link leads to another file. Exit code: 0 if all
are valid, 1 if one is not (its damaged files and arrays are named), 2 if there is nothing to check.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from hpcflow.checkpoint.verify_checkpoint import (
    VerificationReport,
    checkpoint_candidates,
    verify_checkpoint,
)
from hpcflow.cli.terminal_output import err, out
from hpcflow.errors import HpcflowError
from hpcflow.platform.terminal_escaping import escape_line

MAX_NAMES = 10  # names per line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow verify`."""
    parser.add_argument("path", metavar="PATH", help="a checkpoint, or a folder of checkpoints")
    parser.add_argument("--json", action="store_true", help="write JSON")


def main(args: argparse.Namespace) -> int:
    """Print the result of each checkpoint, newest first.

    Exit code: 1 if one is damaged, 2 if there is none.
    """
    try:
        candidates = checkpoint_candidates(Path(args.path))
    except HpcflowError as error:
        err(f"hpcflow verify: {error}")
        return 2
    threads = len(os.sched_getaffinity(0))
    reports = [verify_checkpoint(candidate, threads) for candidate in candidates]
    if args.json:
        out(json.dumps([_report_data(report) for report in reports], indent=1))
    else:
        out("\n".join(row for report in reports for row in _rows(report)))
    return int(any(report.faults for report in reports))


def _report_data(report: VerificationReport) -> dict[str, Any]:
    """The result as plain data: texts, and the names of damaged files and arrays."""
    return {
        "checkpoint": str(report.path),
        "step": None if report.facts is None else report.facts["step"],
        "good": not report.faults,
        "faults": [fault.text for fault in report.faults],
        "files": sorted({fault.file for fault in report.faults}),
        "arrays": sorted({name for fault in report.faults for name in fault.arrays}),
    }


def _rows(report: VerificationReport) -> list[str]:
    """The result as text."""
    summary = _report_data(report)
    if not report.faults:
        assert report.facts is not None
        arrays, files = len(report.facts["arrays"]), len(report.facts.get("files", [])) + 1
        return [f"{report.path}: good: step {summary['step']:,}, {arrays} arrays in {files} files"]
    rows = [f"{report.path}: DAMAGED", *(f"  {escape_line(text)}" for text in summary["faults"])]
    rows.append(f"  files    {_shortened(summary['files'])}")
    return [*rows, *([f"  arrays   {_shortened(summary['arrays'])}"] if summary["arrays"] else [])]


def _shortened(names: list[str]) -> str:
    extra = len(names) - MAX_NAMES
    return ", ".join(map(escape_line, names[:MAX_NAMES])) + (
        f" and {extra} more" if extra > 0 else ""
    )
