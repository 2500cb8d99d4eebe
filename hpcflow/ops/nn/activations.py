"""Activations: composed of other ops, and layers without variables."""

from __future__ import annotations

import math
from typing import Any

from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.ops.array.broadcast_ops import zeros
from hpcflow.ops.array.concat_split_ops import concat
from hpcflow.ops.linalg.matmul_ops import matmul
from hpcflow.ops.math import reduction_ops
from hpcflow.ops.math.arithmetic_ops import (
    abs,
    add,
    cast,
    clip_by_value,
    divide,
    equal,
    greater,
    less,
    maximum,
    multiply,
    negative,
    rsqrt,
    sigmoid,
    square,
    tanh,
    where,
)
from hpcflow.ops.math.special_function_ops import erf
from hpcflow.ops.nn.nn_ops import bias_add, elu, relu

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # Klambauer et al., 2017


def crelu(features: Any, name: str | None = None, axis: int = -1) -> Tensor:
    """`relu` of `x` and of `-x`, concatenated along `axis`."""
    x = convert_to_tensor(features)
    return relu(concat([x, negative(x)], axis), name)


def selu(features: Any, name: str | None = None) -> Tensor:
    """`scale * x` for x > 0, else `scale * alpha * (exp(x) - 1)` (Klambauer et al., 2017)."""
    y = elu(features)
    slope = where(less(y, 0), SELU_SCALE * SELU_ALPHA, convert_to_tensor(SELU_SCALE, y.dtype))
    return multiply(y, slope, name)


def leaky_relu(features: Any, alpha: Any = 0.2, name: str | None = None) -> Tensor:
    """`x` for x > 0, else `alpha * x`; integers are converted to float32."""
    x = convert_to_tensor(features)
    if x.dtype.kind in "iu":
        x = cast(x, float32)
    return where(greater(x, 0), x, multiply(x, alpha), name)


def softsign(features: Any, name: str | None = None) -> Tensor:
    """`x / (1 + |x|)`."""
    x = convert_to_tensor(features)
    return divide(x, add(abs(x), 1), name)


def swish(features: Any, name: str | None = None) -> Tensor:
    """`x * sigmoid(x)`."""
    x = convert_to_tensor(features)
    return multiply(x, sigmoid(x), name)


def gelu(features: Any, approximate: bool = False, name: str | None = None) -> Tensor:
    """`x` times the standard normal distribution function at `x`.

    `approximate`: by tanh, with an error below 0.0005 (Hendrycks and Gimpel, 2016).
    """
    x = convert_to_tensor(features)
    if approximate:
        inner = multiply(x, add(multiply(square(x), 0.044715), 1))
        share = tanh(multiply(inner, math.sqrt(2 / math.pi)))
    else:
        share = erf(multiply(x, math.sqrt(0.5)))
    return multiply(multiply(x, 0.5), add(share, 1), name)


def hard_sigmoid(
    features: Any, alpha: float = 0.2, beta: float = 0.5, name: str | None = None
) -> Tensor:
    """`alpha * x + beta`, clipped to [0, 1]."""
    x = convert_to_tensor(features)
    return clip_by_value(add(multiply(x, alpha), beta), 0, 1, name)


def xw_plus_b(x: Any, weights: Any, biases: Any, name: str | None = None) -> Tensor:
    """`x @ weights + biases`."""
    return bias_add(matmul(x, weights), biases, name=name)


def relu_layer(x: Any, weights: Any, biases: Any, name: str | None = None) -> Tensor:
    """`relu(x @ weights + biases)`."""
    return relu(xw_plus_b(x, weights, biases), name)


def zero_fraction(value: Any, name: str | None = None) -> Tensor:
    """The fraction of zeros in `value`, a float32 scalar; NaN for an empty tensor."""
    value = convert_to_tensor(value)
    return reduction_ops.reduce_mean(cast(equal(value, zeros([], value.dtype)), float32), name=name)


@accepts_aliases(dim="axis")
def l2_normalize(
    x: Any, axis: Any = None, epsilon: float = 1e-12, name: str | None = None
) -> Tensor:
    """`x / sqrt(max(sum(x ** 2), epsilon))`, with the sum over `axis` (None: all axes)."""
    x = convert_to_tensor(x)
    total = reduction_ops.reduce_sum(square(x), axis, True)
    return multiply(x, rsqrt(maximum(total, epsilon)), name)
