"""Run of a function of a notebook on ranks: sends it, starts the ranks, collects the results."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from hpcflow.errors import ArgumentError, DeadlineExceededError, LaunchError, RankError
from hpcflow.notebook.rank_program import CALL, cloudpickle_module, outcome_file
from hpcflow.platform.exception_translation import value_text

GRACE_S = 10.0  # ranks that are interrupted save and stop in this time; then they end at once
FAILED = "hpcflow: the job failed"
CELL = "<dynamic-code>"  # the file name that cloudpickle gives to functions
MOST_LINES = 20  # of the output in the message of a job that failed
PROGRAM = Path(__file__).with_name("rank_program.py")


def run(
    function: Callable[..., Any],
    ranks: int = 4,
    ps: int = 0,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    time_limit: float | None = None,
    **settings: Any,
) -> list[Any]:
    """Run `function(*args, **kwargs)` as a script on `ranks` ranks; return each rank's result.

    The ranks are new processes, started by `hpcflow run`; `ps` of them are parameter servers, and
    `settings` are those of `--set`. The function, its arguments and its results are sent by
    cloudpickle, with the functions, classes and values of the notebook that it uses; modules are
    imported on the ranks. Tensors and sessions cannot be sent. Output of the ranks is printed. An
    interrupt stops the ranks: first they may save, after GRACE_S they end.

    Ranks:  called in the notebook alone. The result of a rank that does not run scripts, as of a
            server, is None.
    Errors: RankError if the function raised, with rank and traceback, caused by that exception;
            LaunchError if the job failed otherwise; DeadlineExceededError after `time_limit`
            seconds; MissingPackageError without cloudpickle; ArgumentError.
    """
    library = cloudpickle_module()
    check(function, ranks, ps)
    options = [f"--set={name}={value}" for name, value in settings.items()]
    with tempfile.TemporaryDirectory(prefix=".hpcflow-notebook-", dir=os.getcwd()) as name:
        folder = Path(name)
        (folder / CALL).write_bytes(pickled(library, function, tuple(args), dict(kwargs or {})))
        command = [sys.executable, "-m", "hpcflow", "run", "-n", str(ranks), f"--ps={ps}"]
        command += [*options, str(PROGRAM), "--", str(folder)]
        code, late, last = watched(command, time_limit)
        outcomes = [read_outcome(outcome_file(folder, rank)) for rank in range(ranks)]
    failures = {rank: failure for rank, (_, failure) in enumerate(outcomes) if failure}
    if late:
        raise DeadlineExceededError(
            f"the ranks did not end within {time_limit:g} s and were stopped",
            hint="give a longer time_limit, or None",
        )
    if failures:
        raise_first(failures)
    if code:
        raise LaunchError(
            f"{reason(last, code)}; its last lines:\n{''.join(last)}".rstrip(),
            hint="`hpcflow help exit-codes` explains it",
        )
    return [result for result, _ in outcomes]


def check(function: object, ranks: object, ps: object) -> None:
    """Errors: ArgumentError for arguments that no job can have."""
    if not callable(function):
        raise ArgumentError(f"{value_text(function)} is not a function", hint="give a function")
    for name, value, least in (("ranks", ranks, 1), ("ps", ps, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ArgumentError(
                f"{name}={value_text(value)} is not a number of ranks",
                hint=f"give an integer of {least} or more",
            )


def pickled(library: ModuleType, *call: Any) -> bytes:
    """The function and its arguments; ArgumentError if one of them cannot be sent."""
    try:
        data: bytes = library.dumps(call)
    except Exception as error:
        raise ArgumentError(
            f"the function, its arguments or what it uses of the notebook cannot be sent to the "
            f"ranks: {type(error).__name__}: {error}",
            hint="create tensors, graphs, sessions and files inside the function",
        ) from error
    return data


def watched(command: Sequence[str], time_limit: float | None) -> tuple[int, bool, deque[str]]:
    """Run a command and print its output.

    Returns its exit code, whether the time limit stopped it, and its last lines. An interrupt stops
    it, and is raised when it has ended.
    """
    last: deque[str] = deque(maxlen=MOST_LINES)
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert process.stdout is not None
    late = threading.Event()
    with stopped_at_the_end(process), limit(process, time_limit, late):
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            last.append(line)
        process.wait()
    return process.returncode, late.is_set(), last


@contextlib.contextmanager
def stopped_at_the_end(process: subprocess.Popen[str]) -> Iterator[None]:
    """Within it an exception, as of an interrupt, stops the process."""
    try:
        yield
    except BaseException:
        stop(process)
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def limit(
    process: subprocess.Popen[str], seconds: float | None, late: threading.Event
) -> Iterator[None]:
    """Within it the process is stopped after `seconds`, and `late` is set."""

    def end() -> None:
        late.set()
        stop(process)

    timer = threading.Timer(seconds, end) if seconds is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
            if late.is_set():
                timer.join()


def stop(process: subprocess.Popen[str]) -> None:
    """Interrupt the job, which may save; then interrupt it again, which ends it; then kill it."""
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)


def reason(lines: Sequence[str], code: int) -> str:
    """Why the job failed, as `hpcflow run` said last, or else its exit code."""
    found = [line for line in lines if line.startswith(FAILED)]
    text = found[-1].removeprefix("hpcflow: ").strip() if found else "the job failed"
    return text if f"exit code {code}" in text else f"{text} (exit code {code})"


class Failure(NamedTuple):
    """How the function failed on a rank."""

    at: float  # by the clock of the rank, seconds since 1970
    first: str  # type and message of the exception
    line: str  # of the function, file:line; "" if it is not known
    traceback: str
    error: BaseException | None  # None if it cannot be sent


def read_outcome(file: Path) -> tuple[Any, Failure | None]:
    """What a rank wrote: its result, or when it failed, the traceback and the exception."""
    if not file.exists():
        return None, None
    kind, *facts = pickle.loads(file.read_bytes())
    if kind == "result":
        return pickle.loads(facts[0]), None
    at, first, line, text, data = facts
    try:
        error = pickle.loads(data) if data is not None else None
    except Exception:  # an exception class whose constructor takes other arguments
        error = None
    return None, Failure(at, first, line, text, error)


def raise_first(failures: Mapping[int, Failure]) -> None:
    """Raise the failure that came first, by rank; others often follow from it."""
    rank = min(failures, key=lambda rank: failures[rank].at)
    failure = failures[rank]
    line = failure.line.replace(f"{CELL}:", "cell, line ")
    place = f"\n  in  {line}" if line else ""
    message = f"rank {rank} raised {failure.first}{place}\n\n{failure.traceback}".rstrip()
    raise RankError(message, traceback=failure.traceback, rank=rank) from failure.error
