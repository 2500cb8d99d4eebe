"""Services "note" and "shares": messages between drivers that are acknowledged on arrival.

A note is a number; shares are the workers' shares of the global batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.runtime.dynamic_types import Json


def answer(context: Any, request: Json, reply: Callable[[Json], None]) -> None:
    """Store the request, so that this rank's next step sees it, and reply."""
    if request["service"] == "shares":
        context.control.shares[request["session"]].append(request)
    else:
        context.control.notes.append(request["number"])
    reply({})
