"""Running functions of the vocabulary through sessions, each test in a graph of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    """A module that imports it has a new default graph in each test."""
    with hf.Graph().as_default() as g:
        yield g


def run(fetches: Any, feeds: Any = None) -> Any:
    with hf.Session() as session:
        return session.run(fetches, feeds)


def fed(x: np.ndarray, known: bool = False) -> hf.Tensor:
    return hf.placeholder(x.dtype, x.shape if known else [None] * x.ndim)


def both_ways(f: Any, x: np.ndarray) -> np.ndarray:
    """`f` of a tensor of known and of unknown sizes, which must give the same."""
    results = []
    for known in (True, False):
        t = fed(x, known)
        results.append(run(f(t), {t: x}))
    assert results[0].tobytes() == results[1].tobytes()
    assert results[0].shape == results[1].shape
    return results[0]


def slope(f: Any, x: np.ndarray, known: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The gradient of a weighted sum of `f(x)`, and its central differences."""
    t = fed(x, known)
    y = f(t)
    value = run(y, {t: x})
    w = np.random.default_rng(1).standard_normal(value.shape)
    (g,) = hf.gradients(y, t, hf.constant(w))
    found = run(g, {t: x})
    expected = np.zeros(x.shape)
    with hf.Session() as session:
        for place in np.ndindex(x.shape):
            step = np.zeros(x.shape)
            step[place] = 1e-6
            up, down = (session.run(y, {t: x + s}) for s in (step, -step))
            expected[place] = (w * (up - down)).sum() / 2e-6
    return found, expected


def check_slope(f: Any, x: np.ndarray) -> None:
    for known in (True, False):
        np.testing.assert_allclose(*slope(f, x, known), atol=1e-7)
