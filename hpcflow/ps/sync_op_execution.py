"""Execution of the synchronization ops (`Round*`, `ClockTick`) on the coordinator of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.plan.distribution.device_placement import DRIVER
from hpcflow.plan.ir.program import Node
from hpcflow.ps.sync_coordinator import Contribution, SyncCoordinator
from hpcflow.ps.sync_rules import rule
from hpcflow.runtime.executor.async_ops import AsyncWait, CompletedWait, async_op
from hpcflow.runtime.state.state_store import state_type
from hpcflow.runtime.step.step_instance import StepInstance


@state_type("Rounds")
def _coordinator(node: Node) -> SyncCoordinator:
    return SyncCoordinator(rule(node.attrs["rule"], is_known=True), node.attrs["workers"])


class CallbackWait:
    """A wait that a callback completes; it is not polled."""

    completed_by_callback = True

    def __init__(self, instance: StepInstance, node: Node) -> None:
        self.instance, self.node = instance, node
        self.over = False
        self.then: Callable[[], None] | None = None

    def go(self, *values: Any) -> None:
        """Complete the wait with these values."""
        if self.over:
            return
        self.instance.put(self.node.name, *values)
        self.over = True
        if self.then is not None:
            self.then()

    def test(self) -> bool:
        """Whether the wait is complete."""
        return self.over

    def cancel(self) -> None:
        """Cancel the wait, unless it is complete: its step counts each wait once."""
        if self.over:
            return
        self.over = True
        if self.then is not None:
            self.instance.link.executor.inbox.append(self.then)


@async_op("RoundBegin")
class _BeginWait(CallbackWait):
    """Wait until the worker may begin its step; the value is the version."""

    def __init__(self, instance: StepInstance, node: Node, rounds: SyncCoordinator) -> None:
        super().__init__(instance, node)
        self.rounds, link = rounds, instance.link
        rounds.ranks[link.replica] = link.ranks[DRIVER]
        link.executor.blamed_wait = rounds.missing
        rounds.begin(instance.link.replica, node.attrs["channel"], self.version)

    def version(self, number: int) -> None:
        """Let the worker begin with this version."""
        self.go(np.asarray(number, np.int64))

    def cancel(self) -> None:
        """Withdraw the request; the step failed on another rank."""
        self.rounds.withdraw(self.version)
        super().cancel()


@async_op("RoundAdd")
def _start_add(
    instance: StepInstance, node: Node, rounds: SyncCoordinator, version: Any, *values: Any
) -> AsyncWait:
    """Complete at once; the instance keeps its buffers until the values are released."""
    executor = instance.link.executor
    instance.unfinished += 1

    def release() -> None:
        executor.mark_over(instance, None)

    contribution = Contribution(int(version), values, release)
    rounds.add(node.attrs["channel"], node.attrs["sum"], instance.link.replica, contribution)
    return CompletedWait(instance, node)


@async_op("RoundReady")
def _start_ready(
    instance: StepInstance, node: Node, rounds: SyncCoordinator, version: Any, share: Any
) -> AsyncWait:
    rounds.ready(instance.link.replica, node.attrs["channel"], int(version), float(share))
    return CompletedWait(instance, node)


@async_op("ClockTick")
def _start_tick(instance: StepInstance, node: Node, rounds: SyncCoordinator) -> AsyncWait:
    rounds.tick(instance.link.replica)
    return CompletedWait(instance, node)


@async_op("RoundTotal")
def _start_total(
    instance: StepInstance, node: Node, rounds: SyncCoordinator, version: Any
) -> AsyncWait:
    wait = CallbackWait(instance, node)
    rounds.request_sum(node.attrs["channel"], node.attrs["sum"], wait.go)
    return wait


@async_op("RoundOver")
def _start_over(
    instance: StepInstance, node: Node, rounds: SyncCoordinator, version: Any
) -> AsyncWait:
    wait = CallbackWait(instance, node)
    rounds.after(node.attrs["channel"], int(version), wait.go)
    return wait


@async_op("RoundPick")
def _start_pick(instance: StepInstance, node: Node, rounds: SyncCoordinator) -> AsyncWait:
    wait = CallbackWait(instance, node)
    rounds.pick(node.attrs["channel"], wait.go)
    return wait


@async_op("RoundSum")
def _start_sum(
    instance: StepInstance, node: Node, rounds: SyncCoordinator, factors: np.ndarray
) -> AsyncWait:
    attrs = node.attrs
    return CompletedWait(
        instance, node, *rounds.total(attrs["channel"], attrs["sum"], attrs["how"], factors)
    )


@async_op("RoundEnd")
def _start_end(instance: StepInstance, node: Node, rounds: SyncCoordinator) -> AsyncWait:
    rounds.end(node.attrs["channel"])
    return CompletedWait(instance, node)
