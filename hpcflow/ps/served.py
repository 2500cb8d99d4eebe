"""What a server does when a worker calls: "rounds"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.plan.ir import Node
from hpcflow.ps.rounds import Rounds


def answer(context: Any, request: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
    """A worker goes where all meet; it hears when all that it gave is in the variables."""
    attrs = {key: request[key] for key in ("rule", "workers")} | {"shared_name": "rounds"}
    device = next(iter(context.devices.values()))
    rounds: Rounds = context.store.find(Node("rounds", "Rounds", attrs=attrs), device)
    rounds.step_aside(request["worker"], lambda: reply({}))
