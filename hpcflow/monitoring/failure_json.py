"""`failure.json`: what the rank that failed first says of it. One for a run, whoever else fails."""

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
REPLACED = ("manifest.json", "result.json")  # by the training session; a folder there stays


def now() -> str:
    """The time, as failures are dated."""
    return datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")


def write(folder: Path, facts: dict[str, Any]) -> bool:
    """Write `failure.json` in `folder`, as a whole, unless there is one; whether it is the first.

    True too where it cannot be written: nobody has told of a failure then.
    """
    path = folder / NAME
    draft = folder / f".{NAME}.{os.uname().nodename}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        with draft.open("x") as file:  # follows no link
            file.write(json.dumps(facts, indent=1) + "\n")
    except OSError:  # a full disk: stderr has it
        return True
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError:
        return _without_links(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return True


def _without_links(draft: Path, path: Path) -> bool:
    """The same on file systems that have none: for a moment the file may be empty."""
    try:
        with path.open("x") as file:
            file.write(draft.read_text())
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def prepare(run_dir: str) -> None:
    """A run begins: make and claim its directory; an earlier run's failure gets another name.

    Nothing where the run directory has no name: no failure is written there.
    Errors: LaunchError if another job uses it, or no file can be made in it: results would be lost
            at the end.
    """
    if not run_dir:
        return
    folder = Path(run_dir)
    draft = folder / f".{NAME}.{os.uname().nodename}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_text("\n")
        draft.unlink()
        run_directory_lock.claim(folder, run_directory_lock.RUN_DIR)
        with contextlib.suppress(FileNotFoundError):
            os.replace(folder / NAME, folder / EARLIER)
        for name in REPLACED:
            if (folder / name).is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), folder / name)
    except OSError as error:
        raise LaunchError(
            f"the run directory {run_dir!r} cannot be written: {error}",
            hint="free it, or give another by --run-dir",
        ) from error
