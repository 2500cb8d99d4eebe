"""Per-example losses: composed losses of each sample or element."""

from __future__ import annotations

import math
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.array.array_ops import reshape, shape, stop_gradient, transpose
from hpcflow.ops.array.concat_split_ops import concat
from hpcflow.ops.math.arithmetic_ops import (
    add,
    cast,
    exp,
    greater,
    log,
    multiply,
    negative,
    subtract,
    where,
)
from hpcflow.ops.nn.nn_ops import softplus
from hpcflow.ops.shape_inference import like, make, normal_axis, operands, require_alike


@accepts_aliases(dim="axis")
def softmax_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, axis: int = -1, name: str | None = None
) -> Tensor:
    """The cross entropy of softmax of `logits` for distributions `labels` along `axis`.

    Shapes:   both equal; the loss is without `axis`. `labels` of another rank are reshaped to the
              rows of `logits`. They are cast to the dtype of `logits`.
    Gradient: by `logits` only; `labels` are constants, as in TensorFlow 1.
    """
    targets = convert_to_tensor(labels)
    return softmax_cross_entropy_with_logits_v2(stop_gradient(targets), logits, axis, name)


@accepts_aliases(dim="axis")
def softmax_cross_entropy_with_logits_v2(
    labels: Any, logits: Any, axis: int = -1, name: str | None = None
) -> Tensor:
    """`softmax_cross_entropy_with_logits` that is also differentiable by `labels`."""
    x = convert_to_tensor(logits)
    labels = convert_to_tensor(labels)
    _check_distributions(labels, x)
    p = cast(labels, x.dtype)
    if axis != -1:
        if x.shape is None:
            raise ShapeError("the rank of logits must be known for this axis", line=user_line())
        at = normal_axis(axis, len(x.shape))
        perm = [i for i in range(len(x.shape)) if i != at] + [at]
        x, p = transpose(x, perm), transpose(p, perm)
    if x.shape is None or p.shape is None or len(x.shape) != len(p.shape):
        p = reshape(p, concat([shape(x)[:-1], shape(p)[-1:]], 0))
    return make("SoftmaxCrossEntropy", [x, p], {}, name).outputs[0]


def _check_distributions(labels: Tensor, logits: Tensor) -> None:
    """Errors: ShapeError for integer labels with one axis less than `logits`: class numbers."""
    if labels.shape is None or logits.shape is None or labels.dtype.kind not in "iu":
        return
    if len(labels.shape) == len(logits.shape) - 1 and logits.shape[:1] != (1,):
        raise ShapeError(
            f"integer labels of shape {shape_text(labels.shape)} are class numbers, but "
            f"each row of logits {shape_text(logits.shape)} needs a distribution over the classes",
            line=user_line(),
            hint="use hf.nn.sparse_softmax_cross_entropy_with_logits, or hf.one_hot(labels, "
            "classes)",
        )


@accepts_aliases(targets="labels")
def weighted_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, pos_weight: Any = None, name: str | None = None
) -> Tensor:
    """`sigmoid_cross_entropy_with_logits` with the loss of positive labels times `pos_weight`.

    `labels * -log(sigmoid(x)) * pos_weight + (1 - labels) * -log(1 - sigmoid(x))`
    """
    x, z = operands(logits, labels)
    require_alike("weighted_cross_entropy_with_logits", x, z)
    extra = subtract(like(pos_weight, x), 1)
    weight = add(multiply(z, extra), 1)
    return add(multiply(x, subtract(1, z)), multiply(weight, softplus(negative(x))), name)


def log_poisson_loss(
    targets: Any, log_input: Any, compute_full_loss: bool = False, name: str | None = None
) -> Tensor:
    """The negative Poisson log-likelihood of counts `targets` at rate `exp(log_input)`.

    It omits the constant `log(targets!)`, or approximates it by Stirling's formula for targets > 1.
    """
    c, z = operands(log_input, targets)
    require_alike("log_poisson_loss", c, z)
    if not compute_full_loss:
        return subtract(exp(c), multiply(c, z), name)
    many = greater(z, 1)
    safe = where(many, z, 1)
    stirling = add(
        subtract(multiply(safe, log(safe)), safe), multiply(log(multiply(safe, 2 * math.pi)), 0.5)
    )
    loss = subtract(exp(c), multiply(c, z))
    return add(loss, where(many, stirling, convert_to_tensor(0, z.dtype)), name)
