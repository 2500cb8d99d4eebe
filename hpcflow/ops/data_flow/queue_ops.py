"""Queue ops: op table rows of queues; see `ops/data_flow/queue_classes.py`.

An enqueue waits for room, a dequeue for elements. `queues` is the number of handles, which are the
first inputs; if there are several, the next input is an index that selects one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.dtypes import bool_, int32, resource
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Shape, Spec, merge_shapes, shape_text
from hpcflow.ops.shape_inference import Attrs, require

_HANDLE = NoGrad("a handle is not a number")
_QUEUED = NoGrad("what leaves a queue is not a function of what the step puts in", none=True)
_STATE: dict[str, Any] = {"stateful": True, "device": "cpu"}
_WAITS: dict[str, Any] = {**_STATE, "waits": True, "patient": True}


def _handle(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(resource, ())]


def _strip_handles(inputs: Sequence[Spec], attrs: Attrs) -> Sequence[Spec]:
    """The inputs after the handles and the index."""
    count = attrs["queues"]
    for spec in inputs[:count]:
        if spec.dtype != resource:
            raise DTypeError("a queue operation takes the handle of a queue")
    if count == 1:
        return inputs[1:]
    require("the index of a queue", inputs[count], "iu")
    merge_shapes(inputs[count].shape, ())
    return inputs[count + 1 :]


def _components(attrs: Attrs) -> list[tuple[np.dtype, Shape]]:
    types = attrs["component_types"]
    shapes = attrs["shapes"] or [None] * len(types)
    return list(zip(types, shapes, strict=True))


def _enqueue(batched: bool) -> Any:
    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        specs, components = _strip_handles(inputs, attrs), _components(attrs)
        if len(specs) != len(components):
            raise ShapeError(f"the queue has {len(components)} components; {len(specs)} were given")
        rows: Shape = (None,)
        for i, (spec, (dtype, shape)) in enumerate(zip(specs, components, strict=True)):
            if spec.dtype != dtype:
                raise DTypeError(f"component {i} is {spec.dtype}; the queue takes {dtype}")
            if batched and spec.shape is not None and not spec.shape:
                raise ShapeError(f"component {i} is a scalar; enqueue_many needs rows")
            need = (None, *shape) if batched and shape is not None else shape
            try:
                merge_shapes(spec.shape, need)
            except ShapeError:
                raise ShapeError(
                    f"component {i} is {shape_text(spec.shape)}; the queue takes {shape_text(need)}"
                ) from None
            if batched and spec.shape is not None:
                rows = merge_shapes(rows, spec.shape[:1])
        return []

    return infer


def _dequeue(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    _strip_handles(inputs, attrs)
    return [Spec(dtype, shape) for dtype, shape in _components(attrs)]


def _rows(exact: bool) -> Any:
    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        (count,) = _strip_handles(inputs, attrs)
        require("the number of elements", count, "iu")
        merge_shapes(count.shape, ())
        size = int(count.value) if exact and count.value is not None else None
        if size is not None and size < 0:
            raise ShapeError(f"the number of elements to dequeue must be at least 0, not {size}")
        specs = []
        for dtype, shape in _components(attrs):
            if shape is None:
                raise ShapeError(
                    "several elements of a queue without shapes cannot be concatenated",
                    hint="give the queue the shapes of its components",
                )
            specs.append(Spec(dtype, (size, *shape)))
        return specs

    return infer


def _fact(dtype: np.dtype) -> Any:
    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        _strip_handles(inputs, attrs)
        return [Spec(dtype, ())]

    return infer


def _nothing(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    _strip_handles(inputs, attrs)
    return []


op("FIFOQueue", infer=_handle, grad=_HANDLE, **_STATE)
op("PaddingFIFOQueue", infer=_handle, grad=_HANDLE, **_STATE)
op("RandomShuffleQueue", infer=_handle, grad=_HANDLE, **_STATE)
op("PriorityQueue", infer=_handle, grad=_HANDLE, **_STATE)
op("QueueEnqueue", infer=_enqueue(False), grad=_QUEUED, **_WAITS)
op("QueueEnqueueMany", infer=_enqueue(True), grad=_QUEUED, **_WAITS)
op("QueueDequeue", infer=_dequeue, grad=_QUEUED, **_WAITS)
op("QueueDequeueMany", infer=_rows(True), grad=_QUEUED, **_WAITS)
op("QueueDequeueUpTo", infer=_rows(False), grad=_QUEUED, **_WAITS)
op("QueueClose", infer=_nothing, grad=_QUEUED, **_WAITS)
op("QueueSize", infer=_fact(int32), grad=_QUEUED, **_WAITS)
op("QueueIsClosed", infer=_fact(bool_), grad=_QUEUED, **_WAITS)
