"""Preemption: stop by signal or time limit at a common step, save, and requeue.

SIGUSR1 (`sbatch --signal=USR1@120`), SIGTERM and the end of the job's time request a stop. A signal
on one rank is enough. The training session saves if it has checkpoints, and the job is requeued.
"""

from __future__ import annotations

import signal
import time
from typing import NamedTuple

import numpy as np

from hpcflow.comm.communicator import Request
from hpcflow.launch.slurm_requeue import TEMPORARY_FAILURE, requeue
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.job.stop_signal import STEP, stop_reason

NO_PROGRESS = 79  # exit code, not in sysexits.h: a restart would not help
TOO_OFTEN = 80  # exit code: max_restarts reached
LOOK_US = 20_000  # interval at which synchronous ranks check for stop requests
MOST_STEPS = 64  # steps between checks, since steps may become longer


class StopOutlook(NamedTuple):
    """The exit code of a job that stops early, the message, and whether it is requeued."""

    code: int
    said: str
    requeues: bool = False


ANEW = StopOutlook(TEMPORARY_FAILURE, "without checkpoints, so a new job starts from scratch")


class Preempted(SystemExit):
    """Ends the script on every rank that runs it, after the state was saved.

    `signal` is None if the time limit or a setting ended it.
    """

    def __init__(self, number: int, said: str, code: int = TEMPORARY_FAILURE) -> None:
        super().__init__(code)
        self.reason, self.said = stop_reason(number), said
        self.signal = signal.Signals(number) if number < signal.NSIG else None

    def __str__(self) -> str:
        return f"stopped by {self.reason}; {self.said}"


class Preemption:
    """Stops all ranks that run the script at the same step.

    Synchronous ranks allreduce, every so many steps, whether a rank has a signal. The allreduce
    starts at one check and is read at the next, so that no rank waits for it. The number of steps
    between checks follows from the slowest rank's step time and is the same on all. Asynchronous
    ranks stop at their next step after a message (`hpcflow/runtime/job/stop_signal.py`), and meet.

    Ranks: all that run the script, in the same order; `due` once per step.
    """

    def __init__(self, context: RankContext) -> None:
        self._context, self._stop = context, context.stop
        drivers = context.drivers
        self._several = drivers is not None and drivers.size > 1
        self._in_step = self._several and context.cluster.mode == "collective"
        self.late = False  # of any rank, at the last check; the same on all
        # maximum over the ranks: signal, step time in µs, whether one is late
        self._maxima = np.array([0, LOOK_US, 0], np.int64)
        self.saving = 0  # the largest bits passed to `meet`
        self.unsaved = False  # a rank at `meet` had unsaved steps
        self._request: Request | None = None
        self._check_interval = self._countdown = 1  # steps between checks, steps until the next
        self._since = 0.0

    @property
    def number(self) -> int:
        """The signal, if it has reached this rank."""
        return self._stop.number

    def due(self, late: bool = False) -> bool:
        """Before a step: whether all ranks stop here; `meet` then tells the others.

        `late` is any other request of this rank, for example a save after some time. On synchronous
        ranks the attribute `late` then says, before the same step, that one of them had it.
        """
        if not self._stop.handled_signals:
            self._stop.install_handlers()
        if not self._in_step:
            self.late = late
            return self._stop.number != 0
        self.late = False
        self._countdown -= 1
        return self._countdown <= 0 and self._look(late)

    def is_bound(self, first: int, steps: int) -> bool:
        """Whether the setting `stop_at` ends the training here, without communication.

        `first` is the number of steps of earlier starts, `steps` that of this worker. Synchronous
        workers reach the step together. For asynchronous workers the chief counts its own steps and
        stops the others as by a signal.
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
        """Finish the allreduce of the last check and start the next."""
        if self._request is not None:
            self._finish()
            self.late = bool(self._maxima[2])
            if self._maxima[0]:
                self._stop.note(int(self._maxima[0]))
                return True
        now = time.perf_counter()
        step = (now - self._since) * 1e6 / self._check_interval if self._since else LOOK_US
        longest = max(int(self._maxima[1]), 1)
        self._check_interval = self._countdown = min(max(LOOK_US // longest, 1), MOST_STEPS)
        self._since = now
        self._maxima[:] = self._stop.number, int(step), late and not self.late
        self._context.executor.run_locked(self._start, lambda: True)
        return False

    def _start(self) -> None:
        assert self._context.drivers is not None
        self._request = self._context.drivers.all_reduce(self._maxima, "max")

    def _finish(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._context.executor.finish(request, "checking for a stop request")

    def meet(self, stopping: bool, saving: int = 0, unsaved: bool = False) -> bool:
        """Wait for all ranks that run the script; returns whether one stops with steps left.

        The attribute `saving` is then the maximum of the arguments `saving`; `unsaved` says whether
        a rank has unsaved steps.
        """
        self._finish()
        self.saving, self.unsaved = saving, unsaved
        if self._several:
            assert self._context.drivers is not None
            self._context.meet("the end of the steps of all workers")
            number = self._stop.number if stopping else 0
            anyone = np.array([number, unsaved, saving], np.int64)
            request = self._context.drivers.all_reduce(anyone, "max")
            self._context.executor.finish(request, "the end of the steps of all workers")
            stopping, self.unsaved, self.saving = bool(anyone[0]), bool(anyone[1]), int(anyone[2])
            if stopping:
                self._stop.note(int(anyone[0]))
        return stopping

    def over(self) -> None:
        """Restore the signal handlers: no steps are left."""
        self._stop.restore_handlers()

    def end(self, step: int, outlook: StopOutlook) -> Preempted:
        """The exception to raise after the state was saved; requeues the job if it is to resume.

        `step` is the next step.

        Ranks: all that run the script, with outlooks of the same code; the chief requests the
               requeue, the others wait for it.
        """
        text = ""
        if self._context.is_chief:
            asks = outlook.requeues and self.number != STEP
            text = requeue() if asks else outlook.said
            logger.warning("%s: stopped before step %d; %s", stop_reason(self.number), step, text)
        return leave(self._context, self.number, text, outlook.code)


def leave(context: RankContext, number: int, said: str, code: int) -> Preempted:
    """The exception that ends the script early on all ranks that run it, after a barrier."""
    context.barrier()
    if context.size > 1:
        context.stop.leave()
    return Preempted(number, said, code)
