"""Suspicious-graph warnings: graphs that run, and do not train what their script says.

Losses that sum over the batch train differently on replicas, which add up their gradients, each
weighted by its fraction of the samples: the gradient of N replicas is 1/N of that of one rank. The
other facts are a softmax of a softmax, and variables that no loss reaches. All hold for the whole
graph at the first training step, so none depends on the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import normalize_axes

MINIMIZED = "minimized_losses"  # collection of all losses whose gradients replicas sum
MINIMIZED_FOR = "variables_of_losses"  # collection: (variable, whether a loss depends on it)
SOURCES = {"Placeholder", "PlaceholderWithDefault", "QueueDequeueMany", "QueueDequeueUpTo"}
SUMS = {"Sum", "L2Loss"}
ADDED = {"Add", "AddN", "Sub", "Neg", "Cast", "Identity", "Reshape", "Squeeze"}
DIVIDED = {"RealDiv", "DivNoNan"}  # by their second input
COPIES = {"Cast", "Identity"}
CROSS_ENTROPIES = ("SoftmaxCrossEntropy", "SparseSoftmaxCrossEntropy")
SOFTMAX_COPIES = COPIES | {"Reshape", "Squeeze"}


def suspicious_graph_warnings(graph: Graph) -> Iterator[str]:
    """Yield a warning for each softmax of a softmax and each variable that no loss reaches."""
    for op in graph.get_operations():
        if op.type in CROSS_ENTROPIES and (first := _made_by_softmax(op.inputs[0])) is not None:
            yield (
                f"the loss {op.name!r} ({op.line}) applies softmax to {first.name!r} "
                f"({first.op.line}), which is a softmax already: it trains slowly, to wrong "
                "probabilities\n"
                "  next  give it the logits, the values before softmax"
            )
    pairs = graph.get_collection(MINIMIZED_FOR)
    reached = {variable for variable, is_reached in pairs if is_reached}
    for variable in dict.fromkeys(v for v, _ in pairs if v not in reached):
        yield (
            f"the trainable variable {variable.name!r} ({variable.op.line}) is not trained: no "
            "loss depends on it\n"
            "  next  compute the loss from it, or make it with trainable=False"
        )


def _made_by_softmax(logits: Tensor) -> Tensor | None:
    """The softmax of which `logits` is a copy; None if it is none."""
    while logits.op.type in SOFTMAX_COPIES:
        logits = logits.op.inputs[0]
    return logits if logits.op.type == "Softmax" else None


def summed_loss_warnings(graph: Graph, replicas: int) -> list[str]:
    """Return a warning for each loss of the graph that sums over the samples of a batch."""
    return [
        f"the loss {loss.name!r} ({loss.op.line}) sums over the samples of a batch, by "
        f"{total.name!r} ({total.line}): {replicas} replicas add up their gradients as a mean, so "
        f"they are 1/{replicas} of those of one rank\n"
        "  next  minimize a mean, hf.reduce_mean(losses), or divide the sum by the samples, "
        "hf.shape(x)[0]"
        for loss in graph.get_collection(MINIMIZED)
        for total in list(batch_sums(loss, graph))[:1]
    ]


def batch_sums(loss: Tensor, graph: Graph) -> Iterator[Operation]:
    """Yield the operations by which `loss` is a sum over a batch, not divided by the batch size."""
    batch_axes = _BatchAxes(loss, graph)
    if loss in batch_axes.axes:  # not a scalar: differentiation sums its elements
        yield loss.op
    # (term, its divisors, the operation that sums it over the batch)
    stack: list[tuple[Tensor, tuple[float, ...], Operation | None]] = [(loss, (), None)]
    visited = set()
    while stack:
        term = tensor, divisors, total = stack.pop()
        if term in visited:
            continue
        visited.add(term)
        op = tensor.op
        if op.type in SUMS and batch_axes.is_reduced(op):
            total = op
        if op.type in ADDED or op.type in SUMS:
            stack += [(t, divisors, total) for t in op.inputs]
        elif op.type in DIVIDED or op.type == "Mul":
            stack += [(factor, by, total) for factor, by in batch_axes.scaled(op, divisors)]
        elif total is not None and not batch_axes.is_batch_size(divisors, total.inputs[0]):
            yield total


class _BatchAxes:
    """Batch axes and batch sizes among the operations that a loss depends on."""

    def __init__(self, loss: Tensor, graph: Graph) -> None:
        self.dealt = {key: each for each in graph.get_collection("datasets") for key in each.keys}
        self.axes: dict[Tensor, int] = {}  # tensor -> its sample axis
        self.counts: set[Operation] = set()  # operations that depend only on the number of samples
        for op in _dependencies(loss):
            self._record_axes(op)

    def _record_axes(self, op: Operation) -> None:
        """Record the sample axes of the outputs of `op`; those of its inputs are known."""
        batched = [t for t in op.inputs if t in self.axes]
        if op.type in ("Shape", "Size"):
            counts = bool(batched)
        else:
            counts = any(t.op in self.counts for t in op.inputs)
            counts = counts or (op.type == "Sum" and self.is_reduced(op))
        if counts:
            self.counts.add(op)
        for out in op.outputs:
            axis = self._axis(op, out, batched)
            if axis is not None:
                self.axes[out] = axis

    def _axis(self, op: Operation, out: Tensor, batched: list[Tensor]) -> int | None:
        """Return the sample axis of an output; None without one or if the shape is ambiguous."""
        if not out.shape:
            return None
        if op.type in SOURCES:
            is_batch = out in self.dealt or out.shape[0] is None
            return 0 if is_batch or op.type.startswith("Queue") else None
        if not batched:
            return None
        rank = len(out.shape)
        before = min(batched, key=lambda t: abs(len(t.shape or ()) - rank))  # broadcast
        axis, sizes = self.axes[before], before.shape or ()
        if op.type == "Transpose":
            perm = op.attrs["perm"] or range(rank)[::-1]
            return list(perm).index(axis)
        if lookup_op(op.type).reduction:
            reduced = _removed_axes(op)
            gone = 0 if op.attrs["keepdims"] else sum(a < axis for a in reduced)
            return None if axis in reduced else axis - gone
        same_size = axis < rank and out.shape[axis] == sizes[axis]
        return axis if same_size and (axis == 0 or rank == len(sizes)) else None

    def is_reduced(self, op: Operation) -> bool:
        """Return whether a reduction is over the sample axis."""
        return self.axes.get(op.inputs[0]) in _removed_axes(op)

    def scaled(
        self, op: Operation, divisors: tuple[float, ...]
    ) -> Iterator[tuple[Tensor, tuple[float, ...]]]:
        """Yield the factors of a product or quotient that may be sums, with their divisors."""
        first, second = op.inputs
        pairs = [(first, second)] if op.type in DIVIDED else [(first, second), (second, first)]
        for factor, scale in pairs:
            if scale.op in self.counts:
                continue
            number = _scalar_value(scale)
            if number and op.type == "Mul":
                number = 1 / number
            yield factor, divisors if number is None else (*divisors, number)

    def is_batch_size(self, divisors: Iterable[float], summed: Tensor) -> bool:
        """Return whether a divisor is a multiple of the number of samples of `summed`."""
        assert summed.shape is not None
        batch_sizes = {summed.shape[self.axes[summed]]}
        for dataset in set(self.dealt.values()):
            batch_sizes |= set(dataset.shares) if len(set(dataset.shares)) == 1 else set()
        sizes = [size for size in batch_sizes if size is not None and size > 1]
        wholes = [round(d) for d in divisors if abs(d - round(d)) <= 1e-5 * abs(d)]
        return any(whole % size == 0 for whole in wholes for size in sizes)


def _removed_axes(op: Operation) -> tuple[int, ...]:
    """Return the axes that a reduction removes; empty if they are known only at run time."""
    if len(op.inputs) > 1 or op.inputs[0].shape is None:
        return ()
    return normalize_axes(op.attrs.get("axis"), len(op.inputs[0].shape))


def _dependencies(loss: Tensor) -> list[Operation]:
    """Return the operations that a loss depends on, in creation order."""
    ops: set[Operation] = set()
    stack = [loss.op]
    while stack:
        op = stack.pop()
        if op not in ops:
            ops.add(op)
            stack += [t.op for t in op.inputs]
    place: Mapping[Any, int] = {op: i for i, op in enumerate(loss.op.graph.get_operations())}
    return sorted(ops, key=lambda op: place.get(op, -1))


def _scalar_value(tensor: Tensor) -> float | None:
    """Return the value of a scalar constant; None for anything else."""
    while tensor.op.type in COPIES:
        tensor = tensor.op.inputs[0]
    value = tensor.op.attrs.get("value") if lookup_op(tensor.op.type).source == "constant" else None
    if value is None or np.size(value) != 1 or np.asarray(value).dtype.kind not in "iuf":
        return None
    number = float(np.asarray(value).reshape(()))
    return number if np.isfinite(number) else None
