"""Cases of pooling; the oracle looks at one window after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.cases import CASES, I32, I64, Case, f, n, v
from tests.ops.cases_conv import Place, last, positions, walk

U8 = np.dtype("u1")


def _members(space: Place, attrs: dict[str, Any]) -> tuple[Place, dict[Place, list[Place]]]:
    """How many windows there are along each axis, and the elements of each."""
    counts = tuple(count for count, _ in positions(space, attrs["window"], attrs))
    found: dict[Place, list[Place]] = {o: [] for o in np.ndindex(*counts)}
    for o, _, i in walk(space, attrs["window"], attrs):
        found[o].append(i)
    return counts, found


def back(x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    return np.moveaxis(x, -1, 1) if attrs["first"] else x


def _by_window(x: np.ndarray, attrs: dict[str, Any], function: Any) -> np.ndarray:
    """`function(elements, their places)` for each sample, window and channel."""
    x = last(x, attrs)
    counts, members = _members(x.shape[1:-1], attrs)
    y = np.zeros((x.shape[0], *counts, x.shape[-1]))
    for b, c in np.ndindex(x.shape[0], x.shape[-1]):
        for o, places in members.items():
            y[(b, *o, c)] = function([x[(b, *i, c)] for i in places], [(b, *i, c) for i in places])
    return back(y, attrs)


def max_pool(x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    return _by_window(x, attrs, lambda values, places: max(values)).astype(x.dtype)


def places(x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    shape = last(x, attrs).shape

    def place(values: list[Any], found: list[Place]) -> int:
        b, *i, c = found[values.index(max(values))]
        if attrs["first"]:
            at = np.ravel_multi_index((b, c, *i), (shape[0], shape[-1], *shape[1:-1]))
        else:
            at = np.ravel_multi_index((b, *i, c), shape)
        return int(at) - (0 if attrs["include_batch"] else b * int(np.prod(shape[1:])))

    return _by_window(x, attrs, place).astype(int)


def avg_pool(x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    whole = int(np.prod(attrs["window"]))
    return _by_window(
        x,
        attrs,
        lambda values, _: sum(values) / (whole if attrs["count_include_pad"] else len(values)),
    )


def max_grad(x: np.ndarray, g: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    """Each window sends its gradient to its largest element."""
    flat = np.zeros(x.size)
    at = places(x, {**attrs, "include_batch": True})
    for i, value in zip(at.ravel(), g.ravel(), strict=True):
        flat[i] += value
    return flat.reshape(x.shape)


def max_grad_grad(x: np.ndarray, gg: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    return gg.ravel()[places(x, {**attrs, "include_batch": True})]


def avg_grad(g: np.ndarray, shape: Place, attrs: dict[str, Any]) -> np.ndarray:
    units = np.eye(int(np.prod(shape)))
    return np.array([np.sum(g * avg_pool(e.reshape(shape), attrs)) for e in units]).reshape(shape)


def add(
    x: Place, window: Place, padding: Any, strides: Any = 1, dilations: Any = 1, **more: Any
) -> None:
    rank = len(window)
    attrs: dict[str, Any] = {
        "window": window,
        "strides": tuple(np.broadcast_to(strides, rank).tolist()),
        "dilations": tuple(np.broadcast_to(dilations, rank).tolist()),
        "padding": padding,
        "first": False,
        **more,
    }
    y: Place = (x[0], *(count for count, _ in positions(x[1:-1], window, attrs)), x[-1])
    if attrs["first"]:
        x, y = (x[0], x[-1], *x[1:-1]), (y[0], y[-1], *y[1:-1])
    data, still = f(*x), {0: "which is the largest changes in steps", 1: "as input 0"}
    CASES.append(Case("MaxPool", [data], lambda a: max_pool(a, attrs), attrs))
    CASES.append(Case("MaxPool", [n(*x)], lambda a: max_pool(a, attrs), attrs, dtypes=(I32,)))
    CASES.append(
        Case(
            "MaxPool",
            [n(*x, low=0, high=2)],
            lambda a: max_pool(a, attrs),
            attrs,
            dtypes=(U8,),
        )
    )
    for batched, dtype in ((True, I64), (False, I32)):
        places_attrs = {**attrs, "include_batch": batched, "dtype": dtype}
        oracle = lambda a, m=places_attrs: (max_pool(a, m), places(a, m))  # noqa: E731
        CASES.append(Case("MaxPoolWithArgmax", [data], oracle, places_attrs))
        CASES.append(
            Case("MaxPoolWithArgmax", [n(*x, low=0, high=2)], oracle, places_attrs, dtypes=(U8,))
        )
    same = _same(data, lambda a: max_pool(a, attrs))
    CASES.append(
        Case(
            "MaxPoolGrad",
            [same[0], same[1], f(*y)],
            lambda a, _, g: max_grad(a, g, attrs),
            attrs,
            still=still,
        )
    )
    CASES.append(
        Case(
            "MaxPoolGradGrad",
            [same[0], same[1], f(*x)],
            lambda a, _, gg: max_grad_grad(a, gg, attrs),
            attrs,
            still=still,
        )
    )
    for included in (False, True):
        means = {**attrs, "count_include_pad": included}
        CASES.append(Case("AvgPool", [data], lambda a, m=means: avg_pool(a, m), means))
        for static in (True, False):
            told = [] if static else [v(x)]
            shape = x if static else (None,) * len(x)
            CASES.append(
                Case(
                    "AvgPoolGrad",
                    [f(*y), *told],
                    lambda g, *_, m=means: avg_grad(g, x, m),
                    {**means, "shape": shape},
                )
            )


def _same(data: Any, function: Any) -> tuple[Any, Any]:
    """Two makers that see the same numbers: an input, and what is computed from it."""
    seed = 3
    return (
        lambda rng, d: data(np.random.default_rng(seed), d),
        lambda rng, d: function(data(np.random.default_rng(seed), d)).astype(d),
    )


add((2, 5, 3), (2,), "SAME", 2)
add((1, 6, 2), (3,), ((1, 2),), 2, 2)
add((2, 4, 5, 2), (2, 2), "VALID", 2)
add((2, 4, 5, 2), (3, 2), "SAME", (1, 2), first=True)
add((1, 4, 4, 1), (2, 3), ((1, 0), (1, 1)), 1, (2, 1))
add((1, 3, 2, 3, 2), (2, 2, 2), "SAME", (2, 1, 1))
add((1, 2, 3, 2, 2), (2, 1, 2), "VALID", 1, (1, 1, 1), first=True)
add((0, 4, 4, 2), (2, 2), "SAME")
add((2, 4, 4, 0), (2, 2), "VALID", 2)
