"""Stop requests: a signal received by any rank is passed on to all ranks of the job."""

from __future__ import annotations

import atexit
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from hpcflow.plan.distribution.task_assignment import TaskAssignment

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)  # sent by batch systems before they end a job
# Stop requests other than signals; the numbers are larger than any signal's.
TIME, STEP, RESTARTS, LOSS = 1001, 1002, 1003, 1004
_REASONS = {
    TIME: "the end of the job's time",
    STEP: "the setting stop_at",
    RESTARTS: "the setting max_restarts",
    LOSS: "the death of a worker",
}


_late_requests: list[int] = []  # received after a training session had ended


def stop_reason(number: int) -> str:
    """The name of a stop request, for messages; of a signal as it was sent to the job."""
    from hpcflow.launch.stop_cause import first_signal

    return _REASONS.get(number) or first_signal(number)


class StopSignal:
    """The stop request that this rank has received, and the ranks to which it passes it on.

    The signal handler only sets `number`. The executor passes it on when it next polls for
    messages; a driver acts on it between steps.
    """

    def __init__(self, rank: int, roles: TaskAssignment, is_collective: bool) -> None:
        self.number = 0  # the signal or other stop request; 0: none
        self.handled_signals = False  # this rank acts on stop requests
        self.forward_targets = False  # the request has to be passed on
        self._rank = rank
        self._to = _forward_targets(rank, roles, is_collective)
        self._before: dict[int, Any] = {}

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """The signal handler: record the first request."""
        if not self.number:
            self.number = int(number)
            self.forward_targets = bool(self._to)

    def install_handlers(self) -> None:
        """Act on stop requests from now on; signals that already have a handler keep it."""
        if self.handled_signals:
            return
        self.handled_signals = True
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) in (signal.SIG_DFL, _note_late_request):
                    self._before[number] = signal.signal(number, self.note)
        while _late_requests:
            self.note(_late_requests.pop())

    def restore_handlers(self) -> None:
        """Restore the previous signal handlers: training is over.

        SIGUSR1 alone does not end the process from now on. A batch system sends it before the end
        of the job's time, and a script that has finished training must keep its exit code.
        """
        self.handled_signals = False
        while self._before and threading.current_thread() is threading.main_thread():
            number, handler = self._before.popitem()
            if number == signal.SIGUSR1:
                handler = _note_late_request
            signal.signal(number, handler)

    def leave(self) -> None:
        """Ignore the signals from now on: the program ends normally and must keep its exit code.

        The first rank that ends makes `srun --kill-on-bad-exit` end the others.
        """
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        self._before.clear()

    def receive_request(self, number: int) -> None:
        """Handle a request of another rank; a signal that is not heeded here is raised."""
        if self.handled_signals or number in _REASONS:
            self.note(number)
        else:
            signal.raise_signal(number)

    def pass_on(self, send: Callable[[int, int], None]) -> None:
        """Call `send(rank, number)`, once, for each rank to which this rank passes requests on."""
        self.forward_targets = False
        for rank in self._to:
            send(rank, self.number)


def _note_late_request(number: int, frame: FrameType | None = None) -> None:
    """The handler of SIGUSR1 after training: the next session stops before its first step."""
    _late_requests.append(int(number))


@atexit.register
def _ignore_late_requests() -> None:
    """At exit: the end of Python would restore the default action, which ends the process."""
    if signal.getsignal(signal.SIGUSR1) is _note_late_request:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _forward_targets(rank: int, roles: TaskAssignment, is_collective: bool) -> list[int]:
    """The ranks to which `rank` passes stop requests on.

    Servers notify the chief, other served ranks their driver, asynchronous drivers the chief, and
    the chief all drivers. Synchronous drivers send no messages: they agree at a step
    (hpcflow/train/preemption.py).
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
