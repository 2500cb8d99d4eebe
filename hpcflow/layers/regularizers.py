"""Regularizers: functions of weights that return a loss term, as `tf.contrib.layers`."""

from __future__ import annotations

from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.layers.layer_builder import Function
from hpcflow.ops.math.arithmetic_ops import abs, add, multiply
from hpcflow.ops.math.reduction_ops import reduce_sum
from hpcflow.ops.nn.nn_ops import l2_loss


def l1_regularizer(scale: float) -> Function:
    """L1 regularizer: `scale * sum(|w|)`."""
    return _scaled(scale, lambda w: reduce_sum(abs(w)))


def l2_regularizer(scale: float) -> Function:
    """L2 regularizer: `scale * sum(w ** 2) / 2`, whose gradient is `scale * w`."""
    return _scaled(scale, l2_loss)


def l1_l2_regularizer(scale_l1: float = 1.0, scale_l2: float = 1.0) -> Function:
    """The sum of an L1 and an L2 regularizer."""
    l1, l2 = l1_regularizer(scale_l1), l2_regularizer(scale_l2)
    return lambda w: add(l1(w), l2(w))


def _scaled(scale: float, penalty: Function) -> Function:
    if not scale >= 0:
        raise ShapeError(
            f"the scale of a regularizer must be at least 0, not {scale!r}", line=user_line()
        )

    def regularizer(w: Any) -> Tensor:
        return multiply(penalty(convert_to_tensor(w)), scale)

    return regularizer
