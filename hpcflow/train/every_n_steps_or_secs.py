"""Periodic actions: triggered every so many steps or seconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hpcflow.errors import CheckpointError, HpcflowError
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.train.checkpoint_interval import AUTO

_SECONDS = {"s": 1, "m": 60, "h": 3600}


class PeriodicAction:
    """An action that a program runs every so many steps."""

    def __init__(
        self, context: RankContext, interval: int, action: Callable[[], Any], first: int
    ) -> None:
        if not isinstance(interval, int) or interval < 1:
            raise HpcflowError(f"every must be a number of steps of at least 1, not {interval!r}")
        self._context, self._interval, self._action, self._first = context, interval, action, first
        self._last = 0  # this worker's steps at the last run

    def due(self, steps: int) -> bool:
        """Whether to run the action before this worker's next step."""
        return is_multiple_reached(self._context, self._interval, steps, self._last, self._first)

    def run(self, steps: int) -> None:
        """Run the action, on all ranks that run the script together."""
        self._last = steps
        self._action()


def is_multiple_reached(
    context: RankContext, interval: int, steps: int, last: int, first: int
) -> bool:
    """Whether a multiple of `interval` steps was reached since this worker's `last` step.

    `first` is the number of steps of earlier runs. All synchronous workers get the same result. For
    asynchronous workers the chief estimates it from its own steps.
    """
    if steps == last:
        return False
    if context.cluster.in_step:
        return (first + steps) % interval == 0
    return (steps - last) * context.roles.replicas >= interval


def parse_interval(interval: int | str) -> tuple[int, float | None]:
    """(steps, seconds) of `200`, "200", "30s", "10m" or "2h"; one of them is 0.

    For "auto" the seconds are None: they follow from the cost of a save.
    """
    if interval == AUTO:
        return 0, None
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)([smh]?)", str(interval).strip())
    if match is None or float(match.group(1)) <= 0 or (not match[2] and "." in match[1]):
        raise CheckpointError(
            f"{interval!r} is not an interval between checkpoints",
            hint='give a number of steps such as 500, or 30s, 10m, or "auto"',
        )
    if match.group(2):
        return 0, float(match.group(1)) * _SECONDS[match.group(2)]
    return int(match.group(1)), 0.0
