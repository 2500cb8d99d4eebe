"""Who of this node's ranks has died without a word, seen by the kernel's own notice of it.

A launcher names a process at best. Here the ledgers say which rank that was, what it did, and the
file `next` beside them what to do. Ranks of other nodes are watched by the ranks there.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.comm.failure import now, write
from hpcflow.comm.ledger import Entry, of_user, read_all, read_one

LOOK_S = 0.5  # for ranks that have opened their ledger since
FIND_S = 0.05  # for the first ledgers of a job that starts
LET_SIGNAL_COME_S = 0.05  # who dies of a signal that all were sent is no news
NEXT = "next"  # beside the ledgers: a line for the checkpoint, then what can be done
DIED = "died"  # beside the ledgers: a rank has told of a death
GONE = "is gone without a word (killed, out of memory, or crashed outside Python)"
UNSAVED = (
    "start it again; nothing was saved: TrainingSession(checkpoints=DIR, resume=True) lets the "
    "same command go on where it was"
)


class Deaths:
    """Calls `tell` with the ranks of this node that have died, from a thread of its own.

    A rank that has left in order, or has said why it ends, is none of them.
    """

    def __init__(
        self, directory: pathlib.Path, host: str, rank: int, tell: Callable[[list[Entry]], None]
    ) -> None:
        self._watched = Watched(directory, host, rank)
        self._tell = tell
        self._wake, self._stopped = os.pipe()
        self._watched.poll.register(self._wake, select.POLLHUP)
        self._thread = threading.Thread(target=self._watch, name="hpcflow-deaths", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        os.close(self._stopped)
        self._thread.join()
        os.close(self._wake)
        self._watched.close()

    def _watch(self) -> None:
        while True:
            gone = self._watched.wait(LOOK_S)
            if gone is None:
                return
            if gone:
                time.sleep(LET_SIGNAL_COME_S)
            dead = [entry for path in gone if (entry := read_one(path)) is not None]
            if dead and not any(entry.ending for entry in read_all(self._watched.directory)):
                self._tell(dead)


class Watched:
    """The processes of the ranks of a node, each by a descriptor that tells when it has ended."""

    def __init__(self, directory: pathlib.Path, host: str, rank: int = -1) -> None:
        self.directory, self._host, self._rank = directory, host, rank
        self.poll = select.poll()
        self._ranks: dict[int, pathlib.Path] = {}  # descriptor -> ledger
        self._known: set[pathlib.Path] = set()

    def wait(self, seconds: float) -> list[pathlib.Path] | None:
        """The ledgers of those that end within so many seconds; None if told to stop."""
        self._look()
        gone = []
        for descriptor, _ in self.poll.poll(int(seconds * 1000)):
            if descriptor not in self._ranks:
                return None
            gone.append(self._ranks.pop(descriptor))
            self.poll.unregister(descriptor)
            os.close(descriptor)
        return gone

    @property
    def left(self) -> int:
        """How many are there still."""
        return len(self._ranks)

    def _look(self) -> None:
        for path in self.directory.glob("rank-*"):
            if path in self._known:
                continue
            entry = read_one(path)
            if entry is None:
                continue
            self._known.add(path)
            if entry.host != self._host or entry.rank == self._rank:
                continue
            with contextlib.suppress(OSError):  # of another container, or ended in this moment
                descriptor = os.pidfd_open(entry.pid)
                self._ranks[descriptor] = path
                self.poll.register(descriptor, select.POLLIN)

    def close(self) -> None:
        """Let go of the descriptors."""
        for descriptor in self._ranks:
            os.close(descriptor)
        self._ranks.clear()


class Witness:
    """Sees who dies first of the ranks that this process, or a child, starts on this node.

    A thread that looks for their ledgers in `base`; for launchers that kill all ranks before one of
    them could speak.
    """

    def __init__(self, base: str) -> None:
        self._base = pathlib.Path(base)
        self._over = threading.Event()
        self._directory: pathlib.Path | None = None
        self._dead: list[Entry] = []
        self._thread = threading.Thread(target=self._watch, name="hpcflow-witness", daemon=True)
        self._thread.start()

    def tell(self, run_dir: str = "") -> None:
        """The job has failed: name whoever died, in `failure.json` too, if no rank has done so."""
        self._over.set()
        self._thread.join()
        if not self._dead:
            return
        assert self._directory is not None
        facts = facts_of(self._dead, self._directory)
        if not (self._directory / DIED).exists():
            os.write(2, f"hpcflow: {facts['message']}\n".encode())
        if run_dir:
            write(pathlib.Path(run_dir), facts)

    def _watch(self) -> None:
        watched = None
        while watched is None and not self._over.wait(FIND_S):
            watched = _ledgers_of(os.getpid(), self._base)
        if watched is None:
            return
        self._directory = watched.directory
        while not (self._dead or self._over.is_set()):
            gone = watched.wait(FIND_S if watched.left < 2 else LOOK_S) or []
            dead = [entry for path in gone if (entry := read_one(path)) is not None]
            if dead and not any(entry.ending for entry in read_all(watched.directory)):
                self._dead = dead
        watched.close()


def _ledgers_of(launcher: int, base: pathlib.Path) -> Watched | None:
    """The ledgers of the job of a launcher on this node, None as long as there are none."""
    for directory in of_user(base):
        entry = next(iter(read_all(directory)), None)
        if entry is not None and launcher in _ancestors(entry.pid):
            return Watched(directory, entry.host)
    return None


def _ancestors(pid: int) -> list[int]:
    """The processes from the parent of `pid` up."""
    found: list[int] = []
    try:
        while pid > 1:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
            found.append(pid)
    except OSError:
        pass
    return found


def what_next(directory: pathlib.Path) -> tuple[str, str | None]:
    """What the ranks of this node have said that could be done if the job ends now, and the
    checkpoint from which it could go on, if they know one."""
    try:
        checkpoint, _, text = (directory / NEXT).read_text().partition("\n")
    except OSError:
        return UNSAVED, None
    return text, checkpoint or None


def say_next(directory: pathlib.Path, text: str, checkpoint: str = "") -> None:
    """Write down what could be done if the job ends now, and from which checkpoint."""
    draft = directory / f".{NEXT}-{os.getpid()}"
    with contextlib.suppress(OSError):  # a full disk must not end the job
        draft.write_text(f"{checkpoint}\n{text}")
        draft.replace(directory / NEXT)


def facts_of(dead: Sequence[Entry], directory: pathlib.Path, cause: str = GONE) -> dict[str, Any]:
    """What `failure.json` says of a death; its `message` is for people."""
    entry = dead[0]
    rows = [row for one in dead for row in _rows(one, cause)]
    hint, checkpoint = what_next(directory)
    return {
        "kind": "death",
        "rank": entry.rank,
        "ranks": [other.rank for other in dead],
        "task": entry.task,
        "host": entry.host,
        "time": now(),
        "step": entry.step if entry.step > 0 else None,
        "op": entry.op or None,
        "line": entry.line or None,
        "cause": f"process {entry.pid} {cause}",
        "error": "DeathError",
        "message": "\n".join([*rows, f"  next  {hint}"]),
        "hint": hint,
        "checkpoint": checkpoint,
        "traceback": None,
    }


def facts_at_start(rank: int, pid: int, cause: str) -> dict[str, Any]:
    """The same of a rank of this node that has died before it has joined the job."""
    host = os.uname().nodename
    dead = Entry(rank, pid, host, step=-1, op="", kind="", peer=-1, since=0.0, heartbeat=0.0)
    return facts_of([dead], pathlib.Path(os.devnull), cause)


def _rows(entry: Entry, cause: str) -> list[str]:
    """What has died, and what it was."""
    was = "a server: the variables that it held are lost"
    if "/job:ps" not in entry.task:
        was = "a worker"
    seen = f", last seen to wait in step {entry.step}" if entry.step > 0 else ""
    return [
        f"{entry.name} on {entry.host} has died: process {entry.pid} {cause}",
        f"  was   {was}{seen}",
    ]
