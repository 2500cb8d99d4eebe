"""Artifact cache: folders of compiled plans, kernels and packs, shared by ranks and later runs.

A file starts with a digest of its name and content. A file that was truncated, changed or renamed
fails the check and is rebuilt. Some cached files are code that will run, so a cache folder must
belong to the user and must not be writable by others.
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
from hpcflow.platform.exception_translation import user_line, value_text
from hpcflow.platform.private_files import ownership_fault
from hpcflow.platform.rank_logging import logger

DIGEST = hashlib.sha256().digest_size
MOST_FILES = 2048  # limit in a folder; the oldest are removed
NAME = re.compile("[0-9a-f]{64}")  # file name without extension


def as_path(value: Any, label: str) -> Path:
    """The argument `value` as a path; ArgumentError, naming it `label`, if it is not a path."""
    if not isinstance(value, (str, os.PathLike)):
        raise ArgumentError(f"{label} is a path, not {value_text(value)}", line=user_line())
    return Path(value)


class CacheKind(NamedTuple):
    """What a folder caches, the file extension, the environment variable that names it, limit."""

    artifacts: str
    ending: str
    setting: str
    most: int = MOST_FILES


PLANS = CacheKind("plans", ".plan", "HPCFLOW_PLAN_CACHE")
KERNELS = CacheKind("kernels", ".o", "HPCFLOW_KERNEL_CACHE")
COSTS = CacheKind("costs", ".json", "HPCFLOW_COST_CACHE")  # of platform/machine_profile.py
PACKS = CacheKind("packs", ".pack", "HPCFLOW_PACK_CACHE", 8)  # of several megabytes


class CachedFile(NamedTuple):
    """A cached file, and its modification time in seconds since 1970."""

    path: Path
    nbytes: int
    modified: float


class CacheFolder:
    """The cached files with one extension in a folder."""

    def __init__(self, directory: Path, ending: str, most: int = MOST_FILES) -> None:
        self.directory, self.ending, self.most = directory, ending, most

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if it is missing or its digest does not match."""
        try:
            data = self.file(name).read_bytes()
        except OSError:
            return None
        digest, content = data[:DIGEST], data[DIGEST:]
        return content if self._digest(name, content) == digest else None

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically; a write error is ignored."""
        with contextlib.suppress(OSError):
            with tempfile.NamedTemporaryFile(dir=self.directory, delete=False) as file:
                try:
                    file.write(self._digest(name, data) + data)
                    file.flush()
                    os.replace(file.name, self.file(name))
                except OSError:
                    os.unlink(file.name)
                    raise
            if len(self._paths()) > self.most:
                for old in self.files()[: self.most // 4]:
                    old.path.unlink()

    def files(self) -> list[CachedFile]:
        """The cached files, oldest first."""
        cached_files = []
        for path in self._paths():
            with contextlib.suppress(OSError):  # removed by another process
                cached_files.append(self._cached_file(path))
        return sorted(cached_files, key=lambda one: one.modified)

    def find(self, name: str) -> CachedFile | None:
        """The file called `name`, or None."""
        try:
            return self._cached_file(self.file(name))
        except OSError:
            return None

    def turn(self, artifact: str) -> contextlib.AbstractContextManager[None]:
        """Lock: one process of a node at a time builds the `artifact` of this cache."""
        return file_locks.build_turn(artifact, self.directory)

    def _digest(self, name: str, content: bytes) -> bytes:
        """The digest of a file called `name` with `content`."""
        return hashlib.sha256(f"{name}{self.ending}\n".encode() + content).digest()

    @staticmethod
    def _cached_file(path: Path) -> CachedFile:
        stat = path.stat()
        return CachedFile(path, stat.st_size, stat.st_mtime)

    def _paths(self) -> list[Path]:
        """Files with names of the cache; other files in the folder are ignored."""
        return [
            path for path in self.directory.glob(f"*{self.ending}") if NAME.fullmatch(path.stem)
        ]

    def file(self, name: str) -> Path:
        """The path of the file called `name`, which may not exist."""
        return self.directory / f"{name}{self.ending}"


def cache_place(kind: CacheKind, path: str = "") -> CacheFolder | None:
    """The cache folder `path`, or that of the environment variable; it may not exist.

    The default is in the user's cache directory. None if it is "none".
    """
    path = path or os.environ.get(kind.setting, "")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(path or os.path.join(home, "hpcflow", kind.artifacts))
    return None if path == "none" else CacheFolder(folder, kind.ending, kind.most)


def own_cache(kind: CacheKind, path: str = "") -> CacheFolder | None:
    """The folder of `place`, created if missing.

    None, with a warning, also if it is not the user's own or cannot be created.
    """
    folder = cache_place(kind, path)
    if folder is None:
        return None
    directory = folder.directory
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder_stat = directory.stat()
    except OSError as error:
        why = error.strerror or str(error)
    else:
        why = ownership_fault(folder_stat)
        if not why:
            return folder
    logger.warning(
        "%s are not kept in %s (%s): each rank and run makes its own\n"
        "  next  set %s to a folder of yours with mode 700, or to none",
        f"compiled {kind.artifacts}",
        directory,
        why,
        kind.setting,
    )
    return None
