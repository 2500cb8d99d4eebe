"""Kernels that take the time of the cost model: the rest of it they sleep.

    context = current_context()
    sleep_in_kernels(context, slowdown=50.0)   # before the first step, on each rank

A rank then computes as a machine would that takes `slowdown` times what the cost model predicts
(20 GFLOP/s, 10 GB/s). So ranks that share cores do not disturb each other, as long as what they
really compute is a small part of it. Results are the real ones. Set `HPCFLOW_KERNELS=plain`: the
cost model predicts single operations, not fused loops. Set `HPCFLOW_PLAN_CACHE=none`: cached code
may have tiled updates.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from hpcflow.lowering import python_codegen
from hpcflow.plan.communication import message_coalescing
from hpcflow.plan.cost.cost_model import predicted_seconds, without_idle_rows
from hpcflow.plan.cost.op_flops_and_bytes import cost_input_specs
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.executor import mpi_progress_thread
from hpcflow.runtime.step.observer import Observer

SHORTEST_SLEEP_S = 5e-4  # shorter sleeps are added up: each ends some 0.1 ms late
LONG_S, POLL_EVERY_S = python_codegen.LONG_S, python_codegen.POLL_EVERY_S  # without sleep
WORTH_S = message_coalescing.WORTH_S
POLL_S = 1e-3  # between polls of messages during long kernels
SLACK_S = 2e-3  # a kernel that begins this late after the last one makes up for it


class SleepingKernels(Observer[Any, Any]):
    """Lets each kernel take `slowdown` times its predicted seconds.

    `seconds` counts the time that kernels took by the model, until now.
    """

    def __init__(self, slowdown: float) -> None:
        self.slowdown, self.seconds = slowdown, 0.0
        self._due = 0.0  # when the kernels until now should have ended

    def bind_kernel(self, instance: Any, node: Any, kernel: Any) -> Any:
        compiled = instance.compiled
        specs = without_idle_rows(node, cost_input_specs(node, compiled.part))
        whole = self.slowdown * predicted_seconds(node, specs)

        def slept(*arguments: Any, **named: Any) -> Any:
            now = time.perf_counter()
            due = (self._due if now - self._due < SLACK_S else now) + whole
            result = kernel(*arguments, **named)
            self._due, self.seconds = due, self.seconds + whole
            left = due - time.perf_counter()
            if left > SHORTEST_SLEEP_S:
                time.sleep(left)
            return result

        return slept


def sleep_in_kernels(context: Any, slowdown: float) -> SleepingKernels:
    """Let the kernels of a rank sleep in all steps that it compiles from now on.

    Updates then run as whole kernels, not by tiles, which no observer sees. What depends on
    predicted times, such as which kernels are long, follows the times with the sleep. During long
    kernels messages are polled less often, because polls of many ranks would fill the cores.
    """
    python_codegen.LONG_S = LONG_S / slowdown
    python_codegen.POLL_EVERY_S = POLL_EVERY_S / slowdown
    message_coalescing.WORTH_S = WORTH_S / slowdown
    mpi_progress_thread.POLL_S = POLL_S
    original = Device.info

    def untiled(*arguments: Any) -> Any:
        return dataclasses.replace(original(*arguments), tiles=False)

    Device.info = untiled  # type: ignore[method-assign]
    observer = SleepingKernels(slowdown)
    context.observe(observer)
    return observer
