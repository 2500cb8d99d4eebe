"""Activations and losses of samples, made of other ops: values, gradients, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.special as sp
import scipy.stats

import hpcflow as hf
from hpcflow.errors import DTypeError, ShapeError
from tests.ops.evaluate import evaluate

RNG = np.random.default_rng(8)
X = np.linspace(-4.05, 4, 24).reshape(4, 6)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def slopes(function: Any, x: np.ndarray) -> np.ndarray:
    """Finite differences of the sum of `function`, which acts on each element alone."""
    h = 1e-6
    return (function(x + h) - function(x - h)) / (2 * h)


@pytest.mark.parametrize(
    "function, oracle",
    [
        (
            hf.nn.selu,
            lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
        ),
        (hf.nn.leaky_relu, lambda x: np.where(x > 0, x, 0.2 * x)),
        (lambda x: hf.nn.leaky_relu(x, 1.5), lambda x: np.where(x > 0, x, 1.5 * x)),
        (hf.nn.softsign, lambda x: x / (1 + abs(x))),
        (hf.nn.swish, lambda x: x / (1 + np.exp(-x))),
        (hf.nn.gelu, lambda x: x * scipy.stats.norm.cdf(x)),
        (
            lambda x: hf.nn.gelu(x, approximate=True),
            lambda x: x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        ),
        (hf.nn.hard_sigmoid, lambda x: np.interp(x, [-2.5, 2.5], [0, 1])),
        (hf.nn.log_sigmoid, sp.log_expit),
    ],
)
def test_elementwise(function: Any, oracle: Any) -> None:
    for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 2e-6)):
        x = hf.constant(X.astype(dtype))
        y = function(x)
        (g,) = hf.gradients(y, x)
        got, slope = evaluate([y, g])
        assert got.dtype == slope.dtype == dtype
        np.testing.assert_allclose(got, oracle(X), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(slope, slopes(oracle, X), rtol=1e-5, atol=1e-5)


def test_selu_keeps_mean_and_variance() -> None:
    y = evaluate(hf.nn.selu(hf.constant(RNG.standard_normal(200_000))))
    assert abs(y.mean()) < 0.01 and abs(y.var() - 1) < 0.02


def test_gelu_by_tanh_is_near() -> None:
    x = hf.constant(np.linspace(-6, 6, 1001))
    exact, near = evaluate([hf.nn.gelu(x), hf.nn.gelu(x, True)])
    assert 1e-5 < abs(exact - near).max() < 5e-4


def test_crelu() -> None:
    x = hf.constant(X)
    np.testing.assert_array_equal(
        evaluate(hf.nn.crelu(x)), np.concatenate([X.clip(0), (-X).clip(0)], -1)
    )
    assert hf.nn.crelu(x, axis=0).shape == (8, 6)


def test_layers_without_variables() -> None:
    w, b = RNG.standard_normal((6, 3)), RNG.standard_normal(3)
    x = hf.constant(X)
    np.testing.assert_allclose(evaluate(hf.nn.xw_plus_b(x, w, b)), X @ w + b)
    np.testing.assert_allclose(evaluate(hf.nn.relu_layer(x, w, b)), (X @ w + b).clip(0))
    assert evaluate(hf.nn.zero_fraction(hf.constant([0, 1, 0, 5]))) == np.float32(0.5)


def test_l2_normalize() -> None:
    x = hf.constant(X)
    for axis in (None, 0, -1, [0, 1]):
        total = (X**2).sum(tuple(axis) if isinstance(axis, list) else axis, keepdims=True)
        np.testing.assert_allclose(evaluate(hf.nn.l2_normalize(x, axis)), X / np.sqrt(total))
    assert evaluate(hf.nn.l2_normalize(hf.zeros([3]))).tolist() == [0, 0, 0]


# -- losses


def test_softmax_cross_entropy_v2() -> None:
    logits, labels = RNG.standard_normal((3, 4, 5)), sp.softmax(RNG.standard_normal((3, 4, 5)), 1)
    x, p, g = hf.constant(logits), hf.constant(labels), RNG.standard_normal((3, 5))
    loss = hf.nn.softmax_cross_entropy_with_logits_v2(p, x, axis=1)
    logs = sp.log_softmax(logits, 1)
    np.testing.assert_allclose(evaluate(loss), -(labels * logs).sum(1))
    dx, dp = evaluate(hf.gradients(loss, [x, p], g))
    np.testing.assert_allclose(dx, g[:, None] * (np.exp(logs) - labels), atol=1e-12)
    np.testing.assert_allclose(dp, -g[:, None] * logs)
    with pytest.raises(ShapeError, match="out of range"):
        hf.nn.softmax_cross_entropy_with_logits_v2(p, x, axis=3)
    still = hf.nn.softmax_cross_entropy_with_logits(labels=p, logits=x)
    assert hf.gradients(still, p) == [None]


def test_weighted_cross_entropy() -> None:
    x, z = X, RNG.random(X.shape)
    a = hf.constant(x)
    for q in (0.5, 3.0):
        loss = hf.nn.weighted_cross_entropy_with_logits(z, a, q)
        expected = -q * z * sp.log_expit(x) - (1 - z) * sp.log_expit(-x)
        np.testing.assert_allclose(evaluate(loss), expected)
        (g,) = hf.gradients(loss, a)
        expected = -q * z * sp.expit(-x) + (1 - z) * sp.expit(x)
        np.testing.assert_allclose(evaluate(g), expected, rtol=1e-9)
    far = hf.nn.weighted_cross_entropy_with_logits([1.0, 0.0], hf.constant([-1e4, 1e4]), 2.0)
    assert evaluate(far).tolist() == [2e4, 1e4]
    with pytest.raises(ShapeError):
        hf.nn.weighted_cross_entropy_with_logits(z[0], a, 1.0)


def test_log_poisson_loss() -> None:
    c, z = X, RNG.integers(0, 9, X.shape).astype(float)
    a = hf.constant(c)
    np.testing.assert_allclose(evaluate(hf.nn.log_poisson_loss(z, a)), np.exp(c) - z * c)
    loss = hf.nn.log_poisson_loss(z, a, compute_full_loss=True)
    exact = -scipy.stats.poisson.logpmf(z, np.exp(c))
    assert abs(evaluate(loss) - exact)[z > 1].max() < 0.05  # Stirling's formula at 2
    assert abs(evaluate(loss) - exact)[z <= 1].max() < 1e-12
    np.testing.assert_allclose(evaluate(hf.gradients(loss, a)[0]), np.exp(c) - z)


def test_dtypes_are_checked() -> None:
    logits = hf.constant(X.astype("f4"))  # labels are cast
    loss = hf.nn.softmax_cross_entropy_with_logits_v2(labels=hf.constant(X), logits=logits)
    assert loss.dtype == hf.float32
    with pytest.raises(DTypeError):
        hf.nn.selu(hf.constant([1, 2]))
