"""Convolutional layers: one to three spatial axes, separable and transposed convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.graph.graph import Tensor
from hpcflow.layers.layer_builder import (
    Function,
    Weighted,
    format_of,
    function,
    known_size,
    of_rank,
    sizes_of,
)
from hpcflow.ops.array.array_ops import expand_dims, shape, squeeze
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import add, multiply
from hpcflow.ops.nn import nn_ops
from hpcflow.ops.nn.convolution_functions import separable_conv2d as separable
from hpcflow.ops.nn.convolution_ops import convolve, transposed
from hpcflow.ops.nn.layer_objects import InputSpec
from hpcflow.ops.nn.sliding_window import padding_of


class _Images(Weighted):
    """Base class of convolutional layers: `rank` spatial axes, channels first or last."""

    rank: int

    def _windows(
        self, filters: int, kernel_size: Any, strides: Any, padding: Any, data_format: str
    ) -> None:
        self.filters = self._count("filters", filters)
        self.kernel_size, self.strides = kernel_size, strides
        self.padding, self.data_format = padding, data_format

    @property
    def _first(self) -> bool:
        return self.data_format == "channels_first"

    @property
    def _form(self) -> str:
        return format_of(self.data_format, self.rank)

    def _sizes(self) -> list[int]:
        return sizes_of(self.kernel_size, self.rank, "kernel_size")

    def _convert_inputs(self, inputs: Any) -> Tensor:
        return of_rank(super()._convert_inputs(inputs), self.rank + 2, self.what)

    def _channels(self, input_shape: Any) -> int:
        """The number of channels of the inputs; all later inputs must have the same."""
        axis = 1 if self._first else -1
        channels = known_size(input_shape, axis, self.what)
        self.input_spec = InputSpec(ndim=self.rank + 2, axes={axis: channels})
        return channels


class _Conv(_Images):
    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: Any = 1,
        activation: Function | str | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        kernel_regularizer: Function | None = None,
        bias_regularizer: Function | None = None,
        activity_regularizer: Function | None = None,
        kernel_constraint: Function | None = None,
        bias_constraint: Function | None = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activation, use_bias, activity_regularizer, trainable, name, kwargs)
        self._windows(filters, kernel_size, strides, padding, data_format)
        self.dilation_rate = dilation_rate
        self._store_weight_options(
            kernel=(kernel_initializer, kernel_regularizer, kernel_constraint),
            bias=(bias_initializer, bias_regularizer, bias_constraint),
        )

    def build(self, input_shape: Any) -> None:
        """Create `kernel` and `bias`."""
        sizes = [*self._sizes(), self._channels(input_shape), self.filters]
        self.kernel = self._weight("kernel", sizes)
        self._add_bias(self.filters)
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """The convolution with bias and activation."""
        geometry = (self.strides, self.padding, self._form, self.dilation_rate)
        y = convolve(inputs, self.kernel, self.rank, *geometry, 1, None)
        return self._finished(y, self._form)


class Conv1D(_Conv):
    """`Conv2D` with one spatial axis: inputs [n, w, channels]."""

    what, rank = "conv1d", 1


class Conv2D(_Conv):
    """Convolution layer: `activation(conv(inputs) + bias)`.

    Shapes:    [n, h, w, channels], or [n, channels, h, w] with channels_first. `kernel_size` is one
               int, or one for each axis. Output sizes are those of `hf.nn.conv2d`.
    Variables: `kernel` [kh, kw, channels, filters], by default Glorot uniform; `bias` [filters].
    """

    what, rank = "conv2d", 2


class Conv3D(_Conv):
    """`Conv2D` with three spatial axes: inputs [n, d, h, w, channels]."""

    what, rank = "conv3d", 3


class _Transposed(_Images):
    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: Any = "valid",
        data_format: str = "channels_last",
        activation: Function | str | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        kernel_regularizer: Function | None = None,
        bias_regularizer: Function | None = None,
        activity_regularizer: Function | None = None,
        kernel_constraint: Function | None = None,
        bias_constraint: Function | None = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activation, use_bias, activity_regularizer, trainable, name, kwargs)
        self._windows(filters, kernel_size, strides, padding, data_format)
        self._store_weight_options(
            kernel=(kernel_initializer, kernel_regularizer, kernel_constraint),
            bias=(bias_initializer, bias_regularizer, bias_constraint),
        )

    def build(self, input_shape: Any) -> None:
        """Create `kernel` and `bias`."""
        sizes = [*self._sizes(), self.filters, self._channels(input_shape)]
        self.kernel = self._weight("kernel", sizes)
        self._add_bias(self.filters)
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """The transposed convolution with bias and activation."""
        x, rank, axis = inputs, self.rank, 2 if self._first else 1
        steps = sizes_of(self.strides, rank, "strides")
        pads = padding_of(self.padding, rank, self._first)
        extra = _beyond(self._sizes(), steps, pads)
        grown = [_grown(x, i + axis, steps[i], extra[i]) for i in range(rank)]
        batch = _grown(x, 0, 1, 0)
        out = [batch, self.filters, *grown] if self._first else [batch, *grown, self.filters]
        geometry = (steps, self.padding, self._form)
        y = transposed(x, self.kernel, out, rank, *geometry, 1, 1, None)
        return self._finished(y, self._form)


def _beyond(sizes: Sequence[int], steps: Sequence[int], pads: Any) -> list[int]:
    """For each axis, the output size of a transposed convolution minus input size times stride."""
    if pads == "SAME":
        return [0] * len(sizes)
    if pads == "VALID":
        return [max(k - s, 0) for k, s in zip(sizes, steps, strict=True)]
    return [k - s - sum(pair) for k, s, pair in zip(sizes, steps, pads, strict=True)]


def _grown(x: Tensor, axis: int, factor: int, increment: int) -> Any:
    """The size of `x` along `axis`, times `factor`, plus `increment`; a tensor if unknown."""
    assert x.shape is not None
    size = x.shape[axis]
    if size is not None:
        return size * factor + increment
    return add(multiply(getitem(shape(x), axis), factor), increment)


class Conv1DTranspose(_Transposed):
    """`Conv2DTranspose` with one spatial axis."""

    what, rank = "conv1d_transpose", 1


class Conv2DTranspose(_Transposed):
    """Transposed convolution: the transpose of `Conv2D`, which upsamples images by the strides.

    Shapes:    the output size is `size * stride` for padding "same", and `size * stride +
               max(kernel - stride, 0)` for "valid". With explicit pads (before, after) it is
               `(size - 1) * stride + kernel - before - after`, so that `conv2d` with these pads
               gives `size`.
    Variables: `kernel` [kh, kw, filters, channels]; `bias` [filters].
    """

    what, rank = "conv2d_transpose", 2


class Conv3DTranspose(_Transposed):
    """`Conv2DTranspose` with three spatial axes."""

    what, rank = "conv3d_transpose", 3


class _Separable(_Images):
    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: Any = 1,
        depth_multiplier: int = 1,
        activation: Function | str | None = None,
        use_bias: bool = True,
        depthwise_initializer: Any = None,
        pointwise_initializer: Any = None,
        bias_initializer: Any = None,
        depthwise_regularizer: Function | None = None,
        pointwise_regularizer: Function | None = None,
        bias_regularizer: Function | None = None,
        activity_regularizer: Function | None = None,
        depthwise_constraint: Function | None = None,
        pointwise_constraint: Function | None = None,
        bias_constraint: Function | None = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activation, use_bias, activity_regularizer, trainable, name, kwargs)
        self._windows(filters, kernel_size, strides, padding, data_format)
        self.dilation_rate, self.depth_multiplier = dilation_rate, depth_multiplier
        self._store_weight_options(
            depthwise=(depthwise_initializer, depthwise_regularizer, depthwise_constraint),
            pointwise=(pointwise_initializer, pointwise_regularizer, pointwise_constraint),
            bias=(bias_initializer, bias_regularizer, bias_constraint),
        )

    def build(self, input_shape: Any) -> None:
        """Create `depthwise_kernel`, `pointwise_kernel` and `bias`."""
        channels, many = self._channels(input_shape), self.depth_multiplier
        depthwise, pointwise = [*self._sizes(), channels, many], [1] * self.rank
        self.depthwise_kernel = self._weight("depthwise_kernel", depthwise)
        pointwise += [channels * many, self.filters]
        self.pointwise_kernel = self._weight("pointwise_kernel", pointwise)
        self._add_bias(self.filters)
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """The convolution with bias and activation; with one spatial axis on images of height 1."""
        steps = sizes_of(self.strides, self.rank, "strides")
        rates = sizes_of(self.dilation_rate, self.rank, "dilation_rate")
        x, depthwise, pointwise = inputs, self.depthwise_kernel, self.pointwise_kernel
        row = 2 if self._first else 1
        if self.rank == 1:
            x, steps, rates = expand_dims(x, row), [1, *steps], [1, *rates]
            depthwise, pointwise = expand_dims(depthwise, 0), expand_dims(pointwise, 0)
        form = format_of(self.data_format, 2)
        y = separable(x, depthwise, pointwise, steps, self.padding, rates, None, form)
        y = y if self.bias is None else nn_ops.bias_add(y, self.bias, form)
        return self._activated(squeeze(y, row) if self.rank == 1 else y)


class SeparableConv1D(_Separable):
    """`SeparableConv2D` with one spatial axis."""

    what, rank = "separable_conv1d", 1


class SeparableConv2D(_Separable):
    """Depthwise separable convolution: filters for each channel, then a 1 x 1 convolution.

    Variables: `depthwise_kernel` [kh, kw, channels, depth_multiplier], `pointwise_kernel` [1, 1,
               channels * depth_multiplier, filters], `bias` [filters].
    """

    what, rank = "separable_conv2d", 2


conv1d, conv2d, conv3d = (function(cls) for cls in (Conv1D, Conv2D, Conv3D))
conv1d_transpose, conv2d_transpose, conv3d_transpose = (
    function(cls) for cls in (Conv1DTranspose, Conv2DTranspose, Conv3DTranspose)
)
separable_conv1d, separable_conv2d = function(SeparableConv1D), function(SeparableConv2D)
