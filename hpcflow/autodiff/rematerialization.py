"""Rematerialization (activation checkpointing): the gradient recomputes intermediate values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.autodiff.gradients import gradients
from hpcflow.errors import GradientError
from hpcflow.graph.dtypes import is_floating
from hpcflow.graph.function_body import last_name
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, get_default_graph
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import merge_shapes
from hpcflow.ops.custom_ops import with_gradient


def recompute(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: trade computation for memory. The gradient of `f(...)` computes `f` again.

    Between forward and backward, only the inputs and results of `f` stay in memory: arguments,
    other tensors it uses, values of variables, and results of operations that are not repeatable
    (random draws, so that both passes use the same). Use it for each block of a deep net.

    Shapes:   results and gradients are bitwise those of `f`.
    """

    @functools.wraps(f)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        graph = get_default_graph()
        since = graph.version
        result = f(*args, **kwargs)
        several = isinstance(result, (list, tuple))
        outputs = [convert_to_tensor(y) for y in (result if several else [result])]
        block = _RecomputedBlock(outputs, since)
        wrapped = with_gradient(outputs, block.inputs, block.gradients, "recompute")
        return type(result)(wrapped) if several else wrapped[0]

    return decorated


class _RecomputedBlock:
    """The repeatable operations since `since` that `outputs` depend on, and their inputs."""

    def __init__(self, outputs: Sequence[Tensor], since: int) -> None:
        self.outputs = list(outputs)
        graph = get_default_graph()
        inside: dict[Operation, None] = {}
        entering: dict[Tensor, None] = {}
        stack = list(outputs)
        while stack:
            t = stack.pop()
            if t.op.graph is not graph or not _repeatable(t.op, since):
                entering[t] = None
            elif t.op not in inside:
                inside[t.op] = None
                stack.extend(t.op.inputs)
        self.operations = sorted(inside, key=lambda op: op.index)
        self.inputs = sorted(entering, key=lambda t: (t.op.index, t.index))

    def gradients(self, op: Operation, *grads: Any) -> list[Any]:
        """The gradients by the block's inputs, by operations recreated after `grads`."""
        graph = get_default_graph()  # in the gradient of a loop, not the forward graph
        inputs = [graph.adopt(t) for t in op.inputs[len(self.outputs) :]]
        pairs = [
            (output, g)
            for output, g in zip(self.recompute(inputs, grads), grads, strict=True)
            if is_floating(output.dtype)
        ]
        if not pairs:
            raise GradientError("nothing that was recomputed has a gradient", op=op.name)
        floats = [t for t in inputs if is_floating(t.dtype)]
        ys, seeds = zip(*pairs, strict=True)
        float_grads = iter(gradients(list(ys), floats, list(seeds), stop_gradients=floats))
        return [next(float_grads) if is_floating(t.dtype) else None for t in inputs]

    def recompute(self, given: Sequence[Tensor], after: Sequence[Tensor]) -> list[Tensor]:
        """The outputs recomputed from `given`; none starts before all of `after`.

        These control dependencies also prevent merging with the forward operations: nodes are
        merged only if they have the same ones.
        """
        copies = dict(zip(self.inputs, given, strict=True))
        graph = get_default_graph()
        new: set[Operation] = set()
        for op in self.operations:
            inputs = [copies[t] for t in op.inputs]
            first = new.isdisjoint(t.op for t in inputs)
            with (
                graph.beside(op),
                graph.control_dependencies(None),
                graph.control_dependencies(after if first else []),
            ):
                copy = graph.create_op(op.type, inputs, op.attrs, last_name(op))
            new.add(copy)
            for output, original in zip(copy.outputs, op.outputs, strict=True):
                output.shape = merge_shapes(output.shape, original.shape)
                copies[original] = output
        return [copies[y] for y in self.outputs]


def _repeatable(op: Operation, since: int) -> bool:
    return op.index >= since and op.type != "Const" and lookup_op(op.type).pure
