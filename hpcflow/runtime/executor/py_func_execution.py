"""Execution of Python functions in threads, where calls may depend on each other.

The pass `hpcflow.plan.frontend.py_func_threads` selects these calls.
"""

from __future__ import annotations

import contextvars
import threading
import time

import numpy as np

from hpcflow.plan.ir.program import Node
from hpcflow.runtime.dynamic_types import KernelFunction, Value
from hpcflow.runtime.executor.async_ops import AsyncWait, async_op
from hpcflow.runtime.step.step_instance import StepInstance

ALONE_S = 0.1  # seconds: after this time the next function may begin


class PyFuncCall:
    """A call of a Python function, as a wait of a step.

    Calls begin in the order of their creation. Each begins when the previous one has ended or has
    run for `ALONE_S`, so short functions do not run concurrently. A thread that has not yet come to
    its function does not run it: on a busy host this may take longer.
    """

    local = True  # it ends by an event of this rank, not by a message

    def __init__(self, instance: StepInstance, node: Node, inputs: tuple[Value, ...]) -> None:
        self.instance, self.node = instance, node
        self.has_thread, self.over, self.cancelled = False, False, False
        self.started_at = 0.0  # of the function, by its thread
        self._error: BaseException | None = None
        self._values: tuple[Value, ...] = ()
        self._inputs = [np.array(x) for x in inputs]  # copies: the step may end first
        self._executor = instance.link.executor
        self._predecessor = self._executor.calls[-1] if self._executor.calls else None
        self._executor.calls.append(self)
        self._begin_in_turn()

    def test(self) -> bool:
        """True once the function has returned; raises its error."""
        if self.cancelled:
            return True
        if not self.over:
            self._begin_in_turn()
            return False
        if self._error is not None:
            rank = self._executor.rank
            raise self.instance.compiled.explain(self._error, rank, self.node.name) from self._error
        self.instance.put(self.node.name, *self._values)
        return True

    def cancel(self) -> None:
        """A function that has begun runs on; its results are discarded."""
        self.cancelled = True
        if not self.has_thread:
            self._end()

    def _begin_in_turn(self) -> None:
        before = self._predecessor
        if self.has_thread or not (before is None or before.over or before.is_long()):
            return
        self.has_thread, self._predecessor = True, None
        compiled = self.instance.compiled
        run = compiled.device(self.node).kernel(self.node, compiled.specs(self.node))
        context = contextvars.copy_context()
        name = f"hpcflow-{self.node.name}"
        threading.Thread(target=context.run, args=(self._run, run), name=name, daemon=True).start()

    def is_long(self) -> bool:
        """Whether it has run for longer than `ALONE_S`."""
        return bool(self.started_at) and time.monotonic() - self.started_at > ALONE_S

    def _run(self, function: KernelFunction) -> None:
        self.started_at = time.monotonic()
        try:
            result = function(*self._inputs)
            is_single = len(self.node.specs) == 1
            self._values = (result,) if is_single else result or ()
        except BaseException as error:
            self._error = error
        self._end()

    def _end(self) -> None:
        self.over, self._inputs = True, []
        self._executor.calls.remove(self)
        self._executor.serve()


@async_op("PyFuncThread")
def _begin(instance: StepInstance, node: Node, *inputs: Value) -> AsyncWait:
    return PyFuncCall(instance, node, inputs)
