"""Numbers that drivers leave with each other, answered when they have arrived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def answer(context: Any, request: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
    """Keep the number; from now on this rank's next step sees it."""
    context.control.notes.append(request["number"])
    reply({})
