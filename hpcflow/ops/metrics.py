"""`hf.metrics`: running means; what all metrics share is their variables and how these are joined.

A metric is a value, computed of *metric variables*, and an operation that adds a batch to them.
What replicas add is summed over all of them, so that every rank reads the joint metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import float32, int64
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.keys import GraphKeys
from hpcflow.graph.shape import Shape, is_known, show
from hpcflow.ops.array import expand_dims, identity, reshape, size, sizes, squeeze
from hpcflow.ops.broadcast import broadcast_to, ones_like, zeros_like
from hpcflow.ops.comm import replica_sum
from hpcflow.ops.count import confusion_matrix
from hpcflow.ops.elementwise import div_no_nan, squared_difference
from hpcflow.ops.losses import check_weights
from hpcflow.ops.math import (
    abs,
    add,
    cast,
    divide,
    equal,
    greater,
    less,
    maximum,
    multiply,
    not_equal,
    sqrt,
    subtract,
    where,
)
from hpcflow.ops.matrix import diag_part
from hpcflow.ops.reduce import reduce_mean, reduce_sum
from hpcflow.ops.rules import like, require_alike
from hpcflow.ops.segment import unsorted_segment_sum
from hpcflow.ops.state import Variable
from hpcflow.ops.variable_scope import variable_scope

Collections: TypeAlias = "str | Iterable[str] | None"
Result = tuple[Tensor, Tensor]  # the value, and the value after the update


# -- what all metrics share


def metric_variable(shape: Sequence[int], dtype: np.dtype, name: str) -> Variable:
    """A variable of zeros, which `hf.local_variables_initializer` sets back; not in checkpoints.

    It is shared by the replicas, although it is in the collection of local variables.
    """
    zeros = np.zeros(shape, dtype)
    made = Variable(zeros, trainable=False, collections=[GraphKeys.METRIC_VARIABLES], name=name)
    made.graph.add_to_collection(GraphKeys.LOCAL_VARIABLES, made)
    return made


def added(variable: Variable, batch: Tensor) -> Tensor:
    """The value of a metric variable after all replicas have added theirs of a batch."""
    graph = get_default_graph()
    with graph.control_dependencies([variable.assign_add(replica_sum(batch))]):
        return variable.read_value()


def result(
    compute: Callable[..., Tensor],
    variables: Sequence[Variable],
    batches: Sequence[Tensor],
    metrics_collections: Collections,
    updates_collections: Collections,
) -> Result:
    """`compute` of the variables, and of what they are after `batches` have been added to them."""
    with get_default_graph().control_dependencies(None):
        value = compute(*(v.read_value() for v in variables))
        value = identity(value, "value")
    updated = compute(*(added(v, b) for v, b in zip(variables, batches, strict=True)))
    return remembered(
        value, identity(updated, "update_op"), metrics_collections, updates_collections
    )


def remembered(
    value: Tensor,
    update: Tensor,
    metrics_collections: Collections,
    updates_collections: Collections,
) -> Result:
    """Both, remembered in the collections that were named."""
    for names, tensor in ((metrics_collections, value), (updates_collections, update)):
        if names:
            several = [names] if isinstance(names, str) else list(names)
            tensor.graph.add_to_collections(several, tensor)
    return value, update


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """`part / whole`, 0 where nothing has been counted."""
    return div_no_nan(part, maximum(whole, 0))


def tensors(*given: Any) -> list[Any]:
    """Each as a tensor; None stays None."""
    return [None if g is None else convert_to_tensor(g) for g in given]


def _rank(t: Tensor) -> int | None:
    return None if t.shape is None else len(t.shape)


def paired(labels: Any, predictions: Any) -> tuple[Tensor, Tensor]:
    """Both as tensors of one shape: a last axis of size 1 that only one of them has is dropped."""
    z, p = convert_to_tensor(labels), convert_to_tensor(predictions)
    if z.shape is not None and p.shape is not None:
        more = len(p.shape) - len(z.shape)
        if more == 1 and p.shape[-1] in (None, 1):
            p = squeeze(p, [-1])
        elif more == -1 and z.shape[-1] in (None, 1):
            z = squeeze(z, [-1])
    require_alike("metrics: labels and predictions", z, p)
    return z, p


def spread_weights(weights: Any, values: Tensor, dtype: np.dtype = float32) -> Tensor | None:
    """`weights` in the shape of `values`; an axis of size 1 at their end is added or dropped.

    Errors: ShapeError for weights that are no scalar, nor of the rank of `values` with sizes of 1
            or as there.
    """
    if weights is None:
        return None
    w = cast(convert_to_tensor(weights), dtype)
    ranks = _rank(w), _rank(values)
    if None not in ranks and ranks[0] != 0:
        more = ranks[0] - ranks[1]  # type: ignore[operator]
        w = squeeze(w, [-1]) if more == 1 else expand_dims(w, -1) if more == -1 else w
    check_weights(w, values)
    return broadcast_to(w, sizes(values))


def flat(t: Tensor) -> Tensor:
    """A vector of its elements."""
    return t if t.shape is not None and len(t.shape) == 1 else reshape(t, [-1])


def whole(given: Any, what: str, least: int | None = None) -> int:
    """An integer that an argument says; ShapeError for anything else, or below `least`."""
    is_int = isinstance(given, (int, np.integer)) and not isinstance(given, bool)
    if not is_int or (least is not None and given < least):
        hint = "give an integer" + ("" if least is None else f" of {least} or more")
        raise ShapeError(f"{what}={given!r} of a metric", line=user_line(), hint=hint)
    return int(given)


def class_count(num_classes: Any) -> int:
    """A number of classes, which must be known when the graph is built; ShapeError."""
    given = convert_to_tensor(num_classes).constant
    if given is None or given.size != 1 or given.dtype.kind not in "iu" or int(given.item()) < 1:
        raise ShapeError(
            f"num_classes={num_classes!r} is no number of classes known now",
            line=user_line(),
            hint="give an integer of 1 or more",
        )
    return int(given.item())


# -- running means


def mean(
    values: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The mean of all `values` so far, weighted; and the operation that adds a batch of them.

    Returns the value and the value after the update, as all metrics do. Both are 0 before the
    first value. `hf.local_variables_initializer` begins anew.

    Shapes: scalars; `weights` a scalar, or as `values` with sizes of 1 where it is repeated.
    Ranks:  replicas in step run the update together, and every rank reads the mean over all.
    """
    with variable_scope(name, "mean", tensors(values, weights)):
        x = cast(convert_to_tensor(values), float32)
        total, count = (metric_variable((), float32, n) for n in ("total", "count"))
        w = spread_weights(weights, x)
        sums = (
            [reduce_sum(x), cast(size(x), float32)]
            if w is None
            else [reduce_sum(multiply(x, w)), reduce_sum(w)]
        )
        return result(ratio, [total, count], sums, metrics_collections, updates_collections)


def mean_tensor(
    values: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The mean of tensors of one shape, element by element; see `mean`.

    Shapes: that of `values`, which must be known; ShapeError.
    """
    with variable_scope(name, "mean", tensors(values, weights)):
        x = cast(convert_to_tensor(values), float32)
        shape = _known(x.shape)
        variables = [metric_variable(shape, float32, f"{n}_tensor") for n in ("total", "count")]
        w = spread_weights(weights, x)
        sums = [x, ones_like(x)] if w is None else [multiply(x, w), w]
        return result(ratio, variables, sums, metrics_collections, updates_collections)


def _known(shape: Shape) -> tuple[int, ...]:
    if not is_known(shape):
        raise ShapeError(
            f"metrics.mean_tensor of a tensor of shape {show(shape)}",
            line=user_line(),
            hint="its whole shape must be known: values.set_shape([...])",
        )
    return shape  # type: ignore[return-value]


def accuracy(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """How many of `predictions` equal their labels, as a fraction; see `mean`."""
    z, p = paired(labels, predictions)
    hits = equal(cast(p, z.dtype), z)
    name = name or "accuracy"
    return mean(hits, weights, metrics_collections, updates_collections, name)


def percentage_below(
    values: Any,
    threshold: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """How many of `values` are below `threshold`, as a fraction; see `mean`."""
    given = convert_to_tensor(values)
    hits = less(given, like(threshold, given))
    name = name or "percentage_below_threshold"
    return mean(hits, weights, metrics_collections, updates_collections, name)


# -- errors


def mean_absolute_error(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The mean of `|predictions - labels|`; see `mean`."""
    z, p = paired(labels, predictions)
    name = name or "mean_absolute_error"
    return mean(abs(subtract(p, z)), weights, metrics_collections, updates_collections, name)


def mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The mean of `(predictions - labels) ** 2`; see `mean`."""
    z, p = paired(labels, predictions)
    each = squared_difference(z, p)
    name = name or "mean_squared_error"
    return mean(each, weights, metrics_collections, updates_collections, name)


def root_mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The square root of `mean_squared_error`."""
    name = name or "root_mean_squared_error"
    both = mean_squared_error(labels, predictions, weights, None, None, name)
    root, update = (sqrt(t) for t in both)
    return remembered(root, update, metrics_collections, updates_collections)


def mean_relative_error(
    labels: Any,
    predictions: Any,
    normalizer: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The mean of `|predictions - labels| / normalizer`, 0 where that is 0; see `mean`."""
    z, p = paired(labels, predictions)
    n, p = paired(like(normalizer, p), p)
    each = where(equal(n, 0), zeros_like(z), divide(abs(subtract(z, p)), n))
    name = name or "mean_relative_error"
    return mean(each, weights, metrics_collections, updates_collections, name)


def mean_cosine_distance(
    labels: Any,
    predictions: Any,
    dim: int,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """1 minus the mean of `sum(labels * predictions)` over the axis `dim`; see `mean`."""
    z, p = paired(labels, predictions)
    near = reduce_sum(multiply(p, z), [whole(dim, "dim")], True)
    both = mean(near, weights, None, None, name or "mean_cosine_distance")
    distance, update = (subtract(1.0, t) for t in both)
    return remembered(distance, update, metrics_collections, updates_collections)


# -- of classes


def mean_iou(
    labels: Any,
    predictions: Any,
    num_classes: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The mean over classes of intersection / union, and the confusion matrix after the update.

    A class that has neither been seen nor predicted does not count; see `mean`.
    """
    with variable_scope(name, "mean_iou", tensors(predictions, labels, weights)):
        z, p = convert_to_tensor(labels), convert_to_tensor(predictions)
        require_alike("metrics.mean_iou: labels and predictions", z, p)
        count = class_count(num_classes)
        seen = metric_variable((count, count), np.dtype(np.float64), "total_confusion_matrix")
        w = None if weights is None else flat(convert_to_tensor(weights))
        batch = confusion_matrix(
            flat(cast(z, int64)), flat(cast(p, int64)), count, seen.dtype, weights=w
        )
        with get_default_graph().control_dependencies(None):
            value = identity(_mean_iou(seen.read_value()), "mean_iou")
        update = added(seen, batch)
        return remembered(value, update, metrics_collections, updates_collections)


def _mean_iou(matrix: Tensor) -> Tensor:
    rows, columns = (cast(reduce_sum(matrix, axis), float32) for axis in (0, 1))
    hits = cast(diag_part(matrix), float32)
    union = subtract(add(rows, columns), hits)
    valid = reduce_sum(cast(not_equal(union, 0), float32))
    each = divide(hits, where(greater(union, 0), union, ones_like(union)))
    return div_no_nan(reduce_sum(each), valid)


def mean_per_class_accuracy(
    labels: Any,
    predictions: Any,
    num_classes: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The mean of the classes' accuracies, and these after the update; see `mean`."""
    with variable_scope(name, "mean_accuracy", tensors(predictions, labels, weights)):
        z, p = (flat(convert_to_tensor(t)) for t in (labels, predictions))
        z = cast(z, int64)
        require_alike("metrics.mean_per_class_accuracy: labels and predictions", z, p)
        count = class_count(num_classes)
        seen, right = (metric_variable((count,), float32, n) for n in ("total", "count"))
        w = ones_like(z, dtype=float32)
        if weights is not None:
            w = multiply(w, flat(cast(convert_to_tensor(weights), float32)))
        hits = multiply(cast(equal(cast(p, int64), z), float32), w)
        with get_default_graph().control_dependencies(None):
            value = identity(reduce_mean(ratio(right.read_value(), seen.read_value())), "value")
        batches = (unsorted_segment_sum(x, z, count) for x in (hits, w))
        update = ratio(*(added(v, b) for v, b in zip((right, seen), batches, strict=True)))
        update = identity(update, "update_op")
        return remembered(value, update, metrics_collections, updates_collections)
