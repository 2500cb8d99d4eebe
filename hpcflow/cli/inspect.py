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
        found = checkpoint_candidates(path)
    except HpcflowError as error:
        err(f"hpcflow inspect: {error}")
        return 1
    bad: dict[str, list[str]] = {}
    for one in found:
        wrong = _problems(one)
        if not wrong:
            assert one.facts is not None
            told = {**_checkpoint_data(SavedCheckpoint(one.path, one.facts)), "damaged": bad}
            told["others"] = [c.path.name for c in found if c is not one]
            out(json.dumps(told, indent=1) if args.json else _text(told))
            return 1 if bad else 0
        bad[str(one.path)] = wrong
    if args.json:
        out(json.dumps({"checkpoint": None, "damaged": bad}, indent=1))
    else:
        out("\n".join(["no good checkpoint", *_damage(bad)]))
    return 1


def _problems(one: checkpoint_directory.CheckpointEntry) -> list[str]:
    if one.facts is None:
        return [one.error.message if one.error else "it cannot be read"]
    return SavedCheckpoint(one.path, one.facts).problems()


def _checkpoint_data(saved: SavedCheckpoint) -> dict[str, Any]:
    """The contents of a checkpoint as plain data."""
    facts = saved.facts
    kept = (
        *("step", "samples", "mode", "ranks", "servers", "replicas", "tasks_per_replica"),
        *("saved", "id", "form", "format_version", "graph_digest", "position", "metrics"),
    )
    arrays = sorted(saved.arrays.values())
    return {
        "checkpoint": str(saved.path),
        **{name: facts[name] for name in kept if name in facts},
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


def _text(told: dict[str, Any]) -> str:
    """The contents of a checkpoint as text."""
    samples = f", {told['samples']:,} samples" if "samples" in told else ""
    servers = f", {told['servers']} of them servers" if told["servers"] else ""
    rows = [
        f"{told['checkpoint']}: step {told['step']:,}{samples}",
        f"  saved    {told['saved']}, {told['mode']} mode, {told['ranks']} ranks{servers}",
        f"  form     {told['form']}, {len(told['files'])} files with data, format version "
        f"{told['format_version']}, id {told['id']}",
        "  digests  ok: every byte is as it was written",
    ]
    for position in told.get("position") or []:
        if position and "epoch" in position:
            left = sum(b - a for ranges in position.get("left", {}).values() for a, b in ranges)
            some = f", {left:,} samples left of epochs that have begun" if left else ""
            rows.append(f"  data     epoch {position['epoch'] + 1}{some}")
    if told.get("metrics"):
        values = (
            f"{escape_line(name)} {'not a finite number' if v is None else v}"
            for name, v in told["metrics"].items()
        )
        rows.append(f"  metrics  {', '.join(values)}")
    width = min(max((len(escape_line(name)) for name in told["variables"]), default=0), WIDEST)
    rows.append(f"  variables {len(told['variables'])}, {told['bytes']:,} bytes")
    for name, one in told["variables"].items():
        name = escape_line(name)
        shape = "[" + ", ".join(map(str, one["shape"])) + "]"
        rows.append(f"    {name:<{width}}  {one['dtype']:<8} {shape:<16} {one['bytes']:>14,}")
    if told["others"]:
        rows.append(f"  others   {', '.join(map(escape_line, told['others']))}")
    return "\n".join([*rows, *_damage(told["damaged"])])


def _damage(bad: dict[str, list[str]]) -> list[str]:
    """The damage of each invalid checkpoint."""
    return [f"  DAMAGED  {escape_line(text)}" for texts in bad.values() for text in texts]
