"""Pooling ops: maximum or mean of windows over one to three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import as_dtype, int64
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import op
from hpcflow.graph.static_shape import Spec, merge_shapes
from hpcflow.ops import flop_counts
from hpcflow.ops.array.array_ops import shape_argument, sizes
from hpcflow.ops.named_results import MaxPoolWithArgmax
from hpcflow.ops.nn.sliding_window import join_parts, parts, per_axis, slid, slides
from hpcflow.ops.shape_inference import (
    Attrs,
    first_output,
    make,
    require,
    require_equal,
    told_shape,
)

# -- rows. Attributes: those of a window (see ops/nn/sliding_window.py) and `window`, its sizes


def _pooled(type: str, x: Spec, attrs: Attrs) -> Spec:
    rank, first = len(attrs["window"]), attrs["first"]
    batch, space, channels = parts(type, x, rank, first)
    return Spec(
        x.dtype, join_parts(batch, slid(type, space, attrs["window"], attrs), channels, first)
    )


def _max_pool(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("max_pool", inputs[0], "iuf")
    return [_pooled("max_pool", inputs[0], attrs)]


def _with_argmax(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    (y,) = _max_pool(inputs, attrs)
    return [y, Spec(attrs["dtype"], y.shape)]


def _avg_pool(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("avg_pool", inputs[0], "f")
    return [_pooled("avg_pool", inputs[0], attrs)]


def _max_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x, y, g = inputs
    require_equal("max_pool's gradient", inputs)
    merge_shapes(merge_shapes(_pooled("max_pool", x, attrs).shape, y.shape), g.shape)
    return [Spec(x.dtype, x.shape)]


def _max_grad_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x, y, gg = inputs
    require_equal("max_pool's gradient", inputs)
    x_spec = Spec(x.dtype, merge_shapes(x.shape, gg.shape))
    return [Spec(x.dtype, merge_shapes(_pooled("max_pool", x_spec, attrs).shape, y.shape))]


def _avg_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    target = Spec(inputs[0].dtype, told_shape(inputs, 1, attrs))
    merge_shapes(_pooled("avg_pool", target, attrs).shape, inputs[0].shape)
    return [target]


def _plain(attrs: Attrs, *left_out: str) -> Attrs:
    return {k: v for k, v in attrs.items() if k not in left_out}


def _max_back(op: Operation, g: Tensor | None, of_places: None = None) -> list[Any]:
    assert g is not None
    attrs = _plain(op.attrs, "include_batch", "dtype")
    return [first_output("MaxPoolGrad", [op.inputs[0], op.outputs[0], g], attrs)]


def _max_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    x, y, _ = op.inputs  # linear in g; piecewise constant in x
    return [None, None, lambda: first_output("MaxPoolGradGrad", [x, y, gg], op.attrs)]


def _max_grad_grad_back(op: Operation, g: Tensor) -> list[Any]:
    x, y, _ = op.inputs
    return [None, None, lambda: first_output("MaxPoolGrad", [x, y, g], op.attrs)]


def _avg_back(op: Operation, g: Tensor) -> list[Any]:
    static, dynamic = shape_argument(sizes(op.inputs[0]))
    return [first_output("AvgPoolGrad", [g, *dynamic], {**op.attrs, "shape": static})]


def _avg_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    grad = first_output("AvgPool", [gg], _plain(op.attrs, "shape"))
    return [grad, *[None] * (len(op.inputs) - 1)]


MAX_POOL_KERNELS = "pooling_kernels kernels.llvm_max_pooling kernels.ptx_max_pooling"
op(
    "MaxPool",
    infer=_max_pool,
    grad=_max_back,
    flops=flop_counts.windows(-1),
    kernels=MAX_POOL_KERNELS,
)
op("MaxPoolWithArgmax", infer=_with_argmax, grad=_max_back, flops=flop_counts.windows(-2))
op(
    "MaxPoolGrad",
    infer=_max_grad,
    grad=_max_grad_back,
    flops=flop_counts.windows(1),
    kernels=f"{MAX_POOL_KERNELS} kernels.onednn_pooling",
)
op("MaxPoolGradGrad", infer=_max_grad_grad, grad=_max_grad_grad_back, flops=flop_counts.windows(1))
op(
    "AvgPool",
    infer=_avg_pool,
    grad=_avg_back,
    flops=flop_counts.windows(-1),
    kernels="pooling_kernels kernels.onednn_pooling",
)
op(
    "AvgPoolGrad",
    shape_input=True,
    infer=_avg_grad,
    grad=_avg_grad_back,
    flops=flop_counts.windows(0),
    kernels="pooling_kernels kernels.onednn_pooling",
)


def _file_attributes(
    ksize: Any, strides: Any, padding: Any, data_format: str | None, dilations: Any, rank: int
) -> Attrs:
    attrs = slides(strides, padding, data_format, dilations, rank)
    try:
        return {**attrs, "window": per_axis("ksize", ksize, rank, attrs["first"])}
    except ShapeError as error:
        error.line = user_line()
        raise


# -- maximum


def _largest(
    x: Any,
    rank: int,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str | None,
    dilations: Any,
    name: str | None,
) -> Tensor:
    attrs = _file_attributes(ksize, strides, padding, data_format, dilations, rank)
    return first_output("MaxPool", [convert_to_tensor(x)], attrs, name)


@accepts_aliases(input="value")
def max_pool(
    value: Any,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    name: str | None = None,
    dilations: Any = None,
) -> Tensor:
    """The maximum of each window of `ksize` elements, for each channel.

    Shapes:   [n, h, w, channels] (NCHW: [n, channels, h, w]); sizes as of `conv2d`.
    Padding:  SAME, VALID, or pairs (before, after); padding is never the maximum.
    Gradient: to the first maximal element; differentiable again.
    """
    return _largest(value, 2, ksize, strides, padding, data_format, dilations, name)


max_pool2d = max_pool


def max_pool1d(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NWC",
    name: str | None = None,
    dilations: Any = None,
) -> Tensor:
    """`max_pool` over one axis: [n, w, channels]."""
    return _largest(input, 1, ksize, strides, padding, data_format, dilations, name)


def max_pool3d(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NDHWC",
    name: str | None = None,
    dilations: Any = None,
) -> Tensor:
    """`max_pool` over three axes: [n, d, h, w, channels]."""
    return _largest(input, 3, ksize, strides, padding, data_format, dilations, name)


@accepts_aliases(Targmax="output_dtype")
def max_pool_with_argmax(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    name: str | None = None,
    output_dtype: Any = int64,
    include_batch_in_index: bool = False,
    dilations: Any = None,
) -> MaxPoolWithArgmax:
    """`max_pool`, and the flat index of each maximum in its sample.

    The index is (y * w + x) * channels + c, for NCHW (c * h + y) * w + x; with
    `include_batch_in_index` it includes the batch. It is -1 for a window of padding only.
    """
    x = convert_to_tensor(input)
    rank = 2 if x.shape is None else len(x.shape) - 2
    attrs = _file_attributes(ksize, strides, padding, data_format, dilations, rank)
    attrs.update(include_batch=bool(include_batch_in_index), dtype=as_dtype(output_dtype))
    y, places = make("MaxPoolWithArgmax", [x], attrs, name).outputs
    return MaxPoolWithArgmax(y, places)


# -- mean


def _mean(
    x: Any,
    rank: int,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str | None,
    count_include_pad: bool,
    name: str | None,
    dilations: Any = None,
) -> Tensor:
    attrs = _file_attributes(ksize, strides, padding, data_format, dilations, rank)
    attrs["count_include_pad"] = bool(count_include_pad)
    return first_output("AvgPool", [convert_to_tensor(x)], attrs, name)


@accepts_aliases(input="value")
def avg_pool(
    value: Any,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    name: str | None = None,
    count_include_pad: bool = False,
) -> Tensor:
    """The mean of each window of `ksize` elements; shapes and padding as of `max_pool`.

    Padding is not counted, unless `count_include_pad`.
    """
    return _mean(value, 2, ksize, strides, padding, data_format, count_include_pad, name)


avg_pool2d = avg_pool


def avg_pool1d(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NWC",
    name: str | None = None,
    count_include_pad: bool = False,
) -> Tensor:
    """`avg_pool` over one axis: [n, w, channels]."""
    return _mean(input, 1, ksize, strides, padding, data_format, count_include_pad, name)


def avg_pool3d(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NDHWC",
    name: str | None = None,
    count_include_pad: bool = False,
) -> Tensor:
    """`avg_pool` over three axes: [n, d, h, w, channels]."""
    return _mean(input, 3, ksize, strides, padding, data_format, count_include_pad, name)


@accepts_aliases(dilations="dilation_rate")
def pool(
    input: Any,
    window_shape: Any,
    pooling_type: str,
    padding: Any,
    dilation_rate: Any = None,
    strides: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    count_include_pad: bool = False,
) -> Tensor:
    """Pooling over the axes of `window_shape`; `pooling_type` is MAX or AVG."""
    rank = len(window_shape)
    if pooling_type == "MAX":
        return _largest(
            input, rank, window_shape, strides, padding, data_format, dilation_rate, name
        )
    if pooling_type == "AVG":
        return _mean(
            input,
            rank,
            window_shape,
            strides,
            padding,
            data_format,
            count_include_pad,
            name,
            dilation_rate,
        )
    raise ShapeError(f"pooling_type {pooling_type!r} is not 'MAX' or 'AVG'", line=user_line())
