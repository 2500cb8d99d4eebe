"""Convolution ops: convolution over any number of axes and its two gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.graph import Operation, Tensor, user_line
from hpcflow.graph.op_registry import op
from hpcflow.graph.static_shape import Spec, merge_shapes, shape_text
from hpcflow.ops import flop_counts
from hpcflow.ops.array.array_ops import shape_argument, sizes
from hpcflow.ops.nn.sliding_window import Sizes, full, join_parts, parts, slid, slides
from hpcflow.ops.shape_inference import (
    Attrs,
    first_output,
    integer_argument,
    operands,
    require,
    require_equal,
    told_shape,
)

# -- rows. Attributes: strides, dilations (one per axis), padding (SAME, VALID or pairs), first
# (channels first), groups (0: depthwise). Filters are [*kernel, channels / groups, filters] in any
# format.


def _check_filters(type: str, filters: Sizes, channels: int | None, groups: int) -> None:
    each, count = filters[-2:]
    groups = groups or channels or 1
    if None not in (channels, each) and channels != (each or 0) * groups:
        of = "" if groups == 1 else f" in {groups} groups"
        raise ShapeError(
            f"{type}: {channels} channels do not fit filters {shape_text(filters)} of {each} "
            f"channels{of}",
            hint="give filters of shape [*kernel, channels / groups, filters]",
        )
    if count is not None and count % groups:
        raise ShapeError(f"{type}: {count} filters cannot be divided into {groups} groups")


def _forward(type: str, x: Spec, filters: Sizes, attrs: Attrs) -> Sizes:
    """The output shape of a convolution of `x` with filters of this shape."""
    rank, first = len(attrs["strides"]), attrs["first"]
    batch, space, channels = parts(type, x, rank, first)
    _check_filters(type, filters, channels, attrs["groups"])
    return join_parts(batch, slid(type, space, filters[:rank], attrs), filters[-1], first)


def _checked(type: str, inputs: Sequence[Spec]) -> None:
    require_equal(type, inputs[:2])
    require(type, inputs[0], "f")


def _conv(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    _checked("convolution", inputs)
    filters = full("a filter", inputs[1].shape, len(attrs["strides"]) + 2)
    return [Spec(inputs[0].dtype, _forward("convolution", inputs[0], filters, attrs))]


def _input_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    type = "transposed convolution"
    _checked(type, inputs)
    g, w = inputs[:2]
    rank, first, groups = len(attrs["strides"]), attrs["first"], attrs["groups"]
    filters = full("a filter", w.shape, rank + 2)
    channels = None if filters[-2] is None or not groups else filters[-2] * groups
    g_shape = full("g", g.shape, rank + 2)
    x_shape = join_parts(g_shape[:1], (None,) * rank, channels, first)
    target = merge_shapes(told_shape(inputs, 2, attrs), x_shape)
    merge_shapes(_forward(type, Spec(g.dtype, target), filters, attrs), g_shape)
    return [Spec(g.dtype, target)]


def _filter_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    type = "gradient of filters"
    _checked(type, inputs)
    x, g = inputs[:2]
    rank, first, groups = len(attrs["strides"]), attrs["first"], attrs["groups"]
    channels, filters = parts(type, x, rank, first)[2], parts(type, g, rank, first)[2]
    each = 1 if not groups else None if channels is None else channels // groups
    target = merge_shapes(told_shape(inputs, 2, attrs), ((None,) * rank + (each, filters)))
    assert target is not None
    merge_shapes(_forward(type, x, target, attrs), g.shape)
    return [Spec(x.dtype, target)]


def _row(type: str, a: Tensor, b: Tensor, like: Tensor, attrs: Attrs) -> Tensor:
    """A gradient of a convolution, with the shape of `like`."""
    static, dynamic = shape_argument(sizes(like))
    return first_output(type, [a, b, *dynamic], {**attrs, "shape": static})


def _plain(attrs: Attrs) -> Attrs:
    return {k: v for k, v in attrs.items() if k != "shape"}


def _conv_back(op: Operation, g: Tensor) -> list[Any]:
    x, w = op.inputs
    return [
        lambda: _row("ConvInputGrad", g, w, x, op.attrs),
        lambda: _row("ConvFilterGrad", x, g, w, op.attrs),
    ]


def _input_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    g, w, *dynamic = op.inputs
    return [
        lambda: first_output("Conv", [gg, w], _plain(op.attrs)),
        lambda: _row("ConvFilterGrad", gg, g, w, op.attrs),
        *[None] * len(dynamic),
    ]


def _filter_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    x, g, *dynamic = op.inputs
    return [
        lambda: _row("ConvInputGrad", g, gg, x, op.attrs),
        lambda: first_output("Conv", [x, gg], _plain(op.attrs)),
        *[None] * len(dynamic),
    ]


op(
    "Conv",
    infer=_conv,
    grad=_conv_back,
    flops=flop_counts.convolution(0, 1, -1),
    contraction=flop_counts.filters(1, -1, "window"),
    uses_blas=True,
    kernels="convolution_kernels kernels.onednn_convolution kernels.cudnn_convolution",
)
op(
    "ConvInputGrad",
    shape_input=True,
    infer=_input_grad,
    grad=_input_grad_back,
    flops=flop_counts.convolution(-1, 1, 0),
    contraction=flop_counts.filters(1, 0, "channels"),
    uses_blas=True,
    kernels="convolution_kernels kernels.onednn_convolution kernels.cudnn_convolution",
)
op(
    "ConvFilterGrad",
    shape_input=True,
    infer=_filter_grad,
    grad=_filter_grad_back,
    flops=flop_counts.convolution(0, -1, 1),
    contraction=flop_counts.filters(-1, 1, "pixels"),
    uses_blas=True,
    kernels="convolution_kernels kernels.onednn_convolution kernels.cublaslt_filter_gradient"
    " kernels.cudnn_convolution",
)


# -- shared by the public functions


def convolve(
    x: Any,
    filters: Any,
    rank: int,
    strides: Any,
    padding: Any,
    data_format: str | None,
    dilations: Any,
    groups: int | None,
    name: str | None,
) -> Tensor:
    """A convolution over `rank` spatial axes."""
    a, w = operands(x, filters)
    attrs = attributes(strides, padding, data_format, dilations, groups, rank)
    return first_output("Conv", [a, w], attrs, name)


def attributes(
    strides: Any,
    padding: Any,
    data_format: str | None,
    dilations: Any,
    groups: int | None,
    rank: int,
) -> Attrs:
    """The attributes of the rows, checked; groups None means one per channel."""
    parted = 0 if groups is None else integer_argument(groups, "groups")
    if parted < 1 and groups is not None:
        raise ShapeError(f"groups {groups} is not positive", line=user_line())
    return {**slides(strides, padding, data_format, dilations, rank), "groups": parted}


def transposed(
    value: Any,
    filters: Any,
    output_shape: Any,
    rank: int,
    strides: Any,
    padding: Any,
    data_format: str | None,
    dilations: Any,
    groups: int | None,
    name: str | None,
) -> Tensor:
    """The gradient of a convolution by its input, of shape `output_shape`."""
    g, w = operands(value, filters)
    attrs = attributes(strides, padding, data_format, dilations, groups, rank)
    static, dynamic = shape_argument(output_shape)
    return first_output("ConvInputGrad", [g, w, *dynamic], {**attrs, "shape": static}, name)


def filter_gradient(
    x: Any,
    filter_sizes: Any,
    g: Any,
    rank: int,
    strides: Any,
    padding: Any,
    data_format: str | None,
    dilations: Any,
    groups: int,
    name: str | None,
) -> Tensor:
    """The gradient of a convolution by its filters, of shape `filter_sizes`."""
    a, b = operands(x, g)
    attrs = attributes(strides, padding, data_format, dilations, groups, rank)
    static, dynamic = shape_argument(filter_sizes)
    return first_output("ConvFilterGrad", [a, b, *dynamic], {**attrs, "shape": static}, name)
