"""Convolutional layers of one to three axes, separable and transposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.layers.base import (
    Function,
    bias_of,
    finished,
    format_of,
    known_size,
    of_rank,
    sizes_of,
)
from hpcflow.ops import nn
from hpcflow.ops.array import expand_dims, shape, squeeze
from hpcflow.ops.conv import convolve, transposed
from hpcflow.ops.convolutions import separable_conv2d as separable
from hpcflow.ops.math import add, multiply
from hpcflow.ops.rules import named
from hpcflow.ops.slicing import getitem
from hpcflow.ops.variable_scope import get_variable, variable_scope
from hpcflow.ops.window import padding_of


def _channels(x: Tensor, data_format: str, what: str) -> int:
    return known_size(x, 1 if data_format == "channels_first" else -1, what)


def _conv(rank: int, doc: str) -> Function:
    """The layer of `rank` spatial axes."""
    what = f"conv{rank}d"

    def conv(
        inputs: Any,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: Any = 1,
        activation: Function | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        kernel_regularizer: Function | None = None,
        bias_regularizer: Function | None = None,
        activity_regularizer: Function | None = None,
        trainable: bool = True,
        name: str | None = None,
        reuse: Any = None,
    ) -> Tensor:
        x = of_rank(convert_to_tensor(inputs), rank + 2, what)
        form = format_of(data_format, rank)
        with variable_scope(name, what, [x], reuse=reuse):
            sizes = [*sizes_of(kernel_size, rank, "kernel_size"), _channels(x, data_format, what)]
            kernel = get_variable(
                *("kernel", [*sizes, filters], x.dtype),
                *(kernel_initializer, kernel_regularizer, trainable),
            )
            y = convolve(x, kernel, rank, strides, padding, form, dilation_rate, 1, None)
            if use_bias:
                bias = bias_of(x, filters, bias_initializer, bias_regularizer, trainable)
                y = nn.bias_add(y, bias, form)
            return finished(y, activation, activity_regularizer)

    return named(conv, what, doc)


conv1d = _conv(1, "`conv2d` of one spatial axis: inputs [n, w, channels].")
conv2d = _conv(
    2,
    """`activation(conv(inputs) + bias)`.

    Shapes:    [n, h, w, channels], or [n, channels, h, w] with channels_first; `kernel_size` is an
               int or one for each axis; sizes as of `hf.nn.conv2d`.
    Variables: `kernel` [kh, kw, channels, filters], Glorot's uniform by default; `bias` [filters].
    """,
)
conv3d = _conv(3, "`conv2d` of three spatial axes: inputs [n, d, h, w, channels].")


def _conv_transpose(rank: int, doc: str) -> Function:
    what = f"conv{rank}d_transpose"

    def conv_transpose(
        inputs: Any,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: Any = "valid",
        data_format: str = "channels_last",
        activation: Function | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        kernel_regularizer: Function | None = None,
        bias_regularizer: Function | None = None,
        activity_regularizer: Function | None = None,
        trainable: bool = True,
        name: str | None = None,
        reuse: Any = None,
    ) -> Tensor:
        x = of_rank(convert_to_tensor(inputs), rank + 2, what)
        form, first = format_of(data_format, rank), data_format == "channels_first"
        with variable_scope(name, what, [x], reuse=reuse):
            sizes = sizes_of(kernel_size, rank, "kernel_size")
            steps = sizes_of(strides, rank, "strides")
            kernel = get_variable(
                *("kernel", [*sizes, filters, _channels(x, data_format, what)], x.dtype),
                *(kernel_initializer, kernel_regularizer, trainable),
            )
            pads = padding_of(padding, rank, first)
            more = _beyond(sizes, steps, pads)
            grown = [_grown(x, i + (2 if first else 1), steps[i], more[i]) for i in range(rank)]
            batch = _grown(x, 0, 1, 0)
            out = [batch, filters, *grown] if first else [batch, *grown, filters]
            y = transposed(x, kernel, out, rank, steps, padding, form, 1, 1, None)
            if use_bias:
                bias = bias_of(x, filters, bias_initializer, bias_regularizer, trainable)
                y = nn.bias_add(y, bias, form)
            return finished(y, activation, activity_regularizer)

    return named(conv_transpose, what, doc)


def _beyond(sizes: Sequence[int], steps: Sequence[int], pads: Any) -> list[int]:
    """By how much each axis of a transpose is longer than its input's times the step."""
    if pads == "SAME":
        return [0] * len(sizes)
    if pads == "VALID":
        return [max(k - s, 0) for k, s in zip(sizes, steps, strict=True)]
    return [k - s - sum(pair) for k, s, pair in zip(sizes, steps, pads, strict=True)]


def _grown(x: Tensor, axis: int, factor: int, more: int) -> Any:
    """The size of `x` along `axis`, times `factor`, plus `more`; a tensor if it is unknown."""
    assert x.shape is not None
    size = x.shape[axis]
    if size is not None:
        return size * factor + more
    return add(multiply(getitem(shape(x), axis), factor), more)


conv1d_transpose = _conv_transpose(1, "`conv2d_transpose` of one spatial axis.")
conv2d_transpose = _conv_transpose(
    2,
    """The transpose of `conv2d`, which makes images larger by the strides.

    Shapes:    sizes become `size * stride` with padding same, with valid `size * stride +
               max(kernel - stride, 0)`, and with pairs (before, after) what `conv2d` with these
               pads takes back to `size`: `(size - 1) * stride + kernel - before - after`.
    Variables: `kernel` [kh, kw, filters, channels]; `bias` [filters].
    """,
)
conv3d_transpose = _conv_transpose(3, "`conv2d_transpose` of three spatial axes.")


def _rows(x: Tensor, depthwise: Any, pointwise: Any, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """Lines and their filters as images of one row, which is `axis` of `x`."""
    return expand_dims(x, axis), expand_dims(depthwise, 0), expand_dims(pointwise, 0)


def _separable(rank: int, doc: str) -> Function:
    what = f"separable_conv{rank}d"

    def separable_conv(
        inputs: Any,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: Any = 1,
        depth_multiplier: int = 1,
        activation: Function | None = None,
        use_bias: bool = True,
        depthwise_initializer: Any = None,
        pointwise_initializer: Any = None,
        bias_initializer: Any = None,
        depthwise_regularizer: Function | None = None,
        pointwise_regularizer: Function | None = None,
        bias_regularizer: Function | None = None,
        activity_regularizer: Function | None = None,
        trainable: bool = True,
        name: str | None = None,
        reuse: Any = None,
    ) -> Tensor:
        x = of_rank(convert_to_tensor(inputs), rank + 2, what)
        first = data_format == "channels_first"
        format_of(data_format, rank)
        with variable_scope(name, what, [x], reuse=reuse):
            channels = _channels(x, data_format, what)
            sizes, deep = sizes_of(kernel_size, rank, "kernel_size"), channels * depth_multiplier
            depthwise = get_variable(
                *("depthwise_kernel", [*sizes, channels, depth_multiplier], x.dtype),
                *(depthwise_initializer, depthwise_regularizer, trainable),
            )
            pointwise = get_variable(
                *("pointwise_kernel", [1] * rank + [deep, filters], x.dtype),
                *(pointwise_initializer, pointwise_regularizer, trainable),
            )
            steps = sizes_of(strides, rank, "strides")
            rates = sizes_of(dilation_rate, rank, "dilation_rate")
            if rank == 1:
                x, depthwise, pointwise = _rows(x, depthwise, pointwise, 2 if first else 1)
                steps, rates = [1, *steps], [1, *rates]
            form = "NCHW" if first else "NHWC"
            y = separable(x, depthwise, pointwise, steps, padding, rates, None, form)
            if use_bias:
                bias = bias_of(x, filters, bias_initializer, bias_regularizer, trainable)
                y = nn.bias_add(y, bias, form)
            if rank == 1:
                y = squeeze(y, 2 if first else 1)
            return finished(y, activation, activity_regularizer)

    return named(separable_conv, what, doc)


separable_conv1d = _separable(1, "`separable_conv2d` of one spatial axis.")
separable_conv2d = _separable(
    2,
    """Filters for each channel alone, then a 1 x 1 convolution that mixes the channels.

    Variables: `depthwise_kernel` [kh, kw, channels, depth_multiplier], `pointwise_kernel` [1, 1,
               channels * depth_multiplier, filters], `bias` [filters].
    """,
)
