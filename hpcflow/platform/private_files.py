"""Private folders and files of this user, under names that other users of the node can guess.

In a folder for temporary files any user may create a folder, link or pipe under the expected name.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def is_own_folder(path: str | os.PathLike[str]) -> bool:
    """Whether it is a folder, not a link, of this user, and not writable by others."""
    try:
        return not ownership_fault(os.lstat(path))
    except OSError:
        return False


def ownership_fault(facts: os.stat_result) -> str:
    """Why a folder is not this user's own or is writable by others; "" if it is private."""
    if stat.S_ISLNK(facts.st_mode):
        return "it is a link"
    if not stat.S_ISDIR(facts.st_mode):
        return "it is no folder"
    if facts.st_uid != os.geteuid():
        return f"it belongs to another user (uid {facts.st_uid})"
    return "others may write there" if facts.st_mode & _OTHERS_WRITE else ""


def make_folder(path: str | os.PathLike[str]) -> None:
    """Create a folder with mode 0700 if it does not exist.

    Errors: OSError if it cannot be created, or an existing one is not private.
    """
    with contextlib.suppress(FileExistsError):
        os.makedirs(path, mode=0o700)
    why = ownership_fault(os.lstat(path))
    if why:
        raise PermissionError(f"{os.fspath(path)} is not this user's own folder: {why}")


@contextlib.contextmanager
def open_private(folder: str | os.PathLike[str], name: str) -> Iterator[int]:
    """Open a file of a private folder for reading and writing; created with mode 0600.

    The file is opened relative to a descriptor of the folder, so replacing the folder meanwhile has
    no effect.

    Errors: OSError for a folder or file that is another user's, a link, or not a regular file.
    """
    path = os.path.join(folder, name)
    make_folder(folder)
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        why = ownership_fault(os.fstat(inside))
        if why:
            raise PermissionError(f"{os.fspath(folder)} is not this user's own folder: {why}")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, 0o600, dir_fd=inside)
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(inside)
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise PermissionError(f"{path} is not a plain file of this user's")
        yield file
    finally:
        os.close(file)
