"""File locks of a node: one process does a long task, the others wait and use its result.

A lock is flock(2) on a file in a folder that only this user can write, so no other user can hold
it. The kernel releases it when its process ends. The holder writes its identity into the file, so
that a process that waits for long can report it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcflow.platform.private_files import open_private
from hpcflow.platform.rank_logging import logger, say_once
from hpcflow.platform.terminal_escaping import escape_line

SAY_S = 1.0  # of waiting, then a line names the holder
PATIENCE_S = 60.0  # longest wait in `turn`; in `alone`, time until a warning
POLL_S, POLL_LATE_S = 0.01, 0.1
NOTE_BYTES = 32  # at the start of a lock file, for the user of the lock
MOST_BYTES = 400  # of the holder's identity
_in_vain: dict[Path, str] = {}  # locks whose wait timed out, and their holders


def folder() -> Path:
    """The folder of this user's locks on this node.

    Errors: FileNotFoundError if there is no folder for temporary files.
    """
    return Path(tempfile.gettempdir()) / f"hpcflow-locks-{os.geteuid()}"


@contextlib.contextmanager
def build_turn(artifact: str, instead: Path) -> Iterator[None]:
    """One process of a node at a time makes the result called `artifact`; the others wait.

    After the wait the caller checks for the result again. After PATIENCE_S a process continues
    without the lock. The lock file is local to the node, so that nodes do not contend on a shared
    file system. If it cannot be used, for example because another user owns its name, the lock file
    is in `instead`, a folder of this user's, one file for each node.
    """
    with contextlib.ExitStack() as stack:
        lock_name = f".{artifact}-{os.uname().nodename}.lock"
        if not _lock_usable(
            stack, artifact, lambda: folder() / f"{artifact}.lock", f"that in {instead} is used"
        ):
            each = "each process makes its own"
            _lock_usable(stack, artifact, lambda: instead.resolve() / lock_name, each)
        yield


@contextlib.contextmanager
def exclusive(path: Path, purpose: str, limit_s: float = math.inf) -> Iterator[int]:
    """Mutual exclusion: only one process of the node runs the body, which does what `purpose` says.

    The folder of `path` must be this user's own. Yields the descriptor of the lock file, whose
    first NOTE_BYTES are free for notes.

    Errors: OSError for a folder or file that is not this user's own, or cannot be locked; its
            subclass TimeoutError if another process has the lock for `limit_s`.
    """
    with open_private(path.parent, path.name) as file:
        _wait_for_lock(file, path, purpose, limit_s=limit_s)
        yield file


def _lock_usable(
    stack: contextlib.ExitStack, artifact: str, path_of: Callable[[], Path], otherwise: str
) -> bool:
    """Whether the lock file can be used: this process has locked it, or its wait timed out.

    If not, log the reason and the alternative `otherwise`.
    """
    try:
        path = path_of()
        _wait_for_lock(
            stack.enter_context(open_private(path.parent, path.name)), path, artifact, ends=True
        )
    except OSError as error:
        line = escape_line(
            f"a lock for those who make {artifact} cannot be used ({error}): {otherwise}"
        )
        say_once(f"{line}\n  next  set TMPDIR to a folder of yours", logging.WARNING)
        return False
    return True


def _wait_for_lock(
    file: int, path: Path, purpose: str, ends: bool = False, limit_s: float = math.inf
) -> None:
    """Take the lock and write the holder's identity; with `ends`, give up after PATIENCE_S.

    A process does not wait again for a holder for which a wait timed out.

    Errors: OSError if the file cannot be locked; TimeoutError after `limit_s`.
    """
    start, logged, warned = time.monotonic(), False, False
    while not _try_lock(file):
        waited, holder = time.monotonic() - start, _holder(file)
        if ends and _in_vain.get(path) == holder:
            return
        if waited >= limit_s:
            raise TimeoutError(None, f"{holder} has the lock for {waited:.0f} s", str(path))
        if waited >= SAY_S and not logged:
            logged = True
            logger.info("waits for %s: %s has the lock %s", purpose, holder, path)
        if waited >= PATIENCE_S and not warned:
            warned = True
            how = "goes on without" if ends else "goes on waiting"
            next_ = "  next  if that process hangs, end it"
            logger.warning("waited %.0f s for %s and %s: %s has the lock %s\n%s",
                           waited, purpose, how, holder, path, next_)  # fmt: skip
            if ends:
                _in_vain[path] = holder
                return
        time.sleep(POLL_S if waited < SAY_S else POLL_LATE_S)
    _write_holder(file)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder(file: int) -> None:
    """Write this process's identity into the lock file."""
    command = " ".join(sys.orig_argv)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    identity = f"process {os.getpid()} on {os.uname().nodename} (since {since}: {command})"
    with contextlib.suppress(OSError):  # a full disk: the holder stays unknown
        os.ftruncate(file, NOTE_BYTES)
        os.lseek(file, NOTE_BYTES, os.SEEK_SET)
        os.write(file, identity.encode("utf-8", "backslashreplace")[:MOST_BYTES])


def _holder(file: int) -> str:
    """The identity in the lock file; only this user can write it."""
    identity = os.pread(file, MOST_BYTES, NOTE_BYTES).decode("utf-8", "replace")
    return escape_line(identity) or "a process that has not said which"
