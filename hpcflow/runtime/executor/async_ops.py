"""Asynchronous ops: waits of a step that are neither messages nor collectives, by op type.

An op with `waits=True` starts in its segment and ends later; the nodes after it are in another
segment. The generated code calls `begin(name, *inputs)`. The inputs are values, which stay
unchanged until the wait is over, and state objects in place of handles. A wait with outputs stores
them in the boxes of its step instance before it reports its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from hpcflow.errors import OutOfRangeError
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.dynamic_types import State, Value
from hpcflow.runtime.step.step_instance import StepInstance


class AsyncWait(Protocol):
    """The pending operation that a waiting node has started.

    If its attribute `told` is true, it is not polled: it calls its `then` when it is over.
    """

    def test(self) -> bool:
        """True once it is over and `instance.put` has received its values; never blocks.

        An HpcflowError means that it has failed; it fails the step.
        """
        ...

    def cancel(self) -> None:
        """The step has failed elsewhere: release what the wait holds.

        `test` returns True from now on.
        """
        ...


Start = Callable[..., AsyncWait]  # (instance, node, *inputs) -> wait
_STARTS: dict[str, Start] = {}


def async_op(type: str) -> Callable[[Start], Start]:
    """Decorator: `start(instance, node, *inputs)` starts the wait of op `type`."""

    def add(start: Start) -> Start:
        _STARTS[type] = start
        return start

    return add


def start_wait(instance: StepInstance, node: Node, inputs: tuple[Value, ...]) -> AsyncWait:
    """Start the wait of `node`, in the segment of the node."""
    return _STARTS[node.type](instance, node, *inputs)


@async_op("WaitInitialized")
class _InitializedWait:
    """Over once the chief has initialized a variable."""

    def __init__(self, instance: StepInstance, node: Node, variable: State) -> None:
        self.variable, self.cancelled = variable, False

    def test(self) -> bool:
        return self.cancelled or self.variable.array is not None

    def cancel(self) -> None:
        self.cancelled = True


@async_op("CountUpTo")
def _count_up_to(instance: StepInstance, node: Node, variable: State) -> AsyncWait:
    device, dtype = instance.compiled.device(node), variable.dtype
    count, limit = int(device.to_host(variable.read())), node.attrs["limit"]
    if count >= limit:
        raise OutOfRangeError(f"variable {variable.name!r} has reached {limit}")
    variable.assign(device.from_host(np.asarray(count + 1, dtype)))
    return CompletedWait(instance, node, device.from_host(np.asarray(count, dtype)))


class CompletedWait:
    """A wait that is over at once: an op that reads state at its place in the order of effects."""

    def __init__(self, instance: StepInstance, node: Node, *values: Value) -> None:
        instance.put(node.name, *values)

    def test(self) -> bool:
        """True."""
        return True

    def cancel(self) -> None:
        """Does nothing."""
