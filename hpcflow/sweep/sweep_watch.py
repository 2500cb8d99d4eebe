"""Watch of a ledger: the states of its runs, and the runs that go on.

Of each run a small file is read; of one that has ended, only when the file has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcflow.errors import HpcflowError
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report.run_watch import WatchedRun, as_table
from hpcflow.sweep import halving_rungs, run_ledger, sweep_table
from hpcflow.sweep.run_ledger import Ledger, LedgerRun, RunState

MOST_SHOWN = 12  # runs that go on


class WatchedSweep:
    """A ledger; `look` reads what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended: dict[str, tuple[int, RunState]] = {}
        self._runs: dict[str, WatchedRun] = {}

    def look(self) -> tuple[Ledger, list[tuple[LedgerRun, RunState]], list[dict[str, Any]]]:
        """The ledger, the state of each run, and what is known of those that go on."""
        ledger = Ledger.open(self._folder)
        if ledger is None:
            raise HpcflowError(f"{self._folder} is no folder of a sweep any more")
        found = [(run, self._state(ledger, run.name)) for run in ledger.runs]
        going = [run.name for run, state in found if state.state == run_ledger.RUNNING]
        for name in going:
            self._runs.setdefault(name, WatchedRun(ledger.run_folder(name), is_over=False))
        return ledger, found, [self._runs[name].look() for name in going[:MOST_SHOWN]]

    def _state(self, ledger: Ledger, name: str) -> RunState:
        """The state; of a run that has ended it is read again only if its file has changed."""
        try:
            changed = (ledger.lock_folder(name) / run_ledger.STATE).stat().st_mtime_ns
        except OSError:
            return RunState()
        if self._ended.get(name, (0, None))[0] == changed:
            return self._ended[name][1]
        state = ledger.state(name)
        if state.state in run_ledger.ENDED:
            self._ended[name] = changed, state
        return state


def is_over(ledger: Ledger, found: list[tuple[LedgerRun, RunState]]) -> bool:
    """Whether no run goes on or waits, and no rung of successive halving follows."""
    ended = all(state.state in run_ledger.ENDED for _, state in found)
    return ended and not halving_rungs.next_rung(ledger)


def as_text(
    ledger: Ledger, found: list[tuple[LedgerRun, RunState]], going: Sequence[dict[str, Any]]
) -> str:
    """The table of the runs, then those that go on."""
    lines = [escape_line(str(ledger.folder)), sweep_table.as_text(ledger, found)]
    return "\n".join([*lines, *([as_table(going)] if going else [])])
