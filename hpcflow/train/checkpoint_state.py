"""Checkpoint state: TensorFlow 1's file "checkpoint", which names the newest checkpoint."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.errors import CheckpointError, HpcflowError
from hpcflow.platform.record_files import read_text

NAME = "checkpoint"  # file name in the checkpoint folder
_LINE = re.compile(r'(all_)?model_checkpoint_paths?: (".*")')


def update_checkpoint_state(
    save_dir: str | Path,
    model_checkpoint_path: str | Path,
    all_model_checkpoint_paths: Sequence[str | Path] | None = None,
    latest_filename: str | None = None,
) -> None:
    """Set the newest checkpoint of `save_dir` to `model_checkpoint_path`.

    `latest_checkpoint` and `get_checkpoint_state` return it until another checkpoint is written.

    Ranks:  sufficient on the chief.
    Errors: CheckpointError if the file cannot be written.
    """
    newest, place = Path(model_checkpoint_path), Path(save_dir)
    every = [Path(path) for path in all_model_checkpoint_paths or ()]
    if newest not in every:
        every.append(newest)
    lines = [f"model_checkpoint_path: {_resolve_path(newest, place)}"]
    lines += [f"all_model_checkpoint_paths: {_resolve_path(path, place)}" for path in every]
    file = place / (latest_filename or NAME)
    try:
        place.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.name}.tmp")
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.replace(part, file)
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be written: {error.strerror or error}", hint="give another save_dir"
        ) from None


def listed_checkpoints(directory: Path, latest_filename: str | None = None) -> list[Path]:
    """The checkpoints that the file names, newest last; none if the file is out of date.

    It is out of date if its newest checkpoint is missing, or another one was written later.
    """
    file = directory / (latest_filename or NAME)
    newest, every = "", []
    try:
        for line in (read_text(file) or "").splitlines():
            if match := _LINE.fullmatch(line.strip()):
                path = str(directory / json.loads(match[2]))
                if match[1]:
                    every.append(path)
                else:
                    newest = path
        written = os.path.getmtime(file)
        later = [
            entry.path
            for entry in checkpoint_directory.find_checkpoints(directory)
            if _time(entry.path) > written
        ]
    except (HpcflowError, OSError, ValueError, RecursionError, TypeError):
        return []
    if not newest or any(str(path) != newest for path in later) or not _is_there(newest):
        return []
    return [*(Path(path) for path in every if path != newest and _is_there(path)), Path(newest)]


def _resolve_path(path: Path, directory: Path) -> str:
    """A path as stored in the file: relative to the folder if inside it."""
    inside = path.absolute().is_relative_to(directory.absolute())
    return json.dumps(
        str(path.absolute().relative_to(directory.absolute()) if inside else path.absolute())
    )


def _is_there(path: str) -> bool:
    return checkpoint_directory.index_file(Path(path)).is_file()


def _time(path: Path) -> float:
    return os.path.getmtime(checkpoint_directory.index_file(path))
