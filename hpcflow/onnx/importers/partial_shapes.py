"""Partial shapes at import: known elements of computed shapes, such as [None, 12, 64]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.graph.graph import Operation, Tensor
from hpcflow.graph.static_shape import is_known, require_known
from hpcflow.ops.array.slice_ops import index_of

# A partial value is an object array of ints, with None for unknown elements.


def partial(t: Tensor) -> np.ndarray | None:
    """The partial value of an integer tensor; None if its shape is unknown."""
    if t.spec.value is not None:
        return t.spec.value.astype(object)
    rule = _RULES.get(t.op.type)
    partial_value = (
        None if rule is None else rule(t.op, [partial(i) for i in t.op.inputs[:_MAX_ELEMENTS]])
    )
    if partial_value is None and is_known(t.shape):
        partial_value = np.full(require_known(t.shape), None, object)
    return partial_value


_MAX_ELEMENTS = 16  # most elements of a shape that are traced


def _shape(op: Operation, inputs: Sequence[Any]) -> Any:
    input_shape = op.inputs[0].shape
    if input_shape is None:
        return None
    sizes = np.empty(len(input_shape), object)
    sizes[:] = input_shape
    return sizes


def _concat(op: Operation, inputs: Sequence[Any]) -> Any:
    if len(op.inputs) > _MAX_ELEMENTS or any(i is None for i in inputs):
        return None
    return np.concatenate(inputs, op.attrs["axis"])


def _pack(op: Operation, inputs: Sequence[Any]) -> Any:
    if len(op.inputs) > _MAX_ELEMENTS or any(i is None for i in inputs):
        return None
    return np.stack(inputs, op.attrs["axis"])


def _strided(op: Operation, inputs: Sequence[Any]) -> Any:
    if inputs[0] is None:
        return None
    cell = np.empty((), object)
    cell[()] = inputs[0][index_of(op.attrs["key"])]
    return np.asarray(cell[()], object)


def _gather(op: Operation, inputs: Sequence[Any]) -> Any:
    x, at = inputs
    if x is None or at is None or any(i is None for i in at.reshape(-1)):
        return None
    return np.asarray(np.take(x, at.astype(int), op.attrs["axis"]), object)


def _reshaped(op: Operation, inputs: Sequence[Any]) -> Any:
    shape = op.outputs[0].shape
    if inputs[0] is None or shape is None or None in shape:
        return None
    return inputs[0].reshape(shape)


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[Operation, Sequence[Any]], Any]:
    def rule(op: Operation, inputs: Sequence[Any]) -> Any:
        if any(i is None for i in inputs):
            return None
        ufunc = np.frompyfunc(lambda a, b: None if None in (a, b) else function(a, b), 2, 1)
        return np.asarray(ufunc(*inputs), object)

    return rule


_RULES: dict[str, Callable[[Operation, Sequence[Any]], Any]] = {
    **{"Shape": _shape, "Concat": _concat, "Pack": _pack, "Gather": _gather},
    **dict.fromkeys(("Reshape", "ExpandDims", "Squeeze"), _reshaped),
    **dict.fromkeys(("Cast", "Identity"), lambda op, inputs: inputs[0]),
    **{"StridedSlice": _strided, "Add": _arithmetic(lambda a, b: a + b)},
    **{"Sub": _arithmetic(lambda a, b: a - b), "Mul": _arithmetic(lambda a, b: a * b)},
}
