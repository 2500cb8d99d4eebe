"""Probability distributions: objects of TensorFlow 1's `tf.distributions`."""

from __future__ import annotations

import math as numbers
from typing import Any

from hpcflow.errors import ArgumentError
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.dtypes import as_dtype, int32
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.ops.array.array_ops import rank, reshape, shape, transpose
from hpcflow.ops.array.broadcast_ops import ones_like
from hpcflow.ops.array.concat_split_ops import concat
from hpcflow.ops.array.gather_ops import one_hot
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import (
    add,
    cast,
    divide,
    exp,
    less,
    log,
    logical_and,
    multiply,
    negative,
    sigmoid,
    square,
    subtract,
    where,
)
from hpcflow.ops.math.arithmetic_ops import greater_equal as at_least
from hpcflow.ops.math.reduction_ops import argmax, reduce_prod, reduce_sum
from hpcflow.ops.math.special_function_ops import erfc
from hpcflow.ops.nn.nn_ops import log_softmax, sigmoid_cross_entropy_with_logits, softmax
from hpcflow.ops.random.random_ops import random_normal, random_uniform
from hpcflow.ops.random.shuffle_multinomial import multinomial
from hpcflow.ops.shape_inference import like, operands


class Distribution:
    """Base class of distributions; each element of the parameters is one distribution."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._base: Tensor  # of the shape of one sample

    def sample(self, sample_shape: Any = (), seed: int | None = None, name: str = "sample") -> Any:
        """Samples: `sample_shape` for each element; seeds as in `random_uniform`."""
        with get_default_graph().name_scope(f"{self.name}/{name}"):
            size = reshape(convert_to_tensor(sample_shape, int32), [-1])
            return self._drawn(concat([size, shape(self._base)], 0), seed)

    def _drawn(self, size: Tensor, seed: int | None) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no draws")

    def log_prob(self, value: Any, name: str = "log_prob") -> Tensor:
        """The log-probability or log-density of `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def prob(self, value: Any, name: str = "prob") -> Tensor:
        """The probability or density of `value`."""
        return exp(self.log_prob(value))

    def variance(self, name: str = "variance") -> Tensor:
        """The variance."""
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    def stddev(self, name: str = "stddev") -> Tensor:
        """The square root of the variance."""
        return self.variance() ** 0.5

    def kl_divergence(self, other: Distribution, name: str = "kl_divergence") -> Tensor:
        """The Kullback-Leibler divergence from this distribution to `other` of the same class."""
        return kl_divergence(self, other)

    def _from(self, other: Any) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no kl_divergence")


@accepts_and_ignores("allow_nan_stats")
def kl_divergence(
    distribution_a: Distribution, distribution_b: Distribution, name: str | None = None
) -> Tensor:
    """The Kullback-Leibler divergence between two distributions of the same class."""
    if type(distribution_a) is not type(distribution_b):
        kinds = [type(d).__name__ for d in (distribution_a, distribution_b)]
        raise ArgumentError(
            f"kl_divergence needs distributions of one class, not {' and '.join(kinds)}",
            line=user_line(),
        )
    with get_default_graph().name_scope(name or "kl_divergence"):
        return distribution_a._from(distribution_b)


class Normal(Distribution):
    """The normal distribution with mean `loc` and standard deviation `scale`."""

    @accepts_and_ignores("validate_args", "allow_nan_stats")
    def __init__(self, loc: Any, scale: Any, name: str = "Normal") -> None:
        super().__init__(name)
        self.loc, self.scale = operands(loc, scale)
        self.dtype = self.loc.dtype
        self._base = add(multiply(self.loc, 0), self.scale)

    def _drawn(self, size: Tensor, seed: int | None) -> Tensor:
        drawn = random_normal(size, dtype=self.dtype, seed=seed)
        return add(multiply(drawn, self.scale), self.loc)

    def _z(self, value: Any) -> Tensor:
        return divide(subtract(like(value, self.loc), self.loc), self.scale)

    def log_prob(self, value: Any, name: str = "log_prob") -> Tensor:
        """The log-density."""
        log_normalizer = add(log(self.scale), 0.5 * numbers.log(2 * numbers.pi))
        return subtract(multiply(square(self._z(value)), -0.5), log_normalizer)

    def cdf(self, value: Any, name: str = "cdf") -> Tensor:
        """The cumulative distribution function at `value`."""
        return multiply(erfc(multiply(self._z(value), -(0.5**0.5))), 0.5)

    def entropy(self, name: str = "entropy") -> Tensor:
        """The entropy in nats."""
        return add(log(self._base), 0.5 + 0.5 * numbers.log(2 * numbers.pi))

    def mean(self, name: str = "mean") -> Tensor:
        """The mean, which equals the mode."""
        return multiply(self.loc, ones_like(self._base))

    mode = mean

    def stddev(self, name: str = "stddev") -> Tensor:
        """The standard deviation."""
        return self._base

    def variance(self, name: str = "variance") -> Tensor:
        """The variance."""
        return square(self._base)

    def _from(self, other: Any) -> Tensor:
        ratio = square(divide(self.scale, other.scale))
        apart = square(divide(subtract(self.loc, other.loc), other.scale))
        return multiply(subtract(add(apart, ratio), add(log(ratio), 1.0)), 0.5)


class Uniform(Distribution):
    """The uniform distribution over [low, high)."""

    @accepts_and_ignores("validate_args", "allow_nan_stats")
    def __init__(self, low: Any = 0.0, high: Any = 1.0, name: str = "Uniform") -> None:
        super().__init__(name)
        self.low, self.high = operands(low, high)
        self.dtype = self.low.dtype
        self._base = subtract(self.high, self.low)

    def _drawn(self, size: Tensor, seed: int | None) -> Tensor:
        drawn = random_uniform(size, dtype=self.dtype, seed=seed)
        return add(multiply(drawn, self._base), self.low)

    def prob(self, value: Any, name: str = "prob") -> Tensor:
        """The density."""
        x = like(value, self.low)
        inside = logical_and(at_least(x, self.low), less(x, self.high))
        return where(inside, divide(1.0, self._base), 0)

    def log_prob(self, value: Any, name: str = "log_prob") -> Tensor:
        """The log-density."""
        return log(self.prob(value))

    def entropy(self, name: str = "entropy") -> Tensor:
        """The entropy in nats."""
        return log(self._base)

    def mean(self, name: str = "mean") -> Tensor:
        """The mean."""
        return multiply(add(self.low, self.high), 0.5)

    def variance(self, name: str = "variance") -> Tensor:
        """The variance."""
        return multiply(square(self._base), 1 / 12)


def _parameters(logits: Any, probs: Any, kind: str) -> Tensor:
    if (logits is None) == (probs is None):
        raise ArgumentError(f"{kind} takes either logits or probs", line=user_line())
    return convert_to_tensor(probs if logits is None else logits)


class Bernoulli(Distribution):
    """1 with probability `probs` (the sigmoid of `logits`), else 0."""

    @accepts_and_ignores("validate_args", "allow_nan_stats")
    def __init__(
        self, logits: Any = None, probs: Any = None, dtype: Any = int32, name: str = "Bernoulli"
    ) -> None:
        super().__init__(name)
        parameter, self.dtype = _parameters(logits, probs, "Bernoulli"), as_dtype(dtype)
        has_logits = logits is not None
        self.logits = parameter if has_logits else log(divide(parameter, subtract(1.0, parameter)))
        self.probs = sigmoid(parameter) if has_logits else parameter
        self._base = self.probs

    def _drawn(self, size: Tensor, seed: int | None) -> Tensor:
        drawn = random_uniform(size, dtype=self.probs.dtype, seed=seed)
        return cast(less(drawn, self.probs), self.dtype)

    def log_prob(self, value: Any, name: str = "log_prob") -> Tensor:
        """The log-probability."""
        event = cast(value, self.logits.dtype)
        both = multiply(add(multiply(self.logits, 0), 1), event)
        return negative(
            sigmoid_cross_entropy_with_logits(
                labels=both, logits=multiply(self.logits, ones_like(both))
            )
        )

    def entropy(self, name: str = "entropy") -> Tensor:
        """The entropy in nats."""
        return sigmoid_cross_entropy_with_logits(labels=self.probs, logits=self.logits)

    def mean(self, name: str = "mean") -> Tensor:
        """The probability of 1."""
        return self.probs

    def mode(self, name: str = "mode") -> Tensor:
        """The more probable value."""
        return cast(less(0.5, self.probs), self.dtype)

    def variance(self, name: str = "variance") -> Tensor:
        """The variance."""
        return multiply(self.probs, subtract(1.0, self.probs))

    def _from(self, other: Any) -> Tensor:
        crossed = sigmoid_cross_entropy_with_logits(labels=self.probs, logits=other.logits)
        return subtract(crossed, self.entropy())


class Categorical(Distribution):
    """One of k classes with probabilities `probs` along the last axis, the softmax of `logits`."""

    @accepts_and_ignores("validate_args", "allow_nan_stats")
    def __init__(
        self, logits: Any = None, probs: Any = None, dtype: Any = int32, name: str = "Categorical"
    ) -> None:
        super().__init__(name)
        parameter, self.dtype = _parameters(logits, probs, "Categorical"), as_dtype(dtype)
        self.logits = log(parameter) if logits is None else parameter
        self.probs = parameter if logits is None else softmax(parameter)
        self._base = reduce_sum(self.logits, -1)

    def _drawn(self, size: Tensor, seed: int | None) -> Tensor:
        classes = getitem(shape(self.logits), -1)
        lead = getitem(size, slice(None, subtract(getitem(shape(size), 0), rank(self._base))))
        each = reduce_prod(lead)
        rows = reshape(self.logits, [-1, classes])
        drawn = transpose(multinomial(rows, each, seed=seed, output_dtype=self.dtype))
        return reshape(drawn, size)

    def log_prob(self, value: Any, name: str = "log_prob") -> Tensor:
        """The log-probability of a class."""
        logs = log_softmax(self.logits)
        classes = self.logits.shape[-1] if self.logits.shape is not None else None
        depth = getitem(shape(self.logits), -1) if classes is None else classes
        hot = one_hot(convert_to_tensor(value), depth, True, False)
        return reduce_sum(where(hot, logs, 0), -1)

    def entropy(self, name: str = "entropy") -> Tensor:
        """The entropy in nats."""
        return negative(reduce_sum(multiply(self.probs, log_softmax(self.logits)), -1))

    def mode(self, name: str = "mode") -> Tensor:
        """The most probable class."""
        return cast(argmax(self.logits, -1), self.dtype)

    def _from(self, other: Any) -> Tensor:
        apart = subtract(log_softmax(self.logits), log_softmax(other.logits))
        return reduce_sum(multiply(softmax(self.logits), apart), -1)
