"""Dilation and erosion against loops over windows, and against SciPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.ndimage

import hpcflow as hf
from hpcflow.errors import DTypeError, ShapeError
from tests.ops.cases_conv import positions, walk
from tests.ops.evaluate import evaluate

RNG = np.random.default_rng(17)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def oracle(x: np.ndarray, w: np.ndarray, strides: Any, rates: Any, padding: str) -> np.ndarray:
    attrs = {"strides": strides, "dilations": rates, "padding": padding}
    counts = [count for count, _ in positions(x.shape[1:3], w.shape[:2], attrs)]
    y = np.full((x.shape[0], *counts, x.shape[3]), -np.inf)
    for o, t, i in walk(x.shape[1:3], w.shape[:2], attrs):
        here = (slice(None), *o)
        y[here] = np.maximum(y[here], x[(slice(None), *i)] + w[t])
    return y


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("strides, rates", [((1, 1), (1, 1)), ((2, 1), (1, 2)), ((3, 2), (2, 1))])
def test_dilation(strides: Any, rates: Any, padding: str) -> None:
    x, w = RNG.standard_normal((2, 6, 7, 3)), RNG.standard_normal((3, 2, 3))
    a, b = hf.constant(x), hf.constant(w)
    y = hf.nn.dilation2d(a, b, [1, *strides, 1], [1, *rates, 1], padding)
    expected = oracle(x, w, strides, rates, padding)
    assert y.shape == expected.shape
    np.testing.assert_array_equal(evaluate(y), expected)
    z = hf.nn.erosion2d(a, b, [1, *strides, 1], [1, *rates, 1], padding)
    np.testing.assert_array_equal(evaluate(z), -oracle(-x, w[::-1, ::-1], strides, rates, padding))
    g = RNG.standard_normal(expected.shape)
    for t, value, found in zip((a, b), (x, w), evaluate(hf.gradients(y, [a, b], g)), strict=True):
        slope = np.zeros(value.shape)
        for place in np.ndindex(value.shape):
            moved = [v.copy() for v in (x, w)]
            moved[0 if t is a else 1][place] += 1e-7
            slope[place] = np.sum(g * (oracle(*moved, strides, rates, padding) - expected)) / 1e-7
        np.testing.assert_allclose(found, slope, atol=1e-5)


def test_against_scipy() -> None:
    x, w = RNG.standard_normal((1, 9, 8, 1)), RNG.standard_normal((3, 3, 1))
    inside = (slice(1, -1), slice(1, -1))
    y = evaluate(hf.nn.dilation2d(hf.constant(x), w, 1, 1, "VALID"))[0, ..., 0]
    turned = w[::-1, ::-1, 0]  # SciPy's dilation turns the structure around
    expected = scipy.ndimage.grey_dilation(x[0, ..., 0], structure=turned)[inside]
    np.testing.assert_allclose(y, expected)
    z = evaluate(hf.nn.erosion2d(hf.constant(x), w, 1, 1, "VALID"))[0, ..., 0]
    expected = scipy.ndimage.grey_erosion(x[0, ..., 0], structure=turned)[inside]
    np.testing.assert_allclose(z, expected)


def test_errors() -> None:
    x = hf.zeros([1, 5, 5, 2])
    with pytest.raises(ShapeError, match="filter"):
        hf.nn.dilation2d(x, hf.zeros([3, 3, 2, 1]), 1, 1, "SAME")
    with pytest.raises(ShapeError, match=r"not shape \[3, \?, 2\]"):
        hf.nn.dilation2d(x, hf.placeholder("float32", [3, None, 2]), 1, 1, "SAME")
    with pytest.raises(ShapeError, match="rates"):
        hf.nn.dilation2d(x, hf.zeros([3, 3, 2]), 1, [1, 0, 1, 1], "SAME")
    with pytest.raises(DTypeError):
        hf.nn.dilation2d(
            hf.zeros([1, 5, 5, 2], "int32"), hf.zeros([3, 3, 2], "int32"), 1, 1, "SAME"
        )
