"""Compare two checkpoints: missing arrays, shapes, dtypes, values, and other saved data.

An argument is a checkpoint, or a folder, which stands for its newest valid checkpoint. The two may
have different formats and come from different numbers of ranks. Exit code: 0 if they are equal, 1
if they differ, 2 if one cannot be read.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from hpcflow.checkpoint.compare_checkpoints import CheckpointDifference, diff, job_differences
from hpcflow.cli.export import newest
from hpcflow.cli.terminal_output import err, error_text, out
from hpcflow.errors import HpcflowError, LaunchError
from hpcflow.platform.terminal_escaping import escape_line

ARRAYS = ("missing", "shape", "dtype", "values")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow diff`."""
    parser.add_argument("a", metavar="A", help="a checkpoint, or a folder of checkpoints")
    parser.add_argument("b", metavar="B", help="the other checkpoint or folder")
    parser.add_argument("--arrays", action="store_true", help="compare arrays only")
    parser.add_argument(
        "--rtol", type=float, default=0.0, metavar="R", help="relative tolerance (0)"
    )
    parser.add_argument(
        "--atol", type=float, default=0.0, metavar="A", help="absolute tolerance (0)"
    )
    parser.add_argument("--json", action="store_true", help="write JSON")


def main(args: argparse.Namespace) -> int:
    """Print the differences."""
    try:
        if not all(math.isfinite(t) and t >= 0 for t in (args.rtol, args.atol)):
            raise LaunchError("a tolerance must be a number of at least 0")
        a, b = newest(Path(args.a)), newest(Path(args.b))
        diffs = list(diff(a, b, args.rtol, args.atol))
    except (HpcflowError, OSError) as error:
        err(f"hpcflow diff: {error_text(error)}")
        return 2
    if args.arrays:
        diffs = [entry for entry in diffs if entry.kind in ARRAYS]
    saved = job_differences(a, b)
    if args.json:
        report = {"a": str(a.path), "b": str(b.path), "equal": not diffs, "saved_by": saved}
        rows = [{k: _json_value(v) for k, v in entry._asdict().items()} for entry in diffs]
        out(json.dumps({**report, "differences": rows}, indent=1))
        return int(bool(diffs))
    out(f"A {a.path} (step {a.facts['step']:,})\nB {b.path} (step {b.facts['step']:,})")
    for name, (in_a, in_b) in saved.items():
        out(f"  saved with  {name} {in_a} and {in_b}")
    out("\n".join(map(row, diffs)) if diffs else "equal")
    return int(bool(diffs))


def _json_value(value: object) -> object:
    """A value for JSON, which has no NaN and no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def row(difference: CheckpointDifference) -> str:
    """A difference as text."""
    return f"  {difference.kind:<9} {escape_line(difference.name)}: {escape_line(difference.text)}"
