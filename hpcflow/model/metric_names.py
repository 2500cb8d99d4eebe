"""Metrics of `Model.compile`: functions of `hf.metrics` by name, exact over all ranks' samples.

A batch's contributions (sums, counts) are fetched with each step. A rank adds up those of its
batches, and the ranks' totals are added up at the end of an epoch. So no step sends a message for a
metric.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import GraphError
from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Tensor
from hpcflow.graph.static_shape import require_known
from hpcflow.model.loss_names import Loss
from hpcflow.ops.math.arithmetic_ops import cast, equal, greater, multiply, sigmoid
from hpcflow.ops.math.elementwise_math_ops import div_no_nan
from hpcflow.ops.math.reduction_ops import argmax, reduce_sum
from hpcflow.ops.metrics import confusion_metrics, mean_metrics, metric_variables
from hpcflow.ops.metrics.metric_variables import metric, sums_outside
from hpcflow.ops.nn.nn_ops import softmax

ALIASES = {"acc": "accuracy", "f1_score": "f1", "mse": "mean_squared_error"}
ALIASES |= {"mae": "mean_absolute_error", "rmse": "root_mean_squared_error"}
Pair = tuple[Tensor, Tensor]


class ModelMetric(NamedTuple):
    """A metric: what a batch adds to its sums, where their totals are fed, and its value."""

    name: str
    added: tuple[Tensor, ...]
    totals: tuple[Tensor, ...]
    value: Tensor


class Totals:
    """The sums of some metrics over batches, in float64."""

    def __init__(self, metrics: Sequence[ModelMetric]) -> None:
        self.metrics = metrics
        self.sums = [np.zeros(require_known(t.shape)) for m in metrics for t in m.added]

    @property
    def fetches(self) -> list[Tensor]:
        """What to fetch with each batch, for `add`."""
        return [t for one in self.metrics for t in one.added]

    def add(self, values: Sequence[Any]) -> None:
        """Add the contributions of a batch."""
        for total, value in zip(self.sums, values, strict=True):
            total += value

    def flat(self) -> np.ndarray:
        """All sums as one vector, to be added up over the ranks."""
        return np.concatenate([np.zeros(0), *(total.ravel() for total in self.sums)])

    def take(self, flat: np.ndarray) -> None:
        """Replace the sums by those of `flat`."""
        start = 0
        for total in self.sums:
            total[...] = flat[start : start + total.size].reshape(total.shape)
            start += total.size

    def feeds(self) -> dict[Tensor, np.ndarray]:
        """The totals, as feeds of the metrics' values."""
        places = [t for one in self.metrics for t in one.totals]
        return {t: total.astype(t.dtype) for t, total in zip(places, self.sums, strict=True)}


def mean_metric(name: str, values: Tensor, weights: Any = None) -> ModelMetric:
    """The mean of some values over all samples."""
    return _captured(name, lambda: mean_metrics.mean(values, weights))


def build_metric(given: Any, loss: Loss, labels: Tensor, output: Tensor) -> ModelMetric:
    """The metric of a name, of a function, or of a pair (name, function).

    A function of (labels, outputs) is one of `hf.metrics`, or returns values that are averaged.

    Errors: GraphError for another value; it names the nearest metric.
    """
    name, function = given if isinstance(given, tuple) else (None, given)
    if isinstance(function, str):
        known = ALIASES.get(function, function)
        if known not in METRICS:
            near = difflib.get_close_matches(function, [*METRICS, *ALIASES], 1)
            raise GraphError(
                f"metrics={function!r} is not a metric"
                + (f"; did you mean {near[0]!r}?" if near else ""),
                hint=f"give one of {', '.join(METRICS)}, or a function of (labels, outputs)",
            )
        make = METRICS[known]
        return _captured(name or function, lambda: make(loss, labels, output))
    if not callable(function):
        raise GraphError(
            f"metrics={function!r} is neither a name nor a function of (labels, outputs)",
            hint="for example metrics=['accuracy']",
        )

    def call() -> Pair:
        result = function(labels, output)
        return result if isinstance(result, tuple) else mean_metrics.mean(result)

    return _captured(name or getattr(function, "__name__", type(function).__name__), call)


def _captured(name: str, make: Callable[[], Pair]) -> ModelMetric:
    with sums_outside() as sums:
        value, _ = make()
    if not sums:
        raise GraphError(
            f"the metric {name!r} has no sums to add up over batches",
            hint="return a function of hf.metrics, or a tensor with a value for each sample",
        )
    return ModelMetric(name, tuple(s.added for s in sums), tuple(s.total for s in sums), value)


# -- by name


def _hits(loss: Loss, labels: Tensor, output: Tensor) -> Tensor:
    """Where the model is right: the likeliest class, or the side of one half."""
    if loss.takes_classes:
        return equal(argmax(output, -1, output_type=labels.dtype), labels)
    if (
        loss.is_custom
        and labels.dtype.kind in "iu"
        and len(labels.shape or ()) == (len(output.shape or ()) - 1)
    ):  # class numbers
        return equal(argmax(output, -1, output_type=labels.dtype), labels)
    wide = loss.kind == "values" and output.shape is not None and len(output.shape) > 1
    if loss.kind == "classes" or (wide and output.shape is not None and output.shape[-1] != 1):
        return equal(argmax(output, -1), argmax(labels, -1))
    return equal(_says_yes(loss, output), greater(labels, 0.5))


def _says_yes(loss: Loss, output: Tensor) -> Tensor:
    return greater(_probability(loss, output), 0.5)


def _probability(loss: Loss, output: Tensor) -> Tensor:
    if loss.takes_classes:
        raise GraphError(
            f"precision, recall, f1 and auc count yes and no; loss={loss.name!r} has class numbers",
            hint=f"give one-hot labels and loss={loss.name.replace('sparse_', '')!r}",
        )
    if not loss.takes_logits:
        return output
    return softmax(output) if loss.kind == "classes" else sigmoid(output)


def _f1(loss: Loss, labels: Tensor, output: Tensor) -> Pair:
    """`2 tp / (2 tp + fp + fn)`, 0 where nothing is positive."""
    said, true = (cast(t, float32) for t in (_says_yes(loss, output), greater(labels, 0.5)))
    counts = {
        "hits": reduce_sum(multiply(said, true)),
        "said": reduce_sum(said),
        "true": reduce_sum(true),
    }
    return metric(counts, lambda hits, s, t: div_no_nan(2.0 * hits, s + t), None, None)


def _decided(function: metric_variables.Metric) -> Callable[[Loss, Tensor, Tensor], Pair]:
    return lambda loss, labels, output: function(greater(labels, 0.5), _says_yes(loss, output))


METRICS: dict[str, Callable[[Loss, Tensor, Tensor], Pair]] = {
    "accuracy": lambda loss, t, y: mean_metrics.mean(_hits(loss, t, y)),
    "precision": _decided(confusion_metrics.precision),
    "recall": _decided(confusion_metrics.recall),
    "f1": _f1,
    "auc": lambda loss, t, y: confusion_metrics.auc(t, _probability(loss, y)),
    "mean_squared_error": lambda loss, t, y: mean_metrics.mean_squared_error(t, y),
    "mean_absolute_error": lambda loss, t, y: mean_metrics.mean_absolute_error(t, y),
    "root_mean_squared_error": lambda loss, t, y: mean_metrics.root_mean_squared_error(t, y),
}
