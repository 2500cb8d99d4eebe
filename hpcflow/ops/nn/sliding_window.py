"""Sliding windows: attributes and shape rules common to convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.graph import user_line
from hpcflow.graph.static_shape import Shape, Spec, shape_text
from hpcflow.ops.shape_inference import Attrs

Sizes = tuple["int | None", ...]
FORMATS = {
    **{"NWC": (1, False), "NHWC": (2, False), "NDHWC": (3, False)},
    **{"NCW": (1, True), "NCHW": (2, True), "NCDHW": (3, True)},
}


def channels_first(data_format: str | None, rank: int) -> bool:
    """Whether `data_format` (None: channels last) puts channels before `rank` spatial axes."""
    if data_format is None:
        return False
    layout = FORMATS.get(data_format)
    if layout is None or layout[0] != rank:
        names = " or ".join(repr(name) for name, (n, _) in FORMATS.items() if n == rank)
        raise ShapeError(f"data_format {data_format!r} is not {names}")
    return layout[1]


def per_axis(label: str, value: Any, rank: int, first: bool) -> tuple[int, ...]:
    """One positive int for each spatial axis, from an int, a list of these, or one of all axes."""
    array = np.asarray(1 if value is None else value)
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise ShapeError(f"{label} {value!r} is not an int or a list of them")
    if array.size == 1:
        numbers = array.reshape(-1).tolist() * rank
    elif array.size == rank + 2:
        outer = (array[0], array[1] if first else array[-1])
        if outer != (1, 1):
            raise ShapeError(f"{label} {value!r} is not 1 along the batch and the channels")
        numbers = array[2:].tolist() if first else array[1:-1].tolist()
    elif array.size == rank:
        numbers = array.tolist()
    else:
        raise ShapeError(f"{label} {value!r} has neither {rank} nor {rank + 2} numbers")
    if min(numbers, default=1) < 1:
        raise ShapeError(f"{label} {value!r} is not positive")
    return tuple(numbers)


def padding_of(value: Any, rank: int, first: bool) -> Any:
    """'SAME', 'VALID', or a pair of ints (before, after) for each spatial axis."""
    if isinstance(value, str):
        if value.upper() in ("SAME", "VALID"):
            return value.upper()
        raise ShapeError(f"padding {value!r} is not 'SAME', 'VALID' or a list of pairs")
    pairs = np.asarray(value)
    if pairs.dtype.kind not in "iu" or pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ShapeError(f"padding {value!r} is not 'SAME', 'VALID' or a list of pairs")
    if len(pairs) == rank + 2:
        outer = pairs[:2] if first else pairs[[0, -1]]
        if outer.any():
            raise ShapeError(f"padding {value!r} is not 0 along the batch and the channels")
        pairs = pairs[2:] if first else pairs[1:-1]
    if len(pairs) != rank or pairs.min(initial=0) < 0:
        raise ShapeError(f"padding {value!r} is not a pair of sizes for each spatial axis")
    return tuple((int(a), int(b)) for a, b in pairs)


def slides(strides: Any, padding: Any, data_format: str | None, dilations: Any, rank: int) -> Attrs:
    """The checked attributes of a window over `rank` axes."""
    try:
        first = channels_first(data_format, rank)
        return {
            "strides": per_axis("strides", strides, rank, first),
            "dilations": per_axis("dilations", dilations, rank, first),
            "padding": padding_of(padding, rank, first),
            "first": first,
        }
    except ShapeError as error:
        error.line = user_line()
        raise


# -- shape rules


def parts(type: str, spec: Spec, rank: int, first: bool) -> tuple[Sizes, Sizes, int | None]:
    """The batch size, the spatial sizes and the channels of a tensor; None for unknown."""
    shape = full(type, spec.shape, rank + 2)
    if first:
        return shape[:1], shape[2:], shape[1]
    return shape[:1], shape[1:-1], shape[-1]


def full(type: str, shape: Shape, rank: int) -> Sizes:
    """`shape`, or unknown sizes for `rank` axes.

    Errors: ShapeError for another rank.
    """
    if shape is None:
        return (None,) * rank
    if len(shape) != rank:
        raise ShapeError(f"{type} needs rank {rank}, not shape {shape_text(shape)}")
    return shape


def join_parts(batch: Sizes, space: Sizes, channels: int | None, first: bool) -> Sizes:
    """The inverse of `parts`."""
    return (*batch, channels, *space) if first else (*batch, *space, channels)


def slid(type: str, space: Sizes, kernel: Sizes, attrs: Attrs) -> Sizes:
    """The number of window positions along each spatial axis."""
    return tuple(
        _positions(type, size, k, s, d, p)
        for size, k, s, d, p in zip(
            space, kernel, attrs["strides"], attrs["dilations"], _pairs(attrs), strict=True
        )
    )


def _pairs(attrs: Attrs) -> Sequence[Any]:
    padding = attrs["padding"]
    return [padding] * len(attrs["strides"]) if isinstance(padding, str) else padding


def _positions(
    type: str, size: int | None, k: int | None, stride: int, dilation: int, pad: Any
) -> int | None:
    if size is None or (k is None and pad != "SAME"):
        return None
    if pad == "SAME":
        return -(-size // stride)
    assert k is not None
    padded_size = size + (0 if pad == "VALID" else sum(pad))
    reach = (k - 1) * dilation + 1
    if padded_size < reach:
        raise ShapeError(
            f"{type}: a window of {reach} does not fit in {padded_size} elements",
            hint="use padding='SAME', or smaller strides and windows before",
        )
    return (padded_size - reach) // stride + 1
