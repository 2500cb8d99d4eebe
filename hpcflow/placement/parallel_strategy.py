"""Parallel strategies of layered models: what is trained, and how devices share it.

A model is a stack of equal transformer layers between an embedding and the product with the
vocabulary. A strategy cuts it three ways, as Narayanan et al. describe (Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM, SC 2021): matrices of a layer over
`tensor` devices, layers over `pipeline` stages, samples over `data` replicas.
"""

from __future__ import annotations

import dataclasses

from hpcflow.errors import PlacementError


@dataclasses.dataclass(frozen=True)
class LayeredModel:
    """A transformer: `sequence` tokens a sample; the vocabulary includes its padding."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int

    def __post_init__(self) -> None:
        _check_counts(self)


@dataclasses.dataclass(frozen=True)
class ParallelStrategy:
    """Degrees of parallelism, samples of a micro-batch, micro-batches of a replica in a step.

    `precision_bytes` is the size of an element of weights, gradients and activations.
    """

    data: int
    tensor: int
    pipeline: int
    micro_batch: int
    micro_batches: int
    precision_bytes: int = 2

    def __post_init__(self) -> None:
        _check_counts(self)

    @property
    def devices(self) -> int:
        """All devices of a job."""
        return self.data * self.tensor * self.pipeline

    @property
    def global_batch(self) -> int:
        """Samples of a step."""
        return self.data * self.micro_batch * self.micro_batches


@dataclasses.dataclass(frozen=True)
class TrainingSetup:
    """A model with the strategy by which it is trained.

    Errors: PlacementError if a stage would have no layer, or a device no head.
    """

    model: LayeredModel
    strategy: ParallelStrategy

    def __post_init__(self) -> None:
        model, strategy = self.model, self.strategy
        for what, count, degree in (
            ("layers", model.layers, strategy.pipeline),
            ("attention heads", model.heads, strategy.tensor),
        ):
            if degree > count:
                raise PlacementError(
                    f"{count} {what} cannot be split over {degree} devices",
                    hint=f"choose a degree of at most {count}",
                )


def _check_counts(value: LayeredModel | ParallelStrategy) -> None:
    """Errors: PlacementError if a field is no positive integer."""
    for field in dataclasses.fields(value):
        number = getattr(value, field.name)
        if not isinstance(number, int) or number < 1:
            name = field.name.replace("_", " ")
            raise PlacementError(f"{name} is {number!r}", hint="give a positive integer")
