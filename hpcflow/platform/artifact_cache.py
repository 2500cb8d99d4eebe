"""Folders in which one rank keeps what it has made for its node's others and for later runs.

A file holds bytes behind a digest of its name and these bytes, so one that was cut short, changed,
or given another file's name is made anew. Some of it is code that will run, so a folder has to be
the user's own, and writable by nobody else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hpcflow.errors import ArgumentError
from hpcflow.platform import file_locks
from hpcflow.platform.exception_translation import shown, user_line
from hpcflow.platform.private_files import fault
from hpcflow.platform.rank_logging import logger

DIGEST = hashlib.sha256().digest_size
MOST_FILES = 2048  # in a folder; the oldest are removed
NAME = re.compile("[0-9a-f]{64}")  # of a file, without its ending


def path_of(given: Any, what: str) -> Path:
    """An argument that is a path; ArgumentError, which calls it `what`, for anything else."""
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError(f"{what} is a path, not {shown(given)}", line=user_line())
    return Path(given)


class Kind(NamedTuple):
    """What a folder keeps, the ending of its files, and what in the environment names it."""

    what: str
    ending: str
    setting: str


PLANS = Kind("plans", ".plan", "HPCFLOW_PLAN_CACHE")
KERNELS = Kind("kernels", ".o", "HPCFLOW_KERNEL_CACHE")


class Kept(NamedTuple):
    """A file of a folder, and when it was made, in seconds since 1970."""

    path: Path
    nbytes: int
    made: float


class Folder:
    """The files of one ending in a folder."""

    def __init__(self, place: Path, ending: str) -> None:
        self.place, self.ending = place, ending

    def read(self, name: str) -> bytes | None:
        """What a file holds; None if it is not there, not whole, or was written by another name."""
        try:
            data = self.file(name).read_bytes()
        except OSError:
            return None
        digest, held = data[:DIGEST], data[DIGEST:]
        return held if self._digest(name, held) == digest else None

    def write(self, name: str, held: bytes) -> None:
        """Put a file there as a whole; one that cannot be written is done without."""
        with contextlib.suppress(OSError):
            with tempfile.NamedTemporaryFile(dir=self.place, delete=False) as file:
                try:
                    file.write(self._digest(name, held) + held)
                    file.flush()
                    os.replace(file.name, self.file(name))
                except OSError:
                    os.unlink(file.name)
                    raise
            if len(self._paths()) > MOST_FILES:
                for old in self.files()[: MOST_FILES // 4]:
                    old.path.unlink()

    def files(self) -> list[Kept]:
        """What is kept, the oldest first."""
        found = []
        for path in self._paths():
            with contextlib.suppress(OSError):  # another process has removed it
                found.append(self._kept(path))
        return sorted(found, key=lambda one: one.made)

    def find(self, name: str) -> Kept | None:
        """The file that is called `name`, if it is there."""
        try:
            return self._kept(self.file(name))
        except OSError:
            return None

    def turn(self, of: str) -> contextlib.AbstractContextManager[None]:
        """One process of a node at a time makes what is called `of` and is to be kept here."""
        return file_locks.turn(of, self.place)

    def _digest(self, name: str, held: bytes) -> bytes:
        """The first bytes of the file that is called `name` and holds `held`."""
        return hashlib.sha256(f"{name}{self.ending}\n".encode() + held).digest()

    @staticmethod
    def _kept(path: Path) -> Kept:
        stat = path.stat()
        return Kept(path, stat.st_size, stat.st_mtime)

    def _paths(self) -> list[Path]:
        """All files of ours; others that are in the folder are not."""
        return [path for path in self.place.glob(f"*{self.ending}") if NAME.fullmatch(path.stem)]

    def file(self, name: str) -> Path:
        """Where the file that is called `name` is, if it is there."""
        return self.place / f"{name}{self.ending}"


def place(kind: Kind, path: str = "") -> Folder | None:
    """The folder `path`, by default the one that the environment names, which may not be there.

    Without either it is one in the user's folder of caches. None if it is "none".
    """
    path = path or os.environ.get(kind.setting, "")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    named = Path(path or os.path.join(home, "hpcflow", kind.what))
    return None if path == "none" else Folder(named, kind.ending)


def own(kind: Kind, path: str = "") -> Folder | None:
    """The same folder, made if need be.

    None also if it is not the user's own, which one line says.
    """
    folder = place(kind, path)
    if folder is None:
        return None
    where = folder.place
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = where.stat()
    except OSError as error:
        why = error.strerror or str(error)
    else:
        why = fault(found)
        if not why:
            return folder
    logger.warning(
        "%s are not kept in %s (%s): each rank and run makes its own\n"
        "  next  set %s to a folder of yours with mode 700, or to none",
        f"compiled {kind.what}",
        where,
        why,
        kind.setting,
    )
    return None
