"""Cases of convolutions; the oracle visits each element of each window in a loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.ops.cases import CASES, Case, f, v

Place = tuple[int, ...]


def positions(space: Place, kernel: Place, attrs: dict[str, Any]) -> list[tuple[int, int]]:
    """How many windows there are along each axis, and the padding before the first."""
    found = []
    for i, (n, k) in enumerate(zip(space, kernel, strict=True)):
        s, reach, pad = attrs["strides"][i], (k - 1) * attrs["dilations"][i] + 1, attrs["padding"]
        if pad == "SAME":
            count = int(np.ceil(n / s))
            found.append((count, max(0, (count - 1) * s + reach - n) // 2))
        else:
            before, after = (0, 0) if pad == "VALID" else pad[i]
            found.append((len(range(0, n + before + after - reach + 1, s)), before))
    return found


def walk(space: Place, kernel: Place, attrs: dict[str, Any]) -> Iterator[tuple[Place, ...]]:
    """Each (window, element of the kernel, element of the data) that is inside the data."""
    where = positions(space, kernel, attrs)
    for o in np.ndindex(*(count for count, _ in where)):
        for t in np.ndindex(*kernel):
            i = tuple(
                a * s + b * d - before
                for a, b, s, d, (_, before) in zip(
                    o, t, attrs["strides"], attrs["dilations"], where, strict=True
                )
            )
            if all(0 <= a < n for a, n in zip(i, space, strict=True)):
                yield o, t, i


def last(x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    return np.moveaxis(x, 1, -1) if attrs["first"] else x


def conv(x: np.ndarray, w: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    """The convolution, channels by channels."""
    x, groups = last(x, attrs), attrs["groups"]
    space, kernel = x.shape[1:-1], w.shape[:-2]
    counts = [count for count, _ in positions(space, kernel, attrs)]
    y = np.zeros((x.shape[0], *counts, w.shape[-1]))
    each, out = w.shape[-2], w.shape[-1] // groups
    for o, t, i in walk(space, kernel, attrs):
        for q in range(groups):
            mine = slice(q * out, (q + 1) * out)
            y[(slice(None), *o, mine)] += (
                x[(slice(None), *i, slice(q * each, (q + 1) * each))] @ w[t][:, mine]
            )
    return np.moveaxis(y, -1, 1) if attrs["first"] else y


def input_grad(g: np.ndarray, w: np.ndarray, shape: Place, attrs: dict[str, Any]) -> np.ndarray:
    """The convolution is linear: the gradient by element e is its value for the unit vector e."""
    return np.array(
        [np.sum(g * conv(e.reshape(shape), w, attrs)) for e in np.eye(int(np.prod(shape)))]
    ).reshape(shape)


def filter_grad(x: np.ndarray, g: np.ndarray, shape: Place, attrs: dict[str, Any]) -> np.ndarray:
    return np.array(
        [np.sum(g * conv(x, e.reshape(shape), attrs)) for e in np.eye(int(np.prod(shape)))]
    ).reshape(shape)


def add(
    x: Place, w: Place, padding: Any, strides: Any = 1, dilations: Any = 1, **more: Any
) -> None:
    """The convolution and its two gradients; `x` has its channels last."""
    rank = len(w) - 2
    attrs = {
        "strides": tuple(np.broadcast_to(strides, rank).tolist()),
        "dilations": tuple(np.broadcast_to(dilations, rank).tolist()),
        "padding": padding,
        "first": False,
        "groups": 1,
        **more,
    }
    counts = [count for count, _ in positions(x[1:-1], w[:-2], attrs)]
    y: Place = (x[0], *counts, w[-1])
    if attrs["first"]:
        x, y = (x[0], x[-1], *x[1:-1]), (y[0], y[-1], *y[1:-1])
    CASES.append(Case("Conv", [f(*x), f(*w)], lambda a, b: conv(a, b, attrs), attrs))
    for static in (True, False):
        of_x = {**attrs, "shape": x if static else (None,) * len(x)}
        of_w = {**attrs, "shape": w if static else (None,) * len(w)}
        told_x, told_w = ([], []) if static else ([v(x)], [v(w)])
        CASES.append(
            Case(
                "ConvInputGrad",
                [f(*y), f(*w), *told_x],
                lambda g, b, *_: input_grad(g, b, x, attrs),
                of_x,
            )
        )
        CASES.append(
            Case(
                "ConvFilterGrad",
                [f(*x), f(*y), *told_w],
                lambda a, g, *_: filter_grad(a, g, w, attrs),
                of_w,
            )
        )


add((2, 5, 3), (3, 3, 2), "SAME")
add((2, 6, 2), (3, 2, 2), "VALID", 2)
add((1, 7, 2), (2, 1, 4), ((2, 1),), 2, 3, groups=2)
add((2, 4, 5, 2), (3, 2, 2, 3), "SAME")
add((2, 4, 5, 2), (3, 2, 2, 3), "SAME", (2, 3), first=True)
add((1, 5, 4, 3), (2, 2, 3, 2), ((1, 0), (0, 2)), (1, 2), (2, 1))
add((2, 3, 4, 3), (1, 1, 3, 2), "VALID")
add((2, 3, 4, 3), (1, 1, 3, 2), "VALID", 2, first=True)
add((2, 4, 4, 4), (3, 3, 2, 4), "SAME", 2, groups=2)
add((1, 4, 4, 4), (2, 2, 2, 6), "VALID", 1, 2, groups=2, first=True)
add((2, 4, 5, 3), (3, 2, 1, 3), "SAME", groups=3)
add((2, 4, 5, 2), (3, 2, 1, 4), "VALID", (1, 2), groups=2, first=True)
add((1, 5, 5, 1), (2, 2, 1, 2), "VALID", 3)
add((1, 2, 2, 1), (1, 1, 1, 1), "SAME", 2)
add((1, 3, 2, 3, 2), (2, 2, 2, 2, 2), "SAME", (2, 1, 1))
add((1, 3, 2, 3, 2), (2, 1, 2, 2, 1), "VALID", 1, (1, 1, 2), first=True)
add((0, 4, 4, 2), (3, 3, 2, 2), "SAME")
add((2, 4, 4, 0), (3, 3, 0, 2), "VALID")
