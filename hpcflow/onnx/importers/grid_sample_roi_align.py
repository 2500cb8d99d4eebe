"""ONNX import of GridSample, RoiAlign and DeformConv: interpolation in images."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.convolution_matmul import with_bias
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array.array_ops import constant, expand_dims, reshape, transpose
from hpcflow.ops.array.concat_split_ops import concat
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.linalg.matmul_ops import matmul
from hpcflow.ops.math import arithmetic_ops, elementwise_math_ops, reduction_ops

Tap = tuple[Tensor, Tensor]  # index and weight along one axis


class ImageRows:
    """An image [batch, channels, ...] as a matrix of pixels by channels."""

    def __init__(self, node: OnnxNode, x: Tensor) -> None:
        self.batch, self.channels, *self.sizes = node.static_shape(x)
        rank = len(self.sizes)
        last = transpose(x, [0, *range(2, rank + 2), 1])
        self.rows = reshape(last, [-1, self.channels])

    def at(self, first: Any, index: Sequence[Tensor]) -> Tensor:
        """The pixels of samples `first` at `index`, one tensor per axis: [..., channels]."""
        flat: Any = first
        for size, i in zip(self.sizes, index, strict=True):
            flat = arithmetic_ops.add(arithmetic_ops.multiply(flat, np.int64(size)), i)
        return gather(self.rows, flat)

    def weighted(self, first: Any, taps: Sequence[Sequence[Tap]]) -> Tensor:
        """The weighted sum of values over all combinations of one tap per axis."""
        parts = []
        for chosen in itertools.product(*taps):
            weight = functools.reduce(arithmetic_ops.multiply, [w for _, w in chosen])
            value = self.at(first, [i for i, _ in chosen])
            parts.append(arithmetic_ops.multiply(value, expand_dims(weight, -1)))
        return arithmetic_ops.add_n(parts)


# -- GridSample


def _reflected(v: Tensor, low: float, high: float) -> Tensor:
    """`v` reflected at `low` and `high` into the interval."""
    span = high - low
    if span == 0:
        return arithmetic_ops.multiply(v, 0.0) + low
    away = arithmetic_ops.abs(arithmetic_ops.subtract(v, low))
    turns = elementwise_math_ops.floor(arithmetic_ops.divide(away, span))
    remainder = arithmetic_ops.subtract(away, arithmetic_ops.multiply(turns, span))
    odd = arithmetic_ops.greater(arithmetic_ops.mod(turns, 2.0), 0.5)
    return arithmetic_ops.where_v2(
        odd, arithmetic_ops.subtract(high, remainder), arithmetic_ops.add(remainder, low)
    )


def _clamp_to_image(v: Tensor, size: int, padding: str, corners: bool) -> Tensor:
    """The coordinate clipped or reflected into the image; unchanged for zero padding."""
    if padding == "border":
        return arithmetic_ops.clip_by_value(v, 0.0, float(size - 1))
    if padding == "reflection":
        edge = 0.0 if corners else 0.5
        return _reflected(v, -edge, size - 1 + edge)
    return v


_CUBIC = -0.75


def _grid_taps(v: Tensor, mode: str) -> list[tuple[Tensor, Tensor | None]]:
    """The integer coordinates around `v` and their weights; None means weight 1."""
    if mode == "nearest":
        return [(elementwise_math_ops.rint(v), None)]
    low = elementwise_math_ops.floor(v)
    t = arithmetic_ops.subtract(v, low)
    if mode == "linear":
        return [(low, arithmetic_ops.subtract(1.0, t)), (arithmetic_ops.add(low, 1.0), t)]
    a = _CUBIC

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1.0

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    weights = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]
    return [(arithmetic_ops.add(low, float(i - 1)), w) for i, w in enumerate(weights)]


@imports("GridSample")
def _grid_sample(node: OnnxNode, x: Tensor, grid: Tensor) -> Tensor:
    image = ImageRows(node, x)
    rank = len(image.sizes)
    mode = node.attr("mode", "linear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    padding, corners = node.attr("padding_mode", "zeros"), bool(node.attr("align_corners", 0))
    taps: list[list[Tap]] = []
    for axis, size in enumerate(image.sizes):
        n = getitem(grid, (..., rank - 1 - axis))  # the last coordinate is for the first axis
        if corners:
            v = arithmetic_ops.multiply(arithmetic_ops.add(n, 1.0), (size - 1) / 2)
        else:
            v = arithmetic_ops.multiply(
                arithmetic_ops.subtract(
                    arithmetic_ops.multiply(arithmetic_ops.add(n, 1.0), float(size)), 1.0
                ),
                0.5,
            )
        if mode == "nearest":
            v = elementwise_math_ops.rint(v)
        v = _clamp_to_image(v, size, padding, corners)
        axis_taps = []
        for at, weight in _grid_taps(v, mode):
            if weight is None:
                weight = arithmetic_ops.add(arithmetic_ops.multiply(at, 0.0), 1.0)
            if padding == "zeros":
                there = arithmetic_ops.logical_and(
                    arithmetic_ops.greater_equal(at, 0), arithmetic_ops.less_equal(at, size - 1)
                )
                weight = arithmetic_ops.where_v2(there, weight, 0.0)
            at = arithmetic_ops.clip_by_value(
                _clamp_to_image(at, size, padding, corners), 0.0, float(size - 1)
            )
            axis_taps.append((arithmetic_ops.cast(at, int64), arithmetic_ops.cast(weight, x.dtype)))
        taps.append(axis_taps)
    lead = np.arange(image.batch, dtype=np.int64).reshape(-1, *[1] * rank)
    y = image.weighted(constant(lead), taps)
    return transpose(y, [0, rank + 1, *range(1, rank + 1)])


# -- RoiAlign


def _between(v: Tensor, size: int) -> list[Tap]:
    """Linear interpolation around `v`, with clamped edges; 0 more than one pixel outside."""
    there = arithmetic_ops.logical_and(
        arithmetic_ops.greater_equal(v, -1.0), arithmetic_ops.less_equal(v, float(size))
    )
    v = arithmetic_ops.clip_by_value(v, 0.0, float(size - 1))
    low = elementwise_math_ops.floor(v)
    t = arithmetic_ops.subtract(v, low)
    high = arithmetic_ops.minimum(arithmetic_ops.add(low, 1.0), float(size - 1))
    return [
        (
            arithmetic_ops.cast(low, int64),
            arithmetic_ops.where_v2(there, arithmetic_ops.subtract(1.0, t), 0.0),
        ),
        (arithmetic_ops.cast(high, int64), arithmetic_ops.where_v2(there, t, 0.0)),
    ]


@imports("RoiAlign")
def _roi_align(node: OnnxNode, x: Tensor, rois: Tensor, batch: Tensor) -> Tensor:
    image, regions = ImageRows(node, x), node.static_shape(rois)[0]
    default = "half_pixel" if node.version >= 16 else "output_half_pixel"
    half = node.attr("coordinate_transformation_mode", default) == "half_pixel"
    corners = arithmetic_ops.subtract(
        arithmetic_ops.multiply(rois, node.attr("spatial_scale", 1.0)), 0.5 if half else 0.0
    )
    counts, taps = [], []
    for axis, size in enumerate(image.sizes):  # y is the second of each pair
        out = node.attr(("output_height", "output_width")[axis], 1)
        start, end = corners[:, 1 - axis], corners[:, 3 - axis]
        length = arithmetic_ops.subtract(end, start)
        if not half:
            length = arithmetic_ops.maximum(length, 1.0)
        step = arithmetic_ops.divide(length, float(out))
        points, count = _points(node, step, regions)
        places = np.arange(out).reshape(1, -1, 1) + points  # [regions or 1, out, samples]
        v = arithmetic_ops.add(
            reshape(start, [-1, 1, 1]),
            arithmetic_ops.multiply(reshape(step, [-1, 1, 1]), constant(places.astype(x.dtype))),
        )
        counts.append(count)
        taps.append(_between(v, size))
    return _pooled(node, image, batch, taps, counts)


def _points(node: OnnxNode, step: Tensor, regions: int) -> tuple[np.ndarray, np.ndarray]:
    """Sampling points in a bin [regions, 1, samples], and their number in each region."""
    ratio = node.attr("sampling_ratio", 0)
    if ratio > 0:
        counts = np.full(regions, ratio)
    else:
        counts = np.ceil(node.value(step, "the regions")).astype(int).clip(0)
    most = max(int(counts.max(initial=1)), 1)
    return (np.arange(most) + 0.5) / counts.clip(1).reshape(-1, 1, 1), counts


def _pooled(
    node: OnnxNode,
    image: ImageRows,
    batch: Tensor,
    taps: Sequence[Any],
    counts: Sequence[np.ndarray],
) -> Tensor:
    """The mean or maximum over the samples of each bin: [regions, channels, height, width]."""
    (ys, xs) = taps
    first = reshape(arithmetic_ops.cast(batch, int64), [-1, 1, 1, 1, 1])
    corners = []
    for (iy, wy), (ix, wx) in itertools.product(ys, xs):
        row, column = _cross(iy, 0), _cross(ix, 1)
        weight = arithmetic_ops.multiply(_cross(wy, 0), _cross(wx, 1))
        value = image.at(first, [row, column])
        corners.append(arithmetic_ops.multiply(value, expand_dims(weight, -1)))
    inside = [
        np.arange(node.static_shape(t[0][0])[-1]) < count.reshape(-1, 1)
        for t, count in zip(taps, counts, strict=True)
    ]
    counted = (inside[0][:, :, None] & inside[1][:, None, :])[:, None, None, :, :, None]
    if node.attr("mode", "avg") == "max":
        largest = functools.reduce(arithmetic_ops.maximum, corners)
        y = reduction_ops.reduce_max(
            arithmetic_ops.where_v2(constant(counted), largest, -np.inf), (3, 4)
        )
    else:
        number = np.maximum(counts[0] * counts[1], 1).reshape(-1, 1, 1, 1)
        total = arithmetic_ops.where_v2(constant(counted), arithmetic_ops.add_n(corners), 0.0)
        total = reduction_ops.reduce_sum(total, (3, 4))
        y = arithmetic_ops.divide(total, constant(number.astype(total.dtype)))
    return transpose(y, [0, 3, 1, 2])


def _cross(t: Tensor, axis: int) -> Tensor:
    """[regions, out, samples] of rows or columns, shaped to broadcast over both."""
    return getitem(
        t, (slice(None), slice(None), None, slice(None), None) if axis == 0
        else (slice(None), None, slice(None), None, slice(None)),
    )  # fmt: skip


# -- DeformConv


@imports("DeformConv")
def _deform_conv(
    node: OnnxNode,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """A convolution whose taps are displaced by `offset`, separately for each group of channels."""
    from hpcflow.onnx.importers.window_attributes import window

    filters, _, *kernel = node.static_shape(w)
    if len(kernel) != 2:
        raise node.declined("only two spatial axes are supported")
    attrs = window(node, x, kernel)
    movers, groups = node.attr("offset_group", 1), node.attr("group", 1)
    batch, channels = node.static_shape(x)[:2]
    out, count = attrs.positions, kernel[0] * kernel[1]
    moved = reshape(offset, [batch, movers, count, 2, *out])
    shares = None if mask is None else reshape(mask, [batch, movers, count, *out])
    columns = []
    for m in range(movers):
        each = channels // movers
        image = ImageRows(node, getitem(x, (slice(None), slice(m * each, (m + 1) * each))))
        values = _moved_values(image, moved[:, m], attrs)  # [batch, taps, h, w, channels]
        if shares is not None:
            values = arithmetic_ops.multiply(values, expand_dims(shares[:, m], -1))
        columns.append(values)
    patches = transpose(concat(columns, 4), [0, 4, 1, 2, 3])  # [batch, channels, taps, h, w]
    parts = []
    for g in range(groups):
        size, n_out = channels // groups, filters // groups
        inputs = reshape(
            patches[:, g * size : (g + 1) * size], [batch, size * count, out[0] * out[1]]
        )
        parts.append(matmul(reshape(w[g * n_out : (g + 1) * n_out], [n_out, size * count]), inputs))
    return with_bias(reshape(concat(parts, 1), [batch, filters, *out]), bias)


def _moved_values(image: ImageRows, moved: Tensor, attrs: Any) -> Tensor:
    """The values at each tap and position, displaced by [batch, taps, 2, h, w]."""
    taps = []
    for axis, size in enumerate(image.sizes):
        k, s, d, (before, _) = (
            t[axis] for t in (attrs.kernel, attrs.strides, attrs.dilations, attrs.pads)
        )
        at = np.arange(attrs.positions[axis]) * s - before
        tap = np.arange(k) * d
        tap = np.repeat(tap, attrs.kernel[1]) if axis == 0 else np.tile(tap, attrs.kernel[0])
        shape = (1, -1, 1) if axis == 0 else (1, 1, -1)
        base = (tap.reshape(-1, 1, 1) + at.reshape(shape)).astype(moved.dtype)
        taps.append(
            _zero_outside(arithmetic_ops.add(moved[:, :, axis], constant(base[None])), size)
        )
    first = constant(np.arange(image.batch, dtype=np.int64).reshape(-1, 1, 1, 1))
    return image.weighted(first, taps)


def _zero_outside(v: Tensor, size: int) -> list[Tap]:
    """Linear interpolation around `v`; 0 outside the image."""
    low = elementwise_math_ops.floor(v)
    t = arithmetic_ops.subtract(v, low)
    taps = []
    for at, weight in ((low, arithmetic_ops.subtract(1.0, t)), (arithmetic_ops.add(low, 1.0), t)):
        there = arithmetic_ops.logical_and(
            arithmetic_ops.greater_equal(at, 0), arithmetic_ops.less_equal(at, size - 1)
        )
        index = arithmetic_ops.cast(arithmetic_ops.clip_by_value(at, 0.0, float(size - 1)), int64)
        taps.append((index, arithmetic_ops.where_v2(there, weight, 0.0)))
    return taps
