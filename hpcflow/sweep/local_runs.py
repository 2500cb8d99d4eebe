"""Runs of a ledger on this machine: several at a time, each on cores of its own.

Each run is a process of its own (ledger_run.py), which outlives this one. When this command is
started again, it waits for those that still run, and starts what is left.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from hpcflow.sweep import run_ledger
from hpcflow.sweep.run_ledger import Ledger, LedgerRun, RunState

LOOK_S = 0.2  # between looks at own processes
LOOK_AT_OTHERS_S = 2.0  # at runs that an earlier command started
STARTS = 2  # without any state, before a run counts as failed
LOG = "process.log"  # of the processes of a run, beside its state


class LocalRuns:
    """Runs what has not ended, `at_once` runs at a time, of `limit_s` seconds at most each.

    `tell(run, state)` is called when a run has ended.
    """

    def __init__(
        self,
        ledger: Ledger,
        at_once: int,
        limit_s: float,
        tell: Callable[[LedgerRun, RunState], None],
    ) -> None:
        self.ledger, self._at_once, self._limit_s, self._tell = ledger, at_once, limit_s, tell
        self._slots = core_slots(at_once)
        self._own: dict[str, tuple[subprocess.Popen[bytes], int]] = {}  # process and slot
        self._others: dict[str, RunState] = {}  # of an earlier command
        self._starts: dict[str, int] = {}
        self._stopping = 0  # how many signals have come
        self._told: dict[str, int] = {}  # run -> how many of them its process has got
        self._looked = 0.0

    def run(self, runs: Sequence[LedgerRun]) -> bool:
        """Run them; False if a signal stopped it. Groups run one after the other."""
        with self._signals():
            for group in sorted({run.group for run in runs}):
                self._run_group([run for run in runs if run.group == group])
                if self._stopping:
                    return False
        return True

    def _run_group(self, runs: Sequence[LedgerRun]) -> None:
        waiting = []
        for run in runs:
            state = self.ledger.state(run.name)
            if state.state == run_ledger.RUNNING:
                self._others[run.name] = state
            elif state.state not in run_ledger.ENDED:
                waiting.append(run)
        by_name = {run.name: run for run in runs}
        while waiting or self._own or self._others:
            for name in self._ended():
                state = self.ledger.state(name)
                if state.state in run_ledger.ENDED:
                    self._tell(by_name[name], state)
                elif state.state == run_ledger.RUNNING or self.ledger.is_held(name):
                    self._others[name] = state  # a process of an earlier command was first
                elif state.state == run_ledger.PENDING and self._starts.get(name, 0) >= STARTS:
                    self._tell(by_name[name], self._give_up(name))
                elif not self._stopping:
                    waiting.append(by_name[name])  # it was killed, or nobody knows of it
            while waiting and not self._stopping and (slot := self._free_slot()) is not None:
                self._start(waiting.pop(0), slot)
            if self._stopping:
                waiting.clear()
                self._pass_on_signals()
            time.sleep(LOOK_S)

    def _start(self, run: LedgerRun, slot: int) -> None:
        self._starts[run.name] = self._starts.get(run.name, 0) + 1
        words = [*module_command(), "hpcflow.sweep.ledger_run", str(self.ledger.folder)]
        words += [run.name, f"--cores={','.join(map(str, self._slots[slot]))}"]
        words += [f"--limit={self._limit_s}"] if math.isfinite(self._limit_s) else []
        log = self.ledger.lock_folder(run.name) / LOG
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._own[run.name] = process, slot

    def _give_up(self, name: str) -> RunState:
        """Its process ends before it has recorded anything."""
        log = self.ledger.lock_folder(name) / LOG
        lines = log.read_text(errors="replace").split("\n")
        words = next((line for line in reversed(lines) if line.strip()), "")
        state = RunState(run_ledger.FAILED, reason=f"it did not start: {words} ({log})")
        self.ledger.record(name, state)
        return state

    def _free_slot(self) -> int | None:
        taken = {slot for _, slot in self._own.values()}
        cores = {core for state in self._others.values() for core in state.cores}
        if len(self._own) + len(self._others) >= self._at_once:
            return None
        free = [slot for slot in range(self._at_once) if slot not in taken]
        return min(free, key=lambda slot: len(cores & set(self._slots[slot])))

    def _ended(self) -> list[str]:
        """The names of runs whose processes have ended since the last look."""
        ended = [name for name, (process, _) in self._own.items() if process.poll() is not None]
        for name in ended:
            del self._own[name]
        if time.monotonic() - self._looked > LOOK_AT_OTHERS_S:
            self._looked = time.monotonic()
            over = [name for name in self._others if not self.ledger.is_held(name)]
            for name in over:
                del self._others[name]
            ended += over
        return ended

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, self._stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: object) -> None:
        self._stopping += 1
        again = "; again: they end at once" if self._stopping == 1 else ""
        os.write(2, f"hpcflow: the runs save and stop{again}\n".encode())

    def _pass_on_signals(self) -> None:
        """The runs save and stop; at a second signal they end at once."""
        here = os.uname().nodename
        pids = {name: process.pid for name, (process, _) in self._own.items()}
        others = {n: self.ledger.recorded(n) for n in self._others if n not in pids}
        pids |= {n: s.pid for n, s in others.items() if s.host == here and s.pid}
        for name, pid in pids.items():
            if self._told.get(name, 0) < self._stopping:  # one at a time, or they merge
                self._told[name] = self._told.get(name, 0) + 1
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM)


def module_command() -> list[str]:
    """Python with `-m`, without modules of the current folder, unless hpcflow is there."""
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    is_safe = sys.version_info >= (3, 11) and not os.path.samefile(top, os.getcwd())
    return [sys.executable, *(["-P"] if is_safe else []), "-m"]


def core_slots(at_once: int) -> list[list[int]]:
    """The cores of each of `at_once` concurrent runs; [] for each if there are fewer cores."""
    if not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(at_once)]
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // at_once
    return [cores[i * each : (i + 1) * each] for i in range(at_once)]
