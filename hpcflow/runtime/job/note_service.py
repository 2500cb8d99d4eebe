"""What drivers leave with each other, answered when it has arrived: numbers, and shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def answer(context: Any, request: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
    """Keep what was told; from now on this rank's next step sees it."""
    if request["service"] == "shares":
        context.control.shares[request["session"]].append(request)
    else:
        context.control.notes.append(request["number"])
    reply({})
