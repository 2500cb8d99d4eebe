"""`hf.distributions`: SciPy's values, moments of draws, shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special as sp
import scipy.stats as st

import hpcflow as hf
from hpcflow.errors import ArgumentError

RNG = np.random.default_rng(4)
of = hf.distributions


def run(fetches: Any, feeds: Any = None) -> Any:
    with hf.Session() as session:
        return session.run(fetches, feeds)


def close(got: Any, expected: Any) -> None:
    assert np.shape(got) == np.shape(expected)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


def test_normal() -> None:
    loc, scale, x = RNG.normal(size=(3, 2)), RNG.uniform(0.5, 2, 2), RNG.normal(size=(4, 3, 2))
    d, told = of.Normal(hf.constant(loc), scale), st.norm(loc, scale)
    got = run([d.prob(x), d.log_prob(x), d.cdf(x), d.entropy(), d.mean(), d.stddev()])
    expected = [told.pdf(x), told.logpdf(x), told.cdf(x), told.entropy(), loc, told.std()]
    for y, z in zip(
        [*got, run(d.variance()), run(d.mode())], [*expected, told.var(), loc], strict=True
    ):
        close(y, z)
    other = of.Normal(hf.constant(loc[::-1].copy()), scale * 2)
    a, b, s, t = loc, loc[::-1], scale, scale * 2
    close(run(d.kl_divergence(other)), np.log(t / s) + (s**2 + (a - b) ** 2) / (2 * t**2) - 0.5)


def test_uniform() -> None:
    low, high = np.array([0.0, -1.0]), np.array([2.0, 1.5])
    d, told = of.Uniform(hf.constant(low), high), st.uniform(low, high - low)
    x = np.array([[0.5, -2.0], [1.5, 1.0]])
    close(run(d.prob(x)), told.pdf(x))
    got = run([d.entropy(), d.mean(), d.variance(), d.stddev(), d.log_prob(x[1])])
    expected = [told.entropy(), told.mean(), told.var(), told.std(), told.logpdf(x[1])]
    for y, z in zip(got, expected, strict=True):
        close(y, z)


@pytest.mark.parametrize("how", ["logits", "probs"])
def test_bernoulli(how: str) -> None:
    p, q = RNG.uniform(0.1, 0.9, (3, 2)), RNG.uniform(0.1, 0.9, (3, 2))
    make = lambda v: of.Bernoulli(**{how: hf.constant(sp.logit(v) if how == "logits" else v)})  # noqa: E731
    d, other = make(p), make(q)
    events = RNG.integers(0, 2, (4, 3, 2))
    close(run(d.log_prob(events)), st.bernoulli(p).logpmf(events))
    got = run([d.entropy(), d.mean(), d.variance(), d.mode(), d.kl_divergence(other)])
    kl = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    for y, z in zip(
        got, [st.bernoulli(p).entropy(), p, p * (1 - p), (p > 0.5).astype("i4"), kl], strict=True
    ):
        close(y, z)


@pytest.mark.parametrize("how", ["logits", "probs"])
def test_categorical(how: str) -> None:
    logits, others = RNG.normal(size=(3, 2, 4)), RNG.normal(size=(3, 2, 4))
    p, q = sp.softmax(logits, -1), sp.softmax(others, -1)
    make = lambda x, y: of.Categorical(**{how: hf.constant(x if how == "logits" else y)})  # noqa: E731
    d, other = make(logits, p), make(others, q)
    for lead in ((), (5,)):
        classes = RNG.integers(0, 4, (*lead, 3, 2))
        wide = np.broadcast_to(p, (*lead, 3, 2, 4))
        close(
            run(d.log_prob(classes)),
            np.log(np.take_along_axis(wide, classes[..., None], -1))[..., 0],
        )
    got = run([d.entropy(), d.mode(), kl := of.kl_divergence(d, other)])
    assert kl.shape == (3, 2)
    close(got[0], -(p * np.log(p)).sum(-1))
    close(got[1], p.argmax(-1))
    close(got[2], (p * np.log(p / q)).sum(-1))


def test_draws() -> None:
    """Means and variances within five standard errors."""
    n = 20000
    p = np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])
    classes = of.Categorical(probs=hf.constant(p)).sample(n, seed=1)
    coins = of.Bernoulli(probs=hf.constant([0.3, 0.9])).sample([n], seed=2)
    normal = of.Normal(hf.constant([1.0, -2.0]), [0.5, 3.0]).sample(n, seed=3)
    uniform = of.Uniform(hf.constant([0.0, -4.0]), [1.0, 4.0]).sample([n // 2, 2], seed=4)
    k, c, x, u = run([classes, coins, normal, uniform])
    assert k.shape == (n, 2) and k.dtype == c.dtype == np.int32 and u.shape == (n // 2, 2, 2)
    shares = np.stack([np.bincount(k[:, i], minlength=3) / n for i in range(2)])
    assert (abs(shares - p) < 5 * np.sqrt(p * (1 - p) / n)).all()
    assert (abs(c.mean(0) - [0.3, 0.9]) < 5 * np.sqrt(0.25 / n)).all()
    assert (abs(x.mean(0) - [1, -2]) < 5 * np.array([0.5, 3]) / np.sqrt(n)).all()
    np.testing.assert_allclose(x.std(0), [0.5, 3], rtol=0.03)
    assert (abs(u.mean((0, 1)) - [0.5, 0]) < 5 * np.array([1, 8]) / np.sqrt(12 * n)).all()
    assert run(of.Normal(hf.constant([0.0]), 1.0).sample()).shape == (1,)
    assert run(of.Categorical(logits=hf.zeros([4])).sample()).shape == ()


def test_gradients_go_through_normal_draws() -> None:
    """The mean of loc + scale * drawn: 1 into loc, what was drawn into scale."""
    loc, scale = hf.constant([1.0, 2.0]), hf.constant([0.5, 3.0])
    drawn = of.Normal(loc, scale).sample(seed=1)
    by_loc, by_scale, y = run([*hf.gradients(drawn, [loc, scale]), drawn])
    np.testing.assert_array_equal(by_loc, [1, 1])
    np.testing.assert_allclose(by_scale, (y - [1, 2]) / [0.5, 3], rtol=1e-5)


def test_errors() -> None:
    for kind in (of.Bernoulli, of.Categorical):
        for given in ({}, {"logits": [0.0], "probs": [0.5]}):
            with pytest.raises(ArgumentError, match="either logits or probs"):
                kind(**given)
    with pytest.raises(ArgumentError, match="one class, not Normal and Uniform"):
        of.kl_divergence(of.Normal(0.0, 1.0), of.Uniform())
