"""Normalization ops: batch, layer, group, instance, local response; moments over all replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import float32, float64
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import op
from hpcflow.graph.static_shape import Spec, is_known, merge_shapes, size_of
from hpcflow.ops import flop_counts
from hpcflow.ops.array.array_ops import (
    ensure_shape,
    reshape,
    shape,
    shape_argument,
    sizes,
    squeeze,
    stop_gradient,
)
from hpcflow.ops.array.broadcast_ops import ones_like
from hpcflow.ops.array.concat_split_ops import stack
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.array.space_depth_ops import as_images
from hpcflow.ops.math import reduction_ops
from hpcflow.ops.math.arithmetic_ops import (
    add,
    add_n,
    cast,
    divide,
    maximum,
    multiply,
    pow,
    rsqrt,
    square,
    subtract,
)
from hpcflow.ops.math.reduction_ops import reduced_shape
from hpcflow.ops.nn.pooling_ops import avg_pool1d
from hpcflow.ops.replicas.replica_ops import replica_sum
from hpcflow.ops.shape_inference import (
    Attrs,
    first_output,
    integer_argument,
    make,
    normal_axis,
    require,
    static_axes,
)

# -- row: (x - mean) / sqrt(variance + epsilon), mean and variance over `axis`


def _wide(dtype: Any) -> Any:
    """The dtype of a mean: float32 for 16-bit floats."""
    return float32 if dtype.itemsize == 2 else dtype


def _normalize(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    (x,) = inputs
    require("normalization", x, "f")
    moment = Spec(_wide(x.dtype), reduced_shape(x.shape, attrs["axis"], True))
    return [Spec(x.dtype, x.shape), moment, moment]


def _normalize_back(
    op: Operation, g: Tensor | None, of_mean: Tensor | None, of_variance: Tensor | None
) -> list[Any]:
    x, (y, mean, variance) = op.inputs[0], op.outputs
    parts = []
    if g is not None:
        parts.append(first_output("NormalizeGrad", [g, y, variance], op.attrs))
    if of_mean is not None:
        parts.append(cast(_spread(of_mean, x, op.attrs), x.dtype))
    if of_variance is not None:
        slope = multiply(_spread(of_variance, x, op.attrs), 2)
        parts.append(cast(multiply(slope, subtract(cast(x, mean.dtype), mean)), x.dtype))
    return [add_n(parts)]


def _spread(g: Tensor, x: Tensor, attrs: Attrs) -> Tensor:
    """The gradient of a mean: broadcast to all elements and divided by their number."""
    static, dynamic = shape_argument(sizes(x))
    return first_output(
        "MeanGrad", [g, *dynamic], {"axis": attrs["axis"], "keepdims": True, "shape": static}
    )


def _normalize_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    g, y, variance = inputs
    require("the gradient of normalization", g, "f")
    both = merge_shapes(g.shape, y.shape)
    merge_shapes(reduced_shape(both, attrs["axis"], True), variance.shape)
    return [Spec(g.dtype, both)]


def _normalize_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    g, y, variance = op.inputs  # r (g - mean(g) - y mean(g y)), r = 1 / sqrt(variance + epsilon)
    axis, epsilon = op.attrs["axis"], op.attrs["epsilon"]

    def mean(t: Tensor) -> Tensor:
        return reduction_ops.reduce_mean(t, axis, True)

    def of_y() -> Tensor:
        r = cast(rsqrt(add(variance, epsilon)), g.dtype)
        sums = add(multiply(gg, mean(multiply(g, y))), multiply(g, mean(multiply(gg, y))))
        return multiply(multiply(sums, r), -1)

    def of_variance() -> Tensor:
        slope = divide(-0.5, add(variance, epsilon))
        product = cast(multiply(gg, op.outputs[0]), variance.dtype)
        return multiply(reduction_ops.reduce_sum(product, axis, True), slope)

    return [lambda: first_output("NormalizeGrad", [gg, y, variance], op.attrs), of_y, of_variance]


op(
    "Normalize",
    infer=_normalize,
    grad=_normalize_back,
    flops=flop_counts.per_output(5),
    kernels="normalization_kernels kernels.llvm_normalization",
)
op(
    "NormalizeGrad",
    infer=_normalize_grad,
    grad=_normalize_grad_back,
    flops=flop_counts.per_output(7),
    kernels="normalization_kernels kernels.llvm_normalization",
)


def normalized(x: Tensor, axis: Any, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """`(x - mean) / sqrt(variance + epsilon)` over `axis`, the mean and the variance.

    Shapes: the moments have size 1 along `axis`; for no elements they are 0.
    """
    axes = static_axes(axis)
    attrs = {"axis": (axes,) if isinstance(axes, int) else axes, "epsilon": float(epsilon)}
    y, mean, variance = make("Normalize", [x], attrs).outputs
    return y, mean, variance


# -- batch normalization


def batch_normalization(
    x: Any,
    mean: Any,
    variance: Any,
    offset: Any,
    scale: Any,
    variance_epsilon: float,
    name: str | None = None,
) -> Tensor:
    """`(x - mean) / sqrt(variance + variance_epsilon) * scale + offset`; None omits a part.

    Shapes: all are broadcast with `x`: vectors of channels, or with size 1 elsewhere.
    """
    x = convert_to_tensor(x)
    factor = rsqrt(add(variance, variance_epsilon))
    if scale is not None:
        factor = multiply(factor, scale)
    shift = multiply(multiply(mean, factor), -1)
    if offset is not None:
        shift = add(shift, offset)
    return add(multiply(x, cast(factor, x.dtype)), cast(shift, x.dtype), name)


@accepts_aliases(input="t", mean="m", variance="v")
def batch_norm_with_global_normalization(
    t: Any,
    m: Any,
    v: Any,
    beta: Any,
    gamma: Any,
    variance_epsilon: float,
    scale_after_normalization: bool,
    name: str | None = None,
) -> Tensor:
    """The older name of `batch_normalization`; `gamma` is used if `scale_after_normalization`."""
    scale = gamma if scale_after_normalization else None
    return batch_normalization(t, m, v, beta, scale, variance_epsilon, name)


def channel_axis(x: Tensor, data_format: str | None) -> int:
    """The channel axis.

    Errors: ShapeError if the rank of `x` is unknown.
    """
    if x.shape is None or not x.shape:
        raise ShapeError(
            f"normalization needs a known rank, not shape {x.shape}",
            op=x.op.name,
            line=user_line(),
            hint="use x.set_shape([None, channels])",
        )
    first = data_format is not None and data_format.startswith("NC")
    return 1 if first else len(x.shape) - 1


def by_channel(value: Any, x: Tensor, axis: int) -> Tensor:
    """A vector over channels, reshaped to broadcast with `x` and cast to its dtype."""
    assert x.shape is not None
    v = cast(convert_to_tensor(value), x.dtype)
    if axis == len(x.shape) - 1:
        return v
    return reshape(v, [-1] + [1] * (len(x.shape) - 1 - axis))


def fused_batch_norm(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 0.001,
    data_format: str = "NHWC",
    is_training: bool = True,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalization over all axes except channels: the result, mean and variance.

    In training the moments are those of the batch; the variance returned is unbiased (divided by n
    - 1), for moving averages. Otherwise `mean` and `variance` are used and returned.
    """
    x = as_images(x)
    axis = channel_axis(x, data_format)
    x = _with_channels(x, axis, (scale, offset, mean, variance))
    s, b = by_channel(scale, x, axis), by_channel(offset, x, axis)
    if not is_training:
        if mean is None or variance is None:
            raise ShapeError("fused_batch_norm needs mean and variance unless it is training")
        channels = None if x.shape is None else [x.shape[axis]]
        m, v = (ensure_shape(t, channels) for t in (mean, variance))
        y = batch_normalization(
            x, by_channel(m, x, axis), by_channel(v, x, axis), b, s, epsilon, name
        )
        y.set_shape(x.shape)
        return y, m, v
    if mean is not None or variance is not None:
        raise ShapeError("fused_batch_norm takes no mean and variance while it is training")
    assert x.shape is not None
    axes = tuple(i for i in range(len(x.shape)) if i != axis)
    z, m, v = normalized(x, axes, epsilon)
    n = divided_by(x, m)
    unbiased = multiply(squeeze(v, axes), divide(n, maximum(subtract(n, 1), 1)))
    y = add(multiply(z, s), b, name)
    y.set_shape(x.shape)
    return y, squeeze(m, axes), unbiased


def _with_channels(x: Tensor, axis: int, vectors: Sequence[Any]) -> Tensor:
    """`x` with its number of channels merged with that of one of these vectors."""
    assert x.shape is not None
    shapes = [convert_to_tensor(v).shape for v in vectors if v is not None]
    channels = next((s[0] for s in shapes if s), None)
    if x.shape[axis] is not None or channels is None:
        return x
    return ensure_shape(x, [channels if i == axis else d for i, d in enumerate(x.shape)])


def divided_by(x: Tensor, moment: Tensor) -> Tensor:
    """The number of elements of `x` per element of a moment, in its dtype."""
    if is_known(x.shape) and is_known(moment.shape):
        count = size_of(x.shape) // max(1, size_of(moment.shape))
        return convert_to_tensor(float(count), moment.dtype)
    total = reduction_ops.reduce_prod(cast(shape(x), float64))
    each = reduction_ops.reduce_prod(cast(shape(moment), float64))
    return cast(divide(total, maximum(each, 1)), moment.dtype)


def synchronized_moments(
    x: Any, axes: Any, keep_dims: bool = False, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and variance over `axes` of the global batch of all synchronous replicas.

    Replicas are weighted by their samples, also with none. One allreduce in float64 sums counts,
    sums and sums of squares. Its gradient is an allreduce too, so that training equals that of one
    replica on the global batch. A single or asynchronous replica uses its own moments.
    """
    axis = static_axes(axes)
    mean, variance, _ = joined_moments(convert_to_tensor(x), axis, name)
    if keep_dims:
        return mean, variance
    return squeeze(mean, axis), squeeze(variance, axis)


def joined_moments(x: Tensor, axis: Any, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance over all replicas, and their element count, with keepdims."""
    wide = cast(x, _wide(x.dtype))
    total = reduction_ops.reduce_sum(wide, axis, True)
    n = divided_by(x, total)
    shift = stop_gradient(divide(total, maximum(n, 1)))  # avoids squares of large numbers
    apart = subtract(wide, shift)
    count, center = cast(n, float64), cast(shift, float64)
    first = cast(reduction_ops.reduce_sum(apart, axis, True), float64)
    second = cast(reduction_ops.reduce_sum(square(apart), axis, True), float64)
    sums = add(first, multiply(center, count))
    squares = add(second, multiply(center, add(first, sums)))
    packed = stack([multiply(ones_like(center), count), sums, squares])
    joined = replica_sum(packed, name)
    n, total, squares = (getitem(joined, i) for i in range(3))
    mean = divide(total, maximum(n, 1))
    variance = maximum(subtract(divide(squares, maximum(n, 1)), square(mean)), 0)
    mean, variance, n = (cast(t, wide.dtype) for t in (mean, variance, n))
    return mean, variance, n


# -- normalization of each sample


def layer_normalization(
    x: Any,
    scale: Any = None,
    offset: Any = None,
    axis: Any = -1,
    epsilon: float = 1e-5,
    name: str | None = None,
) -> Tensor:
    """`x` with mean 0 and variance 1 over `axis`, `* scale + offset` (Ba et al., 2016)."""
    y, _, _ = normalized(convert_to_tensor(x), axis, epsilon)
    if scale is not None:
        y = multiply(y, scale, name if offset is None else None)
    return y if offset is None else add(y, offset, name)


def group_normalization(
    x: Any,
    groups: int,
    scale: Any = None,
    offset: Any = None,
    epsilon: float = 1e-5,
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """Each sample with mean 0 and variance 1 over groups of channels (Wu and He, 2018).

    Shapes: [n, ..., channels], or [n, channels, ...] with a `data_format` such as NCHW; `scale` and
            `offset` are vectors over channels.
    """
    x = convert_to_tensor(x)
    axis = channel_axis(x, data_format)
    assert x.shape is not None
    channels = x.shape[axis]
    if channels is None or groups < 1 or channels % groups:
        raise ShapeError(
            f"{channels} channels cannot be divided into {groups} groups", line=user_line()
        )
    x_sizes = [getitem(shape(x), i) if d is None else d for i, d in enumerate(x.shape)]
    parted = [*x_sizes[:axis], groups, channels // groups, *x_sizes[axis + 1 :]]
    axes = tuple(i for i in range(1, len(parted)) if i != axis)
    y, _, _ = normalized(reshape(x, parted), axes, epsilon)
    return _affine(reshape(y, x_sizes), scale, offset, axis, name)


def instance_normalization(
    x: Any,
    scale: Any = None,
    offset: Any = None,
    epsilon: float = 1e-5,
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """Each channel of each sample with mean 0 and variance 1 (Ulyanov et al., 2016)."""
    x = convert_to_tensor(x)
    axis = channel_axis(x, data_format)
    assert x.shape is not None
    y, _, _ = normalized(x, tuple(i for i in range(1, len(x.shape)) if i != axis), epsilon)
    return _affine(y, scale, offset, axis, name)


def _affine(y: Tensor, scale: Any, offset: Any, axis: int, name: str | None) -> Tensor:
    if scale is not None:
        y = multiply(y, by_channel(scale, y, axis), name if offset is None else None)
    return y if offset is None else add(y, by_channel(offset, y, axis), name)


def local_response_normalization(
    input: Any,
    depth_radius: int = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """`x / (bias + alpha * s) ** beta`; `s` sums the squares of channels within the radius.

    Shapes: any; the channels are the last axis. Source: Krizhevsky et al., 2012.
    """
    x = convert_to_tensor(input)
    normal_axis(-1, 1 if x.shape is None else len(x.shape))
    width = 2 * integer_argument(depth_radius, "depth_radius") + 1
    channels = -1 if x.shape is None or x.shape[-1] is None else x.shape[-1]
    rows = [-1, getitem(shape(x), -1) if channels == -1 else channels, 1]
    means = avg_pool1d(
        reshape(square(x), rows), width, 1, "SAME", count_include_pad=True
    )  # of the window, zero-padded
    total = reshape(multiply(means, width), sizes(x))
    return multiply(x, pow(add(multiply(total, alpha), bias), -beta), name)


lrn = local_response_normalization
