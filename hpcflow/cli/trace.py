"""Merge what a job that ended badly has left of its trace into one file for Perfetto.

Each rank records its part on a local disk of its host. A job that ends in order merges them itself,
and `hpcflow run -n` those of its own host after a failure. Give the files rank-N.part, folders of
them, or what the setting `trace` was, for the parts on this host.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcflow.cli.terminal_output import err, error_text, out
from hpcflow.errors import DataError, HpcflowError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow trace`."""
    parser.add_argument("parts", nargs="+", metavar="PART", help="a part, a folder, or a trace")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="file to write")


def main(args: argparse.Namespace) -> int:
    """Merge the parts. Exit code: 1 if there are none, or if they cannot be merged."""
    from hpcflow.runtime.profile.trace_merge import merge_parts

    try:
        parts = [part for name in args.parts for part in parts_of(name)]
        trace = merge_parts(parts, Path(args.output))
    except (HpcflowError, OSError) as error:
        err(f"hpcflow trace: {error_text(error)}")
        return 1
    out(
        f"{trace.path}: {len(trace.ranks)} of {trace.size} ranks, "
        f"{trace.messages} messages, {trace.sums} sums"
    )
    return 0


def parts_of(name: str) -> list[Path]:
    """The parts that an argument means. Errors: DataError if there are none."""
    from hpcflow.runtime.profile import trace_part

    path = Path(name)
    if path.suffix == ".part":
        return [path]
    folder = path if path.is_dir() else trace_part.node_folder(name)
    parts = trace_part.parts_in(folder)
    if not parts:
        raise DataError(
            f"{name}: there are no parts of a trace in {folder}",
            hint="give a folder that has files rank-N.part; a job that ended in order has none",
        )
    return parts
