"""Weighted losses of `hf.losses`: weighted, reduced to a scalar, kept in a collection."""

from __future__ import annotations

from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import float32, float64
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.array.array_ops import (
    constant,
    rank,
    reshape,
    shape,
    size,
    sizes,
    squeeze,
    stop_gradient,
)
from hpcflow.ops.array.broadcast_ops import broadcast_to
from hpcflow.ops.array.concat_split_ops import stack
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math import reduction_ops
from hpcflow.ops.math.arithmetic_ops import (
    abs,
    add,
    add_n,
    cast,
    divide,
    equal,
    log,
    minimum,
    multiply,
    not_equal,
    square,
    subtract,
    where,
)
from hpcflow.ops.math.elementwise_math_ops import div_no_nan, squared_difference
from hpcflow.ops.nn.nn_ops import (
    relu,
    sigmoid_cross_entropy_with_logits,
    sparse_softmax_cross_entropy_with_logits,
)
from hpcflow.ops.nn.per_example_losses import softmax_cross_entropy_with_logits_v2
from hpcflow.ops.shape_inference import require_alike

LOSSES, REGULARIZATION_LOSSES = "losses", "regularization_losses"


class Reduction:
    """The reduction of the losses of a batch to a scalar."""

    NONE = "none"  # no reduction
    SUM = "weighted_sum"
    SUM_OVER_BATCH_SIZE = "weighted_sum_over_batch_size"  # sum / number of losses
    MEAN = "weighted_mean"  # sum / sum of weights
    SUM_BY_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"  # / number of nonzero weights
    SUM_OVER_NONZERO_WEIGHTS = SUM_BY_NONZERO_WEIGHTS

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """All reductions."""
        return (cls.NONE, cls.SUM, cls.SUM_OVER_BATCH_SIZE, cls.MEAN, cls.SUM_BY_NONZERO_WEIGHTS)


DEFAULT = Reduction.SUM_BY_NONZERO_WEIGHTS


def compute_weighted_loss(
    losses: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = LOSSES,
    reduction: str = DEFAULT,
) -> Tensor:
    """`losses * weights`, reduced to a scalar of the dtype of `losses`; joins `loss_collection`.

    The computation is in float32, or float64 for float64 losses.

    Shapes: `weights` is a scalar, or has the rank of `losses` with sizes 1 where broadcast.
    Errors: ShapeError for weights that do not fit, or an unknown `reduction`.
    """
    if reduction not in Reduction.all():
        raise ShapeError(f"reduction {reduction!r} is not one of {Reduction.all()}")
    with get_default_graph().name_scope(scope or "weighted_loss"):
        unweighted = convert_to_tensor(losses)
        each = _wide(unweighted)
        w = _as(weights, each)
        check_weights(w, each)
        weighted = multiply(each, w)
        if reduction == Reduction.NONE:
            loss = weighted
        else:
            loss = reduction_ops.reduce_sum(weighted)
            if reduction == Reduction.SUM_OVER_BATCH_SIZE:
                loss = div_no_nan(loss, cast(size(each), each.dtype), "value")
            elif reduction == Reduction.MEAN:
                loss = div_no_nan(loss, _total(w, each), "value")
            elif reduction == Reduction.SUM_BY_NONZERO_WEIGHTS:
                count = _total(cast(not_equal(w, 0), each.dtype), each)
                loss = div_no_nan(loss, count, "value")
        loss = cast(loss, unweighted.dtype)
    add_loss(loss, loss_collection)
    return loss


def _as(value: Any, like: Tensor) -> Tensor:
    return cast(convert_to_tensor(value), like.dtype)


def _wide(t: Tensor) -> Tensor:
    """Losses as float32, except float64."""
    return t if t.dtype == float64 else cast(t, float32)


def check_weights(w: Tensor, losses: Tensor) -> None:
    """Check that `w` is a scalar or broadcasts to the shape of `losses`. Errors: ShapeError."""
    if w.shape in (None, ()) or losses.shape is None:
        return
    assert w.shape is not None
    fits = len(w.shape) == len(losses.shape) and all(
        a in (None, 1) or b is None or a == b for a, b in zip(w.shape, losses.shape, strict=True)
    )
    if not fits:
        raise ShapeError(
            f"weights {shape_text(w.shape)} do not fit values {shape_text(losses.shape)}",
            line=user_line(),
            hint="a scalar, or the same rank with sizes equal or 1",
        )


def _total(w: Tensor, losses: Tensor) -> Tensor:
    """The sum of `w` over all losses."""
    if w.shape == ():
        return multiply(w, cast(size(losses), w.dtype))
    return reduction_ops.reduce_sum(broadcast_to(w, sizes(losses)))


def _pair(labels: Any, predictions: Any, label: str) -> tuple[Tensor, Tensor]:
    """Labels cast to the dtype of the predictions, and predictions, both of one shape."""
    p = _wide(convert_to_tensor(predictions))
    z = _as(labels, p)
    require_alike(label, z, p)
    return z, p


# -- losses by name


def absolute_difference(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = LOSSES,
    reduction: str = DEFAULT,
) -> Tensor:
    """`|predictions - labels|`."""
    z, p = _pair(labels, predictions, "absolute_difference")
    each = abs(subtract(p, z))
    return compute_weighted_loss(
        each, weights, scope or "absolute_difference", loss_collection, reduction
    )


def mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = LOSSES,
    reduction: str = DEFAULT,
) -> Tensor:
    """`(predictions - labels) ** 2`."""
    z, p = _pair(labels, predictions, "mean_squared_error")
    each = squared_difference(p, z)
    return compute_weighted_loss(
        each, weights, scope or "mean_squared_error", loss_collection, reduction
    )


def huber_loss(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    delta: float = 1.0,
    scope: str | None = None,
    loss_collection: str | None = LOSSES,
    reduction: str = DEFAULT,
) -> Tensor:
    """Half the squared error up to `delta`, linear beyond."""
    z, p = _pair(labels, predictions, "huber_loss")
    error = abs(subtract(p, z))
    inner = minimum(error, delta)
    each = add(multiply(square(inner), 0.5), multiply(subtract(error, inner), delta))
    return compute_weighted_loss(each, weights, scope or "huber_loss", loss_collection, reduction)


def hinge_loss(
    labels: Any,
    logits: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = LOSSES,
    reduction: str = DEFAULT,
) -> Tensor:
    """`max(0, 1 - y * logits)`, where `y` is -1 for label 0 and 1 for label 1."""
    z, x = _pair(labels, logits, "hinge_loss")
    each = relu(subtract(1, multiply(subtract(multiply(z, 2), 1), x)))
    return compute_weighted_loss(each, weights, scope or "hinge_loss", loss_collection, reduction)


def log_loss(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    epsilon: float = 1e-7,
    scope: str | None = None,
    loss_collection: str | None = LOSSES,
    reduction: str = DEFAULT,
) -> Tensor:
    """`-labels * log(p + epsilon) - (1 - labels) * log(1 - p + epsilon)` of probabilities `p`."""
    z, p = _pair(labels, predictions, "log_loss")
    yes = multiply(z, log(add(p, epsilon)))
    no = multiply(subtract(1, z), log(add(subtract(1, p), epsilon)))
    each = multiply(add(yes, no), -1)
    return compute_weighted_loss(each, weights, scope or "log_loss", loss_collection, reduction)


@accepts_aliases(dim="axis")
def cosine_distance(
    labels: Any,
    predictions: Any,
    axis: int,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = LOSSES,
    reduction: str = DEFAULT,
) -> Tensor:
    """`1 - sum(labels * predictions)` over `axis`, for unit vectors along it."""
    z, p = _pair(labels, predictions, "cosine_distance")
    each = subtract(1, reduction_ops.reduce_sum(multiply(z, p), axis, True))
    return compute_weighted_loss(
        each, weights, scope or "cosine_distance", loss_collection, reduction
    )


def sigmoid_cross_entropy(
    multi_class_labels: Any,
    logits: Any,
    weights: Any = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = LOSSES,
    reduction: str = DEFAULT,
) -> Tensor:
    """The cross entropy of independent binary labels; label smoothing towards 1/2."""
    z, x = _pair(multi_class_labels, logits, "sigmoid_cross_entropy")
    if label_smoothing:
        z = add(multiply(z, 1 - label_smoothing), 0.5 * label_smoothing)
    each = sigmoid_cross_entropy_with_logits(labels=z, logits=x)
    scope = scope or "sigmoid_cross_entropy_loss"
    return compute_weighted_loss(each, weights, scope, loss_collection, reduction)


def softmax_cross_entropy(
    onehot_labels: Any,
    logits: Any,
    weights: Any = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = LOSSES,
    reduction: str = DEFAULT,
) -> Tensor:
    """The cross entropy of distributions over classes; label smoothing towards uniform.

    Shapes: both [..., classes]; `weights` is a scalar or shaped as the losses, [...].
    """
    z, x = _pair(onehot_labels, logits, "softmax_cross_entropy")
    if label_smoothing:
        classes = cast(getitem(shape(x), -1), x.dtype)
        z = add(multiply(z, 1 - label_smoothing), divide(label_smoothing, classes))
    each = softmax_cross_entropy_with_logits_v2(stop_gradient(z), x)
    scope = scope or "softmax_cross_entropy_loss"
    return compute_weighted_loss(each, weights, scope, loss_collection, reduction)


def sparse_softmax_cross_entropy(
    labels: Any,
    logits: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = LOSSES,
    reduction: str = DEFAULT,
) -> Tensor:
    """The cross entropy of class numbers, [...] or [..., 1], for logits [..., classes].

    Weights may also have a last axis of size 1.
    """
    x, z = _wide(convert_to_tensor(logits)), convert_to_tensor(labels)
    w = convert_to_tensor(weights)
    scope = scope or "sparse_softmax_cross_entropy_loss"
    with get_default_graph().name_scope(scope):
        z = _of_rank(z, subtract(rank(x), 1))
        w = _of_rank(w, rank(z))
        each = sparse_softmax_cross_entropy_with_logits(labels=z, logits=x)
    return compute_weighted_loss(each, w, scope, loss_collection, reduction)


def _of_rank(t: Tensor, target_rank: Tensor) -> Tensor:
    """`t` without its last axis, of size 1, if its rank is one more than `target_rank`."""
    if t.shape is not None and target_rank.constant is not None:
        has_extra = len(t.shape) == target_rank.constant + 1 and t.shape[-1] in (None, 1)
        return squeeze(t, -1) if has_extra else t
    if t.shape is not None and (not t.shape or t.shape[-1] not in (None, 1)):
        return t
    axes = where(equal(rank(t), add(target_rank, 1)), target_rank, rank(t))
    return reshape(t, getitem(shape(t), slice(0, axes)))


def mean_pairwise_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = LOSSES,
) -> Tensor:
    """The mean of `(e[i] - e[j]) ** 2` over pairs of errors of a sample, summed over samples.

    Weights are per sample: a scalar, [batch] or [batch, 1, ...].
    """
    z, p = _pair(labels, predictions, "mean_pairwise_squared_error")
    with get_default_graph().name_scope(scope or "mean_pairwise_squared_error"):
        error = reshape(subtract(p, z), stack([getitem(shape(p), 0), -1]))
        n = cast(getitem(shape(error), 1), p.dtype)
        total = reduction_ops.reduce_sum(error, 1)
        spread = subtract(multiply(reduction_ops.reduce_sum(square(error), 1), n), square(total))
        each = multiply(div_no_nan(spread, multiply(n, subtract(n, 1))), 2)
        w = _as(weights, each)
        if w.shape != ():
            w = reshape(w, [-1])
        loss = cast(reduction_ops.reduce_sum(multiply(each, w)), p.dtype)
    add_loss(loss, loss_collection)
    return loss


# -- collections


def add_loss(loss: Tensor, loss_collection: str | None = LOSSES) -> None:
    """Add `loss` to the collection for `get_total_loss`."""
    if loss_collection:
        get_default_graph().add_to_collection(loss_collection, loss)


def get_losses(scope: str | None = None, loss_collection: str = LOSSES) -> list[Tensor]:
    """The losses in the collection whose names `scope` (a regular expression) matches."""
    return get_default_graph().get_collection(loss_collection, scope)


def get_regularization_losses(scope: str | None = None) -> list[Tensor]:
    """The losses of the variables' regularizers."""
    return get_losses(scope, REGULARIZATION_LOSSES)


def get_regularization_loss(
    scope: str | None = None, name: str = "total_regularization_loss"
) -> Tensor:
    """The sum of `get_regularization_losses`, 0 if there are none."""
    return _sum(get_regularization_losses(scope), name)


def get_total_loss(
    add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None
) -> Tensor:
    """The sum of all losses in the collection, and of the regularization losses."""
    losses = get_losses(scope)
    if add_regularization_losses:
        losses += get_regularization_losses(scope)
    return _sum(losses, name)


def _sum(losses: list[Tensor], name: str) -> Tensor:
    return add_n(losses, name) if losses else constant(0.0, name=name)
