"""Services "note", "shares" and "speeds": messages between drivers, acknowledged on arrival.

A note is a number; shares are the workers' shares of the global batch; speeds are pairs of a rank
and its measured speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.runtime.dynamic_types import Json


def answer(context: Any, request: Json, reply: Callable[[Json], None]) -> None:
    """Store the request, so that this rank's next step sees it, and reply."""
    if request["service"] == "shares":
        context.control.shares[request["session"]].append(request)
    elif request["service"] == "speeds":
        context.control.rank_speeds.update({int(rank): float(s) for rank, s in request["speeds"]})
    else:
        context.control.notes.append(request["number"])
    reply({})
