"""TensorFlow 1's input pipelines: queues filled by queue runners, and batches of their elements.

Start them with `hf.train.start_queue_runners`. Each replica has its own; `hf.data` deals samples
over the replicas and keeps their place in checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcflow.errors import GraphError, ShapeError
from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, get_default_graph
from hpcflow.graph.keys import GraphKeys
from hpcflow.graph.shape import Shape, as_shape, is_known, merge
from hpcflow.ops.array import identity
from hpcflow.ops.array import range as range_
from hpcflow.ops.counting import count_up_to
from hpcflow.ops.gather import gather
from hpcflow.ops.queues import FIFOQueue, PaddingFIFOQueue, QueueBase, RandomShuffleQueue
from hpcflow.ops.random_order import random_shuffle
from hpcflow.ops.state import Variable
from hpcflow.train.runners import QueueRunner, add_queue_runner


def limit_epochs(tensor: Any, num_epochs: int | None = None, name: str | None = None) -> Tensor:
    """`tensor` in `num_epochs` runs, then OutOfRangeError; None is no limit.

    The count is a local variable: run `hf.local_variables_initializer()` first.
    """
    tensor = convert_to_tensor(tensor)
    if num_epochs is None:
        return tensor
    if num_epochs <= 0:
        raise GraphError(f"num_epochs is {num_epochs}; one or more are needed")
    graph = get_default_graph()
    with graph.name_scope(name or "limit_epochs"):
        keys = [GraphKeys.LOCAL_VARIABLES]
        epochs = Variable(
            convert_to_tensor(0, int64), trainable=False, collections=keys, name="epochs"
        )
        counter = count_up_to(epochs, num_epochs)
        with graph.control_dependencies([counter]):
            return identity(tensor)


# -- producers: a queue of the rows of a tensor, again and again


def input_producer(
    input_tensor: Any,
    element_shape: Any = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
    cancel_op: Operation | None = None,
) -> FIFOQueue:
    """A queue of the rows of `input_tensor`, all of them in each epoch, mixed anew with `shuffle`.

    Its queue runner ends after `num_epochs` (None: never).
    """
    graph = get_default_graph()
    with graph.name_scope(name or "input_producer"):
        tensor = convert_to_tensor(input_tensor)
        if tensor.shape is None or not tensor.shape:
            raise ShapeError("an input producer needs a tensor of rows", op=tensor.op.name)
        shape = merge(tensor.shape[1:], as_shape(element_shape))
        if not is_known(shape):
            raise ShapeError(
                "the shape of a row must be known", op=tensor.op.name, hint="give element_shape"
            )
        if shuffle:
            tensor = random_shuffle(tensor, seed)
        tensor = limit_epochs(tensor, num_epochs)
        queue = FIFOQueue(capacity, [tensor.dtype], [shape], shared_name=shared_name, name="queue")
        enqueue = queue.enqueue_many([tensor])
        add_queue_runner(QueueRunner(queue, [enqueue], cancel_op=cancel_op))
    return queue


def range_input_producer(
    limit: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> FIFOQueue:
    """A queue of the integers below `limit`; see `input_producer`."""
    with get_default_graph().name_scope(name or "range_input_producer"):
        numbers = range_(limit)
        return input_producer(numbers, [], num_epochs, shuffle, seed, capacity, shared_name)


def slice_input_producer(
    tensor_list: Sequence[Any],
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> list[Tensor]:
    """One row of each of `tensor_list`, the same number of each; see `input_producer`."""
    with get_default_graph().name_scope(name or "slice_input_producer"):
        tensors = [convert_to_tensor(t) for t in tensor_list]
        if not tensors or any(not t.shape for t in tensors):
            raise ShapeError("a slice input producer needs tensors of rows")
        rows: Shape = (None,)
        for t in tensors:
            rows = merge(rows, t.shape[:1] if t.shape is not None else None)
        if not is_known(rows):
            raise ShapeError("the number of rows must be known")
        assert rows is not None
        queue = range_input_producer(rows[0], num_epochs, shuffle, seed, capacity, shared_name)
        index = queue.dequeue()
        return [gather(t, index) for t in tensors]


# -- batches: elements through a queue of their own, filled by threads


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
    """Batches of `tensors` (one, a list or a dict), computed by `num_threads` threads ahead.

    Each run of them is one element, with `enqueue_many` a number of rows. `dynamic_pad` pads those
    of different sizes with zeros. The last batch of a limited input is dropped if it is smaller,
    unless `allow_smaller_final_batch`.
    """
    return batch_join(
        [tensors] * num_threads,
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
    """As `batch`, of several sources, each with a thread of its own."""
    with get_default_graph().name_scope(name or "batch_join"):
        given = _Given(tensors_list, shapes, enqueue_many)
        make = PaddingFIFOQueue if dynamic_pad else FIFOQueue
        queue = make(capacity, given.dtypes, given.shapes, shared_name=shared_name, name="queue")
        return given.through(queue, batch_size, allow_smaller_final_batch)


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
    """As `batch`, in random order: drawn from at least `min_after_dequeue` elements."""
    return shuffle_batch_join(
        [tensors] * num_threads,
        batch_size,
        capacity,
        min_after_dequeue,
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
    """As `shuffle_batch`, of several sources, each with a thread of its own."""
    with get_default_graph().name_scope(name or "shuffle_batch_join"):
        given = _Given(tensors_list, shapes, enqueue_many)
        queue = RandomShuffleQueue(
            capacity,
            min_after_dequeue,
            given.dtypes,
            given.shapes,
            seed=seed,
            shared_name=shared_name,
            name="queue",
        )
        return given.through(queue, batch_size, allow_smaller_final_batch)


class _Given:
    """What is to be put in batches: one tensor, lists or dicts of them, from each source."""

    def __init__(self, sources: Sequence[Any], shapes: Any, many: bool) -> None:
        if not sources:
            raise GraphError("nothing was given to make batches of")
        first = sources[0]
        self.keys = sorted(first) if isinstance(first, Mapping) else None
        self.is_single = self.keys is None and not isinstance(first, (list, tuple))
        self.many = many
        made: dict[int, list[Tensor]] = {}  # threads may share a source
        for source in sources:
            if id(source) not in made:
                made[id(source)] = self._tensors(source)
        self.sources = [made[id(source)] for source in sources]
        self.dtypes = [t.dtype for t in self.sources[0]]
        for tensors in self.sources:
            if [t.dtype for t in tensors] != self.dtypes:
                raise GraphError("the sources of batches have not all the same dtypes")
        self.shapes = self._shapes() if shapes is None else [as_shape(s) for s in shapes]

    def _tensors(self, source: Any) -> list[Tensor]:
        if self.keys is not None:
            source = [source[key] for key in self.keys]
        return [convert_to_tensor(t) for t in ([source] if self.is_single else source)]

    def _shapes(self) -> list[Shape]:
        """What is known of one element of each component, from all sources."""
        found: list[Shape] = []
        for column in zip(*self.sources, strict=True):
            shapes = [t.shape[1:] if self.many and t.shape is not None else t.shape for t in column]
            first = shapes[0]
            if any(s is None for s in shapes) or len({len(s or ()) for s in shapes}) > 1:
                raise ShapeError("the rank of what is put in batches must be known: give shapes")
            sizes = zip(*(s or () for s in shapes), strict=True)
            found.append(tuple(s[0] if len(set(s)) == 1 else None for s in sizes) if first else ())
        return found

    def through(self, queue: QueueBase, batch_size: Any, smaller: bool) -> Any:
        """Batches of what has gone through `queue`."""
        put = queue.enqueue_many if self.many else queue.enqueue
        made: dict[int, Operation] = {}
        for tensors in self.sources:
            if id(tensors) not in made:
                made[id(tensors)] = put(tensors)
        add_queue_runner(QueueRunner(queue, [made[id(tensors)] for tensors in self.sources]))
        taken = queue.dequeue_up_to(batch_size) if smaller else queue.dequeue_many(batch_size)
        listed = taken if isinstance(taken, list) else [taken]
        if self.keys is not None:
            return dict(zip(self.keys, listed, strict=True))
        return listed[0] if self.is_single else listed
