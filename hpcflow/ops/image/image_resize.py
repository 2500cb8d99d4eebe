"""Image resizing: separable interpolation with two inputs per output and axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.errors import ArgumentError
from hpcflow.graph.dtypes import float32, int32
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.ops.array.array_ops import identity, range, reshape
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.array.space_depth_ops import sizes_of
from hpcflow.ops.image.image_transforms import height_axis, image_tensor
from hpcflow.ops.math.arithmetic_ops import add, cast, divide, maximum, minimum, multiply, subtract
from hpcflow.ops.math.elementwise_math_ops import ceil, floor
from hpcflow.platform.exception_translation import value_text


class ResizeMethod:
    """The interpolation methods of `resize_images`."""

    BILINEAR, NEAREST_NEIGHBOR, BICUBIC, AREA = 0, 1, 2, 3


def _sizes(size: Any) -> list[Any]:
    """Height and width; ints if static."""
    known_size = size.constant if isinstance(size, Tensor) else size
    if known_size is None:
        return [getitem(size, 0), getitem(size, 1)]
    dims = list(known_size)
    is_valid = all(isinstance(n, Tensor) or _is_size(n) for n in dims)
    if len(dims) != 2 or not is_valid:
        raise ArgumentError(
            f"a size of images is [height, width], positive integers, not {value_text(size)}",
            line=user_line(),
        )
    return [n if isinstance(n, Tensor) else int(n) for n in dims]


def _is_size(n: Any) -> bool:
    return isinstance(n, (int, np.integer)) and bool(n > 0)


def _positions(size: Any, out: Any, align_corners: bool, half_pixel_centers: bool) -> Tensor:
    """The coordinate in `size` elements of each of `out` outputs, as float32."""
    at, in_size, parts = (cast(convert_to_tensor(n), float32) for n in (range(out), size, out))
    if align_corners:
        in_size, parts = subtract(in_size, 1.0), maximum(subtract(parts, 1.0), 1.0)
    return multiply(add(at, 0.5) if half_pixel_centers else at, divide(in_size, parts))


def _checked(align_corners: bool, half_pixel_centers: bool) -> None:
    if align_corners and half_pixel_centers:
        raise ArgumentError(
            "align_corners and half_pixel_centers cannot both be True", line=user_line()
        )


def _bounded(at: Tensor, size: Any) -> Tensor:
    return maximum(minimum(cast(at, int32), subtract(size, 1)), 0)


def resize_bilinear(
    images: Any,
    size: Any,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Images resized to `size` [height, width] by bilinear interpolation; the result is float32.

    With `align_corners` the centers of the corner pixels stay in place. With `half_pixel_centers`
    pixel centers are at half-integer coordinates. By default the first pixel stays in place.
    """
    _checked(align_corners, half_pixel_centers)
    with get_default_graph().name_scope(name or "ResizeBilinear"):
        x = cast(image_tensor(images, "resize_bilinear"), float32)
        h, new_size = height_axis(x), _sizes(size)
        for axis, out in ((h + 1, new_size[1]), (h, new_size[0])):
            in_size = sizes_of(x)[axis]
            at = _positions(in_size, out, align_corners, half_pixel_centers)
            at = subtract(at, 0.5) if half_pixel_centers else at
            below = floor(at)
            share = reshape(subtract(at, below), [-1] + [1] * (h + 2 - axis))
            first = gather(x, _bounded(below, in_size), axis=axis)
            second = gather(x, _bounded(ceil(at), in_size), axis=axis)
            x = add(first, multiply(subtract(second, first), share))
        return x


def resize_nearest_neighbor(
    images: Any,
    size: Any,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Images resized to `size` [height, width] by nearest neighbor; see `resize_bilinear`."""
    _checked(align_corners, half_pixel_centers)
    with get_default_graph().name_scope(name or "ResizeNearestNeighbor"):
        x = image_tensor(images, "resize_nearest_neighbor")
        h, new_size = height_axis(x), _sizes(size)
        for axis, out in ((h, new_size[0]), (h + 1, new_size[1])):
            in_size = sizes_of(x)[axis]
            at = _positions(in_size, out, align_corners, half_pixel_centers)
            at = add(at, 0.5) if align_corners else at
            x = gather(x, _bounded(floor(at), in_size), axis=axis)
        return x


def resize_images(
    images: Any,
    size: Any,
    method: int = ResizeMethod.BILINEAR,
    align_corners: bool = False,
    preserve_aspect_ratio: bool = False,
    name: str | None = None,
) -> Tensor:
    """Images resized to `size` by a `ResizeMethod`; unchanged if they have this size.

    With `preserve_aspect_ratio` they are scaled by one factor to fit, which needs static sizes.
    """
    ways = {
        ResizeMethod.BILINEAR: resize_bilinear,
        ResizeMethod.NEAREST_NEIGHBOR: resize_nearest_neighbor,
    }
    if method not in ways:
        raise ArgumentError(
            f"resize_images: method {value_text(method)} is not known",
            line=user_line(),
            hint="use ResizeMethod.BILINEAR or ResizeMethod.NEAREST_NEIGHBOR",
        )
    x = image_tensor(images, "resize_images")
    h, new_size = height_axis(x), _sizes(size)
    assert x.shape is not None
    before = list(x.shape[h : h + 2])
    if preserve_aspect_ratio:
        new_size = _in_proportion(before, new_size)
    if before == new_size:
        return identity(x, name)
    return ways[method](x, new_size, align_corners, name)


def _in_proportion(before: list[Any], target_size: list[Any]) -> list[int]:
    """`before` scaled by the largest factor with which it fits into `target_size`."""
    if not all(isinstance(n, int) for n in [*before, *target_size]):
        raise ArgumentError(
            "preserve_aspect_ratio needs sizes that are known when the graph is built",
            line=user_line(),
        )
    factor = min(new / old for old, new in zip(before, target_size, strict=True))
    return [round(old * factor) for old in before]
