"""Replica ops: the plan lowers those of replicas and inserts those between tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import as_dtype, float32, float64, int64, is_half
from hpcflow.graph.function_body import root_as_default
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec, shape_text
from hpcflow.ops.shape_inference import first_output
from hpcflow.ops.variables.indexed_slices import IndexedSlices

ONE_OF_A_GRAPH = {"ReplicaShare": "replica_share", "ReplicaOffset": "replica_offset"}
_MOVES = NoGrad("inserted when the plan is made, after gradients are computed")


def _same_specs(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    return [Spec(s.dtype, s.shape) for s in inputs]


def _declared(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    shape = attrs["shape"]
    return [Spec(np.dtype(attrs["dtype"]), None if shape is None else tuple(shape))]


def _nothing(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    return []


def _gathered(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    return [Spec(s.dtype, s.shape and (None, *s.shape[1:])) for s in inputs]


def parcel_layout(specs: Sequence[Spec]) -> tuple[list[int], int]:
    """The offset of each value in a message of several values of static sizes, and its bytes.

    Each offset is aligned for the dtype, so that the value can be read in place.
    """
    starts, at = [], 0
    for spec in specs:
        starts.append(at + -at % spec.dtype.alignment)
        at = starts[-1] + spec.nbytes
    return starts, at


def _parcel(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    if not all(spec.sized for spec in inputs):
        raise ShapeError("a coalesced message takes values of known size only")
    return [Spec(np.dtype(np.uint8), (parcel_layout(inputs)[1],))]


def _from_parcel(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    (value,), (message,), start = _declared(inputs, attrs), inputs, attrs["start"]
    if not value.sized or start < 0 or start % value.dtype.alignment:
        raise ShapeError(
            f"{value.dtype} {shape_text(value.shape)} cannot begin at byte {start} of a coalesced "
            "message"
        )
    if message.dtype != np.uint8 or start + value.nbytes > message.nbytes:
        raise ShapeError(
            f"{value.nbytes} bytes from byte {start} exceed a message of {message.nbytes}"
        )
    return [value]


def _sum_over_replicas(op: Any, grad: Tensor) -> list[Tensor]:
    return [replica_sum(grad)]


op(
    "Fused",
    infer=lambda inputs, attrs: attrs["specs"],
    grad=_MOVES,
    doc="Several operations in one loop over their elements.",
    generated=True,
    kernels="kernels.llvm_fused_loop",
)
op(
    "Feed",
    infer=_declared,
    grad=_MOVES,
    stateful=True,
    source="feed",
    no_kernel=True,
    work="nothing",
)
op(
    "ReplicaSum",
    infer=_same_specs,
    grad=_sum_over_replicas,
    stateful=True,
    lowers_to="AllReduce",
    update_formula=True,
)
op(
    "ReplicaShare",
    infer=_declared,
    grad=NoGrad("its output counts samples"),
    stateful=True,
    stands_for_feed=True,
)
op(
    "ReplicaOffset",
    infer=_declared,
    grad=NoGrad("its output counts samples"),
    stateful=True,
    stands_for_feed=True,
)
op("AllReduce", infer=_same_specs, grad=_MOVES, collective=True, waits=True, combines="sum")
op("Broadcast", infer=_same_specs, grad=_MOVES, collective=True, waits=True, combines="first")
op(
    "ReplicaGather",
    infer=_gathered,
    grad=NoGrad("the rows of other replicas do not depend on these"),
    stateful=True,
    lowers_to="AllGather",
)
op("AllGather", infer=_gathered, grad=_MOVES, collective=True, waits=True, combines="rows")
op(
    "Send",
    infer=_nothing,
    grad=_MOVES,
    stateful=True,
    message="send",
    no_kernel=True,
    work="nothing",
)
op(
    "Recv",
    infer=_declared,
    grad=_MOVES,
    stateful=True,
    waits=True,
    message="receive",
    no_kernel=True,
    work="nothing",
)
op("Copy", infer=_same_specs, grad=_MOVES, message="copy", no_kernel=True, work="move")
op("Parcel", infer=_parcel, grad=_MOVES, message="pack", no_kernel=True, work="move")
op(
    "FromParcel",
    infer=_from_parcel,
    grad=_MOVES,
    message="unpack",
    work="nothing",
    kernels="ops.array.array_kernels",
)


def replica_sum(x: Any, name: str | None = None, wire: Any = None) -> Any:
    """The sum of `x` over synchronous replicas; a single or asynchronous replica keeps `x`.

    In an allreduce, `wire` is the dtype in which a dense `x` is sent (None: its own); summands and
    partial sums are rounded to it.

    Shapes: any; the result has the same. IndexedSlices stay rows: those of all replicas
            concatenated, whose numbers may differ.
    Ranks:  in collective mode every replica runs it, in the graph's order (verified in the plan).
    Moves:  2 (n-1)/n times its bytes per rank; of IndexedSlices the rows of the others.
    """
    if isinstance(x, IndexedSlices):
        graph, both = get_default_graph(), [x.values, x.indices]
        rows = graph.create_op("ReplicaGather", both, {}, name or "replica_gather")
        return IndexedSlices(rows.outputs[0], rows.outputs[1], x.dense_shape)
    x = convert_to_tensor(x)
    if is_half(x.dtype):  # MPI has no sum for them, and precision would be low
        total = replica_sum(first_output("Cast", [x], {"dtype": float32}))
        return first_output("Cast", [total], {"dtype": x.dtype}, name)
    attrs = {} if wire is None or wire == x.dtype else {"wire": as_dtype(wire)}
    return get_default_graph().create_op("ReplicaSum", [x], attrs, name or "replica_sum").outputs[0]


def replica_share(name: str | None = None) -> Tensor:
    """This replica's fraction of the global batch, a float64 scalar; fractions add up to 1.

    Batches of `hf.data` feed it; without a feed it is 1 / replicas. It is 1 where replicas do not
    sum. One per graph.
    """
    return _one_of_a_graph("ReplicaShare", float64, name or "replica_share")


def replica_offset(name: str | None = None) -> Tensor:
    """The index of this replica's first sample in the global batch, an int64 scalar.

    Batches of `hf.data` feed it if replicas sum. Without a feed replicas are 2**32 samples apart.
    One per graph. Random draws count from it along the batch axis.
    """
    return _one_of_a_graph("ReplicaOffset", int64, name or "replica_offset")


def _one_of_a_graph(type: str, dtype: np.dtype, name: str) -> Tensor:
    """The only scalar op of this type in the default graph, from the collection of its name."""
    graph, key = get_default_graph(), ONE_OF_A_GRAPH[type]
    existing: list[Tensor] = graph.get_collection(key)
    if not existing:
        with root_as_default(graph) as root, root.name_scope(None), root.device(None):
            tensor = root.create_op(type, [], {"dtype": dtype, "shape": ()}, name).outputs[0]
        graph.add_to_collection(key, tensor)
        return tensor
    return existing[0]
