"""Show the contents of a checkpoint: the given one, or the newest valid one of a folder.

Every byte is verified. Exit code: 1 if there is no valid checkpoint, or if a newer one than that
shown is damaged; its damaged files are listed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.checkpoint.verify_checkpoint import checkpoint_candidates
from hpcflow.cli.terminal_output import err, out
from hpcflow.errors import HpcflowError
from hpcflow.platform.terminal_escaping import escape_line

WIDEST = 60  # longer names do not widen the column


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow inspect`."""
    parser.add_argument("path", metavar="DIR|FILE", help="a checkpoint, or a folder of checkpoints")
    parser.add_argument("--json", action="store_true", help="write JSON")


def main(args: argparse.Namespace) -> int:
    """Print the contents; the exit code is 1 if a checkpoint is damaged or none is valid."""
    path = Path(args.path)
    try:
        candidates = checkpoint_candidates(path)
    except HpcflowError as error:
        err(f"hpcflow inspect: {error}")
        return 1
    bad: dict[str, list[str]] = {}
    for entry in candidates:
        wrong = _problems(entry)
        if not wrong:
            assert entry.facts is not None
            report = {**_checkpoint_data(SavedCheckpoint(entry.path, entry.facts)), "damaged": bad}
            report["others"] = [c.path.name for c in candidates if c is not entry]
            out(json.dumps(report, indent=1) if args.json else _text(report))
            return 1 if bad else 0
        bad[str(entry.path)] = wrong
    if args.json:
        out(json.dumps({"checkpoint": None, "damaged": bad}, indent=1))
    else:
        out("\n".join(["no good checkpoint", *_damage(bad)]))
    return 1


def _problems(entry: checkpoint_directory.CheckpointEntry) -> list[str]:
    if entry.facts is None:
        return [entry.error.message if entry.error else "it cannot be read"]
    return SavedCheckpoint(entry.path, entry.facts).problems()


def _checkpoint_data(saved: SavedCheckpoint) -> dict[str, Any]:
    """The contents of a checkpoint as plain data."""
    facts = saved.facts
    fields = (
        *("step", "samples", "mode", "ranks", "servers", "replicas", "tasks_per_replica"),
        *("saved", "id", "form", "format_version", "graph_digest", "position", "metrics"),
    )
    arrays = sorted(saved.arrays.values())
    return {
        "checkpoint": str(saved.path),
        **{name: facts[name] for name in fields if name in facts},
        "files": [record["file"] for record in saved.files],
        "bytes": sum(array.nbytes for array in arrays),
        "variables": {
            array.name: {
                "shape": list(array.shape),
                "dtype": str(np.dtype(array.dtype)),
                "bytes": array.nbytes,
            }
            for array in arrays
        },
        "digests": "ok",
    }


def _text(report: dict[str, Any]) -> str:
    """The contents of a checkpoint as text."""
    samples = f", {report['samples']:,} samples" if "samples" in report else ""
    servers = f", {report['servers']} of them servers" if report["servers"] else ""
    rows = [
        f"{report['checkpoint']}: step {report['step']:,}{samples}",
        f"  saved    {report['saved']}, {report['mode']} mode, {report['ranks']} ranks{servers}",
        f"  form     {report['form']}, {len(report['files'])} files with data, format version "
        f"{report['format_version']}, id {report['id']}",
        "  digests  ok: every byte is as it was written",
    ]
    for position in report.get("position") or []:
        if position and "epoch" in position:
            unread = sum(b - a for ranges in position.get("left", {}).values() for a, b in ranges)
            some = f", {unread:,} samples left of epochs that have begun" if unread else ""
            rows.append(f"  data     epoch {position['epoch'] + 1}{some}")
    if report.get("metrics"):
        values = (
            f"{escape_line(name)} {'not a finite number' if v is None else v}"
            for name, v in report["metrics"].items()
        )
        rows.append(f"  metrics  {', '.join(values)}")
    width = min(max((len(escape_line(name)) for name in report["variables"]), default=0), WIDEST)
    rows.append(f"  variables {len(report['variables'])}, {report['bytes']:,} bytes")
    for name, array in report["variables"].items():
        name = escape_line(name)
        shape = "[" + ", ".join(map(str, array["shape"])) + "]"
        rows.append(f"    {name:<{width}}  {array['dtype']:<8} {shape:<16} {array['bytes']:>14,}")
    if report["others"]:
        rows.append(f"  others   {', '.join(map(escape_line, report['others']))}")
    return "\n".join([*rows, *_damage(report["damaged"])])


def _damage(bad: dict[str, list[str]]) -> list[str]:
    """The damage of each invalid checkpoint."""
    return [f"  DAMAGED  {escape_line(text)}" for texts in bad.values() for text in texts]
