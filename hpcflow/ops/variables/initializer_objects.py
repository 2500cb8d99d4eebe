"""Initializer objects: create the initial value of a variable from its shape and dtype.

`hf.get_variable("w", [784, 256], initializer=hf.glorot_uniform_initializer())`. With a seed,
variables of equal shape get equal values; without a seed the values depend on the variable's name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.dtypes import as_dtype, float32, kind_of
from hpcflow.graph.graph import Tensor
from hpcflow.ops.array.array_ops import constant, expand_dims, range, reshape, transpose
from hpcflow.ops.array.broadcast_ops import fill, ones, zeros
from hpcflow.ops.linalg.matrix_decomposition_ops import qr
from hpcflow.ops.linalg.matrix_diagonal_ops import matrix_diag_part
from hpcflow.ops.math.arithmetic_ops import cast, equal, multiply, sign
from hpcflow.ops.random.random_ops import random_normal, random_uniform, truncated_normal
from hpcflow.ops.shape_inference import fitted
from hpcflow.ops.variables.initializer_functions import CUT, fans


class Initializer:
    """Base class of initializers: `initializer(shape, dtype)` is a tensor of that shape.

    For a shard of a partitioned variable `partition_info.full_shape` is the shape of the whole.
    """

    def __init__(self, dtype: Any = float32) -> None:
        self.dtype = as_dtype(dtype)

    def __call__(
        self, shape: Sequence[int], dtype: Any = None, partition_info: Any = None
    ) -> Tensor:
        """An initial value of `shape`."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        full = shape if partition_info is None else partition_info.full_shape
        return self._make([int(d) for d in shape], kind, [int(d) for d in full])

    def _make(self, shape: list[int], dtype: np.dtype, full: list[int]) -> Tensor:
        raise NotImplementedError


class Zeros(Initializer):
    """Zeros."""

    def _make(self, shape: list[int], dtype: np.dtype, full: list[int]) -> Tensor:
        return zeros(shape, dtype)


class Ones(Initializer):
    """Ones."""

    def _make(self, shape: list[int], dtype: np.dtype, full: list[int]) -> Tensor:
        return ones(shape, dtype)


class Constant(Initializer):
    """A value that fills the variable, or values in row-major order, the last one repeated.

    With `verify_shape` the values must have the variable's shape.
    """

    def __init__(self, value: Any = 0, dtype: Any = float32, verify_shape: bool = False) -> None:
        super().__init__(dtype)
        self.value, self.verify_shape = value, verify_shape

    def _make(self, shape: list[int], dtype: np.dtype, full: list[int]) -> Tensor:
        array = np.asarray(self.value)
        if array.ndim == 0 and not self.verify_shape:
            return fill(shape, fitted(self.value, dtype, "the constant"))
        if self.verify_shape and array.shape != tuple(shape):
            raise ShapeError(f"the values have shape {list(array.shape)}, the variable {shape}")
        missing = math.prod(shape) - array.size
        if missing < 0 or not array.size:
            raise ShapeError(f"{array.size} values do not fill a variable of shape {shape}")
        flat = array.reshape(-1)
        return constant(np.append(flat, flat[-1:].repeat(missing)).reshape(shape), dtype)


class RandomUniform(Initializer):
    """Uniform in [minval, maxval); `maxval` defaults to 1 for floats."""

    def __init__(
        self, minval: float = 0, maxval: float | None = None, seed: Any = None, dtype: Any = float32
    ) -> None:
        super().__init__(dtype)
        self.minval, self.maxval, self.seed = minval, maxval, seed

    def _make(self, shape: list[int], dtype: np.dtype, full: list[int]) -> Tensor:
        return random_uniform(shape, self.minval, self.maxval, dtype, self.seed)


class RandomNormal(Initializer):
    """Normal with `mean` and `stddev`."""

    def __init__(
        self, mean: float = 0.0, stddev: float = 1.0, seed: Any = None, dtype: Any = float32
    ) -> None:
        super().__init__(_floating(dtype))
        self.mean, self.stddev, self.seed = mean, stddev, seed

    def _make(self, shape: list[int], dtype: np.dtype, full: list[int]) -> Tensor:
        return random_normal(shape, self.mean, self.stddev, dtype, self.seed)


class TruncatedNormal(RandomNormal):
    """Normal with `mean` and `stddev`, truncated at two standard deviations."""

    def _make(self, shape: list[int], dtype: np.dtype, full: list[int]) -> Tensor:
        return truncated_normal(shape, self.mean, self.stddev, dtype, self.seed)


class UniformUnitScaling(Initializer):
    """Uniform within `factor * sqrt(3 / inputs)`, which preserves the variance of a layer's input.

    The last axis has the outputs, the others the inputs (Sussillo and Abbott, arXiv:1412.6558).
    """

    def __init__(self, factor: float = 1.0, seed: Any = None, dtype: Any = float32) -> None:
        super().__init__(_floating(dtype))
        self.factor, self.seed = factor, seed

    def _make(self, shape: list[int], dtype: np.dtype, full: list[int]) -> Tensor:
        limit = math.sqrt(3 / max(1, math.prod(full[:-1]))) * self.factor
        return random_uniform(shape, -limit, limit, dtype, self.seed)


class VarianceScaling(Initializer):
    """Numbers with variance `scale / n`; n is fan-in, fan-out or their mean, by `mode`.

    `distribution` is "uniform", "truncated_normal" (also "normal"), truncated at two standard
    deviations, or "untruncated_normal".
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: Any = None,
        dtype: Any = float32,
    ) -> None:
        super().__init__(_floating(dtype))
        if scale <= 0:
            raise ValueError(f"scale must be positive, not {scale}")
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ValueError(f"mode must be fan_in, fan_out or fan_avg, not {mode!r}")
        if distribution not in ("uniform", "normal", "truncated_normal", "untruncated_normal"):
            raise ValueError(f"distribution {distribution!r} is not known")
        self.scale, self.mode, self.distribution, self.seed = scale, mode, distribution, seed

    def _make(self, shape: list[int], dtype: np.dtype, full: list[int]) -> Tensor:
        fan_in, fan_out = fans(full) if full else (1, 1)
        n = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1, n)
        if self.distribution == "uniform":
            limit = math.sqrt(3 * variance)
            return random_uniform(shape, -limit, limit, dtype, self.seed)
        if self.distribution == "untruncated_normal":
            return random_normal(shape, 0.0, math.sqrt(variance), dtype, self.seed)
        return truncated_normal(shape, 0.0, math.sqrt(variance) / CUT, dtype, self.seed)


class GlorotUniform(VarianceScaling):
    """Uniform with variance 2 / (fan_in + fan_out) (Glorot and Bengio; also Xavier)."""

    def __init__(self, seed: Any = None, dtype: Any = float32) -> None:
        super().__init__(1.0, "fan_avg", "uniform", seed, dtype)


class GlorotNormal(VarianceScaling):
    """Normal truncated at two standard deviations, with variance 2 / (fan_in + fan_out)."""

    def __init__(self, seed: Any = None, dtype: Any = float32) -> None:
        super().__init__(1.0, "fan_avg", "truncated_normal", seed, dtype)


class Identity(Initializer):
    """`gain` times the identity matrix."""

    def __init__(self, gain: float = 1.0, dtype: Any = float32) -> None:
        super().__init__(dtype)
        self.gain = gain

    def _make(self, shape: list[int], dtype: np.dtype, full: list[int]) -> Tensor:
        if len(full) != 2:
            raise ShapeError(f"the identity needs a variable of rank 2, not shape {full}")
        if shape != full:
            raise ShapeError(
                "the identity cannot initialize a partitioned variable",
                hint="leave out the partitioner",
            )
        on = equal(expand_dims(range(shape[0]), 1), expand_dims(range(shape[1]), 0))
        return multiply(cast(on, dtype), constant(self.gain, dtype))


class Orthogonal(Initializer):
    """A matrix with orthonormal columns, or rows if it is wide, times `gain`.

    All axes except the last are merged. It is uniformly distributed over such matrices (Saxe et
    al., arXiv:1312.6120): Q of a normal matrix, with the signs of the diagonal of R.
    """

    def __init__(self, gain: float = 1.0, seed: Any = None, dtype: Any = float32) -> None:
        super().__init__(_floating(dtype))
        self.gain, self.seed = gain, seed

    def _make(self, shape: list[int], dtype: np.dtype, full: list[int]) -> Tensor:
        if len(full) < 2:
            raise ShapeError(f"an orthogonal initializer needs rank 2 or more, not shape {full}")
        if shape != full:
            raise ShapeError(
                "an orthogonal matrix cannot initialize a partitioned variable",
                hint="leave out the partitioner",
            )
        rows, columns = math.prod(shape[:-1]), shape[-1]
        tall = [max(rows, columns), min(rows, columns)]
        q, r = qr(random_normal(tall, dtype=dtype, seed=self.seed))
        value = multiply(multiply(q, sign(matrix_diag_part(r))), constant(self.gain, dtype))
        return reshape(value if rows >= columns else transpose(value), shape)


def _floating(dtype: Any) -> np.dtype:
    if kind_of(as_dtype(dtype)) != "f":
        raise DTypeError(f"this initializer draws floats, not {as_dtype(dtype)}")
    return as_dtype(dtype)


def he_normal(seed: Any = None) -> Initializer:
    """Normal truncated at two standard deviations, variance 2 / fan_in (He et al., for relu)."""
    return VarianceScaling(2.0, "fan_in", "truncated_normal", seed)


def he_uniform(seed: Any = None) -> Initializer:
    """Uniform with variance 2 / fan_in (He et al., for relu)."""
    return VarianceScaling(2.0, "fan_in", "uniform", seed)


def lecun_normal(seed: Any = None) -> Initializer:
    """Normal truncated at two standard deviations, with variance 1 / fan_in (LeCun et al.)."""
    return VarianceScaling(1.0, "fan_in", "truncated_normal", seed)


def lecun_uniform(seed: Any = None) -> Initializer:
    """Uniform with variance 1 / fan_in (LeCun et al.)."""
    return VarianceScaling(1.0, "fan_in", "uniform", seed)


zeros_initializer = Zeros
ones_initializer = Ones
constant_initializer = Constant
random_uniform_initializer = RandomUniform
random_normal_initializer = RandomNormal
truncated_normal_initializer = TruncatedNormal
uniform_unit_scaling_initializer = UniformUnitScaling
variance_scaling_initializer = VarianceScaling
orthogonal_initializer = Orthogonal
glorot_uniform_initializer = GlorotUniform
glorot_normal_initializer = GlorotNormal
