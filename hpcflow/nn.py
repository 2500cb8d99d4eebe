"""`hf.nn`: the names of TensorFlow 1's `tf.nn` that hpcflow has; re-exports only."""

from __future__ import annotations

from hpcflow.ops.math import sigmoid, tanh
from hpcflow.ops.nn import (
    bias_add,
    dropout,
    elu,
    in_top_k,
    l2_loss,
    log_softmax,
    relu,
    relu6,
    sigmoid_cross_entropy_with_logits,
    softmax,
    softmax_cross_entropy_with_logits,
    softplus,
    sparse_softmax_cross_entropy_with_logits,
)

__all__ = [
    "bias_add",
    "dropout",
    "elu",
    "in_top_k",
    "l2_loss",
    "log_softmax",
    "relu",
    "relu6",
    "sigmoid",
    "sigmoid_cross_entropy_with_logits",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "softplus",
    "sparse_softmax_cross_entropy_with_logits",
    "tanh",
]
