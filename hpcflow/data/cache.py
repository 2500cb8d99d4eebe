"""Copies of files on the node's own disk: one process of a node makes them, the others wait."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcflow.logs import logger, say_once

SPARE = 64 << 20  # bytes of the disk that are left to others


def folder() -> Path:
    """Where copies are: HPCFLOW_CACHE_DIR, else a folder of this user's in TMPDIR."""
    given = os.environ.get("HPCFLOW_CACHE_DIR")
    return Path(given) if given else Path(tempfile.gettempdir()) / f"hpcflow-cache-{os.getuid()}"


def local_copy(path: Path, check: Callable[[Path], None]) -> Path:
    """A copy of the file on this node, made now if need be; `path` itself if there is no room.

    A file that changes has another copy. `check` raises if the original cannot be read.
    Ranks: any may call it at any time; those of one node wait in the kernel for the one who copies.
    """
    check(path)
    try:
        base = _own(folder())
        facts = path.stat()
        told = f"{path.resolve()}|{facts.st_size}|{facts.st_mtime_ns}"
        key = hashlib.blake2b(told.encode(), digest_size=12).hexdigest()
        copy = base / f"{path.stem}-{key}{path.suffix}"
        if _is_whole(copy, facts):
            return copy
        since = time.time()
        with _alone(base / f"{key}.lock") as notes:
            is_there = _is_whole(copy, facts) or _fill(path, copy, notes, since)
            return copy if is_there else path
    except OSError as error:
        say_once(f"no copy of {path} on this node: {error}; it is read where it is")
        return path


def _own(base: Path) -> Path:
    """The folder, made if need be; not one that someone else has put there."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.environ.get("HPCFLOW_CACHE_DIR"):
        return base
    facts = base.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise PermissionError(f"{base} belongs to another user: set HPCFLOW_CACHE_DIR")
    if facts.st_mode & 0o022:
        raise PermissionError(f"others may write into {base}: chmod 700 {base}")
    return base


def _is_whole(copy: Path, original: os.stat_result) -> bool:
    """Whether the copy is there with all its bytes, which a node that lost its power may lack.

    It has the original's time of change too, so a copy of another file, or one that was written to
    later, is none. One that another user has put there is none: its name can be guessed.
    """
    try:
        facts = copy.lstat()
    except FileNotFoundError:
        return False
    mine = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
    changed = original.st_mtime_ns
    of_this = facts.st_mtime_ns in (changed, changed - changed % 10**9)  # some disks keep seconds
    return mine and of_this and facts.st_size == original.st_size


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[int]:
    """Only one process of the node is inside; a process that dies inside lets the next in."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def _fill(path: Path, copy: Path, notes: int, since: float) -> bool:
    """Copy, aside and then by renaming; False if the disk has no room for it.

    When it had none for the process before, those that have waited for it do not try again.
    """
    failed = os.pread(notes, 32, 0)
    if failed and float(failed) >= since:
        return False
    facts, free = path.stat(), shutil.disk_usage(copy.parent).free
    size = facts.st_size
    draft = copy.with_name(f".{copy.name}.{os.getpid()}")
    try:
        for old in copy.parent.glob(f".{copy.name}.*"):  # of a process that died here
            old.unlink()
        if free < size + SPARE:
            raise OSError(f"{free >> 20:,} MiB are free, it has {size >> 20:,} MiB")
        begun = time.monotonic()
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # no one else's
        shutil.copyfile(path, draft)
        os.utime(draft, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        draft.replace(copy)
        logger.info("copied %s to %s in %.1f s", path, copy, time.monotonic() - begun)
        return True
    except OSError as error:
        draft.unlink(missing_ok=True)
        os.pwrite(notes, f"{time.time():<32.6f}".encode(), 0)
        say_once(f"no copy of {path} in {copy.parent}: {error}; it is read where it is")
        return False
