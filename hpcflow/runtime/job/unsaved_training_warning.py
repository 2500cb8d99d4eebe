"""Warning, before the first step, that a job with a time limit does not save its training."""

from __future__ import annotations

import math
import weakref

from hpcflow.launch.time_limit import seconds_left
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.rank_context import RankContext

UNMANAGED_TRAINING = (
    "hf.Session saves nothing by itself: what is trained after the script's own last save is lost "
    "then. hf.train.TrainingSession and MonitoredTrainingSession save in time and go on "
    "(`hpcflow help checkpoints`)"
)
_warned_contexts: weakref.WeakSet[RankContext] = weakref.WeakSet()


def warn_unsaved_training(context: RankContext, reason: str) -> None:
    """Warn on the chief, once, of the time left to the job and the `reason` for the loss."""
    if not reason or not context.is_chief or context in _warned_contexts:
        return
    _warned_contexts.add(context)
    remaining = seconds_left(context.settings)
    if remaining < math.inf:
        logger.warning("this job ends in %s, and %s", format_seconds(remaining), reason)
