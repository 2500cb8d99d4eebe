"""Process of one run of a ledger: starts it, waits for it, and records how it ended.

    python -m hpcflow.sweep.ledger_run FOLDER NAME [--cores LIST] [--limit S]

`hpcflow sweep` starts one for each run on this machine; the elements of SLURM job arrays are such
processes. It outlives the command that started it. On SIGTERM the run saves and stops, and counts
as pre-empted. If this process is killed, the kernel sends SIGTERM to the run.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import math
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import IO, Any

from hpcflow.errors import ABORTED, HpcflowError, LaunchError
from hpcflow.launch import slurm_requeue
from hpcflow.launch.mpirun_supervisor import PR_SET_PDEATHSIG
from hpcflow.monitoring import run_directory_lock
from hpcflow.monitoring.failure_json import NAME as FAILURE
from hpcflow.platform.record_files import read_json_object
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.settings import PREFIX
from hpcflow.sweep import run_ledger
from hpcflow.sweep.run_ledger import Ledger, LedgerRun, RunState
from hpcflow.sweep.run_metric import is_finished

LOOK_S = 0.2
LET_IT_SAVE_S = 60.0  # after SIGTERM, then SIGKILL
BEFORE_END_S = 5.0  # of the SLURM job: the time-out is recorded
TAIL_BYTES = 8 << 10  # of the output, for the reason of a failure
OUT_OF_TIME = "the time limit of its SLURM job"
KILLED = (ABORTED, 128 + signal.SIGKILL)  # exit codes after a rank was killed
MEMORY_ERROR = re.compile(  # last lines of Python, hpcflow and SLURM
    r"^(\w+: )?([\w.]+\.)?(MemoryError|OutOfMemoryError)\b|oom[-_]kill|Out Of Memory", re.MULTILINE
)


def main(words: list[str] | None = None) -> int:
    """Run it, unless it has ended or another process runs it; returns its exit code."""
    parser = argparse.ArgumentParser(prog="hpcflow.sweep.ledger_run", description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("name")
    parser.add_argument("--cores", default="")
    parser.add_argument("--limit", type=float, default=math.inf)
    args = parser.parse_args(words)
    ledger = Ledger.open(Path(args.folder))
    if ledger is None:
        raise LaunchError(f"there is no {run_ledger.SWEEP} in {args.folder}")
    (run,) = [run for run in ledger.runs if run.name == args.name]
    lock = ledger.lock_folder(run.name)
    try:
        run_directory_lock.claim_directory(lock, run_ledger.LABEL)
    except LaunchError as error:
        print(f"hpcflow sweep: {run.name} is not run again: {error.message}", file=sys.stderr)
        return 0
    try:
        before = ledger.recorded(run.name)
        if before.state == run_ledger.RUNNING:  # it was killed without a word
            before = ledger.lost_state(run.name, before)
            ledger.record(run.name, before)
        if before.state in run_ledger.ENDED:
            print(f"hpcflow sweep: {run.name} has ended before: {before.state}", file=sys.stderr)
            return 0
        cores = [int(core) for core in args.cores.split(",") if core]
        return Attempt(ledger, run, before, cores, args.limit).run()
    except Exception as error:  # of this process, not of the run: nothing else would tell
        traceback.print_exc()
        reason = escape_line(f"it could not be run: {type(error).__name__}: {error}")
        attempts = ledger.recorded(run.name).attempts
        ledger.record(run.name, RunState(run_ledger.FAILED, attempts=attempts, reason=reason))
        return 1
    finally:
        run_directory_lock.release_directory(lock)


class Attempt:
    """One attempt at a run."""

    def __init__(
        self, ledger: Ledger, run: LedgerRun, before: RunState, cores: list[int], limit_s: float
    ) -> None:
        self.ledger, self._run, self._before, self._limit_s = ledger, run, before, limit_s
        self._stopping, self._signals = 0, 0  # the signal that stops it, and how many have come
        self._begun = time.monotonic()
        self._is_out_of_time = False  # the time limit of its SLURM job is there
        self._state = RunState(
            run_ledger.RUNNING,
            attempts=before.attempts + 1,
            lost=before.lost,
            seconds=before.seconds,
            job=os.environ.get("SLURM_JOB_ID", ""),
            host=os.uname().nodename,
            pid=os.getpid(),
            cores=cores,
            begun=time.time(),
        )

    def run(self) -> int:
        """Start it, wait, and record the end; returns its exit code as a shell reports it."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        self._record()
        folder = self.ledger.run_folder(self._run.name)
        folder.mkdir(parents=True, exist_ok=True)
        if not self._wait_for_earlier(folder):
            self._record(state=run_ledger.PREEMPTED, reason="an earlier attempt has not ended")
            return slurm_requeue.TEMPORARY_FAILURE
        if is_finished(folder) and self._before.lost:
            value, reason = self.ledger.value_of(self._run.name)
            self._record(state=run_ledger.DONE, exit_code=0, value=value, reason=reason)
            return 0
        self._begun = time.monotonic()
        killed = oom_kills()
        with open(folder / run_ledger.OUTPUT, "ab") as output:
            start = output.tell()
            code, is_late = self._wait(self._start(output))
        tail = tail_of(folder / run_ledger.OUTPUT, start)
        state, reason = self._outcome(code, is_late, tail, oom_kills() > killed)
        if state == run_ledger.DONE:
            value, reason = self.ledger.value_of(self._run.name)
        else:
            value, reason = None, reason or failure_of(folder, tail) or f"exit code {code}"
        self._record(
            state=state,
            exit_code=code,
            seconds=self._seconds(),
            value=value,
            reason=escape_line(reason),
        )
        return code

    def _record(self, **changes: Any) -> None:
        """Record the state of this attempt with some fields changed."""
        self.ledger.record(self._run.name, dataclasses.replace(self._state, **changes))

    def _start(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        libc, cores = ctypes.CDLL(None), self._state.cores

        def in_child() -> None:
            if hasattr(libc, "prctl"):
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if cores:
                os.sched_setaffinity(0, cores)

        return subprocess.Popen(
            command_of(self.ledger, self._run),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self.ledger.cwd,
            preexec_fn=in_child,
        )

    def _wait(self, process: subprocess.Popen[bytes]) -> tuple[int, bool]:
        """Exit code, and whether it ran out of its own time."""
        ends, told, is_late = slurm_requeue.job_end_time(), math.inf, False
        while process.poll() is None:
            now = time.monotonic()
            if not is_late and now - self._begun > self._limit_s:
                is_late, self._stopping = True, self._stopping or signal.SIGTERM
            if self._stopping and told == math.inf:
                told = now
                process.terminate()
            elif now - told > LET_IT_SAVE_S or self._signals > 1:
                process.kill()
            if ends is not None and time.time() > ends - BEFORE_END_S:
                ends, self._is_out_of_time = None, True
                # SLURM kills all processes of a job at once when its time is over
                self._record(state=run_ledger.TIMEOUT, seconds=self._seconds(), reason=OUT_OF_TIME)
            time.sleep(LOOK_S)
        code = process.returncode
        return (code if code >= 0 else 128 - code), is_late

    def _wait_for_earlier(self, folder: Path) -> bool:
        """Whether no attempt is left: one whose process was killed may still save and stop."""
        end = time.monotonic() + LET_IT_SAVE_S
        while not run_directory_lock.is_free(folder):
            if self._stopping or time.monotonic() > end:
                return False
            time.sleep(LOOK_S)
        return True

    def _outcome(self, code: int, is_late: bool, tail: str, was_oom: bool) -> tuple[str, str]:
        """State and reason; the reason is "" if the output tells it."""
        if code == 0:
            return run_ledger.DONE, ""
        if is_late:
            return run_ledger.TIMEOUT, f"it ran for more than {self._limit_s:g} s"
        if self._is_out_of_time and code != slurm_requeue.TEMPORARY_FAILURE:
            return run_ledger.TIMEOUT, OUT_OF_TIME
        if self._stopping:
            return (
                run_ledger.PREEMPTED,
                f"stopped by {signal.Signals(self._stopping).name}; it resumes",
            )
        if code == slurm_requeue.TEMPORARY_FAILURE:
            return run_ledger.PREEMPTED, "it saved and stopped"
        if (was_oom and code in KILLED) or MEMORY_ERROR.search(tail):
            return run_ledger.OUT_OF_MEMORY, ""
        return run_ledger.FAILED, ""

    def _seconds(self) -> float:
        return round(self._before.seconds + time.monotonic() - self._begun, 2)

    def _stop(self, number: int, frame: object) -> None:
        """The run saves and stops; at a second signal it is killed."""
        self._stopping = self._stopping or number
        self._signals += 1


def command_of(ledger: Ledger, run: LedgerRun) -> list[str]:
    """`hpcflow run` of the snapshot; a run that was stopped resumes from its checkpoints."""
    several = ["-n", str(run.ranks)] if run.ranks > 1 else []
    folder = ledger.run_folder(run.name).resolve()
    settings = {"run_dir": str(folder), **run.settings}
    if not {"checkpoints", "default_checkpoints"} & run.settings.keys() and not any(
        PREFIX + name in os.environ for name in ("CHECKPOINTS", "DEFAULT_CHECKPOINTS")
    ):
        settings["default_checkpoints"] = str(folder / "checkpoints")
    options = [f"--set={name}={value}" for name, value in settings.items()]
    script = str((ledger.folder / run_ledger.CODE / ledger.script).resolve())
    return [*program(), "run", *several, *options, script, "--", *run.words]


def program() -> list[str]:
    """The command `hpcflow`; without it the module, for which Python searches the current folder
    first."""
    installed = os.path.join(os.path.dirname(sys.executable), "hpcflow")
    return [installed] if os.access(installed, os.X_OK) else [sys.executable, "-m", "hpcflow"]


def tail_of(path: Path, start: int) -> str:
    """The last lines of an output that begins at byte `start` of the file."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - TAIL_BYTES))
        return file.read().decode("utf-8", "replace")
    return ""


def failure_of(folder: Path, tail: str) -> str:
    """The cause of a failure: of failure.json, else the last line of the output."""
    facts: dict[str, Any] | None = None
    with contextlib.suppress(HpcflowError):
        facts = read_json_object(folder / FAILURE)
    if facts is not None and isinstance(facts.get("cause"), str):
        return str(facts["cause"])
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def oom_kills() -> int:
    """How many processes of this control group the kernel has killed for memory so far."""
    for path in _memory_files():
        with contextlib.suppress(OSError, ValueError):
            for line in Path(path).read_text().splitlines():
                name, _, number = line.partition(" ")
                if name == "oom_kill":
                    return int(number)
    return 0


def _memory_files() -> list[str]:
    """Where the kernel counts them: of control groups of version 2 and of version 1."""
    with contextlib.suppress(OSError):
        rows = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        groups = {row[1]: row[2] for row in rows if len(row) == 3}
        return [
            f"/sys/fs/cgroup{groups.get('', '')}/memory.events",
            f"/sys/fs/cgroup/memory{groups.get('memory', '')}/memory.oom_control",
        ]
    return []


if __name__ == "__main__":
    sys.exit(main())
