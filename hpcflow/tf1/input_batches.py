"""Input batches of TensorFlow 1: batches of elements from a queue that threads fill.

`hf.train.start_queue_runners` starts the threads. Elements that a `maybe_...` function filters out
do not enter the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcflow.errors import GraphError, ShapeError
from hpcflow.graph.dtypes import bool_
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, get_default_graph
from hpcflow.graph.static_shape import Shape, as_shape
from hpcflow.ops.array.array_ops import expand_dims, shape
from hpcflow.ops.array.broadcast_ops import broadcast_to
from hpcflow.ops.array.slice_ops import boolean_mask
from hpcflow.ops.data_flow.queue_classes import (
    FIFOQueue,
    PaddingFIFOQueue,
    QueueBase,
    RandomShuffleQueue,
)
from hpcflow.ops.shape_inference import several
from hpcflow.tf1.queue_runners import QueueRunner, add_queue_runner


def batch(
    tensors: Any,
    batch_size: Any,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of `tensors` (one, a list or a dict), prefetched by `num_threads` threads.

    A list of one tensor gives one tensor. One evaluation of `tensors` is one element, or with
    `enqueue_many` a number of rows. `dynamic_pad` pads elements of different sizes with zeros. The
    last batch of a finite input is dropped if it is smaller, unless `allow_smaller_final_batch`.
    """
    return maybe_batch_join(
        [tensors] * num_threads,
        None,
        batch_size,
        capacity,
        enqueue_many,
        shapes,
        dynamic_pad,
        allow_smaller_final_batch,
        shared_name,
        name or "batch",
    )


def batch_join(
    tensors_list: Sequence[Any],
    batch_size: Any,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """The same as `batch` for several sources, with one thread each."""
    return maybe_batch_join(
        tensors_list,
        None,
        batch_size,
        capacity,
        enqueue_many,
        shapes,
        dynamic_pad,
        allow_smaller_final_batch,
        shared_name,
        name or "batch_join",
    )


def maybe_batch(
    tensors: Any,
    keep_input: Any,
    batch_size: Any,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """The same as `batch`, filtered by the boolean `keep_input`.

    With `enqueue_many` it has one boolean for each row.
    """
    return maybe_batch_join(
        [tensors] * num_threads,
        keep_input,
        batch_size,
        capacity,
        enqueue_many,
        shapes,
        dynamic_pad,
        allow_smaller_final_batch,
        shared_name,
        name or "maybe_batch",
    )


def maybe_batch_join(
    tensors_list: Sequence[Any],
    keep_input: Any,
    batch_size: Any,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """The same as `maybe_batch` for several sources, with one thread each."""
    with get_default_graph().name_scope(name or "maybe_batch_join"):
        inputs = _BatchInputs(tensors_list, shapes, enqueue_many, keep_input)
        make = PaddingFIFOQueue if dynamic_pad else FIFOQueue
        queue = make(capacity, inputs.dtypes, inputs.shapes, shared_name=shared_name, name="queue")
        return inputs.through(queue, batch_size, allow_smaller_final_batch)


def shuffle_batch(
    tensors: Any,
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """The same as `batch`, in random order; at least `min_after_dequeue` elements stay queued."""
    return maybe_shuffle_batch_join(
        [tensors] * num_threads,
        batch_size,
        capacity,
        min_after_dequeue,
        None,
        seed,
        enqueue_many,
        shapes,
        allow_smaller_final_batch,
        shared_name,
        name or "shuffle_batch",
    )


def shuffle_batch_join(
    tensors_list: Sequence[Any],
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """The same as `shuffle_batch` for several sources, with one thread each."""
    return maybe_shuffle_batch_join(
        tensors_list,
        batch_size,
        capacity,
        min_after_dequeue,
        None,
        seed,
        enqueue_many,
        shapes,
        allow_smaller_final_batch,
        shared_name,
        name or "shuffle_batch_join",
    )


def maybe_shuffle_batch(
    tensors: Any,
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    keep_input: Any,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """The same as `shuffle_batch`, filtered by `keep_input`; see `maybe_batch`."""
    return maybe_shuffle_batch_join(
        [tensors] * num_threads,
        batch_size,
        capacity,
        min_after_dequeue,
        keep_input,
        seed,
        enqueue_many,
        shapes,
        allow_smaller_final_batch,
        shared_name,
        name or "maybe_shuffle_batch",
    )


def maybe_shuffle_batch_join(
    tensors_list: Sequence[Any],
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    keep_input: Any,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """The same as `maybe_shuffle_batch` for several sources, with one thread each."""
    with get_default_graph().name_scope(name or "maybe_shuffle_batch_join"):
        inputs = _BatchInputs(tensors_list, shapes, enqueue_many, keep_input)
        queue = RandomShuffleQueue(
            capacity,
            min_after_dequeue,
            inputs.dtypes,
            inputs.shapes,
            seed=seed,
            shared_name=shared_name,
            name="queue",
        )
        return inputs.through(queue, batch_size, allow_smaller_final_batch)


class _BatchInputs:
    """The inputs of a batch function: from each source one tensor, or a list or dict of tensors."""

    def __init__(self, sources: Sequence[Any], shapes: Any, enqueue_many: bool, keep: Any) -> None:
        sources = several(sources, "a queue of batches")
        if not sources:
            raise GraphError("a batch function needs at least one tensor")
        first = sources[0]
        self.keys = sorted(first) if isinstance(first, Mapping) else None
        self.is_single = self.keys is None and not isinstance(first, (list, tuple))
        self.enqueue_many = enqueue_many
        self.keep = None if keep is None else convert_to_tensor(keep, bool_)
        tensors_by_id: dict[int, list[Tensor]] = {}  # threads may share a source
        for source in sources:
            if id(source) not in tensors_by_id:
                tensors_by_id[id(source)] = self._tensors(source)
        self.sources = [tensors_by_id[id(source)] for source in sources]
        self.dtypes = [t.dtype for t in self.sources[0]]
        for tensors in self.sources:
            if [t.dtype for t in tensors] != self.dtypes:
                raise GraphError("the sources of batches have different dtypes")
        self.shapes = self._shapes() if shapes is None else [as_shape(s) for s in shapes]

    def _tensors(self, source: Any) -> list[Tensor]:
        if self.keys is not None:
            source = [source[key] for key in self.keys]
        return [convert_to_tensor(t) for t in ([source] if self.is_single else source)]

    def _shapes(self) -> list[Shape]:
        """The static shape of one element of each component, common to all sources."""
        common: list[Shape] = []
        for column in zip(*self.sources, strict=True):
            shapes = [
                t.shape[1:] if self.enqueue_many and t.shape is not None else t.shape
                for t in column
            ]
            first = shapes[0]
            if any(s is None for s in shapes) or len({len(s or ()) for s in shapes}) > 1:
                raise ShapeError("tensors to batch must have a known rank: give shapes")
            sizes = zip(*(s or () for s in shapes), strict=True)
            common.append(tuple(s[0] if len(set(s)) == 1 else None for s in sizes) if first else ())
        return common

    def through(self, queue: QueueBase, batch_size: Any, smaller: bool) -> Any:
        """Batches of the elements of `queue`."""
        enqueues: dict[int, Operation] = {}
        for tensors in self.sources:
            if id(tensors) not in enqueues:
                enqueues[id(tensors)] = self._put(queue, tensors)
        add_queue_runner(QueueRunner(queue, [enqueues[id(tensors)] for tensors in self.sources]))
        dequeued = queue.dequeue_up_to(batch_size) if smaller else queue.dequeue_many(batch_size)
        if self.keys is not None:
            listed = dequeued if isinstance(dequeued, list) else [dequeued]
            return dict(zip(self.keys, listed, strict=True))
        return dequeued

    def _put(self, queue: QueueBase, tensors: list[Tensor]) -> Operation:
        """Enqueue the elements that are kept in `queue`."""
        if self.keep is None:
            return queue.enqueue_many(tensors) if self.enqueue_many else queue.enqueue(tensors)
        rows = tensors if self.enqueue_many else [expand_dims(t, 0) for t in tensors]
        mask = self.keep
        if mask.shape == ():
            mask = broadcast_to(mask, shape(rows[0])[:1])
        elif not self.enqueue_many:
            raise ShapeError(
                "keep_input must be a scalar unless enqueue_many is set", op=mask.op.name
            )
        return queue.enqueue_many([boolean_mask(t, mask) for t in rows])
