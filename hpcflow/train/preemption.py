"""Stopping early: signals, what the ranks agree on at the edge of a step, and coming back.

SIGUSR1 (`sbatch --signal=USR1@120`), SIGTERM and the end of the job's time ask for it. One rank's
signal is enough. The training session saves if it has checkpoints, and the job is requeued.
"""

from __future__ import annotations

import signal
import time
from typing import NamedTuple

import numpy as np

from hpcflow.comm.communicator import Request
from hpcflow.launch.slurm_requeue import TEMPORARY_FAILURE, requeue
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.rank_context import Context
from hpcflow.runtime.job.stop_signal import STEP, reason

NO_PROGRESS = 79  # exit code, beyond those of sysexits.h: to start again would not help
TOO_OFTEN = 80  # exit code: started again as often as max_restarts allows
LOOK_US = 20_000  # synchronous ranks look for a wish to stop about as often
MOST_STEPS = 64  # between two looks: steps may become longer


class Outlook(NamedTuple):
    """What becomes of a job that stops early: its exit code, why, and whether it comes back."""

    code: int
    said: str
    requeues: bool = False


ANEW = Outlook(TEMPORARY_FAILURE, "without checkpoints, so a new job begins anew")


class Preempted(SystemExit):
    """Ends the script on every rank that runs it, after the state was saved.

    `signal` is None where the time of the job or a setting ended it.
    """

    def __init__(self, number: int, said: str, code: int = TEMPORARY_FAILURE) -> None:
        super().__init__(code)
        self.reason, self.said = reason(number), said
        self.signal = signal.Signals(number) if number < signal.NSIG else None

    def __str__(self) -> str:
        return f"stopped by {self.reason}; {self.said}"


class Preemption:
    """Tells the ranks that run the script, all at the same step, that they are to stop.

    Synchronous ranks add up, every so many steps, who has had a signal: the sum is started at one
    look and read at the next, so that nobody waits for it. The number of steps between two looks
    follows from the slowest rank's time, and is the same on all. Asynchronous ranks stop each at
    its next step, told by messages (`hpcflow/runtime/job/stop_signal.py`), and meet.

    Ranks: all that run the script, in the same order; `due` once a step.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._stop = context, context.stop
        drivers = context.drivers
        self._several = drivers is not None and drivers.size > 1
        self._in_step = self._several and context.cluster.mode == "collective"
        self.late = False  # a rank said so at the last look: all know it before the same step
        # over the ranks: the largest signal, the longest step in µs, whether one is late
        self._told = np.array([0, LOOK_US, 0], np.int64)
        self.saving = 0  # what a rank came to `meet` for, besides: bits that it knows
        self.unsaved = False  # some rank that came had something to save
        self._request: Request | None = None
        self._every = self._left = 1  # steps between looks, steps until the next
        self._since = 0.0

    @property
    def number(self) -> int:
        """The signal, if it has reached this rank."""
        return self._stop.number

    def due(self, late: bool = False) -> bool:
        """Before a step: whether all ranks stop here, which `meet` then says to the others.

        `late` is any other wish of this rank, as to save again after so much time; the attribute
        `late` then says, on synchronous ranks before the same step, that one of them had it.
        """
        if not self._stop.heeded:
            self._stop.heed()
        if not self._in_step:
            self.late = late
            return self._stop.number != 0
        self.late = False
        self._left -= 1
        return self._left <= 0 and self._look(late)

    def is_bound(self, first: int, steps: int) -> bool:
        """Whether the setting `stop_at` ends the training here, before any look at the others.

        `first` steps were done by earlier starts, then `steps` by this worker. Synchronous workers
        come to that step together; of asynchronous ones the chief goes by its own steps, and tells
        the others as of a signal.
        """
        context, stop_at = self._context, self._context.settings.stop_at
        if not stop_at:
            return False
        in_step = context.cluster.in_step
        step = first + steps * (1 if in_step else context.roles.replicas)
        ends = stop_at <= step and (in_step or context.is_chief)
        if ends:
            self._stop.note(STEP)
        return ends and in_step

    def _look(self, late: bool) -> bool:
        """Read what was started at the last look, and start anew."""
        if self._request is not None:
            self._finish()
            self.late = bool(self._told[2])
            if self._told[0]:
                self._stop.note(int(self._told[0]))
                return True
        now = time.perf_counter()
        step = (now - self._since) * 1e6 / self._every if self._since else LOOK_US
        longest = max(int(self._told[1]), 1)
        self._every = self._left = min(max(LOOK_US // longest, 1), MOST_STEPS)
        self._since = now
        self._told[:] = self._stop.number, int(step), late and not self.late
        self._context.engine.with_baton(self._start, lambda: True)
        return False

    def _start(self) -> None:
        assert self._context.drivers is not None
        self._request = self._context.drivers.all_reduce(self._told, "max")

    def _finish(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._context.engine.finish(request, "looking for a wish to stop")

    def meet(self, stopping: bool, saving: int = 0, unsaved: bool = False) -> bool:
        """Wait for all ranks that run the script; whether one of them has steps left and stops.

        The attribute `saving` then has the most that someone came with, `unsaved` says whether
        someone has what is not saved.
        """
        self._finish()
        self.saving, self.unsaved = saving, unsaved
        if self._several:
            assert self._context.drivers is not None
            self._context.meet("the end of the steps of all workers")
            number = self._stop.number if stopping else 0
            anyone = np.array([number, unsaved, saving], np.int64)
            request = self._context.drivers.all_reduce(anyone, "max")
            self._context.engine.finish(request, "the end of the steps of all workers")
            stopping, self.unsaved, self.saving = bool(anyone[0]), bool(anyone[1]), int(anyone[2])
            if stopping:
                self._stop.note(int(anyone[0]))
        return stopping

    def over(self) -> None:
        """No steps are left: signals do what they did before."""
        self._stop.unheed()

    def end(self, step: int, outlook: Outlook) -> Preempted:
        """What to raise, after the state was saved; requeues the job if it then goes on.

        `step` is the next one.

        Ranks: all that run the script, with outlooks of the same code; the chief asks for the
               requeue, the others wait for it.
        """
        said = ""
        if self._context.is_chief:
            asks = outlook.requeues and self.number != STEP
            said = requeue() if asks else outlook.said
            logger.warning("%s: stopped before step %d; %s", reason(self.number), step, said)
        return leave(self._context, self.number, said, outlook.code)


def leave(context: Context, number: int, said: str, code: int) -> Preempted:
    """What to raise to end the script early, on all ranks that run it, for a wish to stop."""
    context.barrier()
    if context.size > 1:
        context.stop.leave()
    return Preempted(number, said, code)
