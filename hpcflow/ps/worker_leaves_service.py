"""What a server does when a worker calls: "rounds"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.plan.ir.program import Node
from hpcflow.ps.sync_coordinator import Rounds


def answer(context: Any, request: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
    """Answer a worker: one that asks whether it is to bring a round, or that goes where all meet.

    This one hears when all that it gave is in the variables.
    """
    device = next(iter(context.devices.values()))
    rounds: Rounds = context.store.find(Node("rounds", "Rounds", attrs=request["attrs"]), device)
    if "updates" in request:
        reply({"is_first": request["updates"] not in rounds.repeated})
        rounds.repeated.add(request["updates"])
    else:
        rounds.step_aside(request["worker"], lambda: reply({}))
