"""Stall watchdog: a thread that reads the ledgers, reports a stalled wait, and ends the job.

It makes no MPI call, so it works while the executor hangs in one. While another thread holds the
GIL, no Python code runs. For that case each tick re-arms faulthandler's own thread, which dumps the
stacks to a file. The report of a rank that waits for this one includes that file. If the rank whose
GIL is held waits itself, another rank of the node reports for it.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import logging
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from hpcflow.errors import StallError
from hpcflow.monitoring.cross_node_wait_ledgers import CrossNodeLedgers
from hpcflow.monitoring.stack_dump import (
    DEAD,
    STOPPED,
    ProgressFiles,
    main_line,
    main_op,
    own_stacks,
)
from hpcflow.monitoring.wait_for_report import (
    MOST_NAMED,
    describe_stall,
    is_debugged,
    is_silent,
    missing_ranks,
    process_state_letter,
    state,
    wait_chain,
)
from hpcflow.monitoring.wait_ledger import LedgerEntry, WaitLedger, is_younger, read_all
from hpcflow.platform.rank_logging import logger, print_due

TICK_S = 1.0
TICKS = 8  # minimum number of ticks within stall_s
SILENT_TICKS = 5
LOOKS = 4  # scans for ranks that cannot report for themselves, within stall_s


@dataclasses.dataclass(frozen=True)
class StallTimes:
    """Limits of a wait, in seconds: until it is reported, until the job ends; check intervals."""

    stall_s: float
    abort_s: float

    @property
    def tick_s(self) -> float:
        """Interval between two checks of this rank's own wait."""
        return max(0.01, min(TICK_S, self.stall_s / TICKS))

    @property
    def silent_s(self) -> float:
        """An interpreter without a heartbeat for this long does not run."""
        return max(SILENT_TICKS * self.tick_s, 0.5)


class StallWatchdog:
    """Reports stalls of this rank: `stall-STEP.txt` in `run_dir` and one line in the log.

    A wait is reported when its chain (the ranks that this rank waits for, those that they wait for,
    and so on) has not moved for `stall_s`. After `stall_abort_s`, `abort` is called with the
    StallError, from the watchdog's thread. `size` is the number of ranks of the job.
    `moves(seconds)` says whether a step of this rank ends within that time; it is called while
    other ranks may wait for this one. `nodes` is needed if there are several nodes; this rank
    publishes the ledgers of its node if `leads`. `steps()` is the number of training steps of this
    rank. `watch_gil` uses faulthandler.dump_traceback_later, of which a process has only one.
    """

    def __init__(
        self,
        ledger: WaitLedger,
        size: int,
        run_dir: str | os.PathLike[str],
        times: StallTimes,
        abort: Callable[[StallError], None],
        *,
        moves: Callable[[float], bool] | None = None,
        nodes: CrossNodeLedgers | None = None,
        leads: bool = False,
        steps: Callable[[], int] = int,
        watch_gil: bool = True,
    ) -> None:
        self._ledger, self._size, self._run_dir = ledger, size, pathlib.Path(run_dir)
        self._times, self._abort, self._moves = times, abort, moves
        self._nodes, self._leads, self._steps = nodes, leads, steps
        self._mark = ledger.directory / "report"  # path of the current report
        self._watched = ledger.directory / "watched"  # if fresh, ranks here check whether they move
        self._suspected: dict[int, tuple[float, float]] = {}  # rank -> its wait, first check
        self._reported: dict[int, tuple[float, pathlib.Path]] = {}  # rank -> its wait, report
        self._files = ProgressFiles()
        self._looked, self._failed = 0.0, False
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
        if self._nodes is not None:
            self._nodes.close()

    def _watch(self) -> None:
        while not self._pause():
            try:
                self.tick()
            except Exception:  # a bug must not end the watchdog silently
                if not self._failed:
                    logger.exception("the watch for stalls failed, and goes on")
                self._failed = True

    def tick(self) -> None:
        """One check and one heartbeat of this rank; the thread calls it periodically."""
        if self._stacks is not None:
            faulthandler.dump_traceback_later(self._times.stall_s, file=self._stacks)
        self._ledger.update_heartbeat(main_line(), self._steps())
        print_due()
        try:
            self._answer_stack_request()
            self._check()
        except OSError as error:  # a full disk must not end the watchdog
            logger.error("the stall report cannot be written: %s", error)

    def _pause(self) -> bool:
        """Wait until the next tick; True at the end. Also checks whether this rank moves."""
        tick_s = self._times.tick_s
        if self._moves is None or not is_younger(self._watched, self._times.stall_s):
            return self._stop.wait(tick_s)
        op, until = main_op(), time.monotonic() + tick_s
        if self._moves(tick_s) or (op and op != main_op()):
            self._ledger.moves()
        return self._stop.wait(max(0.0, until - time.monotonic()))

    def _answer_stack_request(self) -> None:
        """If another rank has asked: log where this rank is, and add its stacks to the report."""
        mark = asked_path(self._ledger.directory, self._ledger.rank)
        if not mark.exists():
            return
        path = pathlib.Path(mark.read_text())
        mark.unlink()
        append(path, _stacks_of(self._ledger.rank, self._ledger.host))
        logger.error("others wait for this rank, which is at %s", main_line())

    def _check(self) -> None:
        """Check this rank's own wait, and less often those of ranks that cannot report."""
        now, wait = time.time(), self._ledger.read()
        if wait is not None and wait.may_stall and now - wait.since >= self._times.stall_s / 2:
            self._report_if_stalled(wait, now)
        if now - self._looked < self._times.stall_s / LOOKS:
            return
        self._looked = now
        if self._nodes is not None and self._leads and self._nodes.is_wanted:
            self._watched.touch()
            self._nodes.publish()
        for entry in read_all(self._ledger.directory):
            if entry.rank != self._ledger.rank and _is_mute(entry, now, self._times.silent_s):
                self._report_if_stalled(entry, now)

    def _report_if_stalled(self, wait: LedgerEntry, now: float) -> None:
        """A wait is long: check whether the awaited ranks move; report it; end the job."""
        self._watched.touch()
        entries = read_all(self._ledger.directory)
        if self._nodes is not None:
            self._nodes.want()
            entries += self._nodes.remote_entries()
        if is_debugged(wait, entries):
            return
        since, first_look = self._suspected.get(wait.rank, (0.0, now))
        if since != wait.since:
            first_look = now
        self._suspected[wait.rank] = wait.since, first_look
        still = now - self._has_progress(wait, entries)
        if still < self._times.stall_s or now - first_look < self._times.stall_s / 2:
            return  # until then others check whether they move, and nodes publish ledgers
        reported_since, path = self._reported.get(wait.rank, (0.0, self._run_dir))
        if reported_since != wait.since:
            path = self._report(wait, entries)
            self._reported[wait.rank] = wait.since, path
        self._mark.touch()
        if still >= self._times.abort_s:
            self._stop.set()
            self._abort(self._error(wait, entries, path))

    def _has_progress(self, wait: LedgerEntry, entries: Sequence[LedgerEntry]) -> float:
        """When `wait`, or a rank in its wait chain, last moved; wall clock."""
        behind = wait_chain(wait, entries)
        here = [self._files.last_io_time(entry.pid) for entry in behind if entry.host == wait.host]
        return max([wait.since, *here, *(entry.moved for entry in behind)])

    def _report(self, wait: LedgerEntry, entries: Sequence[LedgerEntry]) -> pathlib.Path:
        """Write the report of a wait, or append to the current report of this node."""
        path, is_first = self._claim(wait)
        error = self._error(wait, entries, path)
        parts = [f"StallError: {error}\n"]
        if is_first:
            parts += self._table(wait, entries)
        append(path, "".join(parts) + _stacks_of(self._ledger.rank, self._ledger.host))
        if is_first:
            for entry in missing_ranks(wait, entries)[:MOST_NAMED]:
                if entry.host == wait.host:
                    request_stacks(self._ledger.directory, entry.rank, path)
        logger.log(logging.ERROR if is_first else logging.DEBUG, "StallError: %s", error)
        return path

    def _error(
        self, wait: LedgerEntry, entries: Sequence[LedgerEntry], path: pathlib.Path
    ) -> StallError:
        return StallError(
            describe_stall(wait, entries, self._size, path, self._times.silent_s),
            step=wait.step,
            missing=tuple(entry.rank for entry in missing_ranks(wait, entries)),
            report=str(path),
            op=wait.op,
            line=wait.created_at or None,
            rank=wait.rank,
        )

    def _table(self, wait: LedgerEntry, entries: Sequence[LedgerEntry]) -> Iterator[str]:
        """The states of all known ranks, and the faulthandler stacks of silent local ranks."""
        now, silent_s = time.time(), self._times.silent_s
        yield "\nranks\n"
        for entry in entries:
            yield f"  {entry.rank:>6} on {state(entry, now, silent_s)}\n"
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        yield f"  told by rank {self._ledger.rank} on {self._ledger.host} at {when}\n"
        for entry in entries:
            if entry.host == wait.host and is_silent(entry, now, silent_s):
                yield _left_stacks(entry, self._ledger.directory)

    def _claim(self, wait: LedgerEntry) -> tuple[pathlib.Path, bool]:
        """The report shared by all waits of this node that stall at a time; whether it is new."""
        path, mark = self._run_dir / f"stall-{max(wait.step, 0)}.txt", self._mark
        if not is_younger(mark, self._times.stall_s):
            mark.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = mark.with_name(f".report-{self._ledger.rank}")
        draft.write_text(str(path.absolute()))
        try:
            os.link(draft, mark)  # atomic, with its content
            return path, True
        except FileExistsError:
            return pathlib.Path(mark.read_text()), False
        finally:
            draft.unlink()


def stacks_path(directory: pathlib.Path, rank: int) -> pathlib.Path:
    """The file to which faulthandler writes the stacks of a rank whose GIL is held."""
    return directory / f"stacks-{rank:06d}"


def asked_path(directory: pathlib.Path, rank: int) -> pathlib.Path:
    """The file that asks a rank for its stacks; it holds the path of the report."""
    return directory / f"asked-{rank:06d}"


def request_stacks(directory: pathlib.Path, rank: int, path: pathlib.Path) -> None:
    """Ask a rank of this node to add its stacks to a report."""
    mark = asked_path(directory, rank)
    draft = mark.with_name(f".{mark.name}")
    draft.write_text(str(path.absolute()))
    draft.replace(mark)


def append(path: pathlib.Path, text: str) -> None:
    """Append to a report in one write, so that texts of several ranks do not interleave."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _is_mute(entry: LedgerEntry, now: float, silent_s: float) -> bool:
    """Whether it waits but cannot report: its interpreter does not run.

    Its process is neither stopped nor dead.
    """
    return (
        entry.may_stall
        and is_silent(entry, now, silent_s)
        and process_state_letter(entry) not in (STOPPED, *DEAD)
    )


def _stacks_of(rank: int, host: str) -> str:
    """The stacks of this process, with a heading."""
    return f"\nstacks of rank {rank} on {host}, process {os.getpid()}\n{own_stacks()}"


def _left_stacks(entry: LedgerEntry, directory: pathlib.Path) -> str:
    try:
        text = stacks_path(directory, entry.rank).read_text(errors="replace")
    except OSError:
        return ""
    return f"\nstacks of silent rank {entry.rank} on {entry.host}\n{text}" if text else ""
