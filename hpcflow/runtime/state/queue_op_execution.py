"""Execution of queue ops: they create attempts, and convert elements to arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcflow.errors import RangeError, ShapeError
from hpcflow.graph.dtypes import string
from hpcflow.graph.static_shape import Shape, merge_shapes, shape_text
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.dynamic_types import Value
from hpcflow.runtime.executor.async_ops import AsyncWait, CompletedWait, async_op
from hpcflow.runtime.state.queue_backpressure import ORDERS, Element, Queue, QueueAttempt
from hpcflow.runtime.state.state_store import state_type
from hpcflow.runtime.step.step_instance import StepInstance


def _make_queue(node: Node) -> Queue:
    attrs = node.attrs
    name = attrs["shared_name"] or node.name
    order = ORDERS[node.type](attrs)
    return Queue(node.type, name, order, attrs["capacity"], attrs.get("min_after_dequeue", 0))


for _type in ORDERS:
    state_type(_type, "queue")(_make_queue)


def _selected_queue(node: Node, inputs: Sequence[Value]) -> tuple[Queue, Sequence[Value]]:
    """The queue of an op, selected by an index input if there are several; and the other inputs."""
    count = node.attrs["queues"]
    if count == 1:
        return inputs[0], inputs[1:]
    at = int(inputs[count])
    if not 0 <= at < count:
        raise RangeError(f"queue {at} of {count}", op=node.name, line=node.line)
    return inputs[at], inputs[count + 1 :]


class AttemptWait:
    """An attempt as a wait of a step; `kind` selects how its elements become arrays."""

    local = True  # it ends by steps of this rank, not by a message

    def __init__(
        self, instance: StepInstance, node: Node, attempt: QueueAttempt, kind: str = ""
    ) -> None:
        self.instance, self.node, self.attempt, self.kind = instance, node, attempt, kind
        self.cancelled = False
        attempt.when_over(instance.link.executor.serve)

    def test(self) -> bool:
        """True once the attempt is over; raises its error."""
        if self.cancelled:
            return True
        if not self.attempt.completed:
            return False
        if self.attempt.error is not None:
            raise self.attempt.error
        elements = list(self.attempt.elements)
        if self.kind == "one":
            self.instance.put(self.node.name, *elements[0])
        elif self.kind == "many":
            self.instance.put(self.node.name, *_stacked_component(self.node, elements))
        return True

    def cancel(self) -> None:
        """Cancel the attempt."""
        self.cancelled = True
        self.attempt.cancel()


@async_op("QueueEnqueue")
def _enqueue(instance: StepInstance, node: Node, *inputs: Value) -> AsyncWait:
    queue, parts = _selected_queue(node, inputs)
    shapes = node.attrs["shapes"] or [None] * len(parts)
    element = tuple(_copied_input(p, s) for p, s in zip(parts, shapes, strict=True))
    return AttemptWait(instance, node, queue.enqueue([element]))


@async_op("QueueEnqueueMany")
def _enqueue_many(instance: StepInstance, node: Node, *inputs: Value) -> AsyncWait:
    queue, parts = _selected_queue(node, inputs)
    shapes = node.attrs["shapes"] or [None] * len(parts)
    columns = [
        _copied_input(p, None if s is None else (None, *s))
        for p, s in zip(parts, shapes, strict=True)
    ]
    sizes = {len(column) for column in columns}
    if len(sizes) > 1:
        raise ShapeError(f"the components have {sorted(sizes)} rows: give all the same number")
    rows = [[column[k, ...] for k in range(len(column))] for column in columns]
    return AttemptWait(instance, node, queue.enqueue(list(zip(*rows, strict=True))))


def _copied_input(part: Value, shape: Shape) -> np.ndarray:
    """A copy of an input.

    Errors: ShapeError if its shape does not fit.
    """
    try:
        merge_shapes(part.shape, shape)
    except ShapeError:
        raise ShapeError(
            f"a component is {list(part.shape)}; the queue takes {shape_text(shape)}"
        ) from None
    return np.array(part)


@async_op("QueueDequeue")
def _dequeue(instance: StepInstance, node: Node, *inputs: Value) -> AsyncWait:
    queue, _ = _selected_queue(node, inputs)
    return AttemptWait(instance, node, queue.dequeue(), "one")


@async_op("QueueDequeueMany")
def _dequeue_many(instance: StepInstance, node: Node, *inputs: Value) -> AsyncWait:
    return _take(instance, node, inputs, allows_partial=False)


@async_op("QueueDequeueUpTo")
def _dequeue_up_to(instance: StepInstance, node: Node, *inputs: Value) -> AsyncWait:
    return _take(instance, node, inputs, allows_partial=True)


def _take(
    instance: StepInstance, node: Node, inputs: Sequence[Value], allows_partial: bool
) -> AsyncWait:
    queue, (count,) = _selected_queue(node, inputs)
    if count < 0:
        raise RangeError(f"{int(count)} elements were asked for")
    return AttemptWait(instance, node, queue.dequeue(int(count), allows_partial), "many")


def _stacked_component(node: Node, elements: list[Element]) -> list[np.ndarray]:
    """Each component of all elements stacked in one array, smaller ones padded with zeros or ""."""
    columns = []
    for i, spec in enumerate(node.specs):
        assert spec.shape is not None
        rows = [element[i] for element in elements]
        sizes = [max(ds, default=0) for ds in zip(*(r.shape for r in rows), strict=True)]
        if not rows:
            sizes = [d or 0 for d in spec.shape[1:]]
        same = all(list(r.shape) == sizes for r in rows)
        column = np.empty((len(rows), *sizes), spec.dtype)
        if not same:
            column.fill(b"" if spec.dtype == string else 0)
        for k, row in enumerate(rows):
            if same:
                column[k, ...] = row
            else:
                column[k][tuple(slice(d) for d in row.shape)] = row
        columns.append(column)
    return columns


@async_op("QueueClose")
def _close(instance: StepInstance, node: Node, *inputs: Value) -> AsyncWait:
    queue, _ = _selected_queue(node, inputs)
    return AttemptWait(instance, node, queue.close(node.attrs["cancel"]))


@async_op("QueueSize")
def _size(instance: StepInstance, node: Node, *inputs: Value) -> AsyncWait:
    queue, _ = _selected_queue(node, inputs)
    return CompletedWait(instance, node, np.array(len(queue), np.int32))


@async_op("QueueIsClosed")
def _is_closed(instance: StepInstance, node: Node, *inputs: Value) -> AsyncWait:
    queue, _ = _selected_queue(node, inputs)
    return CompletedWait(instance, node, np.array(queue.closed))
