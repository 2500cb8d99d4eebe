"""Checkpoint interval: computed from a save's cost and the failure rate; time of the last save.

Only the chief's clock is used: it signals the time of a save to all ranks
(hpcflow/train/preemption.py).
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable

from hpcflow.launch.time_limit import seconds_left
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.rank_context import RankContext

AUTO = "auto"
FIRST_S = 60.0  # seconds of training before the first save, which measures its cost
LONGEST_S = 3600.0  # longest interval in seconds, since jobs also end for other reasons
SHARE = 0.01  # but saves may use at most this share of the time for LONGEST_S
SPARE_S = 30.0  # seconds after the last save, for requeueing and the end of ranks
LEAST_S = 1e-3  # least assumed cost of a save, in seconds
UNKNOWN_S = 60.0  # seconds for the last save before one was measured
AVERAGED_SAVES = 5  # number of saves in the averages
FORGETS = 0.999  # per step: decay of the longest step, so that the first one is forgotten


def daly_interval(save_s: float, mtbf_s: float) -> float:
    """The interval between saves in seconds that minimizes the expected run time of a job.

    `save_s` is the cost of a save, `mtbf_s` the mean time between failures of the whole job.
    Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart
    dumps, Future Generation Computer Systems 22 (2006) 303-312, equation 37; its first term is J.
    W. Young's (CACM 17, 1974).
    """
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    x = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9) - save_s


class CheckpointInterval:
    """The chief's estimate of the interval between saves and of the start of the last one.

    `fixed_s` is the interval that the user requests: None for the optimum, 0 for no saves. The job
    ends in `left_s` seconds. `before` is the duration of a save in an earlier start, as the
    arguments of `saved`.
    """

    def __init__(
        self,
        fixed_s: float | None,
        mtbf_s: float,
        left_s: float = math.inf,
        before: tuple[float | None, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fixed_s, self._mtbf_s, self._clock = fixed_s, mtbf_s, clock
        self._ends = clock() + left_s
        self._blocked_s: collections.deque[float] = collections.deque(maxlen=AVERAGED_SAVES)
        self._written: collections.deque[float] = collections.deque(maxlen=AVERAGED_SAVES)
        self._edge: float | None = None  # clock before the current step
        self._longest = 0.0  # step, in seconds
        self._last_s = UNKNOWN_S  # seconds reserved for the last save
        self.seconds = FIRST_S if fixed_s is None else fixed_s  # seconds between saves; 0: none
        if before is not None:
            self.record_save(*before)

    def record_save(self, held_s: float | None, written_s: float) -> None:
        """Record a save: seconds that training was blocked, and seconds until it was complete.

        `held_s` is None where training waited deliberately for a background save.
        """
        self._written.append(written_s)
        if held_s is not None:
            self._blocked_s.append(held_s)
        longest = max(self._written)
        is_behind = any(blocked < longest for blocked in self._blocked_s)
        self._last_s = (3 if is_behind else 2) * longest  # one may be in progress at the stop
        if self._fixed_s is None and self._blocked_s:
            self.seconds = self._best()

    @property
    def durations(self) -> tuple[float | None, float]:
        """The duration of saves, for the next start of this job."""
        return self.save_s, max(self._written)

    def begin_step(self) -> None:
        """Record the start of a step."""
        now = self._clock()
        if self._edge is not None:
            self._longest = max(now - self._edge, self._longest * FORGETS)
        self._edge = now

    def exclude_pause(self) -> None:
        """Do not count the time since the last `edge` as a step: it was a save."""
        self._edge = None

    @property
    def save_s(self) -> float | None:
        """The mean cost of a save in seconds; None before the first."""
        return sum(self._blocked_s) / len(self._blocked_s) if self._blocked_s else None

    def _best(self) -> float:
        save_s = max(self.save_s or 0.0, LEAST_S)
        most = max(LONGEST_S, save_s / SHARE)
        return max(min(daly_interval(save_s, self._mtbf_s), most), *self._written)

    def leaves_no_time(self) -> bool:
        """Whether another step would leave too little time for the last save.

        It assumes two more steps until all ranks know of the stop, and one that has begun.
        """
        return self._clock() + SPARE_S + self._last_s + 3 * self._longest >= self._ends

    def explain(self, nodes: int) -> str:
        """Text: the chosen interval and the reason."""
        fails = format_seconds(self._mtbf_s)
        of = f"one of {nodes} nodes fails" if nodes > 1 else "a node fails"
        return (
            f"checkpoints every {format_seconds(self.seconds)}: a save takes "
            f"{format_seconds(self.save_s or 0)}, "
            f"{of} every {fails} (setting mtbf_h)"
        )


def interval_for_job(
    context: RankContext, fixed_s: float | None, before: tuple[float | None, float] | None
) -> CheckpointInterval:
    """The estimate of the chief for this job, from the settings and SLURM's time limit.

    Errors: HpcflowError for an invalid time limit.
    """
    secs, mtbf_s = seconds_left(context.settings), context.settings.mtbf_h * 3600
    if secs < math.inf:
        logger.info("this job ends in %s; before that training stops to save", format_seconds(secs))
    return CheckpointInterval(fixed_s, mtbf_s / len(set(context.hosts)), secs, before)
