"""Attention against its formula, query by query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.special as sp

import hpcflow as hf
from hpcflow.errors import ShapeError
from tests.ops.evaluate import evaluate

RNG = np.random.default_rng(13)
attend = hf.nn.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def oracle(q: Any, k: Any, v: Any, seen: Any, scale: float) -> np.ndarray:
    """One query after the other, over the keys it may see."""
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for place in np.ndindex(q.shape[:-1]):
        lead, i = place[:-1], place[-1]
        keys = np.flatnonzero(seen[(*lead, i)])
        if len(keys):
            weights = sp.softmax([scale * np.dot(q[place], k[(*lead, j)]) for j in keys])
            out[place] = sum(w * v[(*lead, j)] for w, j in zip(weights, keys, strict=True))
    return out


def test_masks() -> None:
    q, k, v = draw(2, 3, 4, 5), draw(2, 3, 6, 5), draw(2, 3, 6, 2)
    mask = RNG.random((2, 3, 4, 6)) < 0.5
    mask[0, 0, 0] = False  # this query sees nothing
    past = np.array([[j <= i + 2 for j in range(6)] for i in range(4)])
    everything = np.ones((2, 3, 4, 6), bool)
    for causal, given, seen in [
        (False, None, everything),
        (True, None, everything & past),
        (False, mask, mask),
        (True, mask, mask & past),
        (False, mask[:, :1, :1], everything & mask[:, :1, :1]),
    ]:
        y = attend(hf.constant(q), k, v, given, causal)
        assert y.shape == (2, 3, 4, 2)
        np.testing.assert_allclose(evaluate(y), oracle(q, k, v, seen, 5**-0.5), atol=1e-12)
    y = attend(hf.constant(q), k, v, scale=0.3)
    np.testing.assert_allclose(evaluate(y), oracle(q, k, v, everything, 0.3), atol=1e-12)


def test_unknown_sizes_and_gradients() -> None:
    q, k, v, w = draw(3, 4), draw(3, 4), draw(3, 2), draw(3, 2)
    fed = [hf.placeholder("float64", None) for _ in range(3)]
    feeds = dict(zip(fed, (q, k, v), strict=True))
    past = np.tril(np.ones((3, 3), bool))
    y = attend(*fed, causal=True)
    np.testing.assert_allclose(evaluate(y, feeds), oracle(q, k, v, past, 0.5), atol=1e-12)
    grads = evaluate(hf.gradients(y, fed, w), feeds)
    for i, (x, g) in enumerate(zip((q, k, v), grads, strict=True)):
        for place in np.ndindex(x.shape):
            values = []
            for h in (1e-6, -1e-6):
                moved = [a.copy() for a in (q, k, v)]
                moved[i][place] += h
                values.append(np.sum(w * oracle(*moved, past, 0.5)))
            np.testing.assert_allclose(g[place], (values[0] - values[1]) / 2e-6, atol=1e-7)


def test_dropout_keeps_the_mean() -> None:
    q = hf.constant(np.zeros((500, 8)))
    y = attend(q, np.zeros((50, 8)), np.ones((50, 1)), dropout_rate=0.5, seed=1)
    values = evaluate(y)
    assert abs(values.mean() - 1) < 0.02 and values.std() > 0.05


def test_large_scores_and_sixteen_bits() -> None:
    q = np.array([[100.0, -100.0]], "f2")
    y = evaluate(attend(hf.constant(q), q, np.ones((1, 2), "f2"), causal=True))
    assert y.dtype == np.float16 and y.tolist() == [[1, 1]]


def test_errors() -> None:
    q = hf.zeros([2, 3])
    with pytest.raises(ShapeError, match="booleans"):
        attend(q, q, q, hf.zeros([2, 2]))
    with pytest.raises(ShapeError):
        attend(q, hf.zeros([2, 4]), q)


def test_products_of_sixteen_bits_are_not_too_large():
    q = np.full((1, 3, 64), 40, "f2")  # 40 * 40 * 64 is more than 16 bits hold
    with hf.Session() as session:
        found = session.run(hf.nn.scaled_dot_product_attention(*map(hf.constant, (q, q, q))))
    np.testing.assert_array_equal(found, q)
