"""How far the workers of parameter servers have come in their data: the first server knows.

It outlives them. Who has died, in which order and how far each had come, it says once and for all,
so that those who live deal what is left alike.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

Told = tuple[int, int, int, int]  # dataset, line, epoch, step: of a batch that is trained


class Progress:
    """What workers have told, by training session and rank."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], dict[tuple[int, int], Told]] = collections.defaultdict(
            dict
        )
        self._losses: dict[int, list[dict[str, Any]]] = collections.defaultdict(list)

    def hear(self, session: int, rank: int, told: Told) -> None:
        """`rank` has trained a batch."""
        self._last[session, rank][told[:2]] = told

    def losses(self, session: int, lost: Iterable[int]) -> list[dict[str, Any]]:
        """Those who have died and what they had told until this was asked of each."""
        found = self._losses[session]
        known = {one["rank"] for one in found}
        for rank in sorted(set(lost) - known):
            found.append({"rank": rank, "places": list(self._last[session, rank].values())})
        return found


def answer(context: Any, request: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
    """Answer a worker that knows of deaths."""
    reply({"losses": context.control.progress.losses(request["session"], request["lost"])})
