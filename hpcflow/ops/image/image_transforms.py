"""Image transforms: flip, rotate, crop, pad and compare images [h, w, channels] or batches."""

from __future__ import annotations

import builtins
from typing import Any

from hpcflow.errors import ArgumentError, ShapeError
from hpcflow.graph.dtypes import float32, float64, int32
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.array.array_ops import identity, transpose
from hpcflow.ops.array.broadcast_ops import zeros
from hpcflow.ops.array.concat_split_ops import concat
from hpcflow.ops.array.slice_ops import getitem, reverse, slice
from hpcflow.ops.array.space_depth_ops import padded, sizes_of
from hpcflow.ops.image.image_colors import convert_image_dtype
from hpcflow.ops.math.arithmetic_ops import (
    abs,
    add,
    cast,
    divide,
    floordiv,
    less,
    log,
    maximum,
    minimum,
    multiply,
    square,
    subtract,
    where,
)
from hpcflow.ops.math.reduction_ops import reduce_mean, reduce_sum
from hpcflow.ops.random.random_ops import random_uniform
from hpcflow.platform.exception_translation import value_text

_ALL, _LATER, _EARLIER = builtins.slice(None), builtins.slice(1, None), builtins.slice(None, -1)


def image_tensor(x: Any, label: str) -> Tensor:
    """The argument as a tensor of rank 3 or 4.

    Errors: ShapeError for another or unknown rank.
    """
    t = convert_to_tensor(x)
    if t.shape is None or len(t.shape) not in (3, 4):
        raise ShapeError(
            f"{label} takes images [height, width, channels], or [batch, height, width, channels], "
            f"not shape {shape_text(t.shape)}",
            op=t.op.name,
            line=user_line(),
            hint="give what is known by x.set_shape([...])",
        )
    return t


def height_axis(x: Tensor) -> int:
    """The axis of the height; the width axis is the next."""
    return len(x.shape or ()) - 3


# -- flip and rotate


def flip_left_right(image: Any) -> Tensor:
    """Images flipped left to right."""
    x = image_tensor(image, "flip_left_right")
    return reverse(x, [height_axis(x) + 1])


def flip_up_down(image: Any) -> Tensor:
    """Images flipped upside down."""
    x = image_tensor(image, "flip_up_down")
    return reverse(x, [height_axis(x)])


def random_flip_left_right(image: Any, seed: int | None = None) -> Tensor:
    """Images flipped left to right with probability 1/2, independently."""
    return _by_chance(image_tensor(image, "random_flip_left_right"), 1, seed)


def random_flip_up_down(image: Any, seed: int | None = None) -> Tensor:
    """Images flipped upside down with probability 1/2, independently."""
    return _by_chance(image_tensor(image, "random_flip_up_down"), 0, seed)


def _by_chance(x: Tensor, axis: int, seed: int | None) -> Tensor:
    batch = [sizes_of(x)[0], 1, 1, 1] if height_axis(x) else []
    draw = random_uniform(batch, seed=seed)
    return where(less(draw, 0.5), reverse(x, [height_axis(x) + axis]), x)


def transpose_image(image: Any, name: str | None = None) -> Tensor:
    """Images with height and width exchanged."""
    x = image_tensor(image, "transpose_image")
    h = height_axis(x)
    return transpose(x, [*range(h), h + 1, h, h + 2], name)


def rot90(image: Any, k: Any = 1, name: str | None = None) -> Tensor:
    """Images rotated counter-clockwise by `k` times 90 degrees; `k` is a constant."""
    x = image_tensor(image, "rot90")
    turns = k.constant if isinstance(k, Tensor) else k
    if turns is None or int(turns) != turns:
        raise ArgumentError(
            f"rot90 needs a constant integer k, not {value_text(k)}", line=user_line()
        )
    h, turns = height_axis(x), int(turns) % 4
    if turns == 1:
        return identity(transpose_image(reverse(x, [h + 1])), name)
    if turns == 3:
        return reverse(transpose_image(x), [h + 1], name)
    return reverse(x, [h, h + 1], name) if turns else identity(x, name)


# -- crop and pad


def crop_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Tensor:
    """The part of the given height and width at the given offset.

    Errors: ShapeError if it exceeds the image.
    """
    x = image_tensor(image, "crop_to_bounding_box")
    lead = [0] * height_axis(x)
    size = [*([-1] * len(lead)), target_height, target_width, -1]
    h = height_axis(x)
    image_shape = x.shape or ()
    for at, length, axis_size in (
        (offset_height, target_height, image_shape[h]),
        (offset_width, target_width, image_shape[h + 1]),
    ):
        _check_inside(at, length, axis_size, "crop_to_bounding_box")
    return slice(x, [*lead, offset_height, offset_width, 0], size)


def _check_inside(at: Any, length: Any, size: Any, label: str) -> None:
    static = [n for n in (at, length) if isinstance(n, int)]
    if any(n < 0 for n in static) or (size is not None and len(static) == 2 and at + length > size):
        raise ShapeError(
            f"{label}: {length} elements from {at} are outside an axis of size {size}",
            line=user_line(),
        )


def pad_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Tensor:
    """Zero padding to the given height and width, with the image at the given offset.

    Errors: ShapeError if the image does not fit.
    """
    x = image_tensor(image, "pad_to_bounding_box")
    h, sizes = height_axis(x), sizes_of(x)
    pads: list[tuple[Any, Any]] = [(0, 0)] * len(sizes)
    for axis, at, target in (
        (h, offset_height, target_height),
        (h + 1, offset_width, target_width),
    ):
        _check_inside(at, sizes[axis], target if isinstance(target, int) else None, "padding")
        pads[axis] = (at, _minus(_minus(target, sizes[axis]), at))
    return padded(x, pads)


def _minus(a: Any, b: Any) -> Any:
    return a - b if isinstance(a, int) and isinstance(b, int) else subtract(a, b)


def resize_image_with_crop_or_pad(image: Any, target_height: Any, target_width: Any) -> Tensor:
    """The image cropped or zero-padded at the center to the given height and width."""
    x = image_tensor(image, "resize_image_with_crop_or_pad")
    h, sizes = height_axis(x), sizes_of(x)
    targets = (target_height, target_width)
    cuts: list[tuple[Any, Any]] = []
    pads: list[Any] = []
    for size, target in zip(sizes[h : h + 2], targets, strict=True):
        growth = _minus(target, size)
        if isinstance(growth, int):
            cuts.append((max(-growth // 2, 0), min(size, target)))
            pads.append(max(growth // 2, 0))
        else:
            cuts.append((maximum(floordiv(multiply(growth, -1), 2), 0), minimum(size, target)))
            pads.append(maximum(floordiv(growth, 2), 0))
    (top, height), (left, width) = cuts
    x = crop_to_bounding_box(x, top, left, height, width)
    return pad_to_bounding_box(x, pads[0], pads[1], *targets)


def central_crop(image: Any, central_fraction: Any) -> Tensor:
    """The center of the image, of this fraction of its height and width."""
    x = image_tensor(image, "central_crop")
    is_tensor = isinstance(central_fraction, Tensor)
    if not is_tensor and not 0 < central_fraction <= 1:
        raise ArgumentError(
            f"central_crop takes a fraction in (0, 1], not {value_text(central_fraction)}",
            line=user_line(),
        )
    starts, lengths = [], []
    for size in sizes_of(x)[height_axis(x) :][:2]:
        if isinstance(size, int) and not is_tensor:
            start: Any = int((size - size * float(central_fraction)) / 2)
            length: Any = size - 2 * start
        else:
            full_size = cast(size, float64)
            crop_size = multiply(full_size, cast(central_fraction, float64))
            start = cast(divide(subtract(full_size, crop_size), 2.0), int32)
            length = subtract(size, multiply(start, 2))
        starts.append(start)
        lengths.append(length)
    return crop_to_bounding_box(x, *starts, *lengths)


# -- comparison


def total_variation(images: Any, name: str | None = None) -> Tensor:
    """Total variation of each image: the sum of absolute differences of neighbours."""
    x = image_tensor(images, "total_variation")
    h = height_axis(x)
    with get_default_graph().name_scope(name or "total_variation"):
        axes = [h, h + 1, h + 2]
        down, right = (reduce_sum(abs(_steps(x, axis)), axes) for axis in (h, h + 1))
        return add(down, right)


def _steps(x: Tensor, axis: int) -> Tensor:
    """Differences of consecutive elements along `axis`."""
    everything = [_ALL] * axis
    later, earlier = (*everything, _LATER), (*everything, _EARLIER)
    return subtract(getitem(x, later), getitem(x, earlier))


def image_gradients(image: Any) -> tuple[Tensor, Tensor]:
    """Differences of images [batch, height, width, channels] down and to the right; last ones 0."""
    x = image_tensor(image, "image_gradients")
    if not height_axis(x):
        raise ShapeError("image_gradients takes a batch of images", line=user_line())
    batch, height, width, channels = sizes_of(x)
    down, right = _steps(x, 1), _steps(x, 2)
    last, side = ([batch, 1, width, channels], [batch, height, 1, channels])
    return concat([down, zeros(last, x.dtype)], 1), concat([right, zeros(side, x.dtype)], 2)


def psnr(a: Any, b: Any, max_val: Any, name: str | None = None) -> Tensor:
    """Peak signal-to-noise ratio of each image, in decibels."""
    x, y = image_tensor(a, "psnr"), image_tensor(b, "psnr")
    with get_default_graph().name_scope(name or "psnr"):
        most = convert_image_dtype(cast(max_val, x.dtype), float32)
        x, y = convert_image_dtype(x, float32), convert_image_dtype(y, float32)
        error = reduce_mean(square(subtract(x, y)), [-3, -2, -1])
        ten = log(convert_to_tensor(10.0))
        most = divide(multiply(20.0, log(most)), ten)
        return subtract(most, multiply(divide(10.0, ten), log(error)))
