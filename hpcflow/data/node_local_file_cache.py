"""Copies of files on the node's own disk: one process of a node makes them, the others wait."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hpcflow.platform import file_locks
from hpcflow.platform.private_files import is_own_folder, make_folder
from hpcflow.platform.rank_logging import logger, say_once

SPARE = 64 << 20  # bytes of the disk that are left to others


def folder() -> Path:
    """Where copies are: HPCFLOW_CACHE_DIR, else a folder of this user's in TMPDIR.

    Also a folder of this user's in HPCFLOW_CACHE_DIR, if others may write there.
    """
    given = os.environ.get("HPCFLOW_CACHE_DIR", "")
    base = Path(os.path.realpath(given or tempfile.gettempdir()))
    return base if given and is_own_folder(base) else base / f"hpcflow-cache-{os.geteuid()}"


def local_copy(path: Path, check: Callable[[Path], None]) -> Path:
    """A copy of the file on this node, made now if need be; `path` itself if there is no room.

    A file that changes has another copy. `check` raises if the original cannot be read.
    Ranks: any may call it at any time; those of one node wait for the one who copies.
    """
    check(path)
    try:
        base = _own()
        facts = path.stat()
        told = f"{path.resolve()}|{facts.st_size}|{facts.st_mtime_ns}"
        key = hashlib.blake2b(told.encode(), digest_size=12).hexdigest()
        copy = base / f"{path.stem}-{key}{path.suffix}"
        if _is_whole(copy, facts):
            return copy
        since = time.time()
        with file_locks.alone(base / f"{key}.lock", f"the copy of {path}") as notes:
            is_there = _is_whole(copy, facts) or _fill(path, copy, notes, since)
            return copy if is_there else path
    except OSError as error:
        say_once(f"no copy of {path} on this node: {error}; it is read where it is")
        return path


def _own() -> Path:
    """The folder, made if need be; OSError if someone else has put it there."""
    given = os.environ.get("HPCFLOW_CACHE_DIR")
    if given:
        Path(given).mkdir(mode=0o700, parents=True, exist_ok=True)
    base = folder()
    make_folder(base)
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


def _failed(notes: int) -> float:
    """When there was no room, in seconds since 1970; 0 if that is not written there."""
    try:
        return float(os.pread(notes, file_locks.NOTE_BYTES, 0).strip(b"\0") or 0)
    except ValueError:
        return 0.0


def _fill(path: Path, copy: Path, notes: int, since: float) -> bool:
    """Copy, aside and then by renaming; False if the disk has no room for it.

    When it had none for the process before, those that have waited for it do not try again.
    """
    if _failed(notes) >= since:
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
        os.lseek(notes, 0, os.SEEK_SET)
        os.write(notes, f"{time.time():<{file_locks.NOTE_BYTES}.6f}".encode())
        say_once(f"no copy of {path} in {copy.parent}: {error}; it is read where it is")
        return False
