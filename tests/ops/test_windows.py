"""Convolutions and pooling of any geometry, NaN and infinities among the data, against loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.ops.cases_conv import conv, input_grad, positions
from tests.ops.cases_pool import avg_pool, max_grad, max_pool
from tests.ops.evaluate import call

SOME = settings(max_examples=120)


@st.composite
def geometries(draw: Any) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Attributes of a window, sizes of data with channels last, sizes of the window."""
    rank = draw(st.integers(1, 3))
    several = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    space, window = several(1, 6 if rank < 3 else 4), several(1, 3)
    pads = tuple(zip(several(0, 2), several(0, 2), strict=True))
    attrs = {
        "strides": several(1, 3),
        "dilations": several(1, 2),
        "padding": draw(st.sampled_from(["SAME", "VALID", pads])),
        "first": draw(st.booleans()),
    }
    reaches = [(k - 1) * d + 1 for k, d in zip(window, attrs["dilations"], strict=True)]
    if attrs["padding"] != "SAME":
        around = pads if attrs["padding"] != "VALID" else ((0, 0),) * rank
        whole = [n + sum(p) for n, p in zip(space, around, strict=True)]
        assume(all(r <= n for r, n in zip(reaches, whole, strict=True)))
    return attrs, (draw(st.integers(0, 2)), *space), window


def numbers(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def laid(x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x, -1, 1)) if attrs["first"] else x


@SOME
@given(geometries(), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(0, 99))
def test_convolutions(geometry: Any, groups: int, each: int, times: int, seed: int) -> None:
    attrs, lead, window = geometry
    attrs = {**attrs, "groups": groups}
    x = laid(numbers(seed, (*lead, groups * each)), attrs)
    w = numbers(seed + 1, (*window, each, groups * times))
    (y,) = call("Conv", attrs, [x, w])
    np.testing.assert_allclose(y, conv(x, w, attrs), rtol=1e-10, atol=1e-10)
    g = numbers(seed + 2, y.shape)
    (back,) = call("ConvInputGrad", {**attrs, "shape": x.shape}, [g, w])
    if x.size < 100:
        expected = input_grad(g, w, x.shape, attrs)
        np.testing.assert_allclose(back, expected, rtol=1e-9, atol=1e-9)
    (of_w,) = call("ConvFilterGrad", {**attrs, "shape": w.shape}, [x, g])
    total = np.sum(y * g)  # linear in each: Euler's theorem
    np.testing.assert_allclose([np.sum(x * back), np.sum(w * of_w)], [total] * 2, atol=1e-8)


@SOME
@given(geometries(), st.integers(0, 99))
def test_pooling(geometry: Any, seed: int) -> None:
    attrs, lead, window = geometry
    attrs = {**attrs, "window": window}
    counts = positions(lead[1:], window, attrs)
    for n, k, d, s, (count, before) in zip(
        lead[1:], window, attrs["dilations"], attrs["strides"], counts, strict=True
    ):  # each window has an element of the data
        places = [[o * s + t * d - before for t in range(k)] for o in range(count)]
        assume(all(any(0 <= i < n for i in row) for row in places))
    x = laid(numbers(seed, (*lead, 2)), attrs)
    (y,) = call("MaxPool", attrs, [x])
    np.testing.assert_array_equal(y, max_pool(x, attrs))
    g = numbers(seed + 1, y.shape)
    (back,) = call("MaxPoolGrad", attrs, [x, y, g])
    np.testing.assert_allclose(back, max_grad(x, g, attrs), atol=1e-12)
    for included in (False, True):
        means = {**attrs, "count_include_pad": included}
        (y,) = call("AvgPool", means, [x])
        np.testing.assert_allclose(y, avg_pool(x, means), atol=1e-12)
        (back,) = call("AvgPoolGrad", {**means, "shape": x.shape}, [g])
        np.testing.assert_allclose(np.sum(back * x), np.sum(y * g), atol=1e-10)


@SOME
@given(geometries(), st.sampled_from([np.nan, np.inf, -np.inf]), st.integers(0, 99))
def test_what_is_not_finite_stays_in_its_windows(geometry: Any, odd: float, seed: int) -> None:
    """One such element changes exactly the outputs whose windows hold it."""
    attrs, lead, window = geometry
    attrs = {**attrs, "groups": 1}
    x = numbers(seed, (*lead, 1))
    assume(x.size)
    marked = np.zeros(x.shape)
    place = tuple(np.random.default_rng(seed).integers(0, x.shape))
    x[place], marked[place] = odd, 1
    x, marked = laid(x, attrs), laid(marked, attrs)
    ones = np.ones((*window, 1, 1))
    with np.errstate(invalid="ignore"):
        (y,) = call("Conv", attrs, [x, ones])
        (mean,) = call("AvgPool", {**attrs, "window": window, "count_include_pad": True}, [x])
    touched = conv(marked, ones, attrs) > 0
    for got in (y, mean):
        np.testing.assert_array_equal(~np.isfinite(got), touched)
        if touched.any() and not np.isnan(odd):
            assert (got[touched] == odd).all()
