"""Execution of queue ops: they create attempts, and convert elements to arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcflow.errors import RangeError, ShapeError
from hpcflow.graph.dtypes import string
from hpcflow.graph.static_shape import Shape, merge, show
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.dynamic_types import Value
from hpcflow.runtime.executor.async_ops import Over, Wait, waiting
from hpcflow.runtime.state.queue_backpressure import ORDERS, Attempt, Element, Queue
from hpcflow.runtime.state.state_store import state
from hpcflow.runtime.step.step_instance import Instance


def _make(node: Node) -> Queue:
    attrs = node.attrs
    name = attrs["shared_name"] or node.name
    kept = ORDERS[node.type](attrs)
    return Queue(node.type, name, kept, attrs["capacity"], attrs.get("min_after_dequeue", 0))


for _type in ORDERS:
    state(_type, "queue")(_make)


def _chosen(node: Node, inputs: Sequence[Value]) -> tuple[Queue, Sequence[Value]]:
    """The queue of an op, selected by an index input if there are several; and the other inputs."""
    count = node.attrs["queues"]
    if count == 1:
        return inputs[0], inputs[1:]
    at = int(inputs[count])
    if not 0 <= at < count:
        raise RangeError(f"queue {at} of {count}", op=node.name, line=node.line)
    return inputs[at], inputs[count + 1 :]


class Attempted:
    """An attempt as a wait of a step; `kind` selects how its elements become arrays."""

    local = True  # it ends by steps of this rank, not by a message

    def __init__(self, instance: Instance, node: Node, attempt: Attempt, kind: str = "") -> None:
        self.instance, self.node, self.attempt, self.kind = instance, node, attempt, kind
        self.cancelled = False
        attempt.tell = instance.link.engine.serve

    def test(self) -> bool:
        """True once the attempt is over; raises its error."""
        if self.cancelled:
            return True
        if not self.attempt.done:
            return False
        if self.attempt.error is not None:
            raise self.attempt.error
        elements = list(self.attempt.elements)
        if self.kind == "one":
            self.instance.put(self.node.name, *elements[0])
        elif self.kind == "many":
            self.instance.put(self.node.name, *_joined(self.node, elements))
        return True

    def cancel(self) -> None:
        """Cancel the attempt."""
        self.cancelled = True
        self.attempt.cancel()


@waiting("QueueEnqueue")
def _enqueue(instance: Instance, node: Node, *inputs: Value) -> Wait:
    queue, parts = _chosen(node, inputs)
    shapes = node.attrs["shapes"] or [None] * len(parts)
    element = tuple(_kept(p, s) for p, s in zip(parts, shapes, strict=True))
    return Attempted(instance, node, queue.enqueue([element]))


@waiting("QueueEnqueueMany")
def _enqueue_many(instance: Instance, node: Node, *inputs: Value) -> Wait:
    queue, parts = _chosen(node, inputs)
    shapes = node.attrs["shapes"] or [None] * len(parts)
    columns = [
        _kept(p, None if s is None else (None, *s)) for p, s in zip(parts, shapes, strict=True)
    ]
    sizes = {len(column) for column in columns}
    if len(sizes) > 1:
        raise ShapeError(f"the components have {sorted(sizes)} rows: as many of each are needed")
    rows = [[column[k, ...] for k in range(len(column))] for column in columns]
    return Attempted(instance, node, queue.enqueue(list(zip(*rows, strict=True))))


def _kept(part: Value, shape: Shape) -> np.ndarray:
    """A copy of an input.

    Errors: ShapeError if its shape does not fit.
    """
    try:
        merge(part.shape, shape)
    except ShapeError:
        raise ShapeError(
            f"a component is {list(part.shape)}; the queue takes {show(shape)}"
        ) from None
    return np.array(part)


@waiting("QueueDequeue")
def _dequeue(instance: Instance, node: Node, *inputs: Value) -> Wait:
    queue, _ = _chosen(node, inputs)
    return Attempted(instance, node, queue.dequeue(), "one")


@waiting("QueueDequeueMany")
def _dequeue_many(instance: Instance, node: Node, *inputs: Value) -> Wait:
    return _take(instance, node, inputs, some=False)


@waiting("QueueDequeueUpTo")
def _dequeue_up_to(instance: Instance, node: Node, *inputs: Value) -> Wait:
    return _take(instance, node, inputs, some=True)


def _take(instance: Instance, node: Node, inputs: Sequence[Value], some: bool) -> Wait:
    queue, (count,) = _chosen(node, inputs)
    if count < 0:
        raise RangeError(f"{int(count)} elements were asked for")
    return Attempted(instance, node, queue.dequeue(int(count), some), "many")


def _joined(node: Node, elements: list[Element]) -> list[np.ndarray]:
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


@waiting("QueueClose")
def _close(instance: Instance, node: Node, *inputs: Value) -> Wait:
    queue, _ = _chosen(node, inputs)
    return Attempted(instance, node, queue.close(node.attrs["cancel"]))


@waiting("QueueSize")
def _size(instance: Instance, node: Node, *inputs: Value) -> Wait:
    queue, _ = _chosen(node, inputs)
    return Over(instance, node, np.array(len(queue), np.int32))


@waiting("QueueIsClosed")
def _is_closed(instance: Instance, node: Node, *inputs: Value) -> Wait:
    queue, _ = _chosen(node, inputs)
    return Over(instance, node, np.array(queue.closed))
