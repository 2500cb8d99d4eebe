"""Metric variables: accumulated sums, and values computed from the sums.

`metric` creates the pair that all metrics return. Within `sums_outside` it creates no variables:
the caller adds up the sums. The other functions prepare the arguments: labels and predictions,
weights, collections.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.ops.array.array_ops import (
    expand_dims,
    identity,
    placeholder,
    size,
    sizes,
    squeeze,
)
from hpcflow.ops.array.broadcast_ops import broadcast_to
from hpcflow.ops.math.arithmetic_ops import cast, multiply
from hpcflow.ops.math.reduction_ops import reduce_sum
from hpcflow.ops.nn.weighted_losses import check_weights
from hpcflow.ops.replicas.replica_ops import replica_sum
from hpcflow.ops.shape_inference import require_alike
from hpcflow.ops.variables.variable_ops import Variable

Collections: TypeAlias = "str | Iterable[str] | None"
Result = tuple[Tensor, Tensor]  # the value, and the value after the update
Metric = Callable[..., Result]


# -- sums and results


class OutsideSum(NamedTuple):
    """A sum that the caller keeps: what a batch adds to it, and where its total is fed."""

    added: Tensor
    total: Tensor


_outside: contextvars.ContextVar[list[OutsideSum] | None] = contextvars.ContextVar(
    "sums outside of the graph", default=None
)


@contextlib.contextmanager
def sums_outside() -> Iterator[list[OutsideSum]]:
    """Metrics created inside have no variables; their sums are in the list.

    The caller fetches what each batch adds, adds up over batches and ranks, and feeds the totals.
    Both tensors that a metric returns are then its value for the totals.
    """
    sums: list[OutsideSum] = []
    token = _outside.set(sums)
    try:
        yield sums
    finally:
        _outside.reset(token)


def metric(
    batch: Mapping[str, Tensor],
    compute: Callable[..., Tensor],
    metrics_collections: Collections,
    updates_collections: Collections,
    after: Callable[..., Tensor] | None = None,
    names: tuple[str, str] = ("value", "update_op"),
) -> Result:
    """The metric that adds `batch`, values by names of sums, to these sums.

    A sum is a variable, initially zero, with shape and dtype of its summands. Contributions of
    replicas are summed, so that every rank reads the global metric. The value is `compute` of the
    sums. The value after the update is `after` (default: `compute`) of the new sums. `names` are
    those of the two tensors; with "" a tensor keeps its name.
    """
    outside = _outside.get()
    if outside is not None:
        kept = [
            OutsideSum(t, placeholder(t.dtype, t.shape, f"{n}/total")) for n, t in batch.items()
        ]
        outside += kept
        value = _identity_named(names[0], compute(*(one.total for one in kept)))
        return remembered((value, value), metrics_collections, updates_collections)
    sums = [_zeros(added, name) for name, added in batch.items()]
    with get_default_graph().control_dependencies(None):
        value = _identity_named(names[0], compute(*(s.read_value() for s in sums)))
    updated = [_after(s, added) for s, added in zip(sums, batch.values(), strict=True)]
    update = _identity_named(names[1], (after or compute)(*updated))
    return remembered((value, update), metrics_collections, updates_collections)


def _zeros(like: Tensor, name: str) -> Variable:
    """A variable of zeros, reset by `hf.local_variables_initializer`; not in checkpoints.

    It is shared by the replicas, although it is in the collection of local variables.
    """
    zeros = np.zeros(like.shape, like.dtype)  # type: ignore[type-var]
    variable = Variable(zeros, trainable=False, collections=[GraphKeys.METRIC_VARIABLES], name=name)
    variable.graph.add_to_collection(GraphKeys.LOCAL_VARIABLES, variable)
    return variable


def _after(variable: Variable, added: Tensor) -> Tensor:
    """The value of a variable after the updates of all replicas."""
    with get_default_graph().control_dependencies([variable.assign_add(replica_sum(added))]):
        return variable.read_value()


def _identity_named(name: str, t: Tensor) -> Tensor:
    return identity(t, name) if name else t


def remembered(
    pair: Iterable[Tensor], metrics_collections: Collections, updates_collections: Collections
) -> Result:
    """The value and the update of `pair`, added to the collections given for each."""
    value, update = pair
    for names, tensor in ((metrics_collections, value), (updates_collections, update)):
        if names:
            several = [names] if isinstance(names, str) else list(names)
            tensor.graph.add_to_collections(several, tensor)
    return value, update


# -- arguments


def tensors(*given: Any) -> list[Any]:
    """Each as a tensor; None stays None."""
    return [None if g is None else convert_to_tensor(g) for g in given]


def paired(labels: Any, predictions: Any) -> tuple[Tensor, Tensor]:
    """Both as tensors of one shape; a last axis of size 1 in only one of them is removed."""
    z, p = convert_to_tensor(labels), convert_to_tensor(predictions)
    if z.shape is not None and p.shape is not None:
        extra_rank = len(p.shape) - len(z.shape)
        if extra_rank == 1 and p.shape[-1] in (None, 1):
            p = squeeze(p, [-1])
        elif extra_rank == -1 and z.shape[-1] in (None, 1):
            z = squeeze(z, [-1])
    require_alike("metrics: labels and predictions", z, p)
    return z, p


def spread_weights(weights: Any, values: Tensor, dtype: np.dtype = float32) -> Tensor | None:
    """`weights` broadcast to the shape of `values`.

    Errors: ShapeError unless weights are a scalar, or have the rank of `values` with equal sizes or
    1.
    """
    if weights is None:
        return None
    w = cast(convert_to_tensor(weights), dtype)
    check_weights(w, values)
    return broadcast_to(w, sizes(values))


def fitted_weights(weights: Any, values: Tensor) -> Tensor | None:
    """`spread_weights`, after adding or removing a last axis of size 1."""
    if weights is None:
        return None
    w = cast(convert_to_tensor(weights), float32)
    if w.shape and values.shape is not None:
        extra_rank = len(w.shape) - len(values.shape)
        w = squeeze(w, [-1]) if extra_rank == 1 else expand_dims(w, -1) if extra_rank == -1 else w
    return spread_weights(w, values)


def weighted(values: Tensor, weights: Tensor | None) -> Tensor:
    """Values times weights; None means 1."""
    return values if weights is None else multiply(values, weights)


def mean_sums(
    values: Tensor, weights: Tensor | None, names: Sequence[str] = ("total", "count")
) -> dict[str, Tensor]:
    """A batch's contributions to a mean: the weighted sum of values, and the sum of weights."""
    total = reduce_sum(weighted(values, weights))
    count = cast(size(values), values.dtype) if weights is None else reduce_sum(weights)
    return dict(zip(names, (total, count), strict=True))


def integer_argument(value: Any, name: str, least: int | None = None) -> int:
    """An argument that is an integer of at least `least`.

    Errors: ShapeError for anything else.
    """
    is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_int or (least is not None and value < least):
        hint = "give an integer" + ("" if least is None else f" of {least} or more")
        raise ShapeError(f"{name}={value!r} is not valid for a metric", line=user_line(), hint=hint)
    return int(value)
