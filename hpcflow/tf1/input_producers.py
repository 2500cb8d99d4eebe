"""Input producers of TensorFlow 1: queues that repeat the rows of a tensor.

`hf.train.start_queue_runners` starts them. Each replica has its own queue. `hf.data` in contrast
shards samples over the replicas and saves the position in checkpoints.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, GraphError, ShapeError
from hpcflow.graph.dtypes import int64, string
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, get_default_graph
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.graph.static_shape import Shape, as_shape, is_known, merge_shapes
from hpcflow.ops.array.array_ops import constant, identity
from hpcflow.ops.array.array_ops import range as range_
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.data_flow.queue_classes import FIFOQueue
from hpcflow.ops.random.shuffle_multinomial import random_shuffle
from hpcflow.ops.variables.variable_ops import Variable, count_up_to
from hpcflow.platform.exception_translation import user_line, value_text
from hpcflow.tf1.queue_runners import QueueRunner, add_queue_runner


def match_filenames_once(pattern: Any, name: str | None = None) -> Tensor:
    """The names of the files that match a pattern or one of a list of patterns: a sorted vector.

    The file system is read when the graph is built.
    Errors: DTypeError if a pattern is no string, for example a tensor.
    """
    patterns = list(pattern) if isinstance(pattern, (list, tuple)) else [pattern]
    if not all(isinstance(p, (str, bytes)) for p in patterns):
        raise DTypeError(
            f"match_filenames_once takes strings, not {value_text(pattern)}",
            line=user_line(),
            hint="use hf.matching_files for tensors; it looks in each step",
        )
    filenames = sorted({name for p in patterns for name in glob.glob(os.fsencode(p))})
    return constant(np.array([*filenames, None], object)[:-1], name=name or "matching_filenames")


def limit_epochs(tensor: Any, num_epochs: int | None = None, name: str | None = None) -> Tensor:
    """`tensor`, which can be evaluated `num_epochs` times, then OutOfRangeError; None: no limit.

    The counter is a local variable: run `hf.local_variables_initializer()` first.
    """
    tensor = convert_to_tensor(tensor)
    if num_epochs is None:
        return tensor
    if num_epochs <= 0:
        raise GraphError(f"num_epochs must be at least 1, not {num_epochs}")
    graph = get_default_graph()
    with graph.name_scope(name or "limit_epochs"):
        keys = [GraphKeys.LOCAL_VARIABLES]
        epochs = Variable(
            convert_to_tensor(0, int64), trainable=False, collections=keys, name="epochs"
        )
        counter = count_up_to(epochs, num_epochs)
        with graph.control_dependencies([counter]):
            return identity(tensor)


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
    """A queue of the rows of `input_tensor`; each epoch has all rows, reshuffled with `shuffle`.

    Its queue runner ends after `num_epochs` (None: never).
    """
    graph = get_default_graph()
    with graph.name_scope(name or "input_producer"):
        tensor = convert_to_tensor(input_tensor)
        if tensor.shape == ():
            raise ShapeError("an input producer needs a tensor of rows", op=tensor.op.name)
        row = None if tensor.shape is None else tensor.shape[1:]
        shape = merge_shapes(row, as_shape(element_shape))
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


def string_input_producer(
    string_tensor: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
    cancel_op: Operation | None = None,
) -> FIFOQueue:
    """A queue of the strings of a vector, for example file names; see `input_producer`.

    Errors: ShapeError if the vector is empty.
    """
    with get_default_graph().name_scope(name or "string_input_producer"):
        strings = convert_to_tensor(string_tensor, string)
        if strings.shape is not None and 0 in strings.shape:
            raise ShapeError("string_input_producer needs at least one string", op=strings.op.name)
        return input_producer(
            strings, [], num_epochs, shuffle, seed, capacity, shared_name, None, cancel_op
        )


def slice_input_producer(
    tensor_list: Sequence[Any],
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> list[Tensor]:
    """One row of each tensor in `tensor_list`, with the same row number; see `input_producer`."""
    with get_default_graph().name_scope(name or "slice_input_producer"):
        tensors = [convert_to_tensor(t) for t in tensor_list]
        if not tensors or any(not t.shape for t in tensors):
            raise ShapeError("a slice input producer needs tensors of rows")
        rows: Shape = (None,)
        for t in tensors:
            rows = merge_shapes(rows, t.shape[:1] if t.shape is not None else None)
        if not is_known(rows):
            raise ShapeError("the number of rows must be known")
        assert rows is not None
        queue = range_input_producer(rows[0], num_epochs, shuffle, seed, capacity, shared_name)
        index = queue.dequeue()
        return [gather(t, index) for t in tensors]
