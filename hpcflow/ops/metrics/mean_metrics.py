"""Mean metrics of `hf.metrics`: means of values, of errors, and over classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import float32, int64
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.graph.static_shape import is_known, shape_text
from hpcflow.ops.array.array_ops import reshape
from hpcflow.ops.array.broadcast_ops import ones_like, zeros_like
from hpcflow.ops.array.segment_ops import unsorted_segment_sum
from hpcflow.ops.linalg.matrix_diagonal_ops import diag_part
from hpcflow.ops.math.arithmetic_ops import (
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
from hpcflow.ops.math.elementwise_math_ops import div_no_nan, squared_difference
from hpcflow.ops.math.histogram_ops import confusion_matrix
from hpcflow.ops.math.reduction_ops import reduce_mean, reduce_sum
from hpcflow.ops.metrics.metric_variables import (
    Collections,
    Metric,
    Result,
    fitted_weights,
    integer_argument,
    mean_sums,
    metric,
    paired,
    remembered,
    tensors,
    weighted,
)
from hpcflow.ops.shape_inference import like, rename_function, require_alike
from hpcflow.ops.variables.variable_scope import variable_scope


def _ratio(part: Tensor, total: Tensor) -> Tensor:
    """`part / whole`; 0 before anything was counted."""
    return div_no_nan(part, maximum(total, 0))


# -- values


def mean(
    values: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The weighted mean of all `values` so far, and the operation that adds a batch.

    As all metrics it returns the value, and the value after the update. Both are 0 before the first
    value. `hf.local_variables_initializer` resets it.

    Shapes: scalars; `weights` is a scalar, or as `values` with sizes of 1 where broadcast.
    Ranks: synchronous replicas run the update together, and every rank reads the mean over all.
    """
    with variable_scope(name, "mean", tensors(values, weights)):
        x = cast(convert_to_tensor(values), float32)
        sums = mean_sums(x, fitted_weights(weights, x))
        return metric(sums, _ratio, metrics_collections, updates_collections)


def mean_tensor(
    values: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The elementwise mean of tensors of one shape; see `mean`.

    Shapes: that of `values`, which must be static.
    Errors: ShapeError if it is not.
    """
    with variable_scope(name, "mean", tensors(values, weights)):
        x = cast(convert_to_tensor(values), float32)
        if not is_known(x.shape):
            raise ShapeError(
                f"metrics.mean_tensor needs values of known shape, not {shape_text(x.shape)}",
                line=user_line(),
                hint="give the whole shape by values.set_shape([...])",
            )
        w = fitted_weights(weights, x)
        sums = {"total_tensor": weighted(x, w), "count_tensor": ones_like(x) if w is None else w}
        return metric(sums, _ratio, metrics_collections, updates_collections)


def percentage_below(
    values: Any,
    threshold: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The fraction of `values` below `threshold`; see `mean`."""
    tensor = convert_to_tensor(values)
    hits = less(tensor, like(threshold, tensor))
    name = name or "percentage_below_threshold"
    return mean(hits, weights, metrics_collections, updates_collections, name)


# -- labels and predictions


def _mean_of(value_fn: Callable[[Tensor, Tensor], Tensor]) -> Metric:
    """The metric, named after `value_fn`, the mean of `value_fn(labels, predictions)`."""

    def function(
        labels: Any,
        predictions: Any,
        weights: Any = None,
        metrics_collections: Collections = None,
        updates_collections: Collections = None,
        name: str | None = None,
    ) -> Result:
        values = value_fn(*paired(labels, predictions))
        name = name or value_fn.__name__
        return mean(values, weights, metrics_collections, updates_collections, name)

    return rename_function(function, value_fn.__name__, value_fn.__doc__)


@_mean_of
def accuracy(labels: Tensor, predictions: Tensor) -> Tensor:
    """The fraction of `predictions` equal to their labels; see `mean`."""
    return equal(cast(predictions, labels.dtype), labels)


@_mean_of
def mean_absolute_error(labels: Tensor, predictions: Tensor) -> Tensor:
    """The mean of `|predictions - labels|`; see `mean`."""
    return abs(subtract(predictions, labels))


@_mean_of
def mean_squared_error(labels: Tensor, predictions: Tensor) -> Tensor:
    """The mean of `(predictions - labels) ** 2`; see `mean`."""
    return squared_difference(labels, predictions)


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
    squares = mean_squared_error(labels, predictions, weights, name=name)
    roots = (sqrt(t) for t in squares)
    return remembered(roots, metrics_collections, updates_collections)


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
    near = reduce_sum(multiply(p, z), [integer_argument(dim, "dim")], True)
    cosines = mean(near, weights, name=name or "mean_cosine_distance")
    distances = (subtract(1.0, t) for t in cosines)
    return remembered(distances, metrics_collections, updates_collections)


# -- classes


def _class_count(num_classes: Any) -> int:
    """A number of classes, which must be a constant.

    Errors: ShapeError if it is not.
    """
    count = convert_to_tensor(num_classes).constant
    if count is None or count.size != 1 or count.dtype.kind not in "iu" or int(count.item()) < 1:
        raise ShapeError(
            f"num_classes must be a constant positive integer, not {num_classes!r}",
            line=user_line(),
            hint="give an integer of 1 or more",
        )
    return int(count.item())


def _flat(t: Tensor) -> Tensor:
    """The elements as a vector."""
    return t if t.shape is not None and len(t.shape) == 1 else reshape(t, [-1])


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

    Classes that occur neither in labels nor in predictions are ignored; see `mean`.
    """
    with variable_scope(name, "mean_iou", tensors(predictions, labels, weights)):
        z, p = convert_to_tensor(labels), convert_to_tensor(predictions)
        require_alike("metrics.mean_iou: labels and predictions", z, p)
        count = _class_count(num_classes)
        z, p = (_flat(cast(t, int64)) for t in (z, p))
        w = None if weights is None else _flat(convert_to_tensor(weights))
        confusion = confusion_matrix(z, p, count, np.dtype(np.float64), weights=w)
        return metric(
            *({"total_confusion_matrix": confusion}, _mean_iou),
            *(metrics_collections, updates_collections),
            after=lambda matrix: matrix,
            names=("mean_iou", ""),
        )


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
    """The mean of the accuracies of classes, and their accuracies after the update; see `mean`."""
    with variable_scope(name, "mean_accuracy", tensors(predictions, labels, weights)):
        z, p = (_flat(convert_to_tensor(t)) for t in (labels, predictions))
        z = cast(z, int64)
        require_alike("metrics.mean_per_class_accuracy: labels and predictions", z, p)
        count = _class_count(num_classes)
        w = ones_like(z, dtype=float32)
        if weights is not None:
            w = multiply(w, _flat(cast(convert_to_tensor(weights), float32)))
        hits = multiply(cast(equal(cast(p, int64), z), float32), w)
        right, totals = (unsorted_segment_sum(x, z, count) for x in (hits, w))

        def accuracies(total: Tensor, count: Tensor) -> Tensor:
            return _ratio(count, total)

        return metric(
            {"total": totals, "count": right},
            lambda total, count: reduce_mean(accuracies(total, count)),
            *(metrics_collections, updates_collections),
            after=accuracies,
        )
