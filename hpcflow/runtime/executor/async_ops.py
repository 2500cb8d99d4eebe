"""Waits that are neither messages nor collectives: what a waiting node starts, by its type.

A row with `waits=True` starts in its strand and ends later; what follows it is another strand. The
generated code calls `begin(name, *inputs)`: inputs are values, which stay as they are until the
wait is over, and in place of a handle the state behind it. A wait with outputs puts them in the
boxes of its step instance before it says that it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from hpcflow.errors import OutOfRangeError
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.step.step_instance import Instance


class Wait(Protocol):
    """What a waiting node has started.

    One whose attribute `told` is true is not polled: it calls its `then` when it is over.
    """

    def test(self) -> bool:
        """True once it is over and `instance.put` has its values; never blocks.

        An HpcflowError says that it failed, which ends the step.
        """
        ...

    def cancel(self) -> None:
        """The step has failed elsewhere: let go of what is waited for; `test` now says True."""
        ...


Start = Callable[..., Wait]  # of the instance, the node and its inputs
_STARTS: dict[str, Start] = {}


def waiting(type: str) -> Callable[[Start], Start]:
    """Decorator: `start(instance, node, *inputs)` begins a wait of op `type`."""

    def add(start: Start) -> Start:
        _STARTS[type] = start
        return start

    return add


def start_wait(instance: Instance, node: Node, inputs: tuple[Any, ...]) -> Wait:
    """Begin the wait of `node`, in the strand where it stands."""
    return _STARTS[node.type](instance, node, *inputs)


@waiting("WaitInitialized")
class _Initialized:
    """Over when the chief has given a variable its value."""

    def __init__(self, instance: Instance, node: Node, variable: Any) -> None:
        self.variable, self.cancelled = variable, False

    def test(self) -> bool:
        return self.cancelled or self.variable.array is not None

    def cancel(self) -> None:
        self.cancelled = True


@waiting("CountUpTo")
def _count_up_to(instance: Instance, node: Node, variable: Any) -> Wait:
    host = instance.compiled.device(node).to_host(variable.read())
    count, limit = int(host), node.attrs["limit"]
    if count >= limit:
        raise OutOfRangeError(f"variable {variable.name!r} has reached {limit}")
    variable.assign(np.asarray(count + 1, variable.dtype))
    return Over(instance, node, np.asarray(count, variable.dtype))


class Over:
    """A wait that is over at once: what must be asked of state when its turn comes."""

    def __init__(self, instance: Instance, node: Node, *values: Any) -> None:
        instance.put(node.name, *values)

    def test(self) -> bool:
        """True."""
        return True

    def cancel(self) -> None:
        """Nothing is left to cancel."""
