"""Normalization against formulas; moments over replicas against those of the joined batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import ShapeError
from tests.ops.evaluate import evaluate
from tests.runtime.ranks import run_ranks

RNG = np.random.default_rng(10)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape) * 2 + 1


def unit(x: np.ndarray, axis: Any, epsilon: float) -> np.ndarray:
    axis = tuple(np.atleast_1d(axis))
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + epsilon)


def check(t: hf.Tensor, expected: np.ndarray, feeds: Any = None) -> None:
    got = evaluate(t, feeds)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


def slope(function: Any, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Finite differences of `sum(w * function(x))`."""
    out = np.zeros(x.shape)
    for place in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[place] = 1e-6
        out[place] = np.sum(w * (function(x + step) - function(x - step))) / 2e-6
    return out


def test_batch_normalization() -> None:
    x, m, v, b, s = draw(4, 3, 5), draw(5), draw(5) ** 2, draw(5), draw(5)
    whole = (x - m) / np.sqrt(v + 0.01)
    check(hf.nn.batch_normalization(x, hf.constant(m), v, b, s, 0.01), whole * s + b)
    check(hf.nn.batch_normalization(x, hf.constant(m), v, None, s, 0.01), whole * s)
    check(hf.nn.batch_normalization(x, hf.constant(m), v, b, None, 0.01), whole + b)
    older = hf.nn.batch_norm_with_global_normalization
    check(older(x, hf.constant(m), v, b, s, 0.01, True), whole * s + b)
    check(older(x, hf.constant(m), v, b, s, 0.01, False), whole + b)
    given = [hf.constant(a) for a in (x, m, v, b, s)]
    y = hf.nn.batch_normalization(*given, variance_epsilon=0.01)
    w = draw(*x.shape)
    grads = evaluate(hf.gradients(y, given, w))
    expected = [
        w * s / np.sqrt(v + 0.01),
        -(w * s / np.sqrt(v + 0.01)).sum((0, 1)),
        (w * s * (x - m) * -0.5 / (v + 0.01) ** 1.5).sum((0, 1)),
        w.sum((0, 1)),
        (w * whole).sum((0, 1)),
    ]
    for got, value in zip(grads, expected, strict=True):
        np.testing.assert_allclose(got, value)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_fused_batch_norm(data_format: str) -> None:
    x, s, b = draw(3, 4, 2, 5), draw(5), draw(5)
    turn = (lambda a: a.transpose(0, 3, 1, 2)) if data_format == "NCHW" else lambda a: a
    flat = x.reshape(-1, 5)
    unknown = hf.placeholder("float64", [None, *turn(x).shape[1:]])
    for given, feeds in [(hf.constant(turn(x)), None), (unknown, {unknown: turn(x)})]:
        y, m, v = hf.nn.fused_batch_norm(given, s, b, epsilon=0.1, data_format=data_format)
        check(y, turn(unit(x, (0, 1, 2), 0.1) * s + b), feeds)
        check(m, flat.mean(0), feeds)
        check(v, flat.var(0, ddof=1), feeds)
    m, v = draw(5), draw(5) ** 2
    y, *same = hf.nn.fused_batch_norm(
        turn(x), s, b, m, v, epsilon=0.1, data_format=data_format, is_training=False
    )
    check(y, turn((x - m) / np.sqrt(v + 0.1) * s + b))
    assert [evaluate(t).tolist() for t in same] == [m.tolist(), v.tolist()]


def test_gradients_of_moments_and_second_order() -> None:
    x, w = draw(4, 3), draw(3)
    a = hf.constant(x)
    _, m, v = hf.nn.fused_batch_norm(a, np.ones(3), np.zeros(3))
    got = evaluate(hf.gradients(m * m, a, w)[0])
    np.testing.assert_allclose(got, slope(lambda x: x.mean(0) ** 2, x, w), rtol=1e-6)
    got = evaluate(hf.gradients(v * v, a, w)[0])
    np.testing.assert_allclose(got, slope(lambda x: x.var(0, ddof=1) ** 2, x, w), rtol=1e-6)
    c = draw(4, 3)

    def penalty(x: Any) -> tuple[hf.Tensor, hf.Tensor]:
        a = hf.constant(x)
        y = hf.nn.layer_normalization(a, epsilon=0.1)
        (g,) = hf.gradients(y * y * y, a, c)
        return hf.square(g), a

    total, a = penalty(x)
    got = evaluate(hf.gradients(total, a)[0])
    expected = slope(lambda x: evaluate(penalty(x)[0]), x, np.ones((4, 3)))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_layer_group_instance() -> None:
    x, s, b = draw(2, 3, 4, 6), draw(6), draw(6)
    check(hf.nn.layer_normalization(x, s, b, epsilon=0.2), unit(x, -1, 0.2) * s + b)
    check(hf.nn.layer_normalization(x, axis=[1, 2, 3]), unit(x, (1, 2, 3), 1e-5))
    check(hf.nn.instance_normalization(x, s, b), unit(x, (1, 2), 1e-5) * s + b)
    parted = unit(x.reshape(2, 3, 4, 3, 2), (1, 2, 4), 1e-5).reshape(x.shape)
    check(hf.nn.group_normalization(x, 3, s, b), parted * s + b)
    turned = hf.nn.group_normalization(x.transpose(0, 3, 1, 2), 3, s, b, data_format="NCHW")
    check(turned, (parted * s + b).transpose(0, 3, 1, 2))
    unknown = hf.placeholder("float64", [None, None, None, 6])
    check(hf.nn.group_normalization(unknown, 3), parted, {unknown: x})
    with pytest.raises(ShapeError, match="6 channels cannot be divided into 4 groups"):
        hf.nn.group_normalization(x, 4)
    with pytest.raises(ShapeError, match="known rank"):
        hf.nn.instance_normalization(hf.placeholder("float32", None))


def test_local_response() -> None:
    x = draw(2, 3, 7)
    for radius in (1, 5):

        def oracle(x: np.ndarray, radius: int = radius) -> np.ndarray:
            out = np.zeros(x.shape)
            for c in range(7):
                near = x[..., max(0, c - radius) : c + radius + 1]
                out[..., c] = x[..., c] / (0.9 + 0.3 * (near**2).sum(-1)) ** 0.75
            return out

        a, w = hf.constant(x), draw(*x.shape)
        y = hf.nn.lrn(a, radius, 0.9, 0.3, 0.75)
        check(y, oracle(x))
        got = evaluate(hf.gradients(y, a, w)[0])
        np.testing.assert_allclose(got, slope(oracle, x, w), rtol=1e-5, atol=1e-7)
        unknown = hf.placeholder("float64", None)
        check(
            hf.nn.local_response_normalization(unknown, radius, 0.9, 0.3, 0.75),
            oracle(x),
            {unknown: x},
        )


def test_sixteen_bits() -> None:
    x = np.full((1000, 2), 200, "f2") + np.arange(1000, dtype="f2")[:, None] % 3
    y, m, v = hf.nn.fused_batch_norm(hf.constant(x), np.ones(2), np.zeros(2), epsilon=0.0)
    assert (y.dtype, m.dtype, v.dtype) == (np.float16, np.float32, np.float32)
    wide = x.astype(float)
    np.testing.assert_allclose(evaluate(m), wide.mean(0), rtol=1e-6)
    np.testing.assert_allclose(evaluate(v), wide.var(0, ddof=1), rtol=1e-5)
    np.testing.assert_allclose(evaluate(y), unit(wide, 0, 0), atol=2e-3)


def test_large_means_do_not_lose_the_variance() -> None:
    x = (RNG.standard_normal((50_000, 2)) + 1e4).astype("f4")
    _, _, v = hf.nn.fused_batch_norm(hf.constant(x), np.ones(2), np.zeros(2))
    np.testing.assert_allclose(evaluate(v), x.astype(float).var(0), rtol=1e-3)
    _, v = hf.nn.synchronized_moments(hf.constant(x), 0)
    np.testing.assert_allclose(evaluate(v), x.astype(float).var(0), rtol=1e-3)


# -- over replicas


def _net(x: hf.Tensor, moments: Any) -> tuple[hf.Tensor, hf.Variable, hf.Variable]:
    w = hf.Variable(np.linspace(-1, 1, 12).reshape(3, 4), name="w")
    s = hf.Variable(np.linspace(1, 2, 4), name="s")
    h = hf.matmul(x, w)
    m, v = moments(h)
    y = hf.nn.batch_normalization(h, m, v, None, s.value(), 0.1)
    return hf.reduce_mean(hf.reduce_sum(y * y * y, 1)), w, s


@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 1, 1), (5, 1, 0)])
def test_synchronized_moments_train_as_on_the_joined_batch(sizes: tuple[int, ...]) -> None:
    whole = draw(6, 3)
    parts = np.split(whole, np.cumsum(sizes)[:-1])

    def body(context: Any) -> Any:
        x = hf.placeholder("float64", [None, 3])
        loss, w, s = _net(x, lambda h: hf.nn.synchronized_moments(h, 0))
        optimizer = hf.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss, [w, s])
        mine = parts[context.replica]
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        m, v = hf.nn.synchronized_moments(x, [0], keep_dims=True)
        feeds = {x: mine, hf.replica_share(): len(mine) / 6}
        return session.run([m, v, *(g for g, _ in pairs)], feeds)

    with hf.Graph().as_default():
        a = hf.constant(whole)
        loss, w, s = _net(
            a,
            lambda h: [
                hf.reduce_mean(h, 0),
                hf.reduce_mean(hf.square(h - hf.reduce_mean(h, 0)), 0),
            ],
        )
        state: dict = {}
        evaluate([w.initializer, s.initializer], state=state)
        expected = evaluate(hf.gradients(loss, [w, s]), state=state)
    for m, v, dw, ds in run_ranks(3, body):
        np.testing.assert_allclose(m, whole.mean(0, keepdims=True))
        np.testing.assert_allclose(v, whole.var(0, keepdims=True))
        np.testing.assert_allclose(dw, expected[0], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(ds, expected[1], rtol=1e-9, atol=1e-12)
