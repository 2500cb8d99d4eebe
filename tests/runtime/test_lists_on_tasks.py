"""Gradients of what goes through lists of tensors, on tasks that are not the driver.

A list cannot be sent: all that uses it, forward and back, is on the task that was asked for first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from tests.runtime.ranks import run_ranks

from .spanning import TASKS

X = np.random.default_rng(0).standard_normal((3, 2, 2))


def rnn(x: Any) -> Any:
    with hf.variable_scope("net", initializer=hf.constant_initializer(0.3)):
        return hf.nn.dynamic_rnn(hf.nn.rnn_cell.LSTMCell(2), x, dtype=hf.float64)[0]


def scan(x: Any) -> Any:
    return hf.scan(lambda a, b: hf.tanh(a * 0.5 + b), x)


def map_fn(x: Any) -> Any:
    return hf.map_fn(lambda b: hf.tanh(b) * b, x)


def loop_in_loop(x: Any) -> Any:
    def inner(h: Any) -> Any:
        step = lambda j, k: (j + 1, hf.tanh(k * 1.1))  # noqa: E731
        return hf.while_loop(lambda j, k: j < 3, step, [0, h])[1]

    return hf.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, inner(h)), [0, x])[1]


def scan_in_scan(x: Any) -> Any:
    return hf.scan(lambda a, b: hf.scan(lambda c, d: hf.sin(c + d), a * b), x)


def scan_in_branch(x: Any) -> Any:
    return hf.cond(hf.reduce_sum(x) > -1e9, lambda: scan(x), lambda: x * 2.0)


def branch_in_scan(x: Any) -> Any:
    def step(a: Any, b: Any) -> Any:
        return hf.cond(hf.reduce_sum(b) > 0.0, lambda: hf.tanh(a * b), lambda: hf.sin(a + b))

    return hf.scan(step, x)


def written_by_one_branch(x: Any) -> Any:
    """The other branch hands the array on as it came."""

    def step(i: Any, held: Any) -> Any:
        last = hf.cond(hf.equal(i, 2), lambda: held.write(2, hf.tanh(x[0])), lambda: held)
        return i + 1, hf.cond(hf.less(i, 2), lambda: last.write(i, x[i] * x[2]), lambda: last)

    start = hf.TensorArray(hf.float64, 3)
    return hf.while_loop(lambda i, held: i < 3, step, [0, start])[1].stack()


BUILDS = [rnn, scan, map_fn, loop_in_loop, scan_in_scan, scan_in_branch, branch_in_scan,
          written_by_one_branch]  # fmt: skip


def loss_of(build: Callable[[Any], Any], device: str) -> tuple[Any, Any]:
    x = hf.placeholder(hf.float64, X.shape)
    with hf.device(device):
        y = build(x)
    return x, hf.reduce_sum(hf.sin(y) * y)


def differences(build: Callable[[Any], Any]) -> np.ndarray:
    """The gradient by finite differences, on one rank."""
    with hf.Graph().as_default(), hf.Session() as session:
        x, loss = loss_of(build, "")
        hf.Variable(0.0)
        session.run(hf.global_variables_initializer())
        found = np.zeros_like(X)
        for place in np.ndindex(X.shape):
            step = np.zeros_like(X)
            step[place] = 1e-6
            up, down = (session.run(loss, {x: X + s}) for s in (step, -step))
            found[place] = (up - down) / 2e-6
        return found


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    "forward, back", [(TASKS[1], ""), (TASKS[1], TASKS[1]), (TASKS[2], TASKS[1])]
)
def test_gradients_where_the_driver_is_elsewhere(
    build: Callable[[Any], Any], forward: str, back: str
) -> None:
    def body(context: Any) -> Any:
        x, loss = loss_of(build, forward)
        with hf.device(back):
            (gradient,) = hf.gradients(loss, x)
        hf.Variable(0.0)
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            return session.run(gradient, {x: X})

    (found,) = run_ranks(3, body, tasks_per_replica=3)
    np.testing.assert_allclose(found, differences(build), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("history", ["keep", "host", "recompute"])
def test_what_a_loop_keeps_is_where_it_is_made(history: str) -> None:
    """A body over two tasks: each keeps what it made."""

    def body(context: Any) -> Any:
        x = hf.placeholder(hf.float64, X.shape)

        def step(i: Any, h: Any) -> Any:
            with hf.device(TASKS[1]):
                a = hf.tanh(h * 1.5)
            with hf.device(TASKS[2]):
                return i + 1, hf.sin(a) * h

        y = hf.while_loop(lambda i, h: i < 3, step, [0, x], history=history)[1]
        with hf.Session() as session:
            return session.run(hf.gradients(y, x)[0], {x: X})

    (found,) = run_ranks(3, body, tasks_per_replica=3)
    h, slope = X, np.ones_like(X)
    for _ in range(3):
        a = np.tanh(h * 1.5)
        slope = slope * (np.sin(a) + np.cos(a) * (1 - a * a) * 1.5 * h)
        h = np.sin(a) * h
    np.testing.assert_allclose(found, slope, rtol=1e-10)


def test_an_array_that_a_loop_or_branch_only_hands_on() -> None:
    """It is written on one task, goes through a loop unchanged, and is read under another wish."""

    def body(context: Any) -> Any:
        x = hf.placeholder(hf.float64, X.shape)
        with hf.device(TASKS[1]):
            array = hf.TensorArray(hf.float64, 3).unstack(x)

        def step(i: Any, held: Any, total: Any) -> Any:
            with hf.device(TASKS[2]):
                return i + 1, held, total + hf.tanh(held.read(i))

        start = [0, array, hf.zeros([2, 2], hf.float64)]
        _, held, total = hf.while_loop(lambda i, *_: i < 3, step, start)
        y = total + hf.reduce_sum(held.stack())
        with hf.Session() as session:
            return session.run([y, hf.gradients(hf.reduce_sum(y), x)[0]], {x: X})

    ((y, gradient),) = run_ranks(3, body, tasks_per_replica=3)
    np.testing.assert_allclose(y, np.tanh(X).sum(0) + X.sum())
    np.testing.assert_allclose(gradient, 1 - np.tanh(X) ** 2 + 4)
