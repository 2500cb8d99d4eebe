"""Grey-scale morphology: the largest and smallest sums of a window and a structuring element."""

from __future__ import annotations

import itertools
import math
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.arguments import also_named
from hpcflow.graph.graph import Tensor, user_line
from hpcflow.graph.shape import show
from hpcflow.ops.array import identity
from hpcflow.ops.join import pad
from hpcflow.ops.math import add, maximum, negative
from hpcflow.ops.rules import operands, require
from hpcflow.ops.slicing import getitem, reverse
from hpcflow.ops.window import per_axis, slid, slides


@also_named(filters="filter", dilations="rates")
def dilation2d(
    input: Any, filter: Any, strides: Any, rates: Any, padding: str, name: str | None = None
) -> Tensor:
    """The largest `input[y + i, x + j] + filter[i, j]` over the window, channel by channel.

    Shapes:   `input` [n, h, w, channels] with known h and w, `filter` [kh, kw, channels]; elements
              of the window are `rates` apart; sizes as of `conv2d`. What padding adds is never the
              largest.
    Gradient: to the largest element and its place in the filter.
    """
    x, w = operands(input, filter)
    require("dilation2d", x.spec, "f")
    if x.shape is None or w.shape is None or len(x.shape) != 4 or len(w.shape) != 3:
        raise ShapeError(
            f"dilation2d of {show(x.shape)} by {show(w.shape)}",
            line=user_line(),
            hint="input [n, h, w, channels], filter [kh, kw, channels]",
        )
    space, kernel = x.shape[1:3], w.shape[:2]
    if None in (*space, *kernel):
        raise ShapeError(f"dilation2d needs known sizes, not {show(x.shape)}", line=user_line())
    attrs = slides(strides, padding, "NHWC", per_axis("rates", rates, 2, False), 2)
    steps, gaps = attrs["strides"], attrs["dilations"]
    out = slid("dilation2d", space, kernel, attrs)
    around, reach = [(0, 0)], []
    for n, k, o, s, d in zip(space, kernel, out, steps, gaps, strict=True):
        assert n is not None and k is not None and o is not None
        reach.append((o - 1) * s + 1)
        missing = max(0, reach[-1] + (k - 1) * d - n)
        around.append((missing // 2, missing - missing // 2))
    if any(map(any, around)):
        x = pad(x, [*around, (0, 0)], constant_values=-math.inf)
    best: Tensor | None = None
    for i, j in itertools.product(*(range(k or 0) for k in kernel)):
        starts = (i * gaps[0], j * gaps[1])
        where = [slice(a, a + n, s) for a, n, s in zip(starts, reach, steps, strict=True)]
        value = add(getitem(x, (slice(None), *where)), getitem(w, (i, j)))
        best = value if best is None else maximum(best, value)
    if best is None:
        raise ShapeError("dilation2d by a filter without elements", line=user_line())
    return identity(best, name)


def erosion2d(
    value: Any, kernel: Any, strides: Any, rates: Any, padding: str, name: str | None = None
) -> Tensor:
    """The smallest `value[y + i, x + j] - kernel[-i - 1, -j - 1]` over the window.

    The dual of `dilation2d`, whose shapes it has: `-dilation2d(-value, kernel turned around)`.
    """
    x, w = operands(value, kernel)
    turned = reverse(w, [0, 1])
    return negative(dilation2d(negative(x), turned, strides, rates, padding), name)
