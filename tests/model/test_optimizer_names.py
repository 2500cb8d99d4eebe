"""Optimizers by name have Keras's formulas and defaults: those of Keras 3's documentation."""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
import pytest

import hpcflow as hf

X = np.array([[1.0], [-2.0], [0.5], [3.0]], np.float32)
Y = np.array([[2.0], [1.0], [0.0], [-1.0]], np.float32)
EPSILON = 1e-7
Steps = Generator[float, float, None]  # gives what is subtracted; is sent the next gradient


def sgd() -> Steps:
    g = yield 0.0
    while True:
        g = yield 0.01 * g


def adam() -> Steps:
    m = v = 0.0
    t, g = 0, (yield 0.0)
    while True:
        t, m, v = t + 1, 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        rate = 0.001 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        g = yield rate * m / (np.sqrt(v) + EPSILON)


def rmsprop() -> Steps:
    square, g = 0.0, (yield 0.0)
    while True:
        square = 0.9 * square + 0.1 * g * g
        g = yield 0.001 * g / np.sqrt(square + EPSILON)


def adagrad() -> Steps:
    total, g = 0.1, (yield 0.0)
    while True:
        total += g * g
        g = yield 0.001 * g / np.sqrt(total + EPSILON)


def adadelta() -> Steps:
    square = moved = 0.0
    g = yield 0.0
    while True:
        square = 0.95 * square + 0.05 * g * g
        delta = np.sqrt(moved + EPSILON) / np.sqrt(square + EPSILON) * g
        moved = 0.95 * moved + 0.05 * delta * delta
        g = yield 0.001 * delta


def adamax() -> Steps:
    m = u = 0.0
    t, g = 0, (yield 0.0)
    while True:
        t, m, u = t + 1, 0.9 * m + 0.1 * g, max(0.999 * u, abs(g))
        g = yield 0.001 / (1 - 0.9**t) * m / (u + EPSILON)


FORMULAS: dict[str, Callable[[], Steps]] = {
    f.__name__: f for f in (sgd, adam, rmsprop, adagrad, adadelta, adamax)
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_name_stands_for_keras_formula(name: str) -> None:
    dense = hf.layers.Dense(1, use_bias=False, kernel_initializer=hf.constant_initializer(0.5))
    model = hf.Sequential([hf.Input((1,)), dense])
    model.compile(name, "mse")
    steps = FORMULAS[name]()
    expected = next(steps)
    for _ in range(5):
        model.fit(X, Y, batch_size=4, verbose=0)
        expected += steps.send(float(np.mean(2 * X * (X * (0.5 - expected) - Y))))
        found = 0.5 - float(model.get_weights()[0].item())
        assert found == pytest.approx(expected, rel=2e-4, abs=1e-7)
