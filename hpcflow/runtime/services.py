"""What a served rank does when a driver calls: the rooms above the runtime, by name.

The runtime knows no room that stands on it. A served rank runs no script that would import one, so
the name in a call is looked up here and its module imported then; other names are refused.
"""

from __future__ import annotations

import importlib
from typing import Any

from hpcflow.errors import CommError

SERVICES = {"checkpoint": "hpcflow.checkpoint.served"}  # modules with answer(context, request)


def answer(context: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Have the service that `request` names answer it, in plain data."""
    name = request.get("service", "")
    if name not in SERVICES:
        raise CommError(f"there is no service {name!r}", rank=context.rank)
    reply: dict[str, Any] = importlib.import_module(SERVICES[name]).answer(context, request)
    return reply
