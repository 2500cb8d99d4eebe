"""A wish to stop early reaches every rank: a signal to any one of them is enough."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from hpcflow.plan.distribution.task_assignment import Roles

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)  # what batch systems send before they end a job
# Wishes to stop that are no signals: larger numbers than any.
TIME, STEP, RESTARTS, LOSS = 1001, 1002, 1003, 1004
_REASONS = {
    TIME: "the end of the job's time",
    STEP: "the setting stop_at",
    RESTARTS: "the setting max_restarts",
    LOSS: "the death of a worker",
}


def reason(number: int) -> str:
    """A wish to stop, for people."""
    return _REASONS.get(number) or signal.Signals(number).name


class Stop:
    """What this rank knows of a wish to stop, and whom it tells.

    A signal only sets `number`. The engine, when it next looks for messages, tells those who decide
    (`listeners`); a driver acts on it at the edge of a step.
    """

    def __init__(self, rank: int, roles: Roles, is_collective: bool) -> None:
        self.number = 0  # the signal or another wish to stop, 0 if nobody has one
        self.heeded = False  # this rank will act on it
        self.tells = False  # there is something to pass on
        self._rank = rank
        self._to = _whom(rank, roles, is_collective)
        self._before: dict[int, Any] = {}

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """The handler of signals: remember the first."""
        if not self.number:
            self.number = int(number)
            self.tells = bool(self._to)

    def heed(self) -> None:
        """From now on this rank acts on a wish to stop; signals that have a handler keep it."""
        if self.heeded:
            return
        self.heeded = True
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) == signal.SIG_DFL:
                    self._before[number] = signal.signal(number, self.note)

    def unheed(self) -> None:
        """Signals do again what they did before."""
        self.heeded = False
        while self._before and threading.current_thread() is threading.main_thread():
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def leave(self) -> None:
        """The program ends in good order: no signal shall change its exit code any more.

        The first rank that ends makes `srun --kill-on-bad-exit` end the others.
        """
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        self._before.clear()

    def told(self, number: int) -> None:
        """Another rank had a signal; if this rank does not heed it, it does here what it does."""
        if self.heeded or number in _REASONS:
            self.note(number)
        else:
            signal.raise_signal(number)

    def pass_on(self, tell: Callable[[int, int], None]) -> None:
        """Call `tell(rank, number)` for those whom this rank tells, once."""
        self.tells = False
        for rank in self._to:
            tell(rank, self.number)


def _whom(rank: int, roles: Roles, is_collective: bool) -> list[int]:
    """Served ranks tell their driver, asynchronous drivers the chief, and the chief tells them.

    Synchronous drivers need no messages: they agree in step (hpcflow/train/preemption.py).
    """
    drivers = roles.drivers
    if rank in roles.servers:
        return [drivers[0]]
    if rank not in drivers:
        _, replica = roles.task_of(rank)
        return [drivers[replica]]
    if is_collective:
        return []
    return [d for d in drivers if d != rank] if rank == drivers[0] else [drivers[0]]
