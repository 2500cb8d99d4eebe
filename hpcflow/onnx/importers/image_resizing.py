"""ONNX import of Resize and Upsample: separable resampling, one axis after the other."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import OnnxError
from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array.array_ops import constant, identity
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.math import arithmetic_ops


@dataclasses.dataclass(frozen=True)
class ResizeAttributes:
    """The coordinate transformation and interpolation: attributes of ONNX's Resize."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0


def positions(
    attributes: ResizeAttributes, scale: float, length: int, out: int, roi: tuple[float, float]
) -> np.ndarray:
    """The input coordinate of each output element."""
    at = np.arange(out, dtype=np.float64)
    width = scale * length
    if attributes.coordinates == "align_corners":
        return np.zeros(out) if width == 1 else at * (length - 1) / (width - 1)
    if attributes.coordinates == "asymmetric":
        return at / scale
    if attributes.coordinates == "tf_crop_and_resize":
        span = (roi[1] - roi[0]) * (length - 1)
        start = roi[0] * (length - 1)
        return start + (np.full(out, span / 2) if width == 1 else at * span / (width - 1))
    if attributes.coordinates == "pytorch_half_pixel" and width == 1:
        return np.full(out, -0.5)
    shift = 0.0
    if attributes.coordinates == "half_pixel_symmetric":
        shift = length / 2 * (1 - out / width)
    elif attributes.coordinates not in ("half_pixel", "pytorch_half_pixel"):
        raise OnnxError(f"coordinate_transformation_mode {attributes.coordinates!r} is not known")
    return shift + (at + 0.5) / scale - 0.5


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def taps(
    attributes: ResizeAttributes, at: np.ndarray, scale: float, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Input indices and weights [outputs, taps] of each output element."""
    if attributes.mode == "nearest":
        rounding: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "round_prefer_floor": lambda x: np.ceil(x - 0.5),
            "round_prefer_ceil": lambda x: np.floor(x + 0.5),
            "floor": np.floor,
            "ceil": np.ceil,
            "before_11": np.ceil if scale < 1 else np.floor,  # as in onnxruntime
        }
        index = np.clip(rounding[attributes.nearest](at), 0, length - 1)[:, None]
        return index.astype(np.int64), np.ones_like(index)
    reach = {"linear": 1, "cubic": 2}[attributes.mode]
    shrink = min(scale, 1.0) if attributes.antialias else 1.0
    low = int(np.floor(-reach / shrink)) + 1
    base = np.ceil(at) - 1  # the input left of the output, also if both coincide
    index = base[:, None] + np.arange(low, 2 - low if attributes.antialias else reach + 1)
    distance = (index - at[:, None]) * shrink
    if attributes.mode == "linear":
        weight = np.clip(1 - np.abs(distance), 0, None)
    else:
        weight = _cubic(distance, attributes.cubic)
    if attributes.antialias:
        weight = weight / weight.sum(1, keepdims=True)
    if attributes.exclude_outside:
        weight = np.where((index < 0) | (index >= length), 0.0, weight)
        total = weight.sum(1, keepdims=True)
        weight = weight / np.where(total == 0, 1.0, total)
    return np.clip(index, 0, length - 1).astype(np.int64), weight


def resized(
    x: Tensor,
    attributes: ResizeAttributes,
    axis: int,
    length: int,
    scale: float,
    out: int,
    roi: tuple[float, float],
) -> Tensor:
    """`x` resampled to `out` elements along `axis`."""
    at = positions(attributes, scale, length, out, roi)
    index, weight = taps(attributes, at, scale, length)
    shape = [1] * len(x.shape or ())
    shape[axis] = out
    parts = []
    for k in range(index.shape[1]):
        part = gather(x, constant(index[:, k]), axis=axis)
        if attributes.mode != "nearest":
            part = arithmetic_ops.multiply(part, weight[:, k].reshape(shape).astype(x.dtype))
        parts.append(part)
    y = arithmetic_ops.add_n(parts)
    outside = (at < 0) | (at > length - 1)
    if attributes.coordinates == "tf_crop_and_resize" and outside.any():
        y = arithmetic_ops.where(constant(outside.reshape(shape)), attributes.extrapolation, y)
    return y


def _sizes(
    node: OnnxNode, input_shape: Sequence[int], axes: Sequence[int], scales: Any, sizes: Any
) -> tuple[list[float], list[int]]:
    """The scale and output size of each of `axes`."""
    lengths = [input_shape[a] for a in axes]
    if sizes is None:
        output_sizes = np.floor(np.asarray(scales, np.float64) * lengths + 1e-9)
        return [float(s) for s in scales], [int(n) for n in output_sizes]
    ratios = [n / length for n, length in zip(sizes, lengths, strict=True)]
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return ratios, [int(n) for n in sizes]
    ratio = (min if policy == "not_larger" else max)(ratios)
    return [ratio] * len(axes), [int(ratio * length + 0.5) for length in lengths]


def _resize_axes(
    node: OnnxNode,
    x: Tensor,
    attributes: ResizeAttributes,
    roi: np.ndarray | None,
    scales: Any,
    sizes: Any,
) -> Tensor:
    input_shape = node.static_shape(x)
    axes = [a % len(input_shape) for a in node.attr("axes", list(range(len(input_shape))))]
    ratios, outs = _sizes(node, input_shape, axes, scales, sizes)
    is_integer = x.dtype.kind != "f"
    y = arithmetic_ops.cast(x, float32) if is_integer and attributes.mode != "nearest" else x
    for i, (axis, ratio, out) in enumerate(zip(axes, ratios, outs, strict=True)):
        part = (0.0, 1.0)
        if roi is not None and roi.size:
            part = (float(roi[i]), float(roi[i + len(axes)]))
        if out != input_shape[axis] or ratio != 1 or part != (0.0, 1.0):
            y = resized(y, attributes, axis, input_shape[axis], ratio, out, part)
    if y.dtype != x.dtype:
        info = np.iinfo(x.dtype)
        y = arithmetic_ops.cast(
            arithmetic_ops.clip_by_value(y, float(info.min), float(info.max)), x.dtype
        )
    return identity(y) if y is x else y


def _resize_attributes(node: OnnxNode) -> ResizeAttributes:
    return ResizeAttributes(
        mode=node.attr("mode", "nearest"),
        coordinates=node.attr("coordinate_transformation_mode", "half_pixel"),
        nearest=node.attr("nearest_mode", "round_prefer_floor"),
        cubic=node.attr("cubic_coeff_a", -0.75),
        exclude_outside=bool(node.attr("exclude_outside", 0)),
        antialias=bool(node.attr("antialias", 0)),
        extrapolation=node.attr("extrapolation_value", 0.0),
    )


@imports("Resize", since=11)
def _resize(
    node: OnnxNode,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    lookup = functools.partial(_known_value, node)
    crop = lookup(roi, "roi") if node.attr("coordinate_transformation_mode", "") in _CROPS else None
    return _resize_axes(
        node, x, _resize_attributes(node), crop, lookup(scales, "scales"), lookup(sizes, "sizes")
    )


_CROPS = ("tf_crop_and_resize",)


def _known_value(node: OnnxNode, t: Tensor | None, label: str) -> np.ndarray | None:
    """The value of an input; None if omitted or empty."""
    value = None if t is None else node.value(t, label)
    return None if value is None or value.size == 0 else value


def _before_11(node: OnnxNode, x: Tensor, scales: Any) -> Tensor:
    attributes = ResizeAttributes(node.attr("mode", "nearest"), "asymmetric", "before_11")
    return _resize_axes(node, x, attributes, None, scales, None)


@imports("Upsample")
def _upsample_by_attribute(node: OnnxNode, x: Tensor) -> Tensor:
    if node.version < 7:
        return _before_11(node, x, [1, 1, node.attr("height_scale"), node.attr("width_scale")])
    return _before_11(node, x, node.attr("scales"))


@imports("Upsample", since=9)
@imports("Resize")
def _upsample(node: OnnxNode, x: Tensor, scales: Tensor) -> Tensor:
    return _before_11(node, x, node.value(scales, "scales"))
