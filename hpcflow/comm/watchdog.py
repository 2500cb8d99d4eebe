"""A thread that reads the ledgers, reports a wait that lasts too long, and at last ends the job.

It makes no MPI call, so it works while the engine hangs in one. While another thread keeps the GIL
no Python runs at all; for that case faulthandler's own thread is armed anew at every tick, and the
stacks it leaves are taken into the report of whoever waits for this rank.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable

from hpcflow.comm.ledger import INSIDE, Entry, Ledger, alive, first, read_all
from hpcflow.errors import StallError
from hpcflow.logs import logger

SILENT_S = 5.0  # a heartbeat older than this is told
MOST_NAMED = 8  # ranks named one by one in a message


class Watchdog:
    """Reports this rank's stalls: `stall-STEP.txt` in `run_dir` and one line in the log.

    After `stall_s` in one wait the report is written, after `stall_abort_s` `abort` is called with
    the StallError, from the watchdog's thread. `size` is the number of ranks of the job.
    `watch_gil` uses faulthandler.dump_traceback_later, of which a process has only one.
    """

    def __init__(
        self,
        ledger: Ledger,
        size: int,
        run_dir: str | os.PathLike[str],
        stall_s: float,
        stall_abort_s: float,
        abort: Callable[[StallError], None],
        *,
        tick_s: float = 1.0,
        watch_gil: bool = True,
    ) -> None:
        self._ledger, self._size, self._run_dir = ledger, size, pathlib.Path(run_dir)
        self._stall_s, self._stall_abort_s, self._abort = stall_s, stall_abort_s, abort
        self._tick_s = tick_s
        self._reported: Entry | None = None
        self._error: StallError | None = None
        self._stop = threading.Event()
        self._stacks = stacks_path(ledger.directory, ledger.rank).open("wb") if watch_gil else None
        self._thread = threading.Thread(target=self._watch, name="hpcflow-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a second call does nothing."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        if self._stacks is not None and not self._stacks.closed:
            faulthandler.cancel_dump_traceback_later()
            self._stacks.close()
            stacks_path(self._ledger.directory, self._ledger.rank).unlink(missing_ok=True)

    def _watch(self) -> None:
        while not self._stop.wait(self._tick_s):
            if self._stacks is not None:
                faulthandler.dump_traceback_later(self._stall_s, file=self._stacks)
            self._ledger.beat()
            try:
                self._check()
            except OSError as error:  # a full disk must not end the watch
                logger.error("the stall report cannot be written: %s", error)

    def _answer(self) -> None:
        """Somebody waits for this rank: say where it is, and add its stacks to the report."""
        mark = asked_path(self._ledger.directory, self._ledger.rank)
        if not mark.exists():
            return
        path = pathlib.Path(mark.read_text())
        mark.unlink()
        append(path, _stacks_of(self._ledger.rank, self._ledger.host))
        logger.error("others wait for this rank, which is at %s", _main_line())

    def _check(self) -> None:
        self._answer()
        mine = self._ledger.read()
        if mine is None or not mine.may_stall or time.time() - mine.since < self._stall_s:
            return
        if self._reported is None or self._reported.since != mine.since:
            self._reported = mine
            path = self._run_dir / f"stall-{mine.step}.txt"
            entries = [e for e in read_all(self._ledger.directory) if e.host == mine.host]
            message = describe_stall(mine, entries, self._size, path)
            self._error = StallError(message, rank=mine.rank)
            first = write_report(path, message, mine, entries, self._ledger.directory)
            logger.log(logging.ERROR if first else logging.DEBUG, "StallError: %s", message)
        if time.time() - mine.since >= self._stall_abort_s and self._error is not None:
            error, self._error = self._error, None
            self._abort(error)


def stacks_path(directory: pathlib.Path, rank: int) -> pathlib.Path:
    """Where faulthandler writes the stacks of a rank whose GIL is held."""
    return directory / f"stacks-{rank:06d}"


def describe_stall(mine: Entry, entries: Iterable[Entry], size: int, path: pathlib.Path) -> str:
    """The short message: what has waited how long for whom, what those do, where more is."""
    now = time.time()
    missing = missing_in(mine, entries)
    if mine.peer >= 0:
        whom = next((entry.name for entry in missing), f"rank {mine.peer}")
    else:
        whom = f"{len(missing)} of {size} ranks" if missing else f"ranks among {size}, none here"
    head = f"{mine.kind} '{mine.op}' at step {mine.step} has waited {now - mine.since:.0f} s"
    rows = [f"{head} for {whom}"]
    rows += [f"missing  {entry.rank} on {_state(entry, now)}" for entry in missing[:MOST_NAMED]]
    if len(missing) > MOST_NAMED:
        rows.append(f"missing  and {len(missing) - MOST_NAMED} more")
    rows += [f"behind   {entry.rank} on {_state(entry, now)}" for entry in behind(mine, entries)]
    if not missing:
        rows.append(f"missing  not on {mine.host}: see what the other nodes append to the report")
    rows.append(f"written  {path}")
    return "\n  ".join(rows)


def missing_in(mine: Entry, entries: Iterable[Entry]) -> list[Entry]:
    """Those of `entries` for whom the rank of `mine` waits."""
    others = [entry for entry in entries if entry.rank != mine.rank]
    if mine.peer >= 0:
        return [entry for entry in others if entry.rank == mine.peer]
    there = (mine.step, mine.op, True)
    return [entry for entry in others if (entry.step, entry.op, entry.waits) != there]


def behind(mine: Entry, entries: Iterable[Entry]) -> list[Entry]:
    """Those for whom the ranks wait that `mine` waits for, and so on; and ranks that do not run."""
    entries, now = list(entries), time.time()
    known = {entry.rank for entry in missing_in(mine, entries)} | {mine.rank}
    left = [entry for entry in entries if entry.rank in known and entry.rank != mine.rank]
    found = []
    while left:
        entry = left.pop()
        if entry.waits and entry.peer >= 0:
            more = [e for e in entries if e.rank == entry.peer and e.rank not in known]
            known.update(e.rank for e in more)
            found += more
            left += more
    return found + [e for e in entries if e.rank not in known and _silent(e, now)]


def write_report(
    path: pathlib.Path, message: str, mine: Entry, entries: list[Entry], directory: pathlib.Path
) -> bool:
    """Write the report, or add this rank's part to it: one file for each step, whoever comes first.

    The table of a node's ranks stands in it once, the stacks of every rank that stalls; the ranks
    waited for are asked to add theirs. True of a node's first rank.
    """
    now = time.time()
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = []
    first_here = first(directory / f"told-{mine.host}-{path.stem}")
    if first_here:
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        parts.append(f"StallError: {message}\n\nranks on {mine.host}\n")
        parts += [f"  {entry.rank:>6} on {_state(entry, now)}\n" for entry in entries]
        parts.append(f"  told by rank {mine.rank} at {when}\n")
        parts += [_left_stacks(entry, directory) for entry in entries if _silent(entry, now)]
    append(path, "".join(parts) + _stacks_of(mine.rank, mine.host))
    if first_here:
        for entry in missing_in(mine, entries)[:MOST_NAMED]:
            mark = asked_path(directory, entry.rank)
            mark.with_name(f".{mark.name}").write_text(str(path.absolute()))
            mark.with_name(f".{mark.name}").replace(mark)
    return first_here


def asked_path(directory: pathlib.Path, rank: int) -> pathlib.Path:
    """The file that asks a rank for its stacks; it holds the path of the report."""
    return directory / f"asked-{rank:06d}"


def append(path: pathlib.Path, text: str) -> None:
    """Add to a report in one write, so that parts of several ranks do not mingle."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _silent(entry: Entry, now: float) -> bool:
    return now - entry.heartbeat > SILENT_S or _process_state(entry.pid) in "Tt"


def _process_state(pid: int) -> str:
    """The letter by which Linux tells the state of a process here: R, S, D, T ...; ? if unknown."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "?"


def _why_silent(pid: int) -> str:
    """Why an interpreter does not run."""
    letter = _process_state(pid)
    if letter in "ZX" or not alive(pid):
        return f"process {pid} is dead"
    if letter in "Tt":
        return f"process {pid} is stopped (kill -CONT {pid} lets it go on)"
    return "it waits for a disk or a file system" if letter == "D" else "the GIL is held"


def _state(entry: Entry, now: float) -> str:
    """Where a rank is and what it does."""
    if entry.since and entry.kind == INSIDE:
        what = f"is inside '{entry.op}' since {now - entry.since:.0f} s"
    elif entry.since:
        whom = f"rank {entry.peer}" if entry.peer >= 0 else "others"
        what = f"waits for {whom} in {entry.kind} '{entry.op}', step {entry.step}, since "
        what += f"{now - entry.since:.0f} s"
    else:
        what = "waits for nothing: it computes, is idle or has ended"
    if _silent(entry, now):
        what += f"; its interpreter has been silent for {now - entry.heartbeat:.0f} s: "
        what += _why_silent(entry.pid)
    return f"{entry.host}{', ' if entry.task else ''}{entry.task}: {what}"


def _stacks_of(rank: int, host: str) -> str:
    """The stacks of this process, with a head."""
    return f"\nstacks of rank {rank} on {host}, process {os.getpid()}\n{_own_stacks()}"


def _main_line() -> str:
    """Where the main thread is: `train.py:21 in load`."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "its end"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _own_stacks() -> str:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file=file)
        file.seek(0)
        return file.read().decode(errors="replace")


def _left_stacks(entry: Entry, directory: pathlib.Path) -> str:
    try:
        text = stacks_path(directory, entry.rank).read_text(errors="replace")
    except OSError:
        return ""
    return f"\nstacks of silent rank {entry.rank} on {entry.host}\n{text}" if text else ""
