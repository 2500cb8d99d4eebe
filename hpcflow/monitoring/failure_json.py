"""`failure.json`: the report of the first failure of a run; later failures are not recorded."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
from pathlib import Path
from typing import Any

from hpcflow.errors import LaunchError
from hpcflow.monitoring import run_directory_lock

NAME, EARLIER = "failure.json", "failure.earlier.json"
REPLACED = ("manifest.json", "result.json")  # replaced by the training session, unless folders


def timestamp() -> str:
    """The current local time in ISO format, for failure reports."""
    return datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")


def write_failure(folder: Path, facts: dict[str, Any]) -> bool:
    """Write `failure.json` in `folder` atomically unless it exists; whether it is the first.

    True also if it cannot be written: then no failure has been recorded.
    """
    path = folder / NAME
    draft = folder / f".{NAME}.{os.uname().nodename}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        with draft.open("x") as file:  # does not follow links
            file.write(json.dumps(facts, indent=1) + "\n")
    except OSError:  # full disk; stderr has the report
        return True
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError:
        return _open_without_links(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return True


def _open_without_links(draft: Path, path: Path) -> bool:
    """`write` on file systems without hard links: for a moment the file may be empty."""
    try:
        with path.open("x") as file:
            file.write(draft.read_text())
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def prepare_folder(run_dir: str) -> None:
    """Create and claim the run directory of a new run; rename an earlier `failure.json`.

    Does nothing if `run_dir` is empty: then no `failure.json` is written.
    Errors: LaunchError if another job uses it, or no file can be created in it, since results would
            be lost at the end.
    """
    if not run_dir:
        return
    folder = Path(run_dir)
    draft = folder / f".{NAME}.{os.uname().nodename}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_text("\n")
        draft.unlink()
        run_directory_lock.claim_directory(folder, run_directory_lock.RUN_DIR)
        with contextlib.suppress(FileNotFoundError):
            os.replace(folder / NAME, folder / EARLIER)
        for name in REPLACED:
            if (folder / name).is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), folder / name)
    except OSError as error:
        raise LaunchError(
            f"the run directory {run_dir!r} cannot be written: {error.strerror or error}",
            hint="free it, or give another by --run-dir",
        ) from error
