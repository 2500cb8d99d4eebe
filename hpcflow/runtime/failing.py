"""The end of a rank that failed: its traceback first, then the end of the whole job.

Ranks of a node that fail in the same way say so once: the first prints, the others sign its note
beside the ledgers.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcflow import logs
from hpcflow.comm.deaths import describe, what_next
from hpcflow.comm.ledger import Entry, first
from hpcflow.errors import DeathError

if TYPE_CHECKING:
    from hpcflow.runtime.context import Context

ABORTED = 86  # exit code of ranks that another rank's failure ends
LET_OTHERS_SIGN_S = 0.1  # who fails in the same way does so at about the same time
LET_LAUNCHER_READ_S = 0.1  # MPICH's drops what it has not yet read of a rank that aborts the job
LET_LAUNCHER_END_S = 2.0  # the job of a rank that has died, before the others do it
LET_ENGINE_END_S = 3.0  # the job by MPI, before this process just ends
TOLD_S = 1.0  # a rank whose note is not printed by then has died
_TOLD = "told"
_RANK = re.compile(r"^(\s*rank +)\d+$", re.MULTILINE)  # the only line in which equal errors differ


class Note:
    """Who of a node's ranks failed by the same `text`: a file in `folder` that they sign."""

    def __init__(self, folder: Path, text: str, rank: int) -> None:
        number = zlib.crc32(_RANK.sub(r"\1", text).encode())
        self._path, self._rank = folder / f"failed-{number:08x}", rank

    def is_first(self) -> bool:
        """True of the rank that has to print; False once another one has printed."""
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return True
        except FileExistsError:
            self._add(str(self._rank))
        except OSError:  # no such folder, a full one: everyone prints
            return True
        late = time.monotonic() + TOLD_S
        while time.monotonic() < late:
            if _TOLD in self._lines():
                return False
            time.sleep(0.01)
        return True

    def told(self) -> None:
        """The first one has printed."""
        self._add(_TOLD)

    def others(self) -> list[int]:
        """The ranks that have signed."""
        return sorted(int(line) for line in self._lines() if line.isdigit())

    def _add(self, line: str) -> None:
        try:
            with open(self._path, "a") as file:  # so short a line is added whole
                file.write(f"{line}\n")
        except OSError:
            pass

    def _lines(self) -> list[str]:
        try:
            return self._path.read_text().split()
        except OSError:
            return []


def on_error(
    context: Context, hook: Callable[..., Any], kind: type, error: BaseException, trace: Any
) -> None:
    """Print the traceback, then end the whole job: a rank alone would leave the others waiting."""
    lines: Sequence[str] = traceback.format_exception(kind, error, trace)
    text = "".join(lines)
    if context.size == 1:
        hook(kind, error, trace)
        logs.on_failure(text)
        return
    prefix = f"[rank {context.rank} on {context.hosts[context.rank]}] "
    ledger = context.engine.ledger
    if isinstance(error, DeathError):
        if ledger is None or first(ledger.directory / "died"):
            sys.stderr.write(f"{prefix}{error}\n")
            sys.stderr.flush()
        time.sleep(LET_LAUNCHER_READ_S)
        assert context.world is not None
        context.world.abort(ABORTED)
    if ledger is not None:
        ledger.ends()
    note = Note(ledger.directory, text, context.rank) if ledger is not None else None
    sys.stdout.flush()
    prints = note is None or note.is_first()
    if prints:
        sys.stderr.write("".join(prefix + line for line in text.splitlines(True)))
        sys.stderr.write(f"{prefix}ends the job of {context.size} ranks\n")
        sys.stderr.flush()
    logs.on_failure(text)
    if note is not None and prints:
        note.told()
    time.sleep(LET_OTHERS_SIGN_S)
    if note is not None and prints and (same := note.others()):
        sys.stderr.write(f"{prefix}the same on {logs.spans(same)}\n")
        sys.stderr.flush()
    time.sleep(LET_LAUNCHER_READ_S)
    if context.settings.survive:  # the others would hear nothing of an abort, or of an exit
        os.kill(os.getpid(), signal.SIGKILL)
    assert context.world is not None
    context.world.abort(ABORTED)


def on_stall(context: Context, error: BaseException) -> None:
    """End this process, and by it the job: called by the watchdog, which may make no MPI call."""
    ledger = context.engine.ledger
    if ledger is not None:
        ledger.ends()
    note = Note(ledger.directory, str(error), context.rank) if ledger is not None else None
    if note is None or note.is_first():
        sys.stderr.write(f"[rank {context.rank} on {context.hosts[context.rank]}] {error}\n")
        sys.stderr.flush()
    if note is not None:
        note.told()
    logs.on_failure(str(error))
    os._exit(ABORTED)


def on_death(context: Context, dead: Sequence[Entry]) -> None:
    """Ranks of this node have died: say so, and end the job if its launcher does not.

    Called by a thread that may make no MPI call. Nothing is said of those whom a signal to all
    ranks has ended.
    """
    ledger, engine = context.engine.ledger, context.engine
    if ledger is None or context.stop.number or all(context.is_spare(e.rank) for e in dead):
        return
    text = describe(dead, ledger.directory)
    if first(ledger.directory / "died"):
        sys.stderr.write(f"[rank {context.rank} on {context.hosts[context.rank]}] {text}\n")
        sys.stderr.flush()
        logs.on_failure(text)

    def end() -> None:
        def fail() -> bool:
            raise DeathError(text, rank=context.rank)

        engine.control = fail  # called by whoever waits, who may end the job by MPI
        time.sleep(LET_ENGINE_END_S)
        os._exit(ABORTED)

    timer = threading.Timer(LET_LAUNCHER_END_S, end)
    timer.daemon = True
    timer.start()


def on_loss(context: Context, rank: int) -> None:
    """MPI says that `rank` has died: the others go on if they can, as the chief tells.

    Errors: DeathError if they cannot.
    """
    from hpcflow.runtime.context import task_name

    name = f"rank {rank} ({task_name(rank, context)}) on {context.hosts[rank]}"
    if not context.is_spare(rank):
        ledger = context.engine.ledger
        raise DeathError(
            f"{name} has died, and nothing can go on without it",
            rank=context.rank,
            hint=what_next(ledger.directory) if ledger is not None else None,
        )
    for state, _ in list(context.store.others.values()):
        if hasattr(state, "lose"):  # it counts on the workers
            state.lose(context.roles.drivers.index(rank))
    if context.is_chief:
        left = len(context.roles.drivers) - len(context.world.lost if context.world else ())
        logs.logger.warning(
            "%s has died: %d of %d workers go on without it and its share of the data",
            *(name, left, len(context.roles.drivers)),
        )
