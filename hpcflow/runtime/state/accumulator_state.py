"""Conditional accumulators of gradients: stale gradients are dropped; a take waits for a count.

Like queues (`runtime/state/queue_backpressure.py`) they never block: a take is an attempt in a
FIFO.
"""

from __future__ import annotations

import collections

import numpy as np

from hpcflow.errors import CancelledError, RangeError, ShapeError
from hpcflow.graph.static_shape import merge_shapes, shape_text
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.dynamic_types import DeviceArray, Value
from hpcflow.runtime.executor.async_ops import AsyncWait, CompletedWait, async_op
from hpcflow.runtime.state.queue_backpressure import QueueAttempt
from hpcflow.runtime.state.queue_op_execution import AttemptWait
from hpcflow.runtime.state.state_store import state_type
from hpcflow.runtime.step.step_instance import StepInstance


class Accumulator:
    """The sum and the number of gradients since the last take, and their step."""

    def __init__(self, node: Node) -> None:
        self.name = node.attrs["shared_name"] or node.name
        self.dtype = np.dtype(node.attrs["dtype"])
        self.shape, self.mean = node.attrs["shape"], node.attrs["mean"]
        self.step = self.count = 0
        self._takes: collections.deque[QueueAttempt] = collections.deque()

    def apply(self, step: int, *gradient: np.ndarray) -> None:
        """Add a gradient computed from the variables of step `step`; drop it if it is stale."""
        if step < self.step:
            return
        self.add(*gradient)
        self.count += 1
        self._serve()

    def take(self, required: int) -> QueueAttempt:
        """Take the sum, or mean, once there are `required` gradients; then begin the next step."""
        attempt = QueueAttempt(self, (), required, False)
        self._takes.append(attempt)
        self._serve()
        return attempt

    def withdraw(self, attempt: QueueAttempt) -> None:
        """Remove an attempt from its FIFO."""
        self._takes.remove(attempt)
        attempt.end(CancelledError(f"the wait for accumulator {self.name!r} was cancelled"))

    def _serve(self) -> None:
        while self._takes and self.count >= self._takes[0].remaining:
            attempt = self._takes.popleft()
            attempt.elements.append(self.total())
            self.count = 0
            self.step += 1
            attempt.end()

    def add(self, *gradient: np.ndarray) -> None:
        """Add to the sum."""
        raise NotImplementedError

    def total(self) -> tuple[np.ndarray, ...]:
        """The result of a take; it empties the sum."""
        raise NotImplementedError


class DenseAccumulator(Accumulator):
    """An accumulator of dense gradients of one shape."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._sum: DeviceArray = None

    def add(self, *gradient: np.ndarray) -> None:
        """Add a gradient."""
        (grad,) = gradient
        first = self._sum is None
        try:
            merge_shapes(grad.shape, self.shape if first else self._sum.shape)
        except ShapeError:
            have = shape_text(self.shape if first else self._sum.shape)
            raise ShapeError(
                f"a gradient is {shape_text(grad.shape)}; accumulator {self.name!r} has {have}"
            ) from None
        if first:
            self._sum = np.array(grad)
        else:
            np.add(self._sum, grad, self._sum)

    def total(self) -> tuple[np.ndarray, ...]:
        """The sum, or mean."""
        total, self._sum = self._sum, None
        if self.mean:
            np.true_divide(total, self.dtype.type(self.count), total)
        return (total,)


class SparseAccumulator(Accumulator):
    """An accumulator of sparse gradients; the mean of a row counts the gradients that have it."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._rows: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, *gradient: np.ndarray) -> None:
        """Add the rows `values` with the row numbers `indices`."""
        indices, values = gradient
        merge_shapes(values.shape, None if self.shape is None else (None, *self.shape[1:]))
        if len(indices) != len(values):
            raise ShapeError(f"{len(indices)} indices for {len(values)} rows")
        rows = self.shape[0] if self.shape else None
        top = np.inf if rows is None else rows
        if indices.size and not (0 <= indices.min() and indices.max() < top):
            raise RangeError(f"a row of a gradient is not one of accumulator {self.name!r}'s")
        self._rows.append(_sum_equal_rows(np.array(indices), np.array(values))[:2])

    def total(self) -> tuple[np.ndarray, ...]:
        """Row numbers in order, their sums or means, and the dense shape."""
        indices, values, counts = _sum_equal_rows(
            np.concatenate([i for i, _ in self._rows]), np.concatenate([v for _, v in self._rows])
        )
        self._rows = []
        if self.mean:
            counts = counts.astype(self.dtype).reshape(-1, *[1] * (values.ndim - 1))
            values = np.true_divide(values, counts).astype(self.dtype)
        shape = self.shape or (None,) * values.ndim
        sizes = [-1 if d is None else d for d in shape]
        if sizes[0] == -1:
            sizes[1:] = values.shape[1:]
        return indices, values, np.array(sizes, np.int64)


def _sum_equal_rows(
    indices: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct indices in order, the sums of their rows, and the count of each."""
    order = np.argsort(indices, kind="stable")
    unique, first, counts = np.unique(indices[order], return_index=True, return_counts=True)
    sums = np.add.reduceat(values[order], first, 0) if unique.size else values[:0]
    return unique, sums, counts


state_type("ConditionalAccumulator", "accumulator")(DenseAccumulator)
state_type("SparseConditionalAccumulator", "accumulator")(SparseAccumulator)


@async_op("AccumulatorApplyGradient")
def _apply(
    instance: StepInstance, node: Node, accumulator: Accumulator, step: Value, *gradient: Value
) -> AsyncWait:
    accumulator.apply(int(step), *gradient)
    return CompletedWait(instance, node)


@async_op("AccumulatorTakeGradient")
def _take(
    instance: StepInstance, node: Node, accumulator: Accumulator, required: Value
) -> AsyncWait:
    if required < 1:
        raise RangeError(f"{int(required)} gradients were asked for; one or more are needed")
    return AttemptWait(instance, node, accumulator.take(int(required)), "one")


@async_op("AccumulatorSetGlobalStep")
def _set_step(
    instance: StepInstance, node: Node, accumulator: Accumulator, step: Value
) -> AsyncWait:
    accumulator.step = int(step)
    return CompletedWait(instance, node)


@async_op("AccumulatorNumAccumulated")
def _count(instance: StepInstance, node: Node, accumulator: Accumulator) -> AsyncWait:
    return CompletedWait(instance, node, np.array(accumulator.count, np.int32))
