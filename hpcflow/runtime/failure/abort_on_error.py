"""Abort on error: a rank that fails prints its traceback and aborts the job.

Ranks of a node that fail with the same error print it once: the first prints, the others sign its
note, a file beside the wait ledgers.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from hpcflow.comm.communicator import Communicator
from hpcflow.errors import ABORTED, CommError, DeathError, HpcflowError, StallError
from hpcflow.monitoring import failure_json
from hpcflow.monitoring.failure_detector import DIED, next_advice
from hpcflow.monitoring.failure_detector import death_facts as facts_of_death
from hpcflow.monitoring.stack_dump import own_stacks, raised_at
from hpcflow.monitoring.wait_ledger import LedgerEntry, first
from hpcflow.platform import rank_logging
from hpcflow.runtime.dynamic_types import Json
from hpcflow.runtime.job.rank_role import RankRole
from hpcflow.settings import Settings

LET_FIRST_END_S = 0.5  # at the start, other ranks let rank 0 print first
LET_OTHERS_SIGN_S = 0.1  # for ranks that fail with the same error at about the same time
LET_LAUNCHER_READ_S = 0.1  # MPICH's launcher drops unread output of a rank that aborts the job
LET_DEATH_BE_SEEN_S = 0.2  # after a failed message, until the kernel's notice of the death
LET_LAUNCHER_END_S = 2.0  # for the launcher to end the job of a dead rank, before other ranks do
LET_REBUILD_S = 60.0  # for the replicas to recover from a death; after that MPI hangs
LET_ENGINE_END_S = 3.0  # for the executor to abort by MPI, before this process exits
PRINT_TIMEOUT_S = 1.0  # a first rank that has not printed after this time is taken for dead
_PRINTED_MARK = "told"
_RANK = re.compile(r"^(\s*rank +)\d+$", re.MULTILINE)  # the only line in which equal errors differ


class FailureNote:
    """The ranks of a node that failed with the same `text`: a file in `folder` that they sign."""

    def __init__(self, folder: Path, text: str, rank: int) -> None:
        number = zlib.crc32(_RANK.sub(r"\1", text).encode())
        self._path, self._rank = folder / f"failed-{number:08x}", rank
        self.waited = False  # timed out waiting for the first rank to print

    def is_first(self) -> bool:
        """True if this rank has to print; otherwise False, once another rank has printed."""
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return True
        except FileExistsError:
            self._add(str(self._rank))
        except OSError:  # no such folder, or the disk is full: every rank prints
            return True
        late = time.monotonic() + PRINT_TIMEOUT_S
        while time.monotonic() < late:
            if _PRINTED_MARK in self._lines():
                return False
            time.sleep(0.01)
        self.waited = True
        return True

    def mark_printed(self) -> None:
        """Record that the first rank has printed."""
        self._add(_PRINTED_MARK)

    def signed_ranks(self) -> list[int]:
        """The ranks that have signed."""
        return sorted(int(line) for line in self._lines() if line.isdigit())

    def _add(self, line: str) -> None:
        try:
            with open(self._path, "a") as file:  # an append this short is atomic
                file.write(f"{line}\n")
        except OSError:
            pass

    def _lines(self) -> list[str]:
        try:
            return self._path.read_text().split()
        except OSError:
            return []


def on_error(
    here: RankRole,
    hook: Callable[..., object],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """The excepthook: print the traceback, then abort the job; other ranks would wait for this one.

    The first rank that fails prints in full and writes `failure.json`; others print one line.
    """
    text = "".join(traceback.format_exception(kind, error, trace))
    if here.size == 1:
        is_first_to_fail(here, error, text)
        if hook is sys.__excepthook__:
            sys.stderr.write(_printed_traceback(here, error, trace, text))
        else:
            hook(kind, error, trace)
        rank_logging.write_last_lines(text)
        return
    ledger = here.executor.ledger
    for call in here.before_abort:
        call()
    if isinstance(error, CommError):
        _await_death(here)
    if ledger is not None:
        ledger.ends()
    sys.stdout.flush()
    if isinstance(error, DeathError):
        if ledger is None or first(ledger.directory / DIED):
            if is_first_to_fail(here, error, text):
                _summarize(failure_facts(here, error, text), [])
            _print_line(here, str(error))
    else:
        _print_error(here, error, text, _printed_traceback(here, error, trace, text))
    time.sleep(LET_LAUNCHER_READ_S)
    _release_gpus()
    assert here.world is not None
    if here.settings.survive:
        _end_tolerant(here, here.world)
    here.world.abort(ABORTED)


@contextlib.contextmanager
def abort_on_exception(
    rank: int, size: int, settings: Settings, abort: Callable[[int], None]
) -> Iterator[None]:
    """Call `abort` on any exception raised inside, Ctrl-C included.

    It covers the start of the job, before excepthook and watchdog are installed. Ranks other than 0
    wait a moment, so that rank 0 prints first and writes `failure.json` if all fail.
    """
    try:
        yield
    except BaseException as error:
        if size == 1:
            raise
        if rank > 0:
            time.sleep(LET_FIRST_END_S)
        is_ours = isinstance(error, HpcflowError)
        text = "".join(traceback.format_exception(error, chain=not is_ours))
        lines = [*(str(error) if is_ours else text).splitlines(), f"ends the job of {size} ranks"]
        prefix = f"[rank {rank} on {os.uname().nodename}]"
        sys.stderr.write("".join(f"{prefix} {line}\n" for line in lines))
        facts = _startup_facts(rank, error, text)
        _summarize(facts, [])
        if settings.run_dir:
            failure_json.write_failure(Path(settings.run_dir), facts)
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(LET_LAUNCHER_READ_S)
        abort(ABORTED)
        raise


def _startup_facts(rank: int, error: BaseException, text: str) -> Json:
    return {
        "kind": "error",
        "rank": rank,
        "task": None,
        "host": os.uname().nodename,
        "told_by": rank,
        "time": failure_json.timestamp(),
        "step": 0,
        "cause": _one_line(error),
        "error": type(error).__name__,
        "message": str(getattr(error, "message", None) or error),
        "hint": getattr(error, "hint", None),
        "checkpoint": None,
        "traceback": text,
    }


def _end_tolerant(here: RankRole, world: Communicator) -> None:
    """End this rank of a job with `survive`, so that other ranks and the launcher notice.

    Ranks of Open MPI may not detect an abort or an exit of this one, only its death by a signal.
    The launcher exits with 0 unless some rank exits with another code.
    """
    over = any(not here.survives_without(rank) for rank in world.lost)  # all ranks detect that
    if over or (not here.survives_without(here.rank) and world.is_last()):
        sys.stdout.flush()
        os._exit(ABORTED)
    os.kill(os.getpid(), signal.SIGKILL)


def _printed_traceback(
    here: RankRole, error: BaseException, trace: TracebackType | None, text: str
) -> str:
    """What is printed of the traceback `text`: all of it with the setting `full_traceback`."""
    if here.settings.full_traceback:
        return text
    from hpcflow.monitoring.users_traceback import users_traceback

    return users_traceback(error, trace)


def _summarize(facts: Json, others: Sequence[int]) -> None:
    """Leave the reason for the last line of `hpcflow run`; `others` fail with the same error."""
    ranks = sorted({*(facts.get("ranks") or [facts["rank"]]), *others})
    cause, at = facts["cause"], facts.get("line") or facts.get("made_at")
    from hpcflow.monitoring import failure_summary

    failure_summary.write_summary(ranks, cause, at, facts["hint"])


def _print_error(here: RankRole, error: BaseException, text: str, shown: str) -> None:
    """Print the traceback on the first rank that fails, and one line on ranks with other errors.

    `text` is the whole traceback, `shown` what is printed of it.
    """
    ledger = here.executor.ledger
    note = FailureNote(ledger.directory, shown, here.rank) if ledger is not None else None
    prints = note is None or note.is_first()
    first = prints and is_first_to_fail(here, error, text)
    if first or (note is not None and note.waited):
        for line in shown.splitlines():  # with a prefix each: lines of other ranks may interleave
            _print_line(here, line)
        spare = here.survives_without(here.rank)
        outcome = "ends alone" if spare else f"ends the job of {here.size} ranks"
        _print_line(here, outcome)
    elif prints:
        _print_line(here, f"failed after another rank: {_one_line(error)}")
    rank_logging.write_last_lines(text)
    if note is not None and prints:
        note.mark_printed()
    time.sleep(LET_OTHERS_SIGN_S)
    same = note.signed_ranks() if note is not None and prints else []
    if same:
        _print_line(here, f"the same on {rank_logging.rank_spans(same)}")
    if first:
        _summarize(failure_facts(here, error, text), same)


def _release_gpus() -> None:
    """Abort NCCL operations, so that no process hangs and keeps its GPU."""
    nccl = sys.modules.get("hpcflow.comm.nccl_allreduce")
    if nccl is not None:
        nccl.abort_all()


def _print_line(here: RankRole, text: str) -> None:
    """Print to stderr, prefixed by the rank."""
    sys.stderr.write(f"[rank {here.rank} on {here.hosts[here.rank]}] {text}\n")
    sys.stderr.flush()


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _await_death(here: RankRole) -> None:
    """After a failed message, wait briefly for the notice that its peer has died.

    The death is then reported as the first failure.
    """
    ledger, late = here.executor.ledger, time.monotonic() + LET_DEATH_BE_SEEN_S
    while ledger is not None and time.monotonic() < late:
        if (ledger.directory / DIED).exists():
            return
        time.sleep(0.01)


def is_first_to_fail(here: RankRole, error: BaseException, text: str) -> bool:
    """Write `failure.json`; True if no rank has failed before.

    It is in the run directory, for all ranks of the job; without one in the folder of wait ledgers,
    for those of this node.
    """
    return _write(here, failure_facts(here, error, text))


def _write(here: RankRole, facts: Json) -> bool:
    ledger, run_dir = here.executor.ledger, here.settings.run_dir
    if not run_dir and ledger is None:
        return True
    return failure_json.write_failure(
        Path(run_dir) if run_dir or ledger is None else ledger.directory, facts
    )


def failure_facts(here: RankRole, error: BaseException, text: str) -> Json:
    """The contents of `failure.json` for an error; `text` is its traceback.

    `rank` is where the error occurred, `told_by` the rank that reports it; `line` is the user's
    line in the traceback, `made_at` the line that created the operation.
    """
    kinds = {StallError: "stall", DeathError: "death"}
    rank = getattr(error, "died", None)
    rank = getattr(error, "rank", None) if rank is None else rank
    rank = here.rank if rank is None else rank
    stalled = (
        {"missing": error.missing, "report": error.report} if isinstance(error, StallError) else {}
    )
    return {
        "kind": kinds.get(type(error), "error"),
        "rank": rank,
        "task": here.task_name(rank),
        "host": here.hosts[rank],
        "told_by": here.rank,
        "time": failure_json.timestamp(),
        "step": getattr(error, "step", None) or here.steps() or 0,
        "op": getattr(error, "op", None),
        "line": raised_at(error) or None,
        "made_at": getattr(error, "line", None),
        "cause": _one_line(error),
        "error": type(error).__name__,
        "message": str(getattr(error, "message", None) or error),
        "hint": getattr(error, "hint", None),
        "checkpoint": _newest_checkpoint(here) or None,
        "traceback": text,
        **stalled,
    }


def _newest_checkpoint(here: RankRole) -> str:
    """The newest checkpoint known to a rank of this node.

    The chief's message about it may not have reached this rank yet.
    """
    ledger = here.executor.ledger
    checkpoint = next_advice(ledger.directory)[1] if ledger is not None else None
    return checkpoint or here.checkpoint


def on_stall(here: RankRole, error: StallError) -> None:
    """End this process, and thereby the job. Called by the watchdog, which may not call MPI."""
    ledger = here.executor.ledger
    if ledger is not None:
        ledger.ends()
    if is_first_to_fail(here, error, own_stacks()):
        _summarize(failure_facts(here, error, ""), [])
        _print_line(here, f"ends the job of {here.size} ranks: {_one_line(error)} ({error.report})")
    else:
        _print_line(here, f"failed after another rank: {_one_line(error)}")
    rank_logging.write_last_lines(str(error))
    _release_gpus()
    os._exit(ABORTED)


def on_death(here: RankRole, dead: Sequence[LedgerEntry]) -> None:
    """Report ranks of this node that have died, and end the job if the launcher does not.

    Called by a thread that may not call MPI. It does nothing after a stop request, and where the
    job survives the deaths.
    """
    ledger, executor = here.executor.ledger, here.executor
    if ledger is None or here.stop.number:
        return
    if all(here.survives_without(e.rank) for e in dead) and not _rebuild_hangs(here):
        return
    facts = facts_of_death(dead, ledger.directory)
    text = facts["message"]
    if first(ledger.directory / DIED):
        step = facts["step"] or here.steps()
        if _write(here, {**facts, "step": step, "told_by": here.rank}):
            _summarize(facts, [])
        _print_line(here, text)
        rank_logging.write_last_lines(text)

    def end() -> None:
        def fail() -> bool:
            raise DeathError(text, rank=here.rank)

        # raises in the thread that waits, which may abort by MPI
        executor.listen_to(fail, executor.on_collective_start)
        time.sleep(LET_ENGINE_END_S)
        os._exit(ABORTED)

    timer = threading.Timer(LET_LAUNCHER_END_S, end)
    timer.daemon = True
    timer.start()


def _rebuild_hangs(here: RankRole) -> bool:
    """Whether MPI hangs while replicas rebuild their allreduces, as after one more death."""
    late = time.monotonic() + LET_REBUILD_S
    while here.rebuilding and time.monotonic() < late:
        time.sleep(LET_OTHERS_SIGN_S)
    return here.rebuilding


def on_rank_loss(here: RankRole, rank: int) -> None:
    """Handle the death of `rank`, reported by MPI: the job continues if it can.

    State that tracks workers is notified, and the chief logs a warning.
    Errors: DeathError if the job cannot continue.
    """
    task, host = here.names[rank], here.hosts[rank]
    name = f"rank {rank} ({task}) on {host}"
    if not here.survives_without(rank):
        ledger = here.executor.ledger
        error = DeathError(
            f"{name} has died, and nothing can go on without it",
            rank=here.rank,
            hint=next_advice(ledger.directory)[0] if ledger is not None else None,
        )
        error.died = rank
        raise error
    here.lost.append({"rank": rank, "task": task, "host": host})
    for state, _ in list(here.store.other_states.values()):
        if hasattr(state, "lose"):  # state that tracks workers
            state.lose(here.roles.drivers.index(rank))
    if here.is_chief:
        alive = len(here.spare_ranks) + 1 - len(here.lost)
        rank_logging.logger.warning(
            "%s has died: %d of %d workers go on without it", name, alive, len(here.spare_ranks) + 1
        )
