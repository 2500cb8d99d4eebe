"""Top-k metrics of `hf.metrics`: labels among the k classes predicted first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import float64, int64
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.graph.name_scopes import name_scope
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.array.array_ops import constant, expand_dims, shape
from hpcflow.ops.array.broadcast_ops import ones_like
from hpcflow.ops.array.cumulative_ops import cumsum, top_k
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.array.where_unique_ops import first_in_row
from hpcflow.ops.math.arithmetic_ops import (
    add,
    cast,
    divide,
    equal,
    greater_equal,
    logical_and,
    logical_not,
    minimum,
    multiply,
    not_equal,
    where,
)
from hpcflow.ops.math.elementwise_math_ops import div_no_nan
from hpcflow.ops.math.reduction_ops import reduce_any, reduce_sum
from hpcflow.ops.metrics.metric_variables import (
    Collections,
    Metric,
    Result,
    integer_argument,
    mean_sums,
    metric,
    spread_weights,
    weighted,
)
from hpcflow.ops.shape_inference import rename_function
from hpcflow.ops.sparse.sparse_tensor_ops import (
    SparseTensor,
    convert_to_tensor_or_sparse_tensor,
    sparse_tensor_to_dense,
)

NO_LABEL = np.iinfo(np.int64).min  # padding of the rows of sparse labels


class RankedPredictions(NamedTuple):
    """Labels and predicted classes, [..., n] and [..., k], and masks of valid ones."""

    labels: Tensor
    valid: Tensor  # mask of valid labels
    guesses: Tensor
    sparse: bool

    @property
    def hits(self) -> Tensor:
        """Which of the predictions are labels."""
        return reduce_any(self._equal(), -2)

    @property
    def guessed(self) -> Tensor:
        """Which of the labels are predictions."""
        return reduce_any(self._equal(), -1)

    def _equal(self) -> Tensor:
        same = equal(expand_dims(self.labels, -1), expand_dims(self.guesses, -2))
        return logical_and(same, expand_dims(self.valid, -1))


def _ranked(labels: Any, predictions_idx: Any) -> RankedPredictions:
    guesses = cast(convert_to_tensor(predictions_idx), int64)
    truth = convert_to_tensor_or_sparse_tensor(labels)
    sparse = isinstance(truth, SparseTensor)
    if isinstance(truth, SparseTensor):
        z = sparse_tensor_to_dense(truth.with_values(cast(truth.values, int64)), NO_LABEL)
    else:
        z = cast(truth, int64)
    if not guesses.shape or z.shape is None:
        raise ShapeError(
            f"labels {shape_text(z.shape)} and predictions {shape_text(guesses.shape)} do not fit "
            "metrics at k",
            line=user_line(),
            hint="their ranks must be known; predictions have an axis of classes",
        )
    if len(guesses.shape) == len(z.shape) + 1:
        z = expand_dims(z, -1)
    if z.shape is None or len(guesses.shape) != len(z.shape):
        raise ShapeError(
            f"labels {shape_text(z.shape)} do not fit predictions {shape_text(guesses.shape)}",
            line=user_line(),
            hint="give labels of the same rank, or without the last axis",
        )
    return RankedPredictions(z, not_equal(z, constant(NO_LABEL, int64)), guesses, sparse)


def _outcomes(r: RankedPredictions, class_id: int | None) -> dict[str, Tensor]:
    """The numbers of distinct true and false positives and negatives of each example."""
    if class_id is None:
        first, first_label = first_in_row(r.guesses), logical_and(first_in_row(r.labels), r.valid)
        hits = {
            "true_positive": logical_and(r.hits, first),
            "false_positive": logical_and(logical_not(r.hits), first),
            "false_negative": logical_and(logical_not(r.guessed), first_label),
        }
        return {kind: reduce_sum(cast(hit, float64), -1) for kind, hit in hits.items()}
    chosen = constant(integer_argument(class_id, "class_id"), int64)
    label, guess = (reduce_any(equal(x, chosen), -1) for x in (r.labels, r.guesses))
    hits = {
        "true_positive": logical_and(label, guess),
        "false_positive": logical_and(logical_not(label), guess),
        "false_negative": logical_and(label, logical_not(guess)),
    }
    return {kind: cast(hit, float64) for kind, hit in hits.items()}


def _at_k(name: str, k: int | None, class_id: int | None = None) -> str:
    """The name of a count for the best `k`."""
    at = f"{name}_at_{'k' if k is None else k}"
    return at if class_id is None else f"{at}_class{class_id}"


def _best(predictions: Any, k: int) -> Tensor:
    """The classes of the `k` largest predictions."""
    return top_k(predictions, integer_argument(k, "k", 1))[1]


# -- one kind of outcome among others


def _part(true: Tensor, wrong: Tensor) -> Tensor:
    return divide(true, add(true, wrong))


def _at_top_k(metric_name: str, other: str, doc: str) -> Metric:
    """The metric of true positives among themselves and outcomes of kind `other`."""

    def function(
        labels: Any,
        predictions_idx: Any,
        k: int | None = None,
        class_id: int | None = None,
        weights: Any = None,
        metrics_collections: Collections = None,
        updates_collections: Collections = None,
        name: str | None = None,
    ) -> Result:
        with name_scope(name or _at_k(metric_name, k, class_id)):
            outcomes = _outcomes(_ranked(labels, predictions_idx), class_id)
            sums = {}
            for kind in ("true_positive", other):
                each = outcomes[kind]
                w = spread_weights(weights, each, float64)
                sums[_at_k(kind, k, class_id)] = reduce_sum(weighted(each, w))
            collections = (metrics_collections, updates_collections)
            return metric(sums, _part, *collections, names=("value", "update"))

    return rename_function(function, f"{metric_name}_at_top_k", doc)


def _of_best(at_top_k: Metric, doc: str) -> Metric:
    """The metric `at_top_k` for the classes of the largest predictions."""

    def function(
        labels: Any,
        predictions: Any,
        k: int,
        class_id: int | None = None,
        weights: Any = None,
        metrics_collections: Collections = None,
        updates_collections: Collections = None,
        name: str | None = None,
    ) -> Result:
        collections = (metrics_collections, updates_collections)
        return at_top_k(labels, _best(predictions, k), k, class_id, weights, *collections, name)

    return rename_function(function, at_top_k.__name__.replace("_top_k", "_k"), doc)


precision_at_top_k = _at_top_k(
    *("precision", "false_positive"),
    """How many of the predicted classes are labels, as a fraction; see `mean`.

    With `class_id` of predictions of this class alone. `k` is for names; NaN before the first one.
    Shapes: labels [...] or [..., n], dense or sparse, predictions_idx [..., k]; weights a scalar,
            or [...] with sizes of 1 where they are repeated.
    """,
)
recall_at_top_k = _at_top_k(
    *("recall", "false_negative"),
    """How many of the labels are among the predicted classes; see `precision_at_top_k`.

    With `class_id` of labels of this class alone.
    """,
)
precision_at_k = _of_best(
    precision_at_top_k, "`precision_at_top_k` of the `k` largest `predictions`, [..., classes]."
)
sparse_precision_at_k = precision_at_k
recall_at_k = _of_best(
    recall_at_top_k, "`recall_at_top_k` of the `k` largest `predictions`, [..., classes]."
)


# -- average precision


def _average_precision(r: RankedPredictions, classes: Tensor, k: int) -> Tensor:
    """The average precision of each example; NaN without labels."""
    outside = greater_equal(r.labels, cast(classes, int64))
    labels = where(outside, multiply(ones_like(r.labels), -1), r.labels)
    hits = cast(r.hits, float64)
    precisions = divide(cumsum(hits, -1), constant(np.arange(1.0, k + 1)))
    if r.sparse:
        counted = logical_and(first_in_row(labels), r.valid)
    else:
        counted = greater_equal(labels, 0)
    most = minimum(reduce_sum(cast(counted, float64), -1), k)
    return divide(reduce_sum(multiply(precisions, hits), -1), most)


def average_precision_at_k(
    labels: Any,
    predictions: Any,
    k: int,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The mean over examples of the average precision at `k`.

    The average precision of an example is the sum of precisions at each rank up to `k` with a
    label, divided by the number of labels, at most `k`.
    Shapes: as `precision_at_k`.
    """
    x = convert_to_tensor(predictions)
    with name_scope(name or _at_k("average_precision", k)):
        r = _ranked(labels, _best(x, k))
        each = _average_precision(r, getitem(shape(x), -1), k)
        sums = mean_sums(each, spread_weights(weights, each, float64), ("total", "max"))
        collections = (metrics_collections, updates_collections)
        return metric(sums, div_no_nan, *collections, names=("value", "update"))


sparse_average_precision_at_k = average_precision_at_k
