"""Step deadlines: they limit the time of a run and report what a late step waits for."""

from __future__ import annotations

import dataclasses
import math
import reprlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcflow.errors import DeadlineExceededError, HpcflowError
from hpcflow.monitoring.wait_for_report import MOST_NAMED, missing_ranks
from hpcflow.monitoring.wait_ledger import OWN, read_all
from hpcflow.plan.ir.control_flow_nodes import nested_nodes, nested_programs
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.dynamic_types import KernelFunction, Value
from hpcflow.runtime.executor.wait_timestamps import wait_facts
from hpcflow.runtime.step.step_instance import (
    Allocator,
    CompiledPartition,
    StepInstance,
    StepObserver,
)

if TYPE_CHECKING:
    from hpcflow.runtime.executor.executor import Executor

NOT_BEGUN = "it has not begun, as steps of other threads run"
_LABEL = 60  # most characters of the label


class StepDeadline:
    """A deadline `seconds` from now.

    Errors: HpcflowError if `seconds` is not a number above 0.
    """

    def __init__(self, seconds: float) -> None:
        if not isinstance(seconds, (int, float)) or not seconds > 0:
            raise HpcflowError(
                f"deadline={seconds!r} is no time that a step can take",
                hint="give seconds, more than 0",
            )
        self.seconds = seconds
        self.until = time.monotonic() + seconds if math.isfinite(seconds) else math.inf

    def has_passed(self) -> bool:
        """Whether the deadline is over."""
        return time.monotonic() > self.until

    def seconds_left(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self.until - time.monotonic())

    def error(self, reason: str, label: str, rank: int, step: int = 0) -> DeadlineExceededError:
        """The error to raise: `label` names the fetches, `reason` says what delayed the step."""
        name = label if len(label) <= _LABEL else label[: _LABEL - 3] + "..."
        which = f"step {step} of {name!r}" if step else repr(name)
        text = f"{which} is not done after {self.seconds:g} s: {reason}"
        return DeadlineExceededError(text, rank=rank)


class DeadlineChecks(StepObserver):
    """A second instance of a single-segment step, over the buffers of the first.

    It checks the deadline before each kernel, up to the first that updates a variable. From there
    on the step runs to its end, so that it is executed entirely or not at all.
    """

    def __init__(self, source: StepInstance, take: Allocator) -> None:
        """`take` allocates the memory that `source` has."""
        self.deadline: StepDeadline | None = None
        self._checked: dict[CompiledPartition, frozenset[str]] = {}
        self.instance = StepInstance(source.compiled, source.link, source.slot, take, (self,))

    def call(self, deadline: StepDeadline, *feeds: Value) -> Value:
        """Run the step.

        Errors: DeadlineExceededError if the deadline is missed before the first update.
        """
        self.deadline = deadline
        return self.instance.segments[0](*feeds)

    def check(self) -> None:
        """Errors: DeadlineExceededError if the deadline is over."""
        deadline, instance = self.deadline, self.instance
        if deadline is not None and time.monotonic() > deadline.until:
            label, rank = instance.compiled.label, instance.link.executor.rank
            raise deadline.error("it computes", label, rank)

    def release(self) -> None:
        """Release the buffers."""
        self.instance.unbind()
        self._checked.clear()

    def bind_kernel(
        self, instance: StepInstance, node: Node, kernel: KernelFunction
    ) -> KernelFunction:
        """The kernel, with a check of the deadline before it if no update has run by then."""
        return _checking(kernel, self.check) if node.name in self._before(instance) else kernel

    def _before(self, instance: StepInstance) -> frozenset[str]:
        """The nodes that run before the first update.

        In a loop or branch there are none if it runs after the first update, or updates itself.
        """
        compiled, outer = instance.compiled, instance.outer
        if compiled not in self._checked:
            reached = outer is None or instance.frame in self._before(outer)
            self._checked[compiled] = before_updates(compiled) if reached else frozenset()
        return self._checked[compiled]


def _checking(kernel: KernelFunction, check: Callable[[], None]) -> KernelFunction:
    def call(*args: Value, **named: Value) -> Value:
        check()
        return kernel(*args, **named)

    return call


def before_updates(compiled: CompiledPartition) -> frozenset[str]:
    """The nodes before the first that updates state, in the order of the segments.

    A loop or branch that contains an update counts as an update.
    """
    nodes: list[str] = []
    for segment in compiled.code.segments:
        for name in segment.nodes:
            if _updates_state(compiled.part.nodes[name]):
                return frozenset(nodes)
            nodes.append(name)
    return frozenset(nodes)


def _updates_state(node: Node) -> bool:
    nested = nested_nodes({node.name: node}) if any(nested_programs(node)) else ()
    return bool(node.row.writes) or any(inner_node.row.writes for inner_node in nested)


# -- report of the waits of a step


def pending_waits_text(executor: Executor, instance: StepInstance) -> str:
    """A description of the pending waits of the step of `instance`; it names late ranks."""
    waits = [wait for wait in list(executor.waits) if wait[1] is instance]
    rows = list(dict.fromkeys(_wait_row(executor, *wait_facts(*wait)) for wait in waits))
    polled = {what for _, _, what in waits}
    rows += [
        f"it waits in {_wait_op(instance, name)}, for a step of this rank or of others"
        for name, wait in list(instance.waiting.items())
        if name not in polled and getattr(wait, "completed_by_callback", False)
    ]
    if not rows:
        return "it computes"
    suffix = [f"and {len(rows) - MOST_NAMED} more waits"] if len(rows) > MOST_NAMED else []
    return "; ".join([*rows[:MOST_NAMED], *suffix])


def _wait_op(instance: StepInstance, name: str) -> str:
    node = instance.part.nodes.get(name)
    return f"{node.type} '{node.name}' (made at {node.line})" if node else repr(name)


def _wait_row(executor: Executor, step: int, op: str, peer: int, kind: str) -> str:
    name, _, line = op.partition("\n")
    op_text = f"{kind} {name!r}" + (f" (made at {line})" if line else "")
    if peer >= 0:
        return f"it waits in {op_text} for rank {peer}"
    if peer == OWN:
        return f"it waits in {op_text}, for a step of this rank, in another thread say"
    late = _missing_ranks(executor, step, name)
    return f"it waits in {op_text} for " + (f"ranks {late}" if late else "other ranks")


def _missing_ranks(executor: Executor, step: int, op: str) -> str:
    """The ranks of this node that have not reached the collective `op` of a step."""
    ledger = executor.ledger
    own_entry = ledger.read() if ledger is not None else None
    if ledger is None or own_entry is None:
        return ""
    own_entry = dataclasses.replace(own_entry, step=step, op=op, peer=-1, since=time.time())
    ranks = [entry.rank for entry in missing_ranks(own_entry, read_all(ledger.directory))]
    return reprlib.repr(ranks)[1:-1]
