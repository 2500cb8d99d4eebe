"""Record files that may be damaged or foreign: read completely, or an error with the reason.

Reading does not block on a pipe, and does not read more than a size limit into memory.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from hpcflow.errors import HpcflowError

MOST_BYTES = 64 << 20


def open_plain(path: str | os.PathLike[str]) -> int:
    """A read descriptor of a regular file; follows links.

    Errors: OSError, also for a pipe, a device or a folder.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode):
        os.close(file)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise OSError(None, f"it is {kind}, no plain file", os.fspath(path))
    return file


def read_text(path: Path, max_bytes: int = MOST_BYTES) -> str | None:
    """The content of a text file; None if it does not exist.

    Errors: HpcflowError naming the file if it cannot be read, is not a regular file, has more than
            `max_bytes` bytes, or is not UTF-8.
    """
    try:
        with open(open_plain(path), "rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable_error(path, error.strerror or str(error)) from None
    if len(data) > max_bytes:
        raise unreadable_error(path, f"it has more than {max_bytes:,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise unreadable_error(path, f"it is no UTF-8 text (at byte {error.start:,})") from None


def read_json_object(
    path: Path, max_bytes: int = MOST_BYTES, unique: bool = False
) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file does not exist.

    Errors: HpcflowError naming the file if it cannot be read, has more than `max_bytes` bytes, or
            is not a JSON object; with `unique`, also if an object has a name twice.
    """
    text = read_text(path, max_bytes)
    if text is None:
        return None
    try:
        parsed = json.loads(text, object_pairs_hook=_unique_names if unique else None)
    except (ValueError, RecursionError) as error:
        reason = "it is empty" if not text.strip() else f"it is no JSON ({error})"
        raise unreadable_error(path, reason) from None
    if not isinstance(parsed, dict):
        raise unreadable_error(path, "it is no JSON of an object")
    return parsed


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs. Errors: ValueError if it has a name twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"an object has the name {name!r} twice")
        found[name] = value
    return found


def unreadable_error(path: str | os.PathLike[str], reason: str) -> HpcflowError:
    """The error about a file that cannot be read or decoded."""
    return HpcflowError(f"{os.fspath(path)} cannot be read: {reason}")
