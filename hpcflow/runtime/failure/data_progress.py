"""Data progress of the workers of parameter servers, recorded on the first server.

The server outlives the workers. It fixes which workers have died, in which order and after which
batches, so that all live workers reassign the remaining data alike.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

from hpcflow.runtime.dynamic_types import Json
from hpcflow.runtime.job.message_headers import BatchTrained

TrainedBatch = tuple[int, int, int, int]  # dataset, line, epoch, step of a trained batch


class DataProgress:
    """The last trained batches, by training session and rank."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], dict[tuple[int, int], TrainedBatch]] = (
            collections.defaultdict(dict)
        )
        self._losses: dict[int, list[Json]] = collections.defaultdict(list)

    def record_batch(self, rank: int, message: BatchTrained) -> None:
        """Record that `rank` has trained a batch."""
        batches = self._last[message.session, rank]
        batches[message.dataset, message.line] = (
            message.dataset,
            message.line,
            message.epoch,
            message.step,
        )

    def losses(self, session: int, lost: Iterable[int]) -> list[Json]:
        """The dead ranks, in a fixed order, each with its last batches when first asked for."""
        losses = self._losses[session]
        reported = {loss["rank"] for loss in losses}
        for rank in sorted(set(lost) - reported):
            losses.append({"rank": rank, "places": list(self._last[session, rank].values())})
        return losses


def answer(context: Any, request: Json, reply: Callable[[Json], None]) -> None:
    """Service "losses": answer a worker that has detected deaths."""
    reply({"losses": context.control.progress.losses(request["session"], request["lost"])})
