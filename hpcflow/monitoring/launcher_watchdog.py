"""Launcher watchdog: detects which rank of this node dies first, or hangs at startup or shutdown.

It runs beside the launcher. It is for launchers that kill all ranks before one of them can report,
and for ranks that have not joined the job, which the other ranks do not know.
"""

from __future__ import annotations

import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.monitoring.failure_detector import (
    DIED,
    LOOK_S,
    WatchedRanks,
    death_facts,
    external_death_facts,
    next_advice,
)
from hpcflow.monitoring.failure_json import write_failure
from hpcflow.monitoring.stall_watchdog import StallTimes
from hpcflow.monitoring.startup_processes import StartupProcesses
from hpcflow.monitoring.wait_ledger import (
    LedgerEntry,
    process_ledger,
    read_all,
    read_one,
    user_ledgers,
)

FIND_S = 0.05  # between two scans of starting ranks


class LauncherWatchdog:
    """Watches the ranks that this process, or a child, starts on this node, from a thread.

    It searches for their processes, and for their ledgers in `base`. It calls `give_up` with the
    text of a report when a rank that has not joined the job, or does not leave it, has hung for
    `times.abort_s`. If `all_here`, all ranks are on this node.
    """

    def __init__(self, base: str, times: StallTimes, all_here: bool = True) -> None:
        self._base, self._times, self._all_here = pathlib.Path(base), times, all_here
        self._since = time.time()  # ledgers that are older belong to other jobs
        self.give_up: Callable[[str], None] = lambda text: None
        self._over = threading.Event()
        self._directory: pathlib.Path | None = None
        self._dead: list[LedgerEntry] = []
        self._has_left = False  # another rank had left the job in order when one died
        self._early: list[tuple[int, int]] = []  # rank and process of dead ranks without a ledger
        self._found_all = False  # a rank that was never found may have died before `_early`
        self._hung: dict[str, Any] = {}  # failure.json of a hung rank
        self._reported = False
        self._checkpoint: str | None = None  # the newest, kept after the ranks have left
        self._thread = threading.Thread(target=self._watch, name="hpcflow-witness", daemon=True)
        self._thread.start()

    def have_joined(self) -> bool:
        """Whether the ranks of this node have joined the job."""
        return self._directory is not None

    def report_failure(self, run_dir: str, code: int, exited: bool = False) -> bool:
        """The job failed with exit code `code`: report the rank at fault; whether there is one.

        `exited`: `code` is that of a script, not of a signal or an abort. If a rank has left with
        it, the launcher has killed the others.
        The report goes to stderr and to `failure.json`, unless a rank has already reported it.
        """
        self._over.set()
        self._thread.join()
        facts, is_told = self._hung, bool(self._hung)
        if self._dead and self._directory is not None and not (exited and self._has_left):
            facts = death_facts(self._dead, self._directory)
            is_told = (self._directory / DIED).exists()
        elif (name := _signal_name(code - 128)) and not facts:
            facts = self._died_early(f"was killed by {name}")
        if facts and not is_told:
            os.write(2, f"hpcflow: {facts['message']}\n".encode())
        if facts and run_dir:
            write_failure(pathlib.Path(run_dir), facts)
        return bool(facts)

    def _died_early(self, cause: str) -> dict[str, Any]:
        """The facts of a rank that died before it had joined; it may never have been found."""
        what = "has died before it had joined"
        if self._early and (self._found_all or not self._all_here):
            return external_death_facts(*self._early[0], cause, what)
        if self._all_here and (self._early or self._directory is None):
            return external_death_facts(None, None, cause, what)
        return {}

    def _watch(self) -> None:
        starting, watched, leaving, all_joined = StartupProcesses(), None, None, False
        while not (self._dead or self._early or self._hung or self._over.is_set()):
            watched = watched or _ledgers_of(os.getpid(), self._base, self._since)
            if not all_joined:
                self._early = starting.wait(FIND_S)
                self._look_for_hangs(starting)
            if watched is not None:
                self._directory = watched.directory
                self._checkpoint = next_advice(self._directory)[1] or self._checkpoint
                self._look_at(watched, watched.wait(LOOK_S if all_joined else 0.0) or [])
                all_joined = all_joined or starting.mark_joined(watched.ranks.keys())
                if leaving is None and all_joined and watched.has_orderly_exit():
                    leaving = StartupProcesses()
            if leaving is not None:
                leaving.wait(0.0)
                self._look_for_hangs(leaving, watched)
        if not (self._dead or self._early or self._hung or all_joined):
            self._early = starting.wait(0.0)  # ranks that died since the last scan
        self._found_all = starting.found_all()
        if self._early and not self._dead:
            self._look_for_ledgers(watched)
        for tracker in (starting, watched, leaving):
            if tracker is not None:
                tracker.close()

    def _look_at(self, watched: WatchedRanks, dead_records: Sequence[pathlib.Path]) -> None:
        dead = [entry for path in dead_records if (entry := read_one(path)) is not None]
        if dead:
            has_ending = any(entry.ending for entry in read_all(watched.directory))
            self._dead = [] if has_ending else dead
            self._has_left = watched.has_orderly_exit()

    def _look_for_ledgers(self, watched: WatchedRanks | None) -> None:
        """Search for ledgers of dead ranks: one may have been created just before the death."""
        ledgers = [
            pair
            for _, pid in self._early
            if (pair := process_ledger(self._base, pid, self._since)) is not None
        ]
        if ledgers:
            has_removed = len(ledgers) < len(self._early)  # a rank ended without a ledger
            self._has_left = has_removed or (watched is not None and watched.has_orderly_exit())
            self._early = []
            self._directory = ledgers[0][1]
            self._dead = [entry for entry, _ in ledgers if not entry.ending]

    def _look_for_hangs(self, ranks: StartupProcesses, joined: WatchedRanks | None = None) -> None:
        """Report a hung rank once; at the abort limit give up.

        If `joined` is given, the `ranks` have joined the job before and are shutting down.
        """
        for since, limit in ((self._times.stall_s, False), (self._times.abort_s, True)):
            hung_ranks = (
                ranks.hung(since, stopped_alone=joined is not None)
                if limit or not self._reported
                else []
            )
            if not hung_ranks:
                continue
            rank, pid, why = hung_ranks[0]
            what = "has not joined" if joined is None else "does not leave"
            entry = joined.ranks.get(pid) if joined is not None else None
            facts = external_death_facts(rank, pid, f"{why}, for {since:g} s", what, entry)
            facts["checkpoint"] = self._checkpoint
            if limit:
                self._hung = facts
                self.give_up(f"{facts['message']}\nit ends the job")
            else:
                self._reported = True
                os.write(2, f"hpcflow: {facts['message']}\n".encode())


def _signal_name(number: int) -> str:
    """The name of a signal, "" if there is none with this number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _ledgers_of(launcher: int, base: pathlib.Path, since: float) -> WatchedRanks | None:
    """The ledgers of a launcher's job on this node, started after `since`; None if none yet."""
    for directory in user_ledgers(base):
        entry = next(iter(read_all(directory)), None)
        if entry is None or entry.heartbeat < since:
            continue
        if launcher in _ancestors(entry.pid):
            return WatchedRanks(directory, entry.host)
    return None


def _ancestors(pid: int) -> list[int]:
    """The ancestors of process `pid`, parent first."""
    ancestors: list[int] = []
    try:
        while pid > 1:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
            ancestors.append(pid)
    except OSError:
        pass
    return ancestors
