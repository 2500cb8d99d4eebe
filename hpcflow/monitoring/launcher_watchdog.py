"""Launcher watchdog: detects which rank of this node dies first, or hangs at startup or shutdown.

It runs beside the launcher. It is for launchers that kill all ranks before one of them can report,
and for ranks that have not joined the job, which the other ranks do not know.
"""

from __future__ import annotations

import os
import pathlib
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.monitoring.failure_detector import (
    DIED,
    LOOK_S,
    Watched,
    facts_of,
    facts_outside,
    what_next,
)
from hpcflow.monitoring.failure_json import write
from hpcflow.monitoring.stall_watchdog import Times
from hpcflow.monitoring.startup_processes import Starting
from hpcflow.monitoring.wait_ledger import Entry, of_process, of_user, read_all, read_one

FIND_S = 0.05  # between two scans of starting ranks


class Witness:
    """Watches the ranks that this process, or a child, starts on this node, from a thread.

    It searches for their processes, and for their ledgers in `base`. It calls `give_up` with the
    text of a report when a rank that has not joined the job, or does not leave it, has hung for
    `times.abort_s`. If `all_here`, all ranks are on this node.
    """

    def __init__(self, base: str, times: Times, all_here: bool = True) -> None:
        self._base, self._times, self._all_here = pathlib.Path(base), times, all_here
        self.give_up: Callable[[str], None] = lambda text: None
        self._over = threading.Event()
        self._directory: pathlib.Path | None = None
        self._dead: list[Entry] = []
        self._early: list[tuple[int, int]] = []  # rank and process of dead ranks without a ledger
        self._hung: dict[str, Any] = {}  # failure.json of a hung rank
        self._reported = False
        self._checkpoint: str | None = None  # the newest, kept after the ranks have left
        self._thread = threading.Thread(target=self._watch, name="hpcflow-witness", daemon=True)
        self._thread.start()

    def joined(self) -> bool:
        """Whether the ranks of this node have joined the job."""
        return self._directory is not None

    def tell(self, run_dir: str, code: int) -> bool:
        """The job failed with exit code `code`: report the rank at fault; whether there is one.

        The report goes to stderr and to `failure.json`, unless a rank has already reported it.
        """
        self._over.set()
        self._thread.join()
        facts, is_told = self._hung, bool(self._hung)
        if self._dead and self._directory is not None:
            facts = facts_of(self._dead, self._directory)
            is_told = (self._directory / DIED).exists()
        elif (name := _signal_name(code - 128)) and not facts:
            facts = self._died_early(f"was killed by {name}")
        if facts and not is_told:
            os.write(2, f"hpcflow: {facts['message']}\n".encode())
        if facts and run_dir:
            write(pathlib.Path(run_dir), facts)
        return bool(facts)

    def _died_early(self, cause: str) -> dict[str, Any]:
        """The facts of a rank that died before it had joined; it may never have been found."""
        what = "has died before it had joined"
        if self._early:
            return facts_outside(*self._early[0], cause, what)
        if self._all_here and self._directory is None:
            return facts_outside(None, None, cause, what)
        return {}

    def _watch(self) -> None:
        starting, watched, leaving, all_joined = Starting(), None, None, False
        while not (self._dead or self._early or self._hung or self._over.is_set()):
            watched = watched or _ledgers_of(os.getpid(), self._base)
            if not all_joined:
                self._early = starting.wait(FIND_S)
                self._look_for_hangs(starting)
            if watched is not None:
                self._directory = watched.directory
                self._checkpoint = what_next(self._directory)[1] or self._checkpoint
                self._look_at(watched.wait(LOOK_S if all_joined else 0.0) or [])
                all_joined = all_joined or starting.joined(watched.ranks.keys())
            if leaving is None and all_joined and watched is not None and watched.some_left():
                leaving = Starting()
            if leaving is not None:
                leaving.wait(0.0)
                self._look_for_hangs(leaving, watched)
        if not (self._dead or self._early or self._hung or all_joined):
            self._early = starting.wait(0.0)  # ranks that died since the last scan
        if self._early and not self._dead:
            self._look_for_ledgers()
        for one in (starting, watched, leaving):
            if one is not None:
                one.close()

    def _look_at(self, gone: Sequence[pathlib.Path]) -> None:
        dead = [entry for path in gone if (entry := read_one(path)) is not None]
        if dead and self._directory is not None:
            told = any(entry.ending for entry in read_all(self._directory))
            self._dead = [] if told else dead

    def _look_for_ledgers(self) -> None:
        """Search for ledgers of dead ranks: one may have been created just before the death."""
        found = [one for _, pid in self._early if (one := of_process(self._base, pid)) is not None]
        if found:
            self._early = []
            self._directory = found[0][1]
            self._dead = [entry for entry, _ in found if not entry.ending]

    def _look_for_hangs(self, ranks: Starting, joined: Watched | None = None) -> None:
        """Report a hung rank once; at the abort limit give up.

        If `joined` is given, the `ranks` have joined the job before and are shutting down.
        """
        for since, limit in ((self._times.stall_s, False), (self._times.abort_s, True)):
            found = (
                ranks.hung(since, stopped_alone=joined is not None)
                if limit or not self._reported
                else []
            )
            if not found:
                continue
            rank, pid, why = found[0]
            what = "has not joined" if joined is None else "does not leave"
            entry = joined.ranks.get(pid) if joined is not None else None
            facts = facts_outside(rank, pid, f"{why}, for {since:g} s", what, entry)
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


def _ledgers_of(launcher: int, base: pathlib.Path) -> Watched | None:
    """The ledgers of a launcher's job on this node; None if there are none yet."""
    for directory in of_user(base):
        entry = next(iter(read_all(directory)), None)
        if entry is not None and launcher in _ancestors(entry.pid):
            return Watched(directory, entry.host)
    return None


def _ancestors(pid: int) -> list[int]:
    """The ancestors of process `pid`, parent first."""
    found: list[int] = []
    try:
        while pid > 1:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
            found.append(pid)
    except OSError:
        pass
    return found
