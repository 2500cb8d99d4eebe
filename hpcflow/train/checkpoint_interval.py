"""How often to save, from what a save costs and how often jobs fail; and when the last one begins.

Only the chief's clock counts: it says to all ranks when it is time (hpcflow/train/preemption.py).
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable

from hpcflow.launch.time_limit import left_s, short
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.rank_context import Context

AUTO = "auto"
FIRST_S = 60.0  # of training before the first save, by which its cost is known
LONGEST_S = 3600.0  # of training between two saves: jobs end for other reasons than nodes, too
SHARE = 0.01  # but no more of the time than this for the sake of LONGEST_S
SPARE_S = 30.0  # for all that follows the last save: a new queue, the ranks' ends
LEAST_S = 1e-3  # a save is not taken to cost less
UNKNOWN_S = 60.0  # what the last save is given while none was measured
KEPT = 5  # saves whose times count
FORGETS = 0.999  # a step that took long once, as the first does, counts less and less


def daly(save_s: float, mtbf_s: float) -> float:
    """Seconds of training between two saves for which a job is done soonest.

    `save_s` is what a save costs, `mtbf_s` the mean time between failures of the whole job.
    Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart
    dumps, Future Generation Computer Systems 22 (2006) 303-312, equation 37; its first term is
    J. W. Young's (CACM 17, 1974).
    """
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    x = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9) - save_s


class Often:
    """On the chief: how long until the next save, and whether the last one has to begin.

    `every` is the time between two saves that the user wants: None for the best one, 0 for none.
    The job ends in `left_s` seconds; `before` is what a save took when it ran before, as `saved` is
    told of it.
    """

    def __init__(
        self,
        every: float | None,
        mtbf_s: float,
        left_s: float = math.inf,
        before: tuple[float | None, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every, self._mtbf_s, self._clock = every, mtbf_s, clock
        self._ends = clock() + left_s
        self._held: collections.deque[float] = collections.deque(maxlen=KEPT)
        self._written: collections.deque[float] = collections.deque(maxlen=KEPT)
        self._edge: float | None = None  # the clock before the step that now runs
        self._longest = 0.0  # between two edges
        self._last_s = UNKNOWN_S  # what the last save is given
        self.seconds = FIRST_S if every is None else every  # of training between saves; 0: any
        if before is not None:
            self.saved(*before)

    def saved(self, held_s: float | None, written_s: float) -> None:
        """A save has held up training for so long, and so long after its begin it was whole.

        The first is None where training waited on purpose for what is written behind it.
        """
        self._written.append(written_s)
        if held_s is not None:
            self._held.append(held_s)
        longest = max(self._written)
        is_behind = any(held < longest for held in self._held)
        self._last_s = (3 if is_behind else 2) * longest  # one may be under way when all stop
        if self._every is None and self._held:
            self.seconds = self._best()

    @property
    def took(self) -> tuple[float | None, float]:
        """What saves take, for the next start of this job."""
        return self.save_s, max(self._written)

    def edge(self) -> None:
        """A step is about to begin."""
        now = self._clock()
        if self._edge is not None:
            self._longest = max(now - self._edge, self._longest * FORGETS)
        self._edge = now

    def rest(self) -> None:
        """What was done since the last edge, a save, is no step."""
        self._edge = None

    @property
    def save_s(self) -> float | None:
        """What a save costs, None while none was measured."""
        return sum(self._held) / len(self._held) if self._held else None

    def _best(self) -> float:
        save_s = max(self.save_s or 0.0, LEAST_S)
        most = max(LONGEST_S, save_s / SHARE)
        return max(min(daly(save_s, self._mtbf_s), most), *self._written)

    def is_over(self) -> bool:
        """Whether a further step would leave too little time to save after it.

        Two steps may pass until all have heard that they are to stop, and one more begin.
        """
        return self._clock() + SPARE_S + self._last_s + 3 * self._longest >= self._ends

    def why(self, nodes: int) -> str:
        """What was chosen, for people."""
        fails = short(self._mtbf_s)
        of = f"of {nodes} nodes one fails" if nodes > 1 else "a node fails"
        return (
            f"checkpoints every {short(self.seconds)}: a save takes {short(self.save_s or 0)}, "
            f"{of} every {fails} (setting mtbf_h)"
        )


def of_job(
    context: Context, every: float | None, before: tuple[float | None, float] | None
) -> Often:
    """As the settings and SLURM say for this job; of the chief.

    Errors: HpcflowError for a time limit that is none.
    """
    left, mtbf_s = left_s(context.settings), context.settings.mtbf_h * 3600
    if left < math.inf:
        logger.info("this job ends in %s; before that training stops to save", short(left))
    return Often(every, mtbf_s / len(set(context.hosts)), left, before)
