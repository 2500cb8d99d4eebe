"""Queue classes: FIFO, random shuffle, padding and priority queues, shared between ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ArgumentError, DTypeError, GraphError, ShapeError
from hpcflow.graph.dtypes import as_dtype, int64
from hpcflow.graph.function_body import innermost_graph, root_as_default
from hpcflow.graph.graph import Graph, Operation, Tensor, convert_to_tensor, get_default_graph
from hpcflow.graph.static_shape import Shape, is_known, merge_shapes
from hpcflow.ops.random.random_ops import by_session
from hpcflow.ops.shape_inference import Attrs, given_shape, integer_argument, several
from hpcflow.platform.exception_translation import user_line, value_text

Shapes = tuple[Shape, ...] | None


class QueueBase:
    """A queue of elements: one array per component, or a dict of arrays if they have `names`.

    State:  on a CPU of the requested device, by default on the rank that runs the script. Ranks
            that request the same task share the queue of a name (or `shared_name`) there.
    Waits:  an enqueue for room, a dequeue for elements, in order of arrival.
    Errors: CancelledError from an enqueue once the queue is closed; OutOfRangeError from a dequeue
            once it is closed and has too few elements.
    """

    def __init__(
        self,
        dtypes: Sequence[np.dtype],
        shapes: Shapes,
        names: Sequence[str] | None,
        handles: Sequence[Tensor],
        index: Tensor | None = None,
    ) -> None:
        self._dtypes, self._shapes = tuple(dtypes), shapes
        self._names = _checked_names(names, len(self._dtypes))
        self._handles, self._index = tuple(handles), index
        if shapes is not None and len(shapes) != len(self._dtypes):
            raise ShapeError(f"{len(self._dtypes)} dtypes need as many shapes, not {len(shapes)}")

    @staticmethod
    def from_list(index: Any, queues: Sequence[QueueBase]) -> QueueBase:
        """The queue whose number in `queues` is the integer scalar `index` at run time.

        They have the same dtypes, names and device.
        Errors: RangeError at run time.
        """
        queues = several(queues, "from_list")
        if not queues or not all(isinstance(q, QueueBase) for q in queues):
            raise ArgumentError(
                f"from_list takes a list of queues, not {value_text(queues)}", line=user_line()
            )
        first, *others = queues
        if any(q._dtypes != first._dtypes or q._names != first._names for q in others):
            raise DTypeError("the queues of from_list must have the same dtypes and names")
        shapes = _common([q._shapes for q in queues])
        handles = [h for q in queues for h in q._handles]
        if len(handles) != len(queues):
            raise GraphError("from_list does not take a queue that from_list returned")
        chosen = convert_to_tensor(index) if others else None
        return QueueBase(first._dtypes, shapes, first._names, handles, chosen)

    # -- properties

    @property
    def graph(self) -> Graph:
        """The graph of the queue."""
        return self._handles[0].graph

    @property
    def queue_ref(self) -> Tensor:
        """The handle."""
        return self._handles[0]

    @property
    def name(self) -> str:
        """The name of the handle."""
        return self._handles[0].op.name

    @property
    def dtypes(self) -> list[np.dtype]:
        """The dtype of each component."""
        return list(self._dtypes)

    @property
    def shapes(self) -> list[Shape]:
        """The static shape of each component; None if unknown."""
        return list(self._shapes or [None] * len(self._dtypes))

    @property
    def names(self) -> list[str] | None:
        """The name of each component, if they have names."""
        return None if self._names is None else list(self._names)

    # -- operations

    def enqueue(self, vals: Any, name: str | None = None) -> Operation:
        """Enqueue one element: a value for each component, or a dict by name."""
        return self._run("QueueEnqueue", self._values(vals), name or f"{self.name}_enqueue")

    def enqueue_many(self, vals: Any, name: str | None = None) -> Operation:
        """Enqueue one element per row of the components, each as soon as there is room."""
        name = name or f"{self.name}_EnqueueMany"
        return self._run("QueueEnqueueMany", self._values(vals), name)

    def dequeue(self, name: str | None = None) -> Any:
        """Dequeue one element: a tensor, a list of several, or a dict if they have names."""
        return self._pack(self._run("QueueDequeue", [], name or f"{self.name}_Dequeue"))

    def dequeue_many(self, n: Any, name: str | None = None) -> Any:
        """Dequeue `n` elements, each component stacked as [n, ...]."""
        args = [convert_to_tensor(n)]
        return self._pack(self._run("QueueDequeueMany", args, name or f"{self.name}_DequeueMany"))

    def dequeue_up_to(self, n: Any, name: str | None = None) -> Any:
        """As `dequeue_many`; a closed queue may return fewer."""
        args = [convert_to_tensor(n)]
        return self._pack(self._run("QueueDequeueUpTo", args, name or f"{self.name}_DequeueUpTo"))

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Operation:
        """Close the queue after the pending enqueues, or cancel these."""
        facts = {"cancel": bool(cancel_pending_enqueues)}
        return self._run("QueueClose", [], name or f"{self.name}_Close", **facts)

    def size(self, name: str | None = None) -> Tensor:
        """The number of elements, int32."""
        return self._run("QueueSize", [], name or f"{self.name}_Size").outputs[0]

    def is_closed(self, name: str | None = None) -> Tensor:
        """Whether the queue is closed."""
        return self._run("QueueIsClosed", [], name or f"{self.name}_is_closed").outputs[0]

    def _run(self, type: str, inputs: Sequence[Tensor], name: str, **facts: Any) -> Operation:
        graph = innermost_graph(self.graph)
        attrs: Attrs = {"component_types": self._dtypes, "shapes": self._shapes}
        attrs |= {"queues": len(self._handles), **facts}
        chosen = () if self._index is None else (self._index,)
        with graph.colocate_with(self.queue_ref.op):
            return graph.create_op(type, [*self._handles, *chosen, *inputs], attrs, name)

    def _values(self, vals: Any) -> list[Tensor]:
        """The components in order, as tensors."""
        if isinstance(vals, Mapping):
            if self._names is None or set(vals) != set(self._names):
                have = "no names" if self._names is None else f"the names {list(self._names)}"
                raise GraphError(f"{sorted(vals)} were given; the queue has {have}")
            vals = [vals[name] for name in self._names]
        elif self._names is not None:
            raise GraphError("a queue whose components have names takes a dict")
        elif not isinstance(vals, (list, tuple)):
            vals = [vals]
        if len(vals) != len(self._dtypes):
            raise ShapeError(f"the queue has {len(self._dtypes)} components, not {len(vals)}")
        return [convert_to_tensor(v, d) for v, d in zip(vals, self._dtypes, strict=True)]

    def _pack(self, op: Operation) -> Any:
        if self._names is not None:
            return dict(zip(self._names, op.outputs, strict=True))
        return op.outputs[0] if len(op.outputs) == 1 else list(op.outputs)


class FIFOQueue(QueueBase):
    """A first-in first-out queue; see `QueueBase`.

    It holds `capacity` elements; a negative number means unlimited. Without `shapes` elements may
    differ in shape, and only `dequeue` is allowed.
    """

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "fifo_queue",
    ) -> None:
        types = _types(dtypes)
        full = _full(_shapes(shapes))
        attrs = {"capacity": capacity, "shared_name": shared_name}
        super().__init__(types, full, names, [_handle("FIFOQueue", types, full, attrs, name)])


class RandomShuffleQueue(QueueBase):
    """A queue that returns elements in random order; it keeps at least `min_after_dequeue`.

    After closing it returns all. The same `seed` gives the same order. Without a seed, also of the
    graph, each session has another order. See `QueueBase`.
    """

    def __init__(
        self,
        capacity: int,
        min_after_dequeue: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        seed: int | None = None,
        shared_name: str | None = None,
        name: str = "random_shuffle_queue",
    ) -> None:
        types, least = _types(dtypes), integer_argument(min_after_dequeue, "min_after_dequeue")
        full = _full(_shapes(shapes))
        if least < 0 or 0 <= capacity <= least:
            raise GraphError(
                f"capacity {capacity} must be greater than min_after_dequeue {least}, "
                "which must be 0 or more"
            )
        attrs = {"capacity": capacity, "min_after_dequeue": least, "shared_name": shared_name}
        attrs |= {"key": _key(shared_name or name, seed), **by_session(seed)}
        handle = _handle("RandomShuffleQueue", types, full, attrs, name)
        super().__init__(types, full, names, [handle])


class PaddingFIFOQueue(QueueBase):
    """A FIFO queue of elements of varying sizes, which batches pad with zeros to one size.

    Varying sizes are None in `shapes`. See `QueueBase`.
    """

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "padding_fifo_queue",
    ) -> None:
        types, ranked = _types(dtypes), _shapes(shapes)
        if ranked is None or None in ranked:
            raise ShapeError("a PaddingFIFOQueue needs the rank of each component")
        attrs = {"capacity": capacity, "shared_name": shared_name}
        handle = _handle("PaddingFIFOQueue", types, ranked, attrs, name)
        super().__init__(types, ranked, names, [handle])


class PriorityQueue(QueueBase):
    """A queue that returns the element of smallest priority first; equal ones in FIFO order.

    The first component of each element is its priority, an int64 scalar; `types` and `shapes` are
    those of the others. See `QueueBase`.
    """

    def __init__(
        self,
        capacity: int,
        types: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "priority_queue",
    ) -> None:
        dtypes, component_shapes = (int64, *_types(types)), _full(_shapes(shapes))
        full = None if component_shapes is None else ((), *component_shapes)
        attrs = {"capacity": capacity, "shared_name": shared_name}
        handle = _handle("PriorityQueue", dtypes, full, attrs, name)
        super().__init__(dtypes, full, names, [handle])


def _handle(
    type: str, types: Sequence[np.dtype], shapes: Shapes, attrs: Attrs, name: str
) -> Tensor:
    graph = get_default_graph().root
    if attrs["capacity"] == 0:
        raise GraphError("a queue of capacity 0 could never be filled", hint="-1 means no limit")
    attrs = attrs | {"capacity": int(attrs["capacity"])}
    attrs |= {"component_types": tuple(types), "shapes": shapes}
    with root_as_default(graph):
        return graph.create_op(type, [], attrs, name).outputs[0]


def _types(types: Any) -> tuple[np.dtype, ...]:
    return tuple(as_dtype(d) for d in (types if isinstance(types, (list, tuple)) else [types]))


def _shapes(shapes: Any) -> Shapes:
    """One shape for each component; a single list of sizes is the shape of the only one."""
    if shapes is None:
        return None
    if all(d is None or isinstance(d, (int, np.integer)) for d in shapes):
        shapes = [shapes]
    return tuple(given_shape(shape) for shape in shapes)


def _full(shapes: Shapes) -> Shapes:
    if shapes is not None and not all(is_known(shape) for shape in shapes):
        raise ShapeError(
            "the shapes of a queue's components must be known",
            hint="use a PaddingFIFOQueue for sizes of None, or give no shapes to allow any",
        )
    return shapes


def _common(shapes: Sequence[Shapes]) -> Shapes:
    """The common part of several lists of shapes; None where they differ."""
    first, *others = shapes
    for other in others:
        if first is None or other is None:
            return None
        try:
            first = tuple(merge_shapes(a, b) for a, b in zip(first, other, strict=True))
        except ShapeError:
            return None
    return first


def _checked_names(names: Any, count: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    if not isinstance(names, (list, tuple)):
        names = [names]
    if len(names) != count or not all(isinstance(n, str) for n in names):
        raise GraphError(f"{count} components need as many names, as strings, not {list(names)}")
    return tuple(names)


def _key(name: str, seed: int | None) -> int:
    """The random key of a shuffle queue."""
    source = (
        get_default_graph().root.seed or 0,
        name if seed is None else integer_argument(seed, "seed"),
    )
    return int.from_bytes(hashlib.blake2b(repr(source).encode(), digest_size=16).digest(), "little")
