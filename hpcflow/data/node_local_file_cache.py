"""Node-local file cache: one process of a node copies a file to its disk, the others wait."""

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

RESERVED_DISK_BYTES = 64 << 20  # bytes of the disk that stay free for others


def cache_folder() -> Path:
    """The cache folder: HPCFLOW_CACHE_DIR, else a folder of this user in TMPDIR.

    If others may write to HPCFLOW_CACHE_DIR, it is a folder of this user in it.
    """
    setting = os.environ.get("HPCFLOW_CACHE_DIR", "")
    base = Path(os.path.realpath(setting or tempfile.gettempdir()))
    return base if setting and is_own_folder(base) else base / f"hpcflow-cache-{os.geteuid()}"


def local_copy(path: Path, check: Callable[[Path], None]) -> Path:
    """The path of a copy on this node, made now if needed; `path` itself if there is no space.

    A changed file gets a new copy. `check` raises if the original cannot be read.
    Ranks: any rank may call it at any time; ranks of one node wait for the one that copies.
    """
    check(path)
    try:
        base = _own_cache_folder()
        facts = path.stat()
        identity = f"{path.resolve()}|{facts.st_size}|{facts.st_mtime_ns}"
        key = hashlib.blake2b(identity.encode(), digest_size=12).hexdigest()
        copy = base / f"{path.stem}-{key}{path.suffix}"
        if _is_complete(copy, facts):
            return copy
        since = time.time()
        with file_locks.exclusive(base / f"{key}.lock", f"the copy of {path}") as notes:
            is_there = _is_complete(copy, facts) or _fill_copy(path, copy, notes, since)
            return copy if is_there else path
    except OSError as error:
        say_once(f"{path} cannot be cached on this node: {error}; it is read in place")
        return path


def _own_cache_folder() -> Path:
    """The cache folder, created if needed; OSError if it belongs to another user."""
    setting = os.environ.get("HPCFLOW_CACHE_DIR")
    if setting:
        Path(setting).mkdir(mode=0o700, parents=True, exist_ok=True)
    base = cache_folder()
    make_folder(base)
    return base


def _is_complete(copy: Path, original: os.stat_result) -> bool:
    """Whether the copy exists with all its bytes, which may be missing after a power failure.

    It must have the original's modification time, so a copy of another file or a modified copy does
    not count. A copy by another user does not count either, because its name can be guessed.
    """
    try:
        facts = copy.lstat()
    except FileNotFoundError:
        return False
    is_own_file = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
    changed = original.st_mtime_ns
    of_this = facts.st_mtime_ns in (changed, changed - changed % 10**9)  # some disks store seconds
    return is_own_file and of_this and facts.st_size == original.st_size


def _last_failure(notes: int) -> float:
    """The time of the last failed copy, in seconds since 1970; 0 if none is recorded."""
    try:
        return float(os.pread(notes, file_locks.NOTE_BYTES, 0).strip(b"\0") or 0)
    except ValueError:
        return 0.0


def _fill_copy(path: Path, copy: Path, notes: int, since: float) -> bool:
    """Copy to a draft and rename it; False if the copy fails, as without space.

    After a failure, the processes that were waiting for the lock do not try again.
    """
    if _last_failure(notes) >= since:
        return False
    facts, free = path.stat(), shutil.disk_usage(copy.parent).free
    size = facts.st_size
    draft = copy.with_name(f".{copy.name}.{os.getpid()}")
    try:
        for old in copy.parent.glob(f".{copy.name}.*"):  # drafts of processes that died
            old.unlink()
        if free < size + RESERVED_DISK_BYTES:
            raise OSError(f"it has {size >> 20:,} MiB, but only {free >> 20:,} MiB are free")
        begun = time.monotonic()
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # a file of our own
        shutil.copyfile(path, draft)
        os.utime(draft, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        draft.replace(copy)
        logger.info("copied %s to %s in %.1f s", path, copy, time.monotonic() - begun)
        return True
    except OSError as error:
        draft.unlink(missing_ok=True)
        os.lseek(notes, 0, os.SEEK_SET)
        os.write(notes, f"{time.time():<{file_locks.NOTE_BYTES}.6f}".encode())
        say_once(f"{path} cannot be cached in {copy.parent}: {error}; it is read in place")
        return False
