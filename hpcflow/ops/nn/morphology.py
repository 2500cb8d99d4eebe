"""Morphology: grey-scale dilation and erosion."""

from __future__ import annotations

import itertools
import math
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.graph import Tensor, user_line
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.array.array_ops import identity
from hpcflow.ops.array.slice_ops import getitem, reverse
from hpcflow.ops.array.space_depth_ops import SlidingAxis, as_images, padded, sizes_of
from hpcflow.ops.math.arithmetic_ops import add, maximum, negative
from hpcflow.ops.nn.sliding_window import full, per_axis, slid, slides
from hpcflow.ops.shape_inference import operands, require


@accepts_aliases(filters="filter", dilations="rates")
def dilation2d(
    input: Any, filter: Any, strides: Any, rates: Any, padding: str, name: str | None = None
) -> Tensor:
    """The maximum of `input[y + i, x + j] + filter[i, j]` over the window, for each channel.

    Shapes:   `input` [n, h, w, channels], `filter` [kh, kw, channels] with static kh and kw; window
              elements are `rates` apart; sizes as of `conv2d`. Padding is never the maximum.
    Gradient: to the maximal element and its filter element.
    """
    x, w = operands(input, filter)
    require("dilation2d", x.spec, "f")
    x, kernel = as_images(x), full("a filter of dilation2d", w.shape, 3)
    batch, *space, _ = full("dilation2d", x.shape, 4)
    rows, columns = kernel[:2]
    if not rows or not columns:
        raise ShapeError(
            "dilation2d needs a filter of known sizes of 1 or more, not shape "
            f"{shape_text(w.shape)}",
            line=user_line(),
            hint="give the sizes by filter.set_shape([kh, kw, None])",
        )
    attrs = slides(strides, padding, "NHWC", per_axis("rates", rates, 2, False), 2)
    out = slid("dilation2d", tuple(space), kernel[:2], attrs)
    steps = zip(sizes_of(x)[1:3], kernel, attrs["strides"], attrs["dilations"], strict=False)
    down, right = (
        SlidingAxis.from_window(n, k or 0, s, r, attrs["padding"]) for n, k, s, r in steps
    )
    if any(not isinstance(n, int) or n for n in (*down.pads, *right.pads)):
        x = padded(x, [(0, 0), down.pads, right.pads, (0, 0)], -math.inf)
    best: Tensor | None = None
    for i, j in itertools.product(range(rows), range(columns)):
        value = add(
            getitem(x, (slice(None), down.positions(i), right.positions(j))), getitem(w, (i, j))
        )
        best = value if best is None else maximum(best, value)
    dilated = identity(best, name)
    dilated.set_shape((batch, *out, kernel[2]))
    return dilated


def erosion2d(
    value: Any, kernel: Any, strides: Any, rates: Any, padding: str, name: str | None = None
) -> Tensor:
    """The minimum of `value[y + i, x + j] - kernel[-i - 1, -j - 1]` over the window.

    It is the dual of `dilation2d`, with the same shapes: `-dilation2d(-value, kernel reversed)`.
    """
    x, w = operands(value, kernel)
    turned = reverse(w, [0, 1])
    return negative(dilation2d(negative(x), turned, strides, rates, padding), name)
