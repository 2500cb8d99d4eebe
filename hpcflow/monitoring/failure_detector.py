"""Failure detector: detects ranks of this node that die without reporting, by pidfd and epoll.

A launcher names at most a process. The ledgers say which rank it was and what it did; the file
`next` beside them says what the user can do. Ranks of other nodes are watched by ranks there.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.monitoring.failure_json import timestamp
from hpcflow.monitoring.wait_ledger import LedgerEntry, files_in, read_all, read_one

LOOK_S = 0.5  # between two scans for new ledgers
LET_SIGNAL_COME_S = 0.05  # a death by a signal sent to all ranks is not reported
NEXT = "next"  # beside the ledgers: a line for the checkpoint, then the advice
DIED = "died"  # beside the ledgers: a rank has reported a death
DIED_SILENTLY = "is gone without a word (killed, out of memory, or crashed outside Python)"
UNSAVED = (
    "start it again; nothing was saved: TrainingSession(checkpoints=DIR, resume=True) lets the "
    "same command go on where it was"
)


class FailureDetector:
    """Calls `tell` with the dead ranks of this node, from its own thread.

    A rank that has left in order, or has reported why it ends, does not count as dead.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        host: str,
        rank: int,
        on_death: Callable[[list[LedgerEntry]], None],
    ) -> None:
        self._watched = WatchedRanks(directory, host, rank)
        self._on_death = on_death
        self._wake, self._stopped = os.pipe()
        self._watched.epoll.register(self._wake, select.EPOLLHUP)
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
                self._on_death(dead)


class WatchedRanks:
    """The processes of the ranks of a node, each by a pidfd that becomes readable when it ends."""

    def __init__(self, directory: pathlib.Path, host: str, rank: int = -1) -> None:
        self.directory, self._host, self._rank = directory, host, rank
        self.epoll = select.epoll()  # reports processes in the order in which they end
        self._ranks: dict[int, pathlib.Path] = {}  # descriptor -> ledger
        self._seen_records: set[pathlib.Path] = set()
        self.ranks: dict[int, LedgerEntry] = {}  # process -> its first record; all hosts

    def wait(self, seconds: float) -> list[pathlib.Path] | None:
        """Ledgers of the ranks that end within `seconds`, in order; None if asked to stop."""
        self._look()
        gone = []
        for descriptor, _ in self.epoll.poll(seconds):
            if descriptor not in self._ranks:
                return None
            gone.append(self._ranks.pop(descriptor))
            self.epoll.unregister(descriptor)
            os.close(descriptor)
        return gone

    def has_orderly_exit(self) -> bool:
        """Whether a rank has left the job in order: its ledger was removed."""
        return len(files_in(self.directory, "rank-*")) < len(self._seen_records)

    @property
    def live_count(self) -> int:
        """The number of watched ranks that still run."""
        return len(self._ranks)

    def _look(self) -> None:
        for path in files_in(self.directory, "rank-*"):
            if path in self._seen_records:
                continue
            entry = read_one(path)
            if entry is None:
                continue
            self._seen_records.add(path)
            self.ranks[entry.pid] = entry
            if entry.host != self._host or entry.rank == self._rank:
                continue
            with contextlib.suppress(OSError):  # in another container, or just ended
                descriptor = os.pidfd_open(entry.pid)
                self._ranks[descriptor] = path
                self.epoll.register(descriptor, select.EPOLLIN)

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in self._ranks:
            os.close(descriptor)
        self._ranks.clear()
        self.epoll.close()


def next_advice(directory: pathlib.Path) -> tuple[str, str | None]:
    """The advice for the user if the job ends now, and the checkpoint to resume from, or None.

    The ranks of this node write them by `set_next_advice`.
    """
    try:
        checkpoint, _, text = (directory / NEXT).read_text().partition("\n")
    except OSError:
        return UNSAVED, None
    return text, checkpoint or None


def set_next_advice(directory: pathlib.Path, text: str, checkpoint: str = "") -> None:
    """Write the advice for the user if the job ends now, and the checkpoint to resume from."""
    draft = directory / f".{NEXT}-{os.getpid()}"
    with contextlib.suppress(OSError):  # a full disk must not end the job
        draft.write_text(f"{checkpoint}\n{text}")
        draft.replace(directory / NEXT)


def death_facts(
    dead: Sequence[LedgerEntry], directory: pathlib.Path, cause: str = DIED_SILENTLY
) -> dict[str, Any]:
    """The content of `failure.json` for a death; `message` is for users.

    `dead` is in the order of the ends. Only the first is reported to have died: a launcher kills
    the other ranks when one dies, and they can end before anyone looks.
    """
    entry = dead[0]
    rows = [*_death_rows(entry, cause), *map(_row_of_later_end, dead[1:])]
    hint, checkpoint = next_advice(directory)
    return {
        "kind": "death",
        "rank": entry.rank,
        "ranks": [entry.rank],
        "task": entry.task,
        "host": entry.host,
        "time": timestamp(),
        "step": _trained_steps(entry, directory) or _saved_step(checkpoint),
        "op": entry.op or None,
        "line": entry.line or None,
        "cause": f"process {entry.pid} {cause}",
        "error": "DeathError",
        "message": "\n".join([*rows, f"  next  {hint}"]),
        "hint": hint,
        "checkpoint": checkpoint,
        "traceback": None,
    }


def external_death_facts(
    rank: int | None, pid: int | None, cause: str, event: str, entry: LedgerEntry | None = None
) -> dict[str, Any]:
    """The content of `failure.json` for a rank of this node that is not a member of the job.

    It has died or hangs, as `event` says, before it joined the job, when it has no task yet, or
    while other ranks leave it; then `entry` is its record. `rank` and `pid` are None if only the
    launcher saw it end.
    """
    host, why = os.uname().nodename, f"process {pid} {cause}" if pid else f"a process {cause}"
    rank_text = "a rank" if rank is None else f"rank {rank}"
    name, hint = f"{rank_text} on {host}", "the same command starts it again"
    task, step = (entry.task, entry.trained) if entry is not None else (None, 0)
    message = f"{name} {event} the job: {why}\n  next  {hint}"
    kind, error = ("death", "DeathError") if "died" in event else ("stall", "StallError")
    facts = {
        "kind": kind,
        "rank": rank,
        "ranks": [] if rank is None else [rank],
        "task": task,
        "host": host,
    }
    facts |= {"time": timestamp(), "step": step, "op": None, "line": None, "cause": why}
    facts |= {"error": error, "message": message, "hint": hint}
    return {**facts, "checkpoint": None, "traceback": None}


def _saved_step(checkpoint: str | None) -> int:
    """The step of a checkpoint, for a rank that died before its first heartbeat in training."""
    match = re.match(r"step-(\d+)", pathlib.Path(checkpoint or "").name)  # a folder or a file
    return int(match[1]) if match else 0


def _trained_steps(entry: LedgerEntry, directory: pathlib.Path) -> int:
    """The training steps of a rank; of a server, the most of the workers on its node."""
    if not entry.is_server:
        return entry.trained
    return max((peer.trained for peer in read_all(directory)), default=0)


def _death_rows(entry: LedgerEntry, cause: str) -> list[str]:
    """Lines of the message: which rank has died, and its role."""
    was = "a server: the variables that it held are lost"
    if "/job:ps" not in entry.task:
        was = "a worker"
    last_wait = f", last seen to wait in step {entry.step}" if entry.step > 0 else ""
    return [
        f"{entry.name} on {entry.host} has died: process {entry.pid} {cause}",
        f"  was   {was}{last_wait}",
    ]


def _row_of_later_end(entry: LedgerEntry) -> str:
    """A line of the message: a rank that ended after the first, for a cause that nobody knows."""
    return f"  then  {entry.name} ended: killed by the launcher, or dead as well"
