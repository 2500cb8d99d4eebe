"""Losses of `Model.compile` by name: one value a sample, from labels and the model's output.

The formulas are Keras's. The names with `crossentropy` take probabilities; where the output is a
softmax or a sigmoid, they use its operand, which is the same and more exact. The names with
`cross_entropy` take logits, as those of `hf.losses`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hpcflow.errors import GraphError
from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Tensor
from hpcflow.ops.math.arithmetic_ops import (
    abs,
    add,
    clip_by_value,
    divide,
    less_equal,
    log,
    maximum,
    minimum,
    multiply,
    square,
    subtract,
    where,
)
from hpcflow.ops.math.reduction_ops import reduce_mean, reduce_sum
from hpcflow.ops.nn.nn_ops import (
    sigmoid_cross_entropy_with_logits,
    sparse_softmax_cross_entropy_with_logits,
)
from hpcflow.ops.nn.per_example_losses import softmax_cross_entropy_with_logits_v2

EPSILON = 1e-7  # Keras's; probabilities are clipped to [EPSILON, 1 - EPSILON]
HUBER_DELTA = 1.0
ALIASES = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "kld": "kl_divergence",
    "bce": "binary_crossentropy",
}
Formula = Callable[[Tensor, Tensor], Tensor]
LabelsSpec = tuple[Any, Sequence[int | None]]  # dtype of labels, shape of those of a sample


class Loss(NamedTuple):
    """A loss: its formula, whether labels are class numbers, and whether the output is logits.

    `kind` is "classes" (one of several), "binary" (yes or no for each element) or "values".
    """

    name: str
    formula: Formula
    kind: str = "values"
    takes_classes: bool = False
    takes_logits: bool = False
    is_custom: bool = False  # a function of the user


def _mean_last(x: Tensor) -> Tensor:
    """The mean over the last axis; a vector has one value a sample already."""
    return reduce_mean(x, -1) if x.shape is None or len(x.shape) > 1 else x


def _clipped(p: Tensor) -> Tensor:
    return clip_by_value(p, EPSILON, 1.0 - EPSILON)


def operand_of(output: Tensor, type: str) -> Tensor | None:
    """The operand of the operation of this type that makes the output; None if another makes it."""
    return output.op.inputs[0] if output.op.type == type else None


def _sparse(labels: Tensor, output: Tensor) -> Tensor:
    logits = operand_of(output, "Softmax")
    return _sparse_logits(labels, log(_clipped(output)) if logits is None else logits)


def _sparse_logits(labels: Tensor, logits: Tensor) -> Tensor:
    return sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def _categorical(labels: Tensor, output: Tensor) -> Tensor:
    logits = operand_of(output, "Softmax")
    if logits is not None:
        return _categorical_logits(labels, logits)
    shares = _clipped(divide(output, reduce_sum(output, -1, keepdims=True)))
    return multiply(-1.0, reduce_sum(multiply(labels, log(shares)), -1))


def _categorical_logits(labels: Tensor, logits: Tensor) -> Tensor:
    return softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits)


def _binary(labels: Tensor, output: Tensor) -> Tensor:
    logits = operand_of(output, "Sigmoid")
    if logits is not None:
        return _binary_logits(labels, logits)
    p = _clipped(output)
    yes = multiply(labels, log(add(p, EPSILON)))
    no = multiply(subtract(1.0, labels), log(add(subtract(1.0, p), EPSILON)))
    return _mean_last(multiply(-1.0, add(yes, no)))


def _binary_logits(labels: Tensor, logits: Tensor) -> Tensor:
    return _mean_last(sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))


def _huber(labels: Tensor, output: Tensor) -> Tensor:
    error = abs(subtract(output, labels))
    squared = multiply(0.5, square(error))
    linear = multiply(HUBER_DELTA, subtract(error, 0.5 * HUBER_DELTA))
    return _mean_last(where(less_equal(error, HUBER_DELTA), squared, linear))


def _poisson(labels: Tensor, output: Tensor) -> Tensor:
    return _mean_last(subtract(output, multiply(labels, log(add(output, EPSILON)))))


def _kl_divergence(labels: Tensor, output: Tensor) -> Tensor:
    t, p = (minimum(maximum(x, EPSILON), 1.0) for x in (labels, output))
    return reduce_sum(multiply(t, log(divide(t, p))), -1)


LOSSES = {
    loss.name: loss
    for loss in (
        Loss("mean_squared_error", lambda t, y: _mean_last(square(subtract(y, t)))),
        Loss("mean_absolute_error", lambda t, y: _mean_last(abs(subtract(y, t)))),
        Loss("huber", _huber),
        Loss("poisson", _poisson),
        Loss("kl_divergence", _kl_divergence),
        Loss("binary_crossentropy", _binary, "binary"),
        Loss("categorical_crossentropy", _categorical, "classes"),
        Loss("sparse_categorical_crossentropy", _sparse, "classes", takes_classes=True),
        Loss("sigmoid_cross_entropy", _binary_logits, "binary", takes_logits=True),
        Loss("softmax_cross_entropy", _categorical_logits, "classes", takes_logits=True),
        Loss("sparse_softmax_cross_entropy", _sparse_logits, "classes", True, takes_logits=True),
    )
}


def find_loss(given: Any) -> Loss:
    """The loss of a name, or of a function `loss(labels, outputs)`.

    A function of `hf.losses` stands for its name. Another function returns a value for each sample,
    or one for the batch, which is the mean over its samples.

    Errors: GraphError for another value; it names the nearest loss.
    """
    if isinstance(given, str):
        name = ALIASES.get(given, given)
        if name in LOSSES:
            return LOSSES[name]
        near = difflib.get_close_matches(given, [*LOSSES, *ALIASES], 1)
        raise GraphError(
            f"loss={given!r} is not a loss" + (f"; did you mean {near[0]!r}?" if near else ""),
            hint=f"give one of {', '.join(LOSSES)}, or a function of (labels, outputs)",
        )
    if not callable(given):
        raise GraphError(
            f"loss={given!r} is neither a name nor a function of (labels, outputs)",
            hint="for example loss='mse'",
        )
    name = getattr(given, "__name__", type(given).__name__)
    if str(getattr(given, "__module__", "")).startswith("hpcflow.") and name in LOSSES:
        return LOSSES[name]
    return Loss(name, given, is_custom=True)


def labels_spec(loss: Loss, output: Tensor, data: LabelsSpec | None = None) -> tuple[Any, Any]:
    """The dtype and the shape of the labels that a loss compares with an output.

    A function of the user gets labels of the shape of the `data`, if they have not the output's,
    such as class numbers; a last axis of size 1 makes no difference. Of floating-point numbers it
    gets those of the output's dtype.
    """
    if loss.takes_classes:
        return int64, None if output.shape is None else output.shape[:-1]
    if loss.is_custom and data is not None and output.shape is not None:
        dtype, row = data
        if not _fits(tuple(row), output.shape[1:]):
            return output.dtype if dtype.kind == "f" else dtype, (None, *row)
    return output.dtype, output.shape


def _fits(row: tuple[int | None, ...], expected: tuple[int | None, ...]) -> bool:
    """Whether the shape of a row is the expected one, but for a last axis of size 1."""
    if len(row) != len(expected):
        row, expected = (s[:-1] if s[-1:] == (1,) else s for s in (row, expected))
    return len(row) == len(expected) and all(
        a == b or None in (a, b) for a, b in zip(row, expected, strict=True)
    )
