"""Initializer functions: initial weights of a shape, as `hf.glorot_uniform([784, 256])`.

Shapes are static; the last two axes are inputs and outputs, preceded by the receptive field.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Tensor
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.random.random_ops import random_uniform, truncated_normal

CUT = 0.87962566103423978  # standard deviation of a normal truncated at 2


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """The numbers of inputs and outputs of a unit: (fan_in, fan_out) of a weight."""
    if None in shape:
        raise ShapeError(
            f"the fan-in of {shape_text(tuple(shape))} is not known", hint="give all sizes"
        )
    if len(shape) < 1:
        raise ShapeError("a scalar has no fan-in", hint="give the initial value itself")
    if len(shape) == 1:
        return shape[0], shape[0]
    field = math.prod(shape[:-2])
    return field * shape[-2], field * shape[-1]


def _uniform(shape: Any, variance: float, dtype: Any, seed: int | None, name: str | None) -> Tensor:
    limit = math.sqrt(3 * variance)
    return random_uniform(shape, -limit, limit, dtype, seed, name)


def _normal(shape: Any, variance: float, dtype: Any, seed: int | None, name: str | None) -> Tensor:
    return truncated_normal(shape, 0.0, math.sqrt(variance) / CUT, dtype, seed, name)


def glorot_uniform(
    shape: Sequence[int], dtype: Any = float32, seed: int | None = None, name: str | None = None
) -> Tensor:
    """Uniform with variance 2 / (fan_in + fan_out) (Glorot and Bengio; also Xavier)."""
    return _uniform(shape, 2 / max(1, sum(fans(shape))), dtype, seed, name)


def glorot_normal(
    shape: Sequence[int], dtype: Any = float32, seed: int | None = None, name: str | None = None
) -> Tensor:
    """Normal truncated at two standard deviations, with variance 2 / (fan_in + fan_out)."""
    return _normal(shape, 2 / max(1, sum(fans(shape))), dtype, seed, name)


def he_uniform(
    shape: Sequence[int], dtype: Any = float32, seed: int | None = None, name: str | None = None
) -> Tensor:
    """Uniform with variance 2 / fan_in (He et al., for relu)."""
    return _uniform(shape, 2 / max(1, fans(shape)[0]), dtype, seed, name)


def he_normal(
    shape: Sequence[int], dtype: Any = float32, seed: int | None = None, name: str | None = None
) -> Tensor:
    """Normal truncated at two standard deviations, with variance 2 / fan_in."""
    return _normal(shape, 2 / max(1, fans(shape)[0]), dtype, seed, name)
