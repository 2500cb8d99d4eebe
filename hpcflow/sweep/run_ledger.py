"""Run ledger: a folder with the runs of a sweep or of a scaling study, and the state of each.

    sweep.json            the specification and the list of runs; only the command writes it
    code/                 the code that runs (code_snapshot.py)
    runs/NAME/            the run directory of a run, with output.txt
    ledger/NAME/state.json  its state; written by the process that runs it (ledger_run.py)

All files are replaced atomically. A process that runs something holds the lock of `ledger/NAME`
(run_directory_lock.py), so two never run the same, and a state "running" without a holder is that
of a process that was killed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcflow.errors import HpcflowError
from hpcflow.monitoring import run_directory_lock
from hpcflow.platform.record_files import read_json_object
from hpcflow.report.run_directory_reader import has_type
from hpcflow.sweep import code_snapshot
from hpcflow.train.result_files import write_json, write_text

SWEEP, CODE, RUNS, LEDGER, STATE = "sweep.json", "code", "runs", "ledger", "state.json"
OUTPUT = "output.txt"
FORMAT = "hpcflow-sweep-1"
PENDING, RUNNING, DONE, FAILED = "pending", "running", "done", "failed"
OUT_OF_MEMORY, TIMEOUT, PREEMPTED = "out_of_memory", "timeout", "preempted"
STATES = (PENDING, RUNNING, PREEMPTED, DONE, FAILED, OUT_OF_MEMORY, TIMEOUT)
ENDED = (DONE, FAILED, OUT_OF_MEMORY, TIMEOUT)  # such a run is not run again by itself
PARTS = {
    "words": "the arguments of the script",
    "axes": "what varies (--grid, --random)",
    "ranks": "the numbers of ranks",
    "repeats": "the number of repeats",
    "weak": "--weak",
    "runs": "the number of runs",
}  # of a specification, in messages
LABEL = "the run"  # in messages of the lock
MOST_LOST = 3  # attempts that end without a word, before the run counts as failed


@dataclasses.dataclass(frozen=True)
class LedgerRun:
    """A run: what it is started with, and the values that tell it from the others."""

    name: str
    ranks: int
    settings: dict[str, str]
    words: list[str]  # arguments of the script
    values: dict[str, Any]
    group: int = 0  # runs of a later group begin when those of the earlier have ended


_RUN = {"name": str, "ranks": int, "settings": dict, "words": [str], "values": dict, "group": int}
_FIELDS = tuple(_RUN)


@dataclasses.dataclass
class RunState:
    """What is recorded of a run."""

    state: str = PENDING
    attempts: int = 0
    lost: int = 0  # attempts that ended without a word
    exit_code: int | None = None
    seconds: float = 0.0  # of all attempts
    value: float | None = None  # of the metric
    reason: str = ""
    job: str = ""  # of SLURM
    host: str = ""
    pid: int = 0
    cores: list[int] = dataclasses.field(default_factory=list)
    begun: float = 0.0  # seconds since 1970


class Ledger:
    """The folder of a sweep. Errors: HpcflowError for a damaged file, OSError."""

    def __init__(self, folder: Path, data: dict[str, Any]) -> None:
        self.folder, self.data = folder, data
        if not has_type(data, {"spec": dict, "id": str, "cwd": str, "script": str, "runs": [_RUN]}):
            raise _damaged(folder / SWEEP)
        self.runs = [LedgerRun(**{name: run[name] for name in _FIELDS}) for run in data["runs"]]
        self.spec: dict[str, Any] = data["spec"]
        self.id, self.cwd = data["id"], data["cwd"]
        self.script: str = data["script"]  # its name in the snapshot

    @classmethod
    def create(
        cls, folder: Path, spec: dict[str, Any], script: Path, files: dict[str, bytes]
    ) -> Ledger:
        """Make the folder, with a snapshot of the code and no runs yet."""
        folder.mkdir(parents=True, exist_ok=True)
        code_snapshot.write_snapshot(files, folder / CODE)
        data = {
            "format": FORMAT,
            "id": secrets.token_hex(4),
            "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "cwd": os.getcwd(),
            "script": script.name,
            "code": code_snapshot.digest(files),
            "spec": spec,
            "runs": [],
        }
        return cls(folder, json.loads(json.dumps(data)))

    @classmethod
    def open(cls, folder: Path) -> Ledger | None:
        """The ledger in a folder; None if there is none."""
        data = read_json_object(folder / SWEEP)
        if data is None:
            return None
        ledger = cls(folder, data)
        if data.get("format") != FORMAT or not ledger.runs:
            raise _damaged(folder / SWEEP)
        return ledger

    def check_same(
        self,
        spec: dict[str, Any],
        files: dict[str, bytes],
        command: str = "sweep",
        may_differ: Sequence[str] = (),
    ) -> None:
        """Errors: HpcflowError if the folder is of another specification, or of other code.

        `command` goes on with a folder; `may_differ` are parts of the specification.
        """
        given = json.loads(json.dumps(spec))
        other = [
            PARTS.get(name, name)
            for name in given
            if given[name] != self.spec.get(name) and name not in may_differ
        ]
        if other:
            raise HpcflowError(
                f"{self.folder} has other runs: they differ in {', '.join(other)}",
                hint="give another folder by --out",
            )
        changed = code_snapshot.changes(files, self.folder / CODE)
        changed.sort(key=lambda name: name != self.script)
        if changed:
            verb = "has" if len(changed) == 1 else "have"
            names = ", ".join(changed[:3]) + (" ..." if len(changed) > 3 else "")
            raise HpcflowError(
                f"{names} {verb} changed since the runs in {self.folder} began",
                hint=f"give --out for the new code; `hpcflow {command} {self.folder}` goes on "
                "with the old",
            )

    def add(self, runs: Sequence[LedgerRun]) -> None:
        """Add runs, and write the list."""
        self.runs += runs
        self.data["runs"] = [dataclasses.asdict(run) for run in self.runs]
        write_json(self.folder / SWEEP, self.data)

    def run_folder(self, name: str) -> Path:
        """The run directory of a run."""
        return self.folder / RUNS / name

    def lock_folder(self, name: str) -> Path:
        """The folder whose lock the process of a run holds."""
        return self.folder / LEDGER / name

    def recorded(self, name: str) -> RunState:
        """The state as it was written last."""
        path = self.lock_folder(name) / STATE
        data = read_json_object(path)
        if data is None:
            return RunState()
        known = {field.name for field in dataclasses.fields(RunState)}
        state = RunState(**{key: value for key, value in data.items() if key in known})
        if state.state not in STATES or not _is_valid(state):
            raise _damaged(path)
        return state

    def record(self, name: str, state: RunState) -> None:
        """Write a state. The caller holds the lock of the run."""
        write_text(
            self.lock_folder(name) / STATE, json.dumps(dataclasses.asdict(state), indent=1) + "\n"
        )

    def is_held(self, name: str) -> bool:
        """Whether a process runs it now."""
        return not run_directory_lock.is_free(self.lock_folder(name))

    def state(self, name: str) -> RunState:
        """The state now: a run that nobody runs any more was pre-empted, or has failed."""
        found = self.recorded(name)
        if found.state == RUNNING and not self.is_held(name):
            found = self.recorded(name)  # it may just have ended
            if found.state == RUNNING:
                return self.lost_state(name, found)
        return found

    def lost_state(self, name: str, found: RunState) -> RunState:
        """The state of a run whose process ended without a word; its files or SLURM may tell."""
        from hpcflow.sweep import run_metric, slurm_states

        if run_metric.is_finished(self.run_folder(name)):
            value, reason = self.value_of(name)
            return dataclasses.replace(found, state=DONE, exit_code=0, value=value, reason=reason)
        lost = found.lost + 1
        state, reason = slurm_states.end_of_job(found.job) if found.job else ("", "")
        if not state:
            state, reason = PREEMPTED, "its process was killed, or its node failed"
        if state == PREEMPTED and lost >= MOST_LOST:
            state, reason = FAILED, f"{reason}, {lost} times"
        return dataclasses.replace(found, state=state, lost=lost, reason=reason)

    def value_of(self, name: str) -> tuple[float | None, str]:
        """The value of the metric of a run that is done, and "" or why there is none."""
        from hpcflow.sweep.run_metric import metric_of

        metric, mode = self.spec.get("metric", ""), self.spec.get("mode", "")
        return metric_of(self.run_folder(name), metric, mode)

    def left(self) -> list[LedgerRun]:
        """The runs that have not ended."""
        return [run for run in self.runs if self.recorded(run.name).state not in ENDED]

    def settle(self) -> None:
        """Record the end of the runs whose processes were killed."""
        for run in self.runs:
            if self.recorded(run.name).state != RUNNING or self.is_held(run.name):
                continue
            folder = self.lock_folder(run.name)
            run_directory_lock.claim_directory(folder, LABEL)
            try:
                self.record(run.name, self.state(run.name))
            finally:
                run_directory_lock.release_directory(folder)

    def forget_failures(self) -> None:
        """Let the runs that have failed begin again, as pending: those of the last group."""
        last = max(run.group for run in self.runs)
        for run in self.runs:
            if run.group == last and self.recorded(run.name).state in (
                FAILED,
                OUT_OF_MEMORY,
                TIMEOUT,
            ):
                self.record(run.name, RunState())


def _is_valid(state: RunState) -> bool:
    """Whether the fields have their types, and numbers are finite."""
    counts = (state.attempts, state.lost, state.pid, *state.cores)
    numbers = (state.seconds, state.begun, state.value or 0.0, state.exit_code or 0)
    texts = (state.reason, state.job, state.host)
    return (
        all(type(count) is int and count >= 0 for count in counts)
        and all(type(n) in (int, float) and math.isfinite(n) for n in numbers)
        and all(isinstance(text, str) for text in texts)
    )


def is_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep or of a scaling study."""
    return os.path.isfile(folder / SWEEP)


def runs_of(path: str) -> list[str]:
    """The run directories of a sweep that have begun; of any other folder, the folder itself."""
    if not is_sweep(Path(path)):
        return [path]
    ledger = Ledger.open(Path(path))
    folders = [ledger.run_folder(run.name) for run in ledger.runs] if ledger is not None else []
    found = [str(folder) for folder in folders if folder.is_dir()]
    if not found:
        raise HpcflowError(f"no run of {path} has begun", hint=f"hpcflow watch {path}")
    return found


def _damaged(path: Path) -> HpcflowError:
    return HpcflowError(
        f"{path} is not what hpcflow writes there", hint="give another folder by --out"
    )
