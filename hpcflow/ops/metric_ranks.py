"""`hf.metrics` of the best k: which labels are among the k classes that were predicted first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import float64, int64
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.scopes import name_scope
from hpcflow.graph.shape import show
from hpcflow.ops.array import constant, expand_dims, shape, size, sizes
from hpcflow.ops.broadcast import broadcast_to, ones_like
from hpcflow.ops.elementwise import div_no_nan
from hpcflow.ops.losses import check_weights
from hpcflow.ops.math import (
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
from hpcflow.ops.metrics import Collections, Result, added, metric_variable, remembered, whole
from hpcflow.ops.positions import first_in_row
from hpcflow.ops.reduce import reduce_any, reduce_sum
from hpcflow.ops.scans import cumsum, top_k
from hpcflow.ops.slicing import getitem
from hpcflow.ops.sparse import (
    SparseTensor,
    convert_to_tensor_or_sparse_tensor,
    sparse_tensor_to_dense,
)

NO_LABEL = np.iinfo(np.int64).min  # what fills the rows of sparse labels


class Ranked(NamedTuple):
    """Labels and predicted classes, [..., n] and [..., k], and which of them count."""

    labels: Tensor
    there: Tensor  # of the labels, those that are there
    guesses: Tensor
    sparse: bool

    @property
    def found(self) -> Tensor:
        """Which of the guesses are labels."""
        return reduce_any(self._equal(), -2)

    @property
    def guessed(self) -> Tensor:
        """Which of the labels are guesses."""
        return reduce_any(self._equal(), -1)

    def _equal(self) -> Tensor:
        same = equal(expand_dims(self.labels, -1), expand_dims(self.guesses, -2))
        return logical_and(same, expand_dims(self.there, -1))


def _ranked(labels: Any, predictions_idx: Any) -> Ranked:
    guesses = cast(convert_to_tensor(predictions_idx), int64)
    given = convert_to_tensor_or_sparse_tensor(labels)
    sparse = isinstance(given, SparseTensor)
    if isinstance(given, SparseTensor):
        z = sparse_tensor_to_dense(given.with_values(cast(given.values, int64)), NO_LABEL)
    else:
        z = cast(given, int64)
    if not guesses.shape or z.shape is None:
        raise ShapeError(
            f"labels {show(z.shape)} and predictions {show(guesses.shape)} of metrics at k",
            line=user_line(),
            hint="their ranks must be known; predictions have an axis of classes",
        )
    if len(guesses.shape) == len(z.shape) + 1:
        z = expand_dims(z, -1)
    if z.shape is None or len(guesses.shape) != len(z.shape):
        raise ShapeError(
            f"labels {show(z.shape)} do not fit predictions {show(guesses.shape)}",
            line=user_line(),
            hint="give labels of the same rank, or without the last axis",
        )
    return Ranked(z, not_equal(z, constant(NO_LABEL, int64)), guesses, sparse)


def _outcomes(r: Ranked, class_id: int | None) -> dict[str, Tensor]:
    """How many distinct classes of each example are true or false, positive or negative."""
    if class_id is None:
        first, seen = first_in_row(r.guesses), logical_and(first_in_row(r.labels), r.there)
        hits = {
            "true_positive": logical_and(r.found, first),
            "false_positive": logical_and(logical_not(r.found), first),
            "false_negative": logical_and(logical_not(r.guessed), seen),
        }
        return {kind: reduce_sum(cast(hit, float64), -1) for kind, hit in hits.items()}
    chosen = constant(whole(class_id, "class_id"), int64)
    label, guess = (reduce_any(equal(x, chosen), -1) for x in (r.labels, r.guesses))
    hits = {
        "true_positive": logical_and(label, guess),
        "false_positive": logical_and(logical_not(label), guess),
        "false_negative": logical_and(label, logical_not(guess)),
    }
    return {kind: cast(hit, float64) for kind, hit in hits.items()}


def _at_k(name: str, k: int | None, class_id: int | None = None) -> str:
    at = f"{name}_at_{'k' if k is None else k}"
    return at if class_id is None else f"{at}_class{class_id}"


def _best(predictions: Any, k: int) -> Tensor:
    return top_k(predictions, whole(k, "k", 1))[1]


def _weighted(each: Tensor, weights: Any) -> tuple[Tensor, Tensor | None]:
    if weights is None:
        return each, None
    w = cast(convert_to_tensor(weights), float64)
    check_weights(w, each)
    w = broadcast_to(w, sizes(each))
    return multiply(each, w), w


def _share(
    what: str,
    other: str,
    told: tuple[Any, Any, int | None, int | None, Any],
    collections: tuple[Collections, Collections],
    name: str | None,
) -> Result:
    """The true positives among these and outcomes of the kind `other`."""
    labels, predictions_idx, k, class_id, weights = told
    with name_scope(name or _at_k(what, k, class_id)):
        outcomes = _outcomes(_ranked(labels, predictions_idx), class_id)
        reads, updates = [], []
        for kind in ("true_positive", other):
            count = metric_variable((), float64, _at_k(kind, k, class_id))
            with get_default_graph().control_dependencies(None):
                reads.append(count.read_value())
            updates.append(added(count, reduce_sum(_weighted(outcomes[kind], weights)[0])))
        with get_default_graph().control_dependencies(None):
            value = divide(reads[0], add(reads[0], reads[1]), "value")
        update = divide(updates[0], add(updates[0], updates[1]), "update")
        return remembered(value, update, *collections)


def precision_at_top_k(
    labels: Any,
    predictions_idx: Any,
    k: int | None = None,
    class_id: int | None = None,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """How many of the predicted classes are labels, as a fraction; see `mean`.

    With `class_id` of predictions of this class alone. `k` is for names; NaN before the first one.
    Shapes: labels [...] or [..., n], dense or sparse, predictions_idx [..., k]; weights a scalar,
            or [...] with sizes of 1 where they are repeated.
    """
    told = (labels, predictions_idx, k, class_id, weights)
    collections = (metrics_collections, updates_collections)
    return _share("precision", "false_positive", told, collections, name)


def recall_at_top_k(
    labels: Any,
    predictions_idx: Any,
    k: int | None = None,
    class_id: int | None = None,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """How many of the labels are among the predicted classes; see `precision_at_top_k`.

    With `class_id` of labels of this class alone.
    """
    told = (labels, predictions_idx, k, class_id, weights)
    collections = (metrics_collections, updates_collections)
    return _share("recall", "false_negative", told, collections, name)


def precision_at_k(
    labels: Any,
    predictions: Any,
    k: int,
    class_id: int | None = None,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """`precision_at_top_k` of the `k` largest `predictions`, [..., classes]."""
    told = (labels, _best(predictions, k), k, class_id, weights)
    collections = (metrics_collections, updates_collections)
    return _share("precision", "false_positive", told, collections, name)


sparse_precision_at_k = precision_at_k


def recall_at_k(
    labels: Any,
    predictions: Any,
    k: int,
    class_id: int | None = None,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """`recall_at_top_k` of the `k` largest `predictions`, [..., classes]."""
    told = (labels, _best(predictions, k), k, class_id, weights)
    collections = (metrics_collections, updates_collections)
    return _share("recall", "false_negative", told, collections, name)


def _average_precision(r: Ranked, classes: Tensor, k: int) -> Tensor:
    """Of each example; NaN where it has no labels."""
    outside = greater_equal(r.labels, cast(classes, int64))
    labels = where(outside, multiply(ones_like(r.labels), -1), r.labels)
    found = cast(r.found, float64)
    precisions = divide(cumsum(found, -1), constant(np.arange(1.0, k + 1)))
    if r.sparse:
        counted = logical_and(first_in_row(labels), r.there)
    else:
        counted = greater_equal(labels, 0)
    most = minimum(reduce_sum(cast(counted, float64), -1), k)
    return divide(reduce_sum(multiply(precisions, found), -1), most)


def average_precision_at_k(
    labels: Any,
    predictions: Any,
    k: int,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The mean over examples of the precisions at each rank up to `k` where a label was found.

    Those of an example are added up and divided by its labels, of which `k` count at most.
    Shapes: as `precision_at_k`.
    """
    x = convert_to_tensor(predictions)
    with name_scope(name or _at_k("average_precision", k)):
        r = _ranked(labels, _best(x, k))
        each, w = _weighted(_average_precision(r, getitem(shape(x), -1), k), weights)
        total, most = (metric_variable((), float64, n) for n in ("total", "max"))
        batch = cast(size(each), float64) if w is None else reduce_sum(w)
        with get_default_graph().control_dependencies(None):
            value = div_no_nan(total.read_value(), most.read_value(), "value")
        update = div_no_nan(added(total, reduce_sum(each)), added(most, batch), "update")
        return remembered(value, update, metrics_collections, updates_collections)


sparse_average_precision_at_k = average_precision_at_k
