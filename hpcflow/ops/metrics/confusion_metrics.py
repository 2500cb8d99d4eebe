"""Confusion metrics: true and false positives and negatives of binary labels, by thresholds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import bool_, float32
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.ops.array.array_ops import constant, identity, reshape
from hpcflow.ops.array.broadcast_ops import ones_like, zeros_like
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.control_flow.assertions import assert_greater_equal, assert_less_equal
from hpcflow.ops.math.arithmetic_ops import (
    abs,
    add,
    cast,
    divide,
    equal,
    greater,
    log,
    logical_and,
    logical_not,
    maximum,
    minimum,
    multiply,
    subtract,
    where,
)
from hpcflow.ops.math.elementwise_math_ops import div_no_nan
from hpcflow.ops.math.reduction_ops import argmin, reduce_max, reduce_min, reduce_sum
from hpcflow.ops.metrics.metric_variables import (
    Collections,
    Metric,
    Result,
    fitted_weights,
    integer_argument,
    metric,
    paired,
    tensors,
    weighted,
)
from hpcflow.ops.shape_inference import rename_function
from hpcflow.ops.variables.variable_scope import variable_scope
from hpcflow.platform.rank_logging import say_once

NAMES = {
    "tp": "true_positives",
    "fn": "false_negatives",
    "tn": "true_negatives",
    "fp": "false_positives",
}
BEYOND = 1e-7  # distance of the first and last threshold from [0, 1]
SMOOTHED = 1e-6  # added to the counts from which auc computes rates


def _hits(kind: str, label: Tensor, guess: Tensor) -> Tensor:
    """Where the outcome is of a kind: "tp" ..."""
    truth = label if kind in ("tp", "fn") else logical_not(label)
    return logical_and(truth, guess if kind in ("tp", "fp") else logical_not(guess))


def _counts(
    kinds: Sequence[str], label: Tensor, guess: Tensor, w: Tensor | None, axis: int | None = None
) -> dict[str, Tensor]:
    """The counts of each of `kinds` in a batch, by name."""
    hits = {NAMES[kind]: cast(_hits(kind, label, guess), float32) for kind in kinds}
    return {name: reduce_sum(weighted(hit, w), axis) for name, hit in hits.items()}


# -- one decision


def _of_decisions(
    public: str, kinds: Sequence[str], compute: Callable[..., Tensor], doc: str
) -> Metric:
    """The metric `public`, computed from the counts of `kinds`."""

    def function(
        labels: Any,
        predictions: Any,
        weights: Any = None,
        metrics_collections: Collections = None,
        updates_collections: Collections = None,
        name: str | None = None,
    ) -> Result:
        with variable_scope(name, public, tensors(predictions, labels, weights)):
            z, p = paired(*(cast(convert_to_tensor(t), bool_) for t in (labels, predictions)))
            counts = _counts(kinds, z, p, fitted_weights(weights, p))
            alone = len(kinds) == 1
            sums = {"count" if alone else f"{kind}/count": n for kind, n in counts.items()}
            return metric(sums, compute, metrics_collections, updates_collections)

    return rename_function(function, public, doc)


def _part(tp: Tensor, wrong: Tensor) -> Tensor:
    return div_no_nan(tp, add(tp, wrong))


def _count(kind: str, words: str) -> Metric:
    return _of_decisions(NAMES[kind], [kind], identity, f"{words}, weighted; see `mean`.")


def _share(name: str, other: str, words: str) -> Metric:
    doc = f"{words}, 0 where there are none; see `mean`."
    return _of_decisions(name, ["tp", other], _part, doc)


true_positives = _count("tp", "How many labels are true and predicted so")
false_negatives = _count("fn", "How many labels are true and predicted to be false")
true_negatives = _count("tn", "How many labels are false and predicted so")
false_positives = _count("fp", "How many labels are false and predicted to be true")
precision = _share("precision", "fp", "How many of the predicted positives are true, as a fraction")
recall = _share("recall", "fn", "How many of the true labels are predicted, as a fraction")


# -- thresholds


def _in_range(predictions: Any) -> Tensor:
    """The predictions, checked at run time to be in [0, 1]."""
    tensor = convert_to_tensor(predictions)
    checks = [
        check(tensor, cast(constant(limit), tensor.dtype), message="predictions must be in [0, 1]")
        for check, limit in ((assert_greater_equal, 0), (assert_less_equal, 1))
    ]
    with get_default_graph().control_dependencies(checks):
        return identity(tensor)


def _counts_at(
    kinds: Sequence[str], labels: Any, predictions: Any, thresholds: Sequence[float], weights: Any
) -> dict[str, Tensor]:
    """The counts of each of `kinds` in a batch for each threshold, by name."""
    in_range = _in_range(predictions)
    z, p = paired(cast(convert_to_tensor(labels), bool_), cast(in_range, float32))
    w = fitted_weights(weights, p)
    limits = constant(np.asarray(thresholds, np.float32).reshape(-1, 1))
    guess, label = greater(reshape(p, [1, -1]), limits), reshape(z, [1, -1])
    return _counts(kinds, label, guess, None if w is None else reshape(w, [1, -1]), 1)


def _at_thresholds(
    public: str, kinds: Sequence[str], compute: Callable[..., Tensor], words: str, scope: str = ""
) -> Metric:
    """The metric `public`, computed from the counts of `kinds` for each threshold.

    `scope` is the default name of its scope, in place of its own name.
    """

    def function(
        labels: Any,
        predictions: Any,
        thresholds: Sequence[float],
        weights: Any = None,
        metrics_collections: Collections = None,
        updates_collections: Collections = None,
        name: str | None = None,
    ) -> Result:
        with variable_scope(name, scope or public, tensors(predictions, labels, weights)):
            sums = _counts_at(kinds, labels, predictions, _limits(thresholds), weights)
            return metric(sums, compute, metrics_collections, updates_collections)

    doc = f"{words}, for each of `thresholds`: a prediction in [0, 1] above it is a positive one."
    return rename_function(function, public, doc)


def _count_at(kind: str) -> Metric:
    words = f"How many {NAMES[kind].replace('_', ' ')} there are"
    name = f"{NAMES[kind]}_at_thresholds"
    return _at_thresholds(name, [kind], identity, words, scope=NAMES[kind])


def _smooth_part(tp: Tensor, wrong: Tensor) -> Tensor:
    return divide(tp, add(add(tp, wrong), BEYOND))


true_positives_at_thresholds = _count_at("tp")
false_negatives_at_thresholds = _count_at("fn")
true_negatives_at_thresholds = _count_at("tn")
false_positives_at_thresholds = _count_at("fp")
precision_at_thresholds = _at_thresholds(
    *("precision_at_thresholds", ["tp", "fp"], _smooth_part),
    "How many of the predicted positives are true, as a fraction",
)
recall_at_thresholds = _at_thresholds(
    *("recall_at_thresholds", ["tp", "fn"], _smooth_part),
    "How many of the true labels are predicted, as a fraction",
)


def _limits(thresholds: Any) -> list[float]:
    """A list of thresholds.

    Errors: ShapeError for anything else.
    """
    try:
        return [float(t) for t in thresholds]
    except (TypeError, ValueError):
        raise ShapeError(
            f"thresholds of a metric must be numbers, not {thresholds!r}",
            line=user_line(),
            hint="give a list of numbers",
        ) from None


def _even(count: int, last: float = 1 + BEYOND) -> list[float]:
    """`count` evenly spaced thresholds in [0, 1]."""
    integer_argument(count, "num_thresholds", 2)
    return [-BEYOND, *((i + 1) / (count - 1) for i in range(count - 2)), last]


# -- areas under curves

METHODS = ("trapezoidal", "careful_interpolation", "minoring", "majoring")


def auc(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    num_thresholds: int = 200,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    curve: str = "ROC",
    name: str | None = None,
    summation_method: str = "trapezoidal",
    thresholds: Sequence[float] | None = None,
) -> Result:
    """The area under a curve over thresholds; see `mean`.

    `curve` is "ROC" (true over false positive rate) or "PR" (precision over recall).
    `summation_method` is "trapezoidal", "careful_interpolation" (best for "PR"), "minoring" or
    "majoring". `thresholds` are added between the first and the last one, which are outside [0, 1].
    Errors: ShapeError for another curve or method.
    """
    if curve not in ("ROC", "PR") or summation_method not in METHODS:
        raise ShapeError(
            f"auc does not compute curve {curve!r} by {summation_method!r}",
            line=user_line(),
            hint=f"use curve 'ROC' or 'PR' and a summation_method of {METHODS}",
        )
    if (curve, summation_method) == ("PR", "trapezoidal"):
        say_once(
            "metrics.auc: the trapezoidal rule gives wrong areas under PR curves; "
            "summation_method='careful_interpolation' gives right ones"
        )
    with variable_scope(name, "auc", tensors(labels, predictions, weights)):
        limits = _even(num_thresholds)
        if thresholds is not None:
            limits = [limits[0], *sorted(_limits(thresholds)), limits[-1]]
        sums = _counts_at(("tp", "fn", "tn", "fp"), labels, predictions, limits, weights)

        def area(*counts: Tensor) -> Tensor:
            return _area(curve, summation_method, *counts)

        return metric(sums, area, metrics_collections, updates_collections)


def _area(curve: str, method: str, tp: Tensor, fn: Tensor, tn: Tensor, fp: Tensor) -> Tensor:
    if (curve, method) == ("PR", "careful_interpolation"):
        return _interpolated(tp, fp, fn)
    recalled = divide(add(tp, SMOOTHED), add(add(tp, fn), SMOOTHED))
    if curve == "ROC":
        x, y = divide(fp, add(add(fp, tn), SMOOTHED)), recalled
    else:
        x, y = recalled, divide(add(tp, SMOOTHED), add(add(tp, fp), SMOOTHED))
    join = {"minoring": minimum, "majoring": maximum}.get(method, _middle)
    return reduce_sum(multiply(_fall(x), join(*_neighbors(y))))


def _neighbors(x: Tensor) -> tuple[Tensor, Tensor]:
    return getitem(x, slice(None, -1)), getitem(x, slice(1, None))


def _middle(a: Tensor, b: Tensor) -> Tensor:
    return divide(add(a, b), 2.0)


def _fall(x: Tensor) -> Tensor:
    return subtract(*_neighbors(x))


def _interpolated(tp: Tensor, fp: Tensor, fn: Tensor) -> Tensor:
    """The area under the PR curve, with counts interpolated (Davis, Goadrich 2006)."""
    falls, (before, after) = _fall(tp), _neighbors(add(tp, fp))
    slope = div_no_nan(falls, maximum(subtract(before, after), 0))
    hits, misses = _neighbors(tp)[1], _neighbors(fn)[1]
    intercept = subtract(hits, multiply(slope, after))
    both = logical_and(greater(before, 0), greater(after, 0))
    rise = where(both, div_no_nan(before, maximum(after, 0)), ones_like(after))
    each = multiply(slope, add(falls, multiply(intercept, log(rise))))
    return reduce_sum(div_no_nan(each, maximum(add(hits, misses), 0)))


# -- one rate at a value of another


def _rate_at(value: Any, name: str) -> None:
    if not isinstance(value, (int, float, np.number)) or not 0 <= value <= 1:
        raise ShapeError(f"{name} must be a number in [0, 1], not {value!r}", line=user_line())


def sensitivity_at_specificity(
    labels: Any,
    predictions: Any,
    specificity: float,
    weights: Any = None,
    num_thresholds: int = 200,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The true positive rate where the true negative rate is nearest `specificity`.

    Errors: ShapeError for a `specificity` outside [0, 1].
    """
    _rate_at(specificity, "specificity")
    inputs = tensors(predictions, labels, weights)
    with variable_scope(name, "sensitivity_at_specificity", inputs):
        limits = _even(num_thresholds)
        sums = _counts_at(("tp", "tn", "fp", "fn"), labels, predictions, limits, weights)

        def rate(tp: Tensor, tn: Tensor, fp: Tensor, fn: Tensor) -> Tensor:
            far = abs(subtract(_smooth_part(tn, fp), specificity))
            return gather(_smooth_part(tp, fn), argmin(far, 0))

        return metric(sums, rate, metrics_collections, updates_collections)


def specificity_at_sensitivity(
    labels: Any,
    predictions: Any,
    sensitivity: float,
    weights: Any = None,
    num_thresholds: int = 200,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Result:
    """The true negative rate where the true positive rate is nearest `sensitivity`.

    Of equally near thresholds the highest counts.
    Errors: ShapeError for a `sensitivity` outside [0, 1].
    """
    _rate_at(sensitivity, "sensitivity")
    inputs = tensors(predictions, labels, weights)
    with variable_scope(name, "specificity_at_sensitivity", inputs):
        limits = _even(num_thresholds, 1 - BEYOND)
        sums = _counts_at(("tp", "tn", "fp", "fn"), labels, predictions, limits, weights)
        places = constant(np.arange(num_thresholds))

        def rate(tp: Tensor, tn: Tensor, fp: Tensor, fn: Tensor) -> Tensor:
            far = abs(subtract(_smooth_part(tp, fn), sensitivity))
            nearest = where(equal(far, reduce_min(far)), places, zeros_like(places))
            return gather(_smooth_part(tn, fp), reduce_max(nearest))

        return metric(sums, rate, metrics_collections, updates_collections)
