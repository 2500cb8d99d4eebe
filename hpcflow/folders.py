"""Folders in which one rank keeps what it has made for its node's others and for later runs.

A file holds bytes behind a digest that tells a file that was cut short. Some of it is code that
will run, so a folder has to be the user's own, and writable by nobody else.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hpcflow.logs import logger

DIGEST = hashlib.sha256().digest_size
MOST_FILES = 2048  # in a folder; the oldest are removed
PATIENCE_S = 60.0  # to wait for the rank that makes something


class Folder:
    """The files of one ending in a folder."""

    def __init__(self, place: Path, ending: str) -> None:
        self.place, self.ending = place, ending

    def read(self, name: str) -> bytes | None:
        """What a file holds; None if it is not there, or not whole."""
        try:
            data = self._path(name).read_bytes()
        except OSError:
            return None
        digest, held = data[:DIGEST], data[DIGEST:]
        return held if hashlib.sha256(held).digest() == digest else None

    def write(self, name: str, held: bytes) -> None:
        """Put a file there as a whole; one that cannot be written is done without."""
        with contextlib.suppress(OSError):
            with tempfile.NamedTemporaryFile(dir=self.place, delete=False) as file:
                file.write(hashlib.sha256(held).digest() + held)
            os.replace(file.name, self._path(name))
            files = list(self.place.glob(f"*{self.ending}"))
            if len(files) > MOST_FILES:
                files.sort(key=lambda file: file.stat().st_mtime)
                for old in files[: MOST_FILES // 4]:
                    old.unlink()

    def _path(self, name: str) -> Path:
        return self.place / f"{name}{self.ending}"


def own(path: str, what: str, ending: str, setting: str) -> Folder | None:
    """The folder `path`, by default that of the environment's `setting`; made if need be.

    Without either it is `what` in the user's folder of caches. None if it is "none", or not the
    user's own, which one line says.
    """
    path = path or os.environ.get(setting, "")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = Path(path or os.path.join(home, "hpcflow", what))
    if path == "none":
        return None
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.stat()
    except OSError as error:
        why = error.strerror or str(error)
    else:
        if found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return Folder(place, ending)
        why = "others may write there"
    logger.warning(
        "%s are not kept in %s (%s): each rank and run makes its own\n"
        "  next  set %s to a folder of yours with mode 700, or to none",
        f"compiled {what}",
        place,
        why,
        setting,
    )
    return None


@contextlib.contextmanager
def turn(of: str) -> Iterator[None]:
    """One process of a node at a time makes what is called `of`; the others wait, then look again.

    The lock is a file of the node, so that nodes do not ask a file system they share for it.
    """
    name = os.path.join(tempfile.gettempdir(), f"hpcflow-{os.geteuid()}-{of}.lock")
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(name, flags, 0o600)
    except OSError:  # somebody else's, or there is no room: each makes its own
        yield
        return
    try:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.01)
        yield
    finally:
        os.close(file)
