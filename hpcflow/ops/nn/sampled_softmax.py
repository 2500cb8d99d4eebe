"""Sampled softmax: losses over sampled classes; also noise-contrastive estimation."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph
from hpcflow.ops.array.array_ops import expand_dims, reshape, shape, stop_gradient
from hpcflow.ops.array.broadcast_ops import ones_like, zeros_like
from hpcflow.ops.array.concat_split_ops import concat
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.linalg.matmul_ops import matmul
from hpcflow.ops.math.arithmetic_ops import add, cast, divide, log, multiply, subtract, where
from hpcflow.ops.math.reduction_ops import reduce_any, reduce_sum
from hpcflow.ops.nn.candidate_sampling_ops import (
    Candidates,
    checked_labels,
    hits_of,
    log_uniform_candidate_sampler,
)
from hpcflow.ops.nn.embedding_lookup import embedding_lookup
from hpcflow.ops.nn.nn_ops import (
    sigmoid_cross_entropy_with_logits,
)
from hpcflow.ops.nn.per_example_losses import softmax_cross_entropy_with_logits


def sampled_softmax_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Candidates | None = None,
    remove_accidental_hits: bool = True,
    partition_strategy: str = "mod",
    name: str | None = None,
    seed: int | None = None,
) -> Tensor:
    """Softmax cross entropy of the true classes among `num_sampled` others (Jean et al. 2015).

    `weights` [num_classes, dim] and `biases` [num_classes] are tables or lists of shards. Only the
    rows of true and sampled classes are read and get gradients. The log of the expected count is
    subtracted from logits. `sampled_values` is the result of a candidate sampler, by default
    log-uniform without repetition, for classes sorted by decreasing frequency. For training only.

    Shapes: labels [batch, num_true], inputs [batch, dim]; the losses are [batch].
    """
    with get_default_graph().name_scope(name or "sampled_softmax_loss"):
        logits, targets = _logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
            remove_accidental_hits, partition_strategy, seed,
        )  # fmt: skip
        return softmax_cross_entropy_with_logits(labels=stop_gradient(targets), logits=logits)


def nce_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Candidates | None = None,
    remove_accidental_hits: bool = False,
    partition_strategy: str = "mod",
    name: str | None = None,
    seed: int | None = None,
) -> Tensor:
    """Noise-contrastive estimation (Gutmann and Hyvarinen 2010) with sampled classes as noise.

    The loss is the sum of logistic losses over true and sampled classes. Arguments, shapes and rows
    read are those of `sampled_softmax_loss`.
    """
    with get_default_graph().name_scope(name or "nce_loss"):
        logits, targets = _logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
            remove_accidental_hits, partition_strategy, seed,
        )  # fmt: skip
        losses = sigmoid_cross_entropy_with_logits(labels=stop_gradient(targets), logits=logits)
        return reduce_sum(losses, 1)


def _logits(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: Candidates | None,
    remove_hits: bool,
    strategy: str,
    seed: int | None,
) -> tuple[Tensor, Tensor]:
    """Logits and targets [batch, num_true + num_sampled] of true and sampled classes."""
    true, x = checked_labels(labels, num_true), convert_to_tensor(inputs)
    if sampled_values is None:
        sampled_values = log_uniform_candidate_sampler(
            true, num_true, num_sampled, True, num_classes, seed
        )
    sampled, of_true, of_sampled = (convert_to_tensor(v) for v in sampled_values)
    flat = concat([reshape(true, [-1]), cast(sampled, true.dtype)], 0)
    w = embedding_lookup(weights, flat, strategy)
    b = embedding_lookup(biases, flat, strategy)
    # counted from the end, since the number of true rows is known only at run time
    true_w, sampled_w = getitem(w, slice(0, -num_sampled)), getitem(w, slice(-num_sampled, None))
    true_b, sampled_b = getitem(b, slice(0, -num_sampled)), getitem(b, slice(-num_sampled, None))
    static_width = None if w.shape is None else w.shape[1]
    width = getitem(shape(w), 1) if static_width is None else static_width
    each = reshape(true_w, [-1, num_true, width])
    true_logits = reduce_sum(multiply(expand_dims(x, 1), each), 2)
    true_logits = add(true_logits, reshape(true_b, [-1, num_true]))
    sampled_logits = add(matmul(x, sampled_w, transpose_b=True), sampled_b)
    if remove_hits:
        hit = reduce_any(hits_of(true, sampled), 1)
        least = np.asarray(np.finfo(x.dtype).min, x.dtype)
        sampled_logits = add(sampled_logits, where(hit, least, np.zeros((), x.dtype)))
    true_logits = subtract(true_logits, log(cast(of_true, x.dtype)))
    sampled_logits = subtract(sampled_logits, log(cast(of_sampled, x.dtype)))
    targets = [divide(ones_like(true_logits), num_true), zeros_like(sampled_logits)]
    outputs = concat([true_logits, sampled_logits], 1), concat(targets, 1)
    for tensor in outputs:
        for source in (true, x):
            tensor.set_shape((None if source.shape is None else source.shape[0], None))
    return outputs
