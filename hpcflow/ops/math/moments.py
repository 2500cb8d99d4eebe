"""Moments: means, variances and norms over axes, also weighted."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.deprecated_arguments import accepts_aliases, accepts_and_ignores
from hpcflow.graph.dtypes import float32, int32
from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.ops.array.array_ops import constant, rank, reshape, shape, squeeze
from hpcflow.ops.array.broadcast_ops import ones_like
from hpcflow.ops.array.dynamic_axis_ops import shape_without
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.math.arithmetic_ops import (
    abs,
    add,
    cast,
    divide,
    mod,
    multiply,
    sqrt,
    square,
    subtract,
)
from hpcflow.ops.math.elementwise_math_ops import div_no_nan
from hpcflow.ops.math.reduction_ops import reduce_mean, reduce_prod, reduce_sum
from hpcflow.ops.shape_inference import axes_argument, like


def reduce_variance(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The variance over `axis`; real also for complex numbers."""
    x = convert_to_tensor(input_tensor)
    distance = abs(subtract(x, reduce_mean(x, axis, True)))
    return reduce_mean(square(distance), axis, keepdims, name)


def reduce_std(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The standard deviation over `axis`: the root of `reduce_variance`."""
    return sqrt(reduce_variance(input_tensor, axis, keepdims), name)


def reduce_euclidean_norm(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The root of the sum of squares over `axis`."""
    x = convert_to_tensor(input_tensor)
    return sqrt(reduce_sum(square(abs(x)), axis, keepdims), name)


@accepts_aliases(keepdims="keep_dims")
@accepts_and_ignores("shift")
def moments(
    x: Any, axes: Any, name: str | None = None, keep_dims: bool = False
) -> tuple[Tensor, Tensor]:
    """The mean and the variance over `axes`; for float16 computed in float32."""
    x = convert_to_tensor(x)
    wide = cast(x, float32) if x.dtype.itemsize == 2 else x
    mean = reduce_mean(wide, axes, True)
    distance = subtract(wide, mean)
    variance = reduce_mean(square(distance), axes, keep_dims, name)
    if not keep_dims:
        mean = _without(mean, axes, x)
    return cast(mean, x.dtype), cast(variance, x.dtype)


def _without(statistic: Tensor, axes: Any, x: Tensor, name: str | None = None) -> Tensor:
    """`statistic` without the reduced axes of `x` (None: all)."""
    axes = axes_argument(axes)
    if isinstance(axes, Tensor):
        return reshape(statistic, shape_without(x, axes), name)
    if axes is None:
        return reshape(statistic, [], name)
    return squeeze(statistic, axes, name)


@accepts_aliases(keepdims="keep_dims")
def weighted_moments(
    x: Any, axes: Any, frequency_weights: Any, name: str | None = None, keep_dims: bool = False
) -> tuple[Tensor, Tensor]:
    """The mean and the variance over `axes`, weighted by `frequency_weights`.

    Shapes: `frequency_weights` is broadcast to `x`.
    """
    x = convert_to_tensor(x)
    weights = like(frequency_weights, x)
    total = reduce_sum(multiply(weights, ones_like(x)), axes, True)
    mean = div_no_nan(reduce_sum(multiply(weights, x), axes, True), total)
    squares = multiply(weights, square(subtract(x, mean)))
    variance = div_no_nan(reduce_sum(squares, axes, True), total)
    if keep_dims:
        return mean, variance
    return _without(mean, axes, total), _without(variance, axes, total, name)


@accepts_aliases(keepdims="keep_dims")
def sufficient_statistics(
    x: Any, axes: Any, shift: Any = None, keep_dims: bool = False, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Count, sum and sum of squares over `axes`, of `x - shift`; and `shift`."""
    x = convert_to_tensor(x)
    moved = x if shift is None else subtract(x, like(shift, x))
    total = reduce_sum(moved, axes, keep_dims)
    squares = reduce_sum(square(moved), axes, keep_dims, name)
    count = cast(reduce_prod(_sizes(x, axes_argument(axes))), x.dtype)
    return count, total, squares, shift


def _sizes(x: Tensor, axes: Any) -> Tensor:
    """The sizes of `x` along the given axes."""
    if axes is None:
        return shape(x)
    if isinstance(axes, Tensor):
        return gather(shape(x), mod(cast(axes, int32), rank(x)))
    chosen = [axes] if isinstance(axes, int) else list(axes)
    return gather(shape(x), mod(constant(chosen, int32), rank(x)))


def normalize_moments(
    counts: Any, mean_ss: Any, variance_ss: Any, shift: Any, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """The mean and the variance from `sufficient_statistics`."""
    total = convert_to_tensor(mean_ss)
    moved = divide(total, like(counts, total))
    mean = moved if shift is None else add(moved, like(shift, moved))
    squares = divide(like(variance_ss, total), like(counts, total))
    return mean, subtract(squares, square(moved), name)
