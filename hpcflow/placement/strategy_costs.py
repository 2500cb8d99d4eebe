"""Terms of the time of a training step under a parallel strategy, each a function of its own.

All take columns with one entry per setup and return seconds of the busiest device. Sources:
- Narayanan et al., SC 2021: products of a layer, 1F1B schedule, all-reduces of tensor parallelism.
- Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023:
  the arrays that a layer reads and writes beside its products.
- Rajbhandari et al., ZeRO, SC 2020: bytes of an update with Adam and 16-bit weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from hpcflow.placement.allreduce_tables import AllreduceTables
from hpcflow.placement.parallel_strategy import TrainingSetup

Array = np.ndarray
Constants = Mapping[str, float]

PASSES = 3  # a forward pass, and a backward pass with two products for each of its products
LAYER_OPERATIONS = 120  # kernels of a layer: about 40 forward and 80 backward
LAYER_ALLREDUCES = 4  # after attention and after the feed-forward part, in each direction
SCORE_ACCESSES = 30  # scale, mask, softmax, dropout and their gradients: reads and writes
WHOLE_ACCESSES = 30  # normalization, dropout and residual sum, which every device does in full
SPLIT_ACCESSES = 30  # bias and activation of what tensor parallelism splits
UPDATE_BYTES = 28  # of a weight: 2 + 2 in 16 bits, 24 for master copy and moments, read and written
TRANSFER_LATENCY_S = 10e-6


@dataclasses.dataclass(frozen=True)
class SetupColumns:
    """Setups as columns of numbers, with the all-reduces that they need."""

    layers: Array
    hidden: Array
    heads: Array
    sequence: Array
    vocabulary: Array
    data: Array
    tensor: Array
    pipeline: Array
    micro_batch: Array
    micro_batches: Array
    precision_bytes: Array
    activation_allreduce_s: Array
    gradient_allreduce_s: Array

    @property
    def stage_layers(self) -> Array:
        """Layers of the largest stage."""
        return np.ceil(self.layers / self.pipeline)

    @property
    def activation_bytes(self) -> Array:
        """Of the output of a layer for a micro-batch."""
        return self.precision_bytes * self.micro_batch * self.sequence * self.hidden


def columns(setups: Sequence[TrainingSetup], tables: AllreduceTables) -> SetupColumns:
    """Errors: PlacementError if a table is missing."""
    parts = [dataclasses.asdict(s.model) | dataclasses.asdict(s.strategy) for s in setups]
    column = {name: np.array([float(part[name]) for part in parts]) for name in parts[0]}
    nothing = np.zeros(len(setups))
    bare = SetupColumns(**column, activation_allreduce_s=nothing, gradient_allreduce_s=nothing)
    gradients = bare.precision_bytes * device_parameters(bare)
    return dataclasses.replace(
        bare,
        activation_allreduce_s=tables.seconds(bare.tensor, bare.activation_bytes),
        gradient_allreduce_s=tables.seconds(bare.data, gradients),
    )


def device_parameters(x: SetupColumns) -> Array:
    """Weights of a device of the first or last stage: 12 h^2 a layer, and the embedding.

    The embedding is a table of the first stage and, shared, the last product of the last.
    """
    return (12 * x.hidden**2 * x.stage_layers + x.vocabulary * x.hidden) / x.tensor


def product_seconds(x: SetupColumns, c: Constants) -> Array:
    """Matrix products of a layer: 24 B s h^2 + 4 B s^2 h FLOPs a pass, split over `tensor`.

    A product with few columns leaves a part of the device idle.
    """
    weights = 24 * x.sequence * x.hidden**2
    attention = 4 * x.sequence**2 * x.hidden
    flops = PASSES * x.micro_batch * (weights + attention) / x.tensor
    return flops / c["product_flops"] * (1 + c["half_speed_columns"] * x.tensor / x.hidden)


def memory_seconds(x: SetupColumns, c: Constants) -> Array:
    """Attention scores and elementwise operations of a layer, by the bytes that they move."""
    scores = SCORE_ACCESSES * x.sequence**2 * x.heads / x.tensor
    rows = (WHOLE_ACCESSES + SPLIT_ACCESSES / x.tensor) * x.sequence * x.hidden
    moved = x.precision_bytes * x.micro_batch * (scores + rows)
    return moved / c["memory_bytes_per_s"]


def activation_allreduce_seconds(x: SetupColumns, c: Constants) -> Array:
    """All-reduces of tensor parallelism in a layer, which nothing overlaps."""
    one = x.activation_allreduce_s * c["activation_allreduce_factor"] + c["allreduce_wait_s"]
    return np.where(x.tensor > 1, LAYER_ALLREDUCES * one, 0.0)


def launch_seconds(x: SetupColumns, c: Constants) -> Array:
    """Launches of a layer's operations; at each all-reduce the slowest of the ranks counts."""
    skew = LAYER_ALLREDUCES * c["rank_skew_s"] * (x.tensor - 1)
    return LAYER_OPERATIONS * c["launch_s"] + skew


def layer_seconds(x: SetupColumns, c: Constants) -> Array:
    """A layer, forward and backward, for a micro-batch.

    The host launches while the device computes, so the slower of the two counts; a norm stands for
    the maximum, because a layer has operations of both kinds.
    """
    device = product_seconds(x, c) + memory_seconds(x, c) + activation_allreduce_seconds(x, c)
    device = device + LAYER_OPERATIONS * c["kernel_s"]
    exponent = c["overlap_exponent"]
    longer = np.maximum(device, launch_seconds(x, c))
    shorter = np.minimum(device, launch_seconds(x, c))
    return longer * (1 + (shorter / longer) ** exponent) ** (1 / exponent)


def vocabulary_seconds(x: SetupColumns, c: Constants) -> Array:
    """Product with the vocabulary and loss for a micro-batch, on the last stage.

    Tensor parallelism pads the vocabulary to whole tiles on each device. On one device it may
    stay unpadded, so that products take slower kernels: a factor.
    """
    flops = PASSES * 2 * x.micro_batch * x.sequence * x.hidden * x.vocabulary / x.tensor
    factor = np.where(x.tensor > 1, 1.0, c["whole_vocabulary_factor"])
    return flops / c["vocabulary_flops"] * factor + c["micro_batch_s"]


def pipeline_seconds(x: SetupColumns, stage: Array, last_more: Array) -> Array:
    """A step of the 1F1B schedule: all stages take `stage` a micro-batch, the last one more.

    With equal stages the share (p - 1) / (m + p - 1) of it is the bubble.
    """
    return (x.micro_batches + x.pipeline - 1) * stage + x.micro_batches * last_more


def transfer_seconds(x: SetupColumns, c: Constants) -> Array:
    """Activations from the first stage to the last, and gradients back, which nothing overlaps."""
    one = TRANSFER_LATENCY_S + x.activation_bytes / c["link_bytes_per_s"]
    return 2 * (x.pipeline - 1) * one


def gradient_allreduce_seconds(x: SetupColumns, c: Constants) -> Array:
    """All-reduce of data parallelism after the last backward pass."""
    return x.gradient_allreduce_s * c["gradient_allreduce_factor"]


def update_seconds(x: SetupColumns, c: Constants) -> Array:
    """Update of the weights of a device, by the bytes that it moves."""
    return UPDATE_BYTES * device_parameters(x) / c["update_bytes_per_s"]


def step_seconds(
    x: SetupColumns,
    c: Constants,
    layer_factor: Array | float = 1.0,
    last_factor: Array | float = 1.0,
) -> Array:
    """A training step. The factors scale the time of a layer and that of the vocabulary."""
    stage = x.stage_layers * layer_seconds(x, c) * layer_factor
    compute = pipeline_seconds(x, stage, vocabulary_seconds(x, c) * last_factor)
    after = gradient_allreduce_seconds(x, c) + update_seconds(x, c) + c["step_s"]
    return compute + transfer_seconds(x, c) + after
