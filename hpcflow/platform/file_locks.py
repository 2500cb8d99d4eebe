"""Locks of a node: one process does what takes long, the others wait and find it done.

A lock is flock(2) on a file in a folder that nobody else may write into, so no other user can hold
it, and the kernel frees it when its process ends. Its holder writes into it who it is, so that a
wait that takes long can say for whom.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcflow.platform.private_files import opened
from hpcflow.platform.rank_logging import logger, say_once
from hpcflow.platform.terminal_escaping import one_line

SAY_S = 1.0  # of waiting, then a line says for whom
PATIENCE_S = 60.0  # to wait for what each could make by itself; a warning for all else
POLL_S, POLL_LATE_S = 0.01, 0.1
NOTE_BYTES = 32  # at the beginning of a lock's file, for whoever guards something by it
MOST_BYTES = 400  # of what a holder says of itself
_in_vain: dict[Path, str] = {}  # locks that were waited for in vain, and who held them


def folder() -> Path:
    """Where the locks of this user are on this node.

    Errors: FileNotFoundError where there is no folder for temporary files.
    """
    return Path(tempfile.gettempdir()) / f"hpcflow-locks-{os.geteuid()}"


@contextlib.contextmanager
def turn(of: str, instead: Path) -> Iterator[None]:
    """One process of a node at a time makes what is called `of`; the others wait, then look again.

    After PATIENCE_S each goes on by itself. The lock is a file of the node, so that nodes do not
    ask a file system they share for it; where it cannot be had, as another user has taken its
    place, it is in `instead`, a folder of this user's, one for each node.
    """
    with contextlib.ExitStack() as stack:
        other = f".{of}-{os.uname().nodename}.lock"
        if not _takes(stack, of, lambda: folder() / f"{of}.lock", f"that in {instead} is used"):
            each = "each process makes its own"
            _takes(stack, of, lambda: instead.resolve() / other, each)
        yield


@contextlib.contextmanager
def alone(path: Path, what: str) -> Iterator[int]:
    """Only one process of the node is inside, which does `what`; the others wait until it has.

    The folder of `path` is this user's own. Gives the lock's file, whose first NOTE_BYTES are free
    for notes.

    Errors: OSError for a folder or file that is not this user's own, or cannot be locked.
    """
    with opened(path.parent, path.name) as file:
        _wait(file, path, what)
        yield file


def _takes(
    stack: contextlib.ExitStack, of: str, path_of: Callable[[], Path], otherwise: str
) -> bool:
    """Whether there is such a lock: this process has taken it, or waited for it.

    If there is none, say why, and what is done otherwise.
    """
    try:
        path = path_of()
        _wait(stack.enter_context(opened(path.parent, path.name)), path, of, ends=True)
    except OSError as error:
        line = one_line(f"a lock for those who make {of} cannot be used ({error}): {otherwise}")
        say_once(f"{line}\n  next  set TMPDIR to a folder of yours", logging.WARNING)
        return False
    return True


def _wait(file: int, path: Path, what: str, ends: bool = False) -> None:
    """Take the lock, and write down who has it; go on without it after PATIENCE_S if it `ends`.

    Nobody waits twice in vain for one holder.

    Errors: OSError if the file cannot be locked.
    """
    start, told, warned = time.monotonic(), False, False
    while not _try(file):
        waited, holder = time.monotonic() - start, _holder(file)
        if ends and _in_vain.get(path) == holder:
            return
        if waited >= SAY_S and not told:
            told = True
            logger.info("waits for %s: %s has the lock %s", what, holder, path)
        if waited >= PATIENCE_S and not warned:
            warned = True
            how = "goes on without" if ends else "goes on waiting"
            next_ = "  next  if that process hangs, end it"
            logger.warning("waited %.0f s for %s and %s: %s has the lock %s\n%s",
                           waited, what, how, holder, path, next_)  # fmt: skip
            if ends:
                _in_vain[path] = holder
                return
        time.sleep(POLL_S if waited < SAY_S else POLL_LATE_S)
    _sign(file)


def _try(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(file: int) -> None:
    """Write into the lock which process has it."""
    command = " ".join(sys.orig_argv)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    who = f"process {os.getpid()} on {os.uname().nodename} (since {since}: {command})"
    with contextlib.suppress(OSError):  # a full disk: others wait for they know not whom
        os.ftruncate(file, NOTE_BYTES)
        os.lseek(file, NOTE_BYTES, os.SEEK_SET)
        os.write(file, who.encode("utf-8", "backslashreplace")[:MOST_BYTES])


def _holder(file: int) -> str:
    """Which process has the lock, as it says; whoever signs is this user."""
    said = os.pread(file, MOST_BYTES, NOTE_BYTES).decode("utf-8", "replace")
    return one_line(said) or "a process that has not said which"
