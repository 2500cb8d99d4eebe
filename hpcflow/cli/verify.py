"""Check checkpoints in full: all of a folder, or the one that is named.

Every byte of every file against its digest, the parts against the index, and that HDF5 shows the
same arrays and no link leads elsewhere. The exit code is 0 if all are good, 1 if one is not: its
damaged files and arrays are named; 2 if there is nothing to check.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from hpcflow.checkpoint.verify_checkpoint import Report, candidates, verify
from hpcflow.cli.terminal_output import err, out
from hpcflow.errors import HpcflowError
from hpcflow.platform.terminal_escaping import one_line

MOST = 10  # names in a line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow verify`."""
    parser.add_argument("path", metavar="PATH", help="a folder of checkpoints, or one of them")
    parser.add_argument("--json", action="store_true", help="write JSON")


def main(args: argparse.Namespace) -> int:
    """Print what is found, newest first; 1 if something is wrong, 2 if there is nothing."""
    try:
        found = candidates(Path(args.path))
    except HpcflowError as error:
        err(f"hpcflow verify: {error}")
        return 2
    threads = len(os.sched_getaffinity(0))
    reports = [verify(one, threads) for one in found]
    if args.json:
        out(json.dumps([_told(report) for report in reports], indent=1))
    else:
        out("\n".join(row for report in reports for row in _rows(report)))
    return int(any(report.faults for report in reports))


def _told(report: Report) -> dict[str, Any]:
    """What was found, as plain data: the texts, and the damaged files and arrays by name."""
    return {
        "checkpoint": str(report.path),
        "step": None if report.facts is None else report.facts["step"],
        "good": not report.faults,
        "faults": [fault.text for fault in report.faults],
        "files": sorted({fault.file for fault in report.faults}),
        "arrays": sorted({name for fault in report.faults for name in fault.arrays}),
    }


def _rows(report: Report) -> list[str]:
    """The same for people."""
    told = _told(report)
    if not report.faults:
        assert report.facts is not None
        arrays, files = len(report.facts["arrays"]), len(report.facts.get("files", [])) + 1
        return [f"{report.path}: good: step {told['step']:,}, {arrays} arrays in {files} files"]
    rows = [f"{report.path}: DAMAGED", *(f"  {one_line(text)}" for text in told["faults"])]
    rows.append(f"  files    {_some(told['files'])}")
    return [*rows, *([f"  arrays   {_some(told['arrays'])}"] if told["arrays"] else [])]


def _some(names: list[str]) -> str:
    more = len(names) - MOST
    return ", ".join(map(one_line, names[:MOST])) + (f" and {more} more" if more > 0 else "")
