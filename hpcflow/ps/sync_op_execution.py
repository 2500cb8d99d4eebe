"""Execution of the synchronization ops (`Round*`, `ClockTick`) on the coordinator of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.plan.distribution.device_placement import DRIVER
from hpcflow.plan.ir.program import Node
from hpcflow.ps.sync_coordinator import Contribution, Rounds
from hpcflow.ps.sync_rules import rule
from hpcflow.runtime.executor.async_ops import Over, Wait, waiting
from hpcflow.runtime.state.state_store import state
from hpcflow.runtime.step.step_instance import Instance


@state("Rounds")
def _rounds(node: Node) -> Rounds:
    return Rounds(rule(node.attrs["rule"], is_known=True), node.attrs["workers"])


class Told:
    """A wait that a callback completes; it is not polled."""

    told = True

    def __init__(self, instance: Instance, node: Node) -> None:
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
        """Cancel the wait."""
        self.over = True
        if self.then is not None:
            self.instance.link.engine.inbox.append(self.then)


@waiting("RoundBegin")
class _Begin(Told):
    """Wait until the worker may begin its step; the value is the version."""

    def __init__(self, instance: Instance, node: Node, rounds: Rounds) -> None:
        super().__init__(instance, node)
        self.rounds, link = rounds, instance.link
        rounds.ranks[link.replica] = link.ranks[DRIVER]
        link.engine.blame = rounds.missing
        rounds.begin(instance.link.replica, node.attrs["channel"], self.version)

    def version(self, number: int) -> None:
        """Let the worker begin with this version."""
        self.go(np.asarray(number, np.int64))

    def cancel(self) -> None:
        """Withdraw the request; the step failed on another rank."""
        self.rounds.withdraw(self.version)
        super().cancel()


@waiting("RoundAdd")
def _add(instance: Instance, node: Node, rounds: Rounds, version: Any, *values: Any) -> Wait:
    """Complete at once; the instance keeps its buffers until the values are released."""
    engine = instance.link.engine
    instance.left += 1

    def release() -> None:
        engine.over(instance, None)

    given = Contribution(int(version), values, release)
    rounds.add(node.attrs["channel"], node.attrs["sum"], instance.link.replica, given)
    return Over(instance, node)


@waiting("RoundReady")
def _ready(instance: Instance, node: Node, rounds: Rounds, version: Any, share: Any) -> Wait:
    rounds.ready(instance.link.replica, node.attrs["channel"], int(version), float(share))
    return Over(instance, node)


@waiting("ClockTick")
def _tick(instance: Instance, node: Node, rounds: Rounds) -> Wait:
    rounds.tick(instance.link.replica)
    return Over(instance, node)


@waiting("RoundTotal")
def _total(instance: Instance, node: Node, rounds: Rounds, version: Any) -> Wait:
    wait = Told(instance, node)
    rounds.want(node.attrs["channel"], node.attrs["sum"], wait.go)
    return wait


@waiting("RoundOver")
def _over(instance: Instance, node: Node, rounds: Rounds, version: Any) -> Wait:
    wait = Told(instance, node)
    rounds.after(node.attrs["channel"], int(version), wait.go)
    return wait


@waiting("RoundPick")
def _pick(instance: Instance, node: Node, rounds: Rounds) -> Wait:
    wait = Told(instance, node)
    rounds.pick(node.attrs["channel"], wait.go)
    return wait


@waiting("RoundSum")
def _sum(instance: Instance, node: Node, rounds: Rounds, factors: np.ndarray) -> Wait:
    attrs = node.attrs
    return Over(
        instance, node, *rounds.total(attrs["channel"], attrs["sum"], attrs["how"], factors)
    )


@waiting("RoundEnd")
def _end(instance: Instance, node: Node, rounds: Rounds) -> Wait:
    rounds.end(node.attrs["channel"])
    return Over(instance, node)
