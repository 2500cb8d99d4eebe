"""Convolution functions: TensorFlow's names; 1 to 3 axes, depthwise, separable, transposed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases, accepts_and_ignores
from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.array.array_ops import reshape, shape, shape_argument
from hpcflow.ops.array.concat_split_ops import stack
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import multiply
from hpcflow.ops.nn.convolution_ops import convolve, filter_gradient, transposed
from hpcflow.ops.nn.sliding_window import FORMATS, Sizes, channels_first, full
from hpcflow.ops.shape_inference import operands


@accepts_aliases(input="value")
@accepts_and_ignores("use_cudnn_on_gpu")
def conv1d(
    value: Any,
    filters: Any,
    stride: Any,
    padding: Any,
    data_format: str | None = None,
    name: str | None = None,
    dilations: Any = None,
    groups: int = 1,
) -> Tensor:
    """`conv2d` with one spatial axis. Shapes: [n, w, channels], filters [k, channels, filters]."""
    return convolve(value, filters, 1, stride, padding, data_format, dilations, groups, name)


@accepts_aliases(filters="filter")
@accepts_and_ignores("use_cudnn_on_gpu")
def conv2d(
    input: Any,
    filter: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
    groups: int = 1,
) -> Tensor:
    """The cross-correlation of `input` with each filter, at positions given by the strides.

    Shapes:   `input` [n, h, w, channels] (NCHW: [n, channels, h, w]), `filter` [kh, kw, channels /
              groups, filters]; SAME gives ceil(h / stride) rows, VALID those where the filter fits.
    Padding:  SAME, VALID, or pairs (before, after) for each axis.
    Gradient: by both inputs, differentiable again.
    """
    return convolve(input, filter, 2, strides, padding, data_format, dilations, groups, name)


@accepts_aliases(filters="filter")
def conv3d(
    input: Any,
    filter: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NDHWC",
    dilations: Any = None,
    name: str | None = None,
    groups: int = 1,
) -> Tensor:
    """`conv2d` with three spatial axes: `input` [n, d, h, w, channels]."""
    return convolve(input, filter, 3, strides, padding, data_format, dilations, groups, name)


@accepts_aliases(filters="filter", dilations="dilation_rate")
def convolution(
    input: Any,
    filter: Any,
    padding: Any,
    strides: Any = None,
    dilation_rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    groups: int = 1,
) -> Tensor:
    """`conv1d`, `conv2d` or `conv3d` by the rank of the filters; strides are for spatial axes."""
    x, w = operands(input, filter)
    rank = _spatial_rank(w, x, data_format)
    return convolve(x, w, rank, strides, padding, data_format, dilation_rate, groups, name)


def _spatial_rank(w: Tensor, x: Tensor, data_format: str | None) -> int:
    for dims in (w.shape, x.shape):
        if dims is not None:
            return len(dims) - 2
    if data_format in FORMATS:
        return FORMATS[data_format][0]
    raise ShapeError("the rank of a convolution must be known when the graph is built")


def atrous_conv2d(
    value: Any, filters: Any, rate: Any, padding: Any, name: str | None = None
) -> Tensor:
    """`conv2d` with dilated filters: elements are `rate` apart."""
    return convolve(value, filters, 2, 1, padding, "NHWC", rate, 1, name)


# -- depthwise: separate filters for each channel


def _by_channel(
    filter: Tensor, images: Sizes, dynamic_shape: Callable[[], Tensor], first: bool
) -> tuple[Tensor, int | None]:
    """Filters [*kernel, channels, multiplier] as [*kernel, 1, channels * multiplier], and groups.

    `images` is the static shape of the images; `dynamic_shape()` returns the dynamic one.
    """
    at, filter_shape = 1 if first else 3, full("a depthwise filter", filter.shape, 4)
    channels: Any = filter_shape[2] if images[at] is None else images[at]
    if channels is None:
        channels = getitem(dynamic_shape(), at)
    sizes: list[Any] = [filter_shape[0], filter_shape[1], channels, filter_shape[3]]
    if not isinstance(channels, Tensor) and None not in sizes:
        return reshape(filter, [*sizes[:2], 1, channels * sizes[3]]), max(1, channels)
    sizes = [getitem(shape(filter), i) if n is None else n for i, n in enumerate(sizes)]
    grouped = reshape(filter, stack([*sizes[:2], 1, multiply(sizes[2], sizes[3])]))
    return grouped, None if isinstance(channels, Tensor) else max(1, channels)


@accepts_aliases(dilations="rate")
def depthwise_conv2d(
    input: Any,
    filter: Any,
    strides: Any,
    padding: Any,
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
) -> Tensor:
    """Depthwise convolution: each channel is convolved with its own filters.

    Shapes: `filter` [kh, kw, channels, multiplier]; output channel c * multiplier + m is channel c
            convolved with its filter m.
    """
    x, w = operands(input, filter)
    images, first = full("depthwise_conv2d", x.shape, 4), channels_first(data_format, 2)
    grouped, groups = _by_channel(w, images, lambda: shape(x), first)
    return convolve(x, grouped, 2, strides, padding, data_format, rate, groups, name)


def depthwise_conv2d_native(
    input: Any,
    filter: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """`depthwise_conv2d` with arguments in the order of `conv2d`."""
    return depthwise_conv2d(input, filter, strides, padding, dilations, name, data_format)


def depthwise_conv2d_native_backprop_input(
    input_sizes: Any,
    filter: Any,
    out_backprop: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """The gradient of `depthwise_conv2d_native` by its input, of shape `input_sizes`."""
    g, w = operands(out_backprop, filter)
    images = full("input_sizes", shape_argument(input_sizes)[0], 4)
    dynamic_shape = partial(convert_to_tensor, input_sizes)
    grouped, groups = _by_channel(w, images, dynamic_shape, channels_first(data_format, 2))
    return transposed(
        g, grouped, input_sizes, 2, strides, padding, data_format, dilations, groups, name
    )


def depthwise_conv2d_native_backprop_filter(
    input: Any,
    filter_sizes: Any,
    out_backprop: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """The gradient of `depthwise_conv2d_native` by its filter, of shape `filter_sizes`."""
    filter_shape, _ = shape_argument(filter_sizes)
    if filter_shape is None or len(filter_shape) != 4 or None in filter_shape:
        raise ShapeError(f"filter_sizes {filter_sizes!r} must be known when the graph is built")
    kh, kw, channels, times = (int(d or 0) for d in filter_shape)
    sizes = [kh, kw, 1, channels * times]
    groups = max(1, channels)
    grad = filter_gradient(
        input, sizes, out_backprop, 2, strides, padding, data_format, dilations, groups, None
    )
    return reshape(grad, [kh, kw, channels, times], name)


@accepts_aliases(dilations="rate")
def separable_conv2d(
    input: Any,
    depthwise_filter: Any,
    pointwise_filter: Any,
    strides: Any,
    padding: Any,
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
) -> Tensor:
    """`depthwise_conv2d`, followed by a 1 x 1 convolution.

    Shapes: `depthwise_filter` [kh, kw, channels, multiplier], `pointwise_filter` [1, 1, channels *
            multiplier, filters].
    """
    deep = depthwise_conv2d(input, depthwise_filter, strides, padding, rate, None, data_format)
    point = convert_to_tensor(pointwise_filter)
    if point.shape is not None and (len(point.shape) != 4 or not {1, None} >= {*point.shape[:2]}):
        raise ShapeError(f"a pointwise filter has shape [1, 1, ...], not {shape_text(point.shape)}")
    return convolve(deep, point, 2, 1, "VALID", data_format, 1, 1, name)


# -- transposed: the gradient of a convolution, used as a layer


def conv1d_transpose(
    input: Any,
    filters: Any,
    output_shape: Any,
    strides: Any,
    padding: Any = "SAME",
    data_format: str = "NWC",
    dilations: Any = None,
    name: str | None = None,
    groups: int = 1,
) -> Tensor:
    """`conv2d_transpose` with one spatial axis."""
    return transposed(
        input, filters, output_shape, 1, strides, padding, data_format, dilations, groups, name
    )


@accepts_aliases(input="value", filters="filter")
def conv2d_transpose(
    value: Any,
    filter: Any,
    output_shape: Any,
    strides: Any,
    padding: Any = "SAME",
    data_format: str = "NHWC",
    name: str | None = None,
    dilations: Any = None,
    groups: int = 1,
) -> Tensor:
    """The transpose of `conv2d`, that is its gradient by the input.

    Shapes: `filter` [kh, kw, output channels / groups, channels]; `conv2d` of a tensor of shape
            `output_shape` must have the shape of `value`.
    """
    return transposed(
        value, filter, output_shape, 2, strides, padding, data_format, dilations, groups, name
    )


@accepts_aliases(input="value", filters="filter")
def conv3d_transpose(
    value: Any,
    filter: Any,
    output_shape: Any,
    strides: Any,
    padding: Any = "SAME",
    data_format: str = "NDHWC",
    name: str | None = None,
    dilations: Any = None,
    groups: int = 1,
) -> Tensor:
    """`conv2d_transpose` with three spatial axes."""
    return transposed(
        value, filter, output_shape, 3, strides, padding, data_format, dilations, groups, name
    )


def atrous_conv2d_transpose(
    value: Any, filters: Any, output_shape: Any, rate: Any, padding: Any, name: str | None = None
) -> Tensor:
    """The transpose of `atrous_conv2d`."""
    return transposed(value, filters, output_shape, 2, 1, padding, "NHWC", rate, 1, name)


@accepts_aliases(filters="filter")
@accepts_and_ignores("use_cudnn_on_gpu")
def conv2d_backprop_input(
    input_sizes: Any,
    filter: Any,
    out_backprop: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
    groups: int = 1,
) -> Tensor:
    """The gradient of `conv2d` by its input, of shape `input_sizes`."""
    return transposed(
        out_backprop, filter, input_sizes, 2, strides, padding, data_format, dilations, groups, name
    )


@accepts_and_ignores("use_cudnn_on_gpu")
def conv2d_backprop_filter(
    input: Any,
    filter_sizes: Any,
    out_backprop: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
    groups: int = 1,
) -> Tensor:
    """The gradient of `conv2d` by its filter, of shape `filter_sizes`."""
    return filter_gradient(
        input,
        filter_sizes,
        out_backprop,
        2,
        strides,
        padding,
        data_format,
        dilations,
        groups,
        name,
    )


def conv3d_backprop_filter_v2(
    input: Any,
    filter_sizes: Any,
    out_backprop: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NDHWC",
    dilations: Any = None,
    name: str | None = None,
    groups: int = 1,
) -> Tensor:
    """The gradient of `conv3d` by its filter, of shape `filter_sizes`."""
    return filter_gradient(
        input,
        filter_sizes,
        out_backprop,
        3,
        strides,
        padding,
        data_format,
        dilations,
        groups,
        name,
    )
