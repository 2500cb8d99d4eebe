"""Image color ops: dtypes, brightness, contrast and color spaces."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.errors import ArgumentError, DTypeError, ShapeError
from hpcflow.graph.dtypes import as_dtype, float32
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.array.array_ops import expand_dims, identity
from hpcflow.ops.array.concat_split_ops import concat, stack, unstack
from hpcflow.ops.math.arithmetic_ops import (
    abs,
    add,
    cast,
    clip_by_value,
    divide,
    equal,
    floordiv,
    greater,
    less,
    maximum,
    minimum,
    multiply,
    pow,
    subtract,
    where,
)
from hpcflow.ops.math.elementwise_math_ops import floor, saturate_cast
from hpcflow.ops.math.moments import reduce_std
from hpcflow.ops.math.reduction_ops import reduce_mean, reduce_sum
from hpcflow.ops.random.random_ops import random_uniform
from hpcflow.platform.exception_translation import value_text

GRAY = (0.2989, 0.587, 0.114)  # luma weights of red, green and blue


def convert_image_dtype(
    image: Any, dtype: Any, saturate: bool = False, name: str | None = None
) -> Tensor:
    """Images in another dtype, scaled: integers range from 0 to their maximum, floats from 0 to 1.

    With `saturate` values outside the new range are clipped; otherwise they are undefined.
    """
    x, to = convert_to_tensor(image), as_dtype(dtype)
    for kind in (x.dtype, to):
        if kind.kind not in "iuf":
            raise DTypeError(f"images must be integers or floats, not {kind}", line=user_line())
    if x.dtype == to:
        return identity(x, name)
    with get_default_graph().name_scope(name or "convert_image"):
        narrow: Any = saturate_cast if saturate else cast
        if to.kind == "f":
            y = cast(x, to)
            return y if x.dtype.kind == "f" else multiply(y, 1.0 / _max_value(x.dtype))
        if x.dtype.kind == "f":
            return narrow(multiply(x, _max_value(to) + 0.5), to)
        least, most = sorted((_max_value(x.dtype), _max_value(to)))
        scale = (most + 1) // (least + 1)
        if _max_value(x.dtype) > _max_value(to):
            return narrow(floordiv(x, scale), to)
        return multiply(narrow(x, to), scale)


def _max_value(dtype: np.dtype) -> int:
    return int(np.iinfo(dtype).max)


def _as_float(x: Any) -> tuple[Tensor, Any]:
    """The images as floats, and the function that converts results back."""
    tensor = convert_to_tensor(x)
    flat = tensor if tensor.dtype.kind == "f" else convert_image_dtype(tensor, float32)
    return flat, lambda y: convert_image_dtype(y, tensor.dtype, saturate=True)


def adjust_brightness(image: Any, delta: Any) -> Tensor:
    """Each value plus `delta`, on the scale from 0 to 1."""
    x, back = _as_float(image)
    return back(add(x, cast(delta, x.dtype)))


def adjust_contrast(images: Any, contrast_factor: Any) -> Tensor:
    """`(x - mean) * contrast_factor + mean`, with the mean of each channel."""
    x, back = _as_float(images)
    mean = reduce_mean(x, [-3, -2], keepdims=True)
    return back(add(multiply(subtract(x, mean), cast(contrast_factor, x.dtype)), mean))


def adjust_gamma(image: Any, gamma: Any = 1, gain: Any = 1) -> Tensor:
    """`gain * value ** gamma`, on the scale from 0 to 1."""
    if not isinstance(gamma, Tensor) and gamma < 0:
        raise ArgumentError(f"gamma must be at least 0, not {value_text(gamma)}", line=user_line())
    x, back = _as_float(image)
    return back(multiply(pow(x, cast(gamma, x.dtype)), cast(gain, x.dtype)))


def per_image_standardization(image: Any) -> Tensor:
    """Each image with mean 0 and variance 1; a constant image becomes zeros."""
    tensor = convert_to_tensor(image)
    x = tensor if tensor.dtype.kind == "f" else cast(tensor, float32)
    axes = [-1, -2, -3]
    ones = add(multiply(x, 0), 1)
    least = pow(reduce_sum(ones, axes, keepdims=True), -0.5)
    spread = maximum(reduce_std(x, axes, keepdims=True), least)
    return divide(subtract(x, reduce_mean(x, axes, keepdims=True)), spread)


# -- random adjustments


def _draw(name: str, lower: Any, upper: Any, seed: int | None) -> Tensor:
    if not isinstance(lower, Tensor) and not isinstance(upper, Tensor) and upper <= lower:
        raise ArgumentError(
            f"{name} draws from [{lower}, {upper}), which is empty", line=user_line()
        )
    return random_uniform([], lower, upper, seed=seed)


def random_brightness(image: Any, max_delta: Any, seed: int | None = None) -> Tensor:
    """`adjust_brightness` by a random number in [-max_delta, max_delta)."""
    return adjust_brightness(image, _draw("random_brightness", -max_delta, max_delta, seed))


def random_contrast(image: Any, lower: Any, upper: Any, seed: int | None = None) -> Tensor:
    """`adjust_contrast` by a random number in [lower, upper)."""
    return adjust_contrast(image, _draw("random_contrast", lower, upper, seed))


def random_hue(image: Any, max_delta: Any, seed: int | None = None) -> Tensor:
    """`adjust_hue` by a random number in [-max_delta, max_delta)."""
    return adjust_hue(image, _draw("random_hue", -max_delta, max_delta, seed))


def random_saturation(image: Any, lower: Any, upper: Any, seed: int | None = None) -> Tensor:
    """`adjust_saturation` by a random number in [lower, upper)."""
    return adjust_saturation(image, _draw("random_saturation", lower, upper, seed))


# -- color spaces


def _channels(images: Any, label: str) -> list[Tensor]:
    """The three channels of an image."""
    x = convert_to_tensor(images)
    if x.shape is None or not x.shape or x.shape[-1] != 3:
        raise ShapeError(
            f"{label} takes images of 3 channels, not shape {shape_text(x.shape)}",
            op=x.op.name,
            line=user_line(),
        )
    return unstack(x, axis=-1)


def rgb_to_grayscale(images: Any, name: str | None = None) -> Tensor:
    """One channel: the luma of red, green and blue."""
    with get_default_graph().name_scope(name or "rgb_to_grayscale"):
        tensor = convert_to_tensor(images)
        x = convert_image_dtype(tensor, float32)
        parts = [
            multiply(c, w) for c, w in zip(_channels(x, "rgb_to_grayscale"), GRAY, strict=True)
        ]
        gray = add(add(parts[0], parts[1]), parts[2])
        return convert_image_dtype(expand_dims(gray, -1), tensor.dtype)


def grayscale_to_rgb(images: Any, name: str | None = None) -> Tensor:
    """Three equal channels."""
    x = convert_to_tensor(images)
    if x.shape is not None and (not x.shape or x.shape[-1] not in (1, None)):
        raise ShapeError(
            f"grayscale_to_rgb takes images of 1 channel, not shape {shape_text(x.shape)}",
            op=x.op.name,
            line=user_line(),
        )
    return concat([x, x, x], -1, name)


def rgb_to_hsv(images: Any, name: str | None = None) -> Tensor:
    """Hue, saturation and value of RGB images, floats from 0 to 1."""
    with get_default_graph().name_scope(name or "rgb_to_hsv"):
        r, g, b = _channels(images, "rgb_to_hsv")
        value = maximum(maximum(r, g), b)
        span = subtract(value, minimum(minimum(r, g), b))
        colored = greater(span, 0)
        sixth = divide(1.0, multiply(where(colored, span, 1), 6))
        by_blue = add(multiply(sixth, subtract(r, g)), 4 / 6)
        by_green = add(multiply(sixth, subtract(b, r)), 2 / 6)
        hue = where(equal(g, value), by_green, by_blue)
        hue = where(equal(r, value), multiply(sixth, subtract(g, b)), hue)
        hue = where(colored, hue, 0)
        lit = greater(value, 0)
        saturation = where(lit, divide(span, where(lit, value, 1)), 0)
        return stack([where(less(hue, 0), add(hue, 1), hue), saturation, value], -1)


def hsv_to_rgb(images: Any, name: str | None = None) -> Tensor:
    """RGB images from hue, saturation and value."""
    with get_default_graph().name_scope(name or "hsv_to_rgb"):
        hue, saturation, value = _channels(images, "hsv_to_rgb")
        at = multiply(hue, 6)
        red = subtract(abs(subtract(at, 3)), 1)
        green, blue = (subtract(2, abs(subtract(at, middle))) for middle in (2, 4))
        whiteness = subtract(1, saturation)
        parts = [
            multiply(add(whiteness, multiply(saturation, clip_by_value(c, 0, 1))), value)
            for c in (red, green, blue)
        ]
        return stack(parts, -1)


def adjust_hue(image: Any, delta: Any, name: str | None = None) -> Tensor:
    """The hue rotated by `delta`; 1 is a full rotation."""
    with get_default_graph().name_scope(name or "adjust_hue"):
        x, back = _as_float(image)
        hue, saturation, value = unstack(rgb_to_hsv(x), axis=-1)
        hue = add(hue, cast(delta, x.dtype))
        return back(hsv_to_rgb(stack([subtract(hue, floor(hue)), saturation, value], -1)))


def adjust_saturation(image: Any, saturation_factor: Any, name: str | None = None) -> Tensor:
    """The saturation times `saturation_factor`, clipped to 1."""
    with get_default_graph().name_scope(name or "adjust_saturation"):
        x, back = _as_float(image)
        hue, saturation, value = unstack(rgb_to_hsv(x), axis=-1)
        saturation = clip_by_value(multiply(saturation, cast(saturation_factor, x.dtype)), 0, 1)
        return back(hsv_to_rgb(stack([hue, saturation, value], -1)))
