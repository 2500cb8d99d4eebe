"""Service "rounds": requests of workers to the synchronization coordinator of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.plan.ir.program import Node
from hpcflow.ps.sync_coordinator import SyncCoordinator


def answer(context: Any, request: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
    """Answer a request of a worker.

    With `updates` in the request: whether it is the first request for the updates of this name;
    that worker then registers their plan. Otherwise the worker arrives at a barrier; the reply is
    sent when all its gradients are applied or dropped.
    """
    device = next(iter(context.devices.values()))
    rounds: SyncCoordinator = context.store.find(
        Node("rounds", "Rounds", attrs=request["attrs"]), device
    )
    if "updates" in request:
        reply({"is_first": request["updates"] not in rounds.repeated})
        rounds.repeated.add(request["updates"])
    else:
        rounds.leave_until_barrier(request["worker"], lambda: reply({}))
