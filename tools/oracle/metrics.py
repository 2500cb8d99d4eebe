"""Metrics: each is updated once, then read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tools.oracle.draw import INDICES, Case, Draw
from tools.oracle.parts import indices

CUTS: list[Any] = [[0.5], [0.2, 0.5, 0.9], (0.1, 0.6)]


def updated(case: Case) -> Case:
    """The metric's update runs before its value; all arguments are tensors."""
    case.in_turn = True
    for one in case.inputs:
        one.way = one.way if one.fed else "constant"
    return case


def weights(d: Draw, shape: Sequence[int]) -> dict[str, Any]:
    """None, a number, of the shape, or one for each row."""
    form = d.one(["none", "none", "number", "same", "rows"])
    if form == "number":
        return {"weights": d.one([0.5, 2, 0])}
    if form == "none":
        return {}
    rows = (shape[0], *[1] * (len(shape) - 1)) if shape else ()
    return {"weights": d.array(tuple(shape) if form == "same" else rows, ("float32", "int32"), 0)}


def of_values(d: Draw, f: str) -> Case:
    """`mean(values)`."""
    d.finite = True
    shape = d.shape(0, 3)
    more = [1.0] if f.endswith("percentage_below") else []
    x = d.array(shape, ("float32", "float32", "float64", "int32"))
    if f.endswith("mean_tensor"):
        d.inputs[0].static = list(shape)
    return updated(d.call(f, x, *more, **weights(d, shape)))


def of_numbers(d: Draw, f: str) -> Case:
    """`mean_squared_error(labels, predictions)`."""
    d.finite = True
    shape, dtype = d.shape(1, 3), d.one(("float32", "float32", "float64", "int32"))
    more: list[Any] = []
    pair = [d.array(shape, dtype), d.array(shape, dtype)]
    if f.endswith("relative_error"):
        more = [d.array(shape, dtype, 1)]
    if f.endswith("cosine_distance"):
        more = [len(shape) - 1]
    return updated(d.call(f, *pair, *more, **weights(d, shape)))


def of_classes(d: Draw, f: str) -> Case:
    """`accuracy(labels, predictions)`, of numbers of classes."""
    shape, dtype = d.shape(1, 2), d.one(INDICES)
    pair = [d.array(shape, dtype, 0, 3), d.array(shape, dtype, 0, 3)]
    if f.endswith(".accuracy"):
        return updated(d.call(f, *pair, **weights(d, shape)))
    named = {"weights": d.array(shape, ("float32", "int32"), 0)} if d.chance(0.4) else {}
    for one in d.inputs:  # TensorFlow asks for their ranks
        one.static = list(shape)
    return updated(d.call(f, *pair, 4, **named))


def of_answers(d: Draw, f: str) -> Case:
    """`precision(labels, predictions)`, of right and wrong."""
    shape, dtype = d.shape(1, 2), d.one(("bool", "int32", "float32"))
    d.finite = True
    pair = [d.given(d.rng.integers(0, 2, shape).astype(dtype)) for _ in range(2)]
    return updated(d.call(f, *pair, **weights(d, shape)))


def of_chances(d: Draw, f: str) -> Case:
    """`auc(labels, predictions)`, of chances from 0 to 1."""
    d.finite = True
    shape = d.shape(1, 2)
    labels = d.given(d.rng.integers(0, 2, shape).astype(d.one(("bool", "int64", "float32"))))
    predictions = d.array(shape, "float32", 0, 1)
    args: list[Any] = []
    named = weights(d, shape)
    if f.endswith("thresholds"):
        args = [d.one(CUTS)]
    elif f.endswith("auc"):
        named |= d.some(curve=["ROC", "PR"], num_thresholds=[5, 50])
        named |= d.some(summation_method=["trapezoidal", "minoring", "majoring"])
    else:
        args = [d.one([0.3, 0.7])]
        named |= d.some(num_thresholds=[5, 50])
    return updated(d.call(f, labels, predictions, *args, **named))


def of_best(d: Draw, f: str) -> Case:
    """`precision_at_k(labels, predictions, k)`."""
    d.finite = True
    n, classes, asked = d.whole(1, 3), d.whole(2, 5), d.whole(1, 2)
    labels = indices(d, (n, d.whole(1, 2)), classes, "int64")
    named = d.some(class_id=[0, 1]) if "average" not in f else {}
    if d.chance(0.3):
        named["weights"] = d.array((n,), "float32", 0)
    if "top_k" in f:
        best = np.stack([d.rng.permutation(classes)[:asked] for _ in range(n)]).astype("int64")
        return updated(d.call(f, labels, d.given(best), **named))
    return updated(d.call(f, labels, d.array((n, classes), "float32"), asked, **named))


ROWS = [
    (of_values, "mean mean_tensor percentage_below"),
    (
        of_numbers,
        "mean_absolute_error mean_squared_error root_mean_squared_error mean_relative_error "
        "mean_cosine_distance",
    ),
    (of_classes, "accuracy mean_iou mean_per_class_accuracy"),
    (
        of_answers,
        "precision recall true_positives true_negatives false_positives false_negatives",
    ),
    (
        of_chances,
        "auc precision_at_thresholds recall_at_thresholds true_positives_at_thresholds "
        "true_negatives_at_thresholds false_positives_at_thresholds "
        "false_negatives_at_thresholds sensitivity_at_specificity specificity_at_sensitivity",
    ),
    (
        of_best,
        "precision_at_k recall_at_k precision_at_top_k recall_at_top_k average_precision_at_k "
        "sparse_precision_at_k sparse_average_precision_at_k",
    ),
]
FAMILIES = [(make, " ".join(f"metrics.{n}" for n in names.split())) for make, names in ROWS]
