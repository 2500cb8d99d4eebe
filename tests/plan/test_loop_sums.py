"""Gradients of weights in loops: one product behind the loop, equal to the sum in it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.plan.ir.control_flow_nodes import nested_nodes
from hpcflow.plan.ir.program import Partition
from tests.runtime.ranks import run_ranks

RNG = np.random.default_rng(7)
BATCH, TIME, DEPTH, UNITS = 3, 6, 5, 4
X = RNG.standard_normal((TIME, BATCH, DEPTH))
START = RNG.standard_normal((DEPTH + UNITS, UNITS)) / 3


def net(x: Any, w: Any, history: str = "keep", steps: Any = TIME) -> Any:
    """The sum of squares of all states of h = tanh([x_t, h] w)."""

    def step(t: Any, h: Any, total: Any) -> Any:
        h = hf.tanh(hf.matmul(hf.concat([hf.gather(x, t), h], 1), w))
        return t + 1, h, total + hf.reduce_sum(h * h)

    first = hf.zeros([hf.shape(x)[1], UNITS], x.dtype)
    begin = [hf.constant(0), first, hf.constant(0.0, x.dtype)]
    return hf.while_loop(lambda t, *_: t < steps, step, begin, history=history)[2]


def loss(x: np.ndarray, w: np.ndarray) -> float:
    """The same by NumPy."""
    h, total = np.zeros((x.shape[1], UNITS)), 0.0
    for row in x:
        h = np.tanh(np.concatenate([row, h], 1) @ w)
        total += (h * h).sum()
    return total


def slope(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The gradient of the loss by the weights, from differences."""
    found = np.zeros_like(w)
    for i in np.ndindex(*w.shape):
        for sign in (1, -1):
            moved = w.copy()
            moved[i] += sign * 1e-5
            found[i] += sign * loss(x, moved) / 2e-5
    return found


def types(context: Any, fetches: Any, feeds: Any) -> tuple[Counter, Counter]:
    """How many nodes of each type are outside and inside of the loops of a step."""
    with hf.Session(context=context) as session:
        part: Partition
        (part,) = session.plan(fetches, feeds).parts.values()
    return Counter(n.type for n in part.nodes.values()), Counter(
        n.type for n in nested_nodes(part.nodes)
    )


@pytest.mark.parametrize("history", ["keep", "host", "recompute"])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_one_product_behind_the_loop_is_the_sum_in_it(
    history: str, exact: bool, known: bool
) -> None:
    def body(context: Any) -> Any:
        x = hf.placeholder(hf.float64, [TIME, BATCH, DEPTH] if known else [None, None, DEPTH])
        w = hf.Variable(START)
        (g,) = hf.gradients(net(x, w, history), [w])
        counts = types(context, g, {x: X})
        with hf.Session(context=context) as session:
            session.run(w.initializer)
            return session.run(g, {x: X}), *counts

    ((g, outside, inside),) = run_ranks(1, body, exact=exact)
    np.testing.assert_allclose(g, slope(X, START), rtol=1e-6, atol=1e-8)
    moved = history == "keep" and not exact
    assert outside["ListRows"] == 2 * moved and outside["MatMul"] == moved
    # forward, perhaps again, back to the state, and that of the weights
    assert inside["MatMul"] == 3 - moved + (history == "recompute")


@pytest.mark.parametrize("batch, moved", [(5, True), (6, False)])
def test_many_rows_are_added_up_in_the_loop(batch: int, moved: bool) -> None:
    """The product is put off as long as copies of its operands are less than what adding costs."""

    def body(context: Any) -> Any:
        x = hf.placeholder(hf.float64, [TIME, batch, DEPTH])
        w = hf.placeholder(hf.float64, START.shape)
        g = hf.gradients(net(x, w), [w])[0]
        return types(context, g, {x: np.zeros(x.shape), w: START})[0]["ListRows"]

    assert run_ranks(1, body) == [2 * moved]


@pytest.mark.parametrize("steps", [0, 1, TIME])
def test_as_many_steps_as_a_value_says(steps: int) -> None:
    x, n = hf.placeholder(hf.float64, [None, BATCH, DEPTH]), hf.placeholder(hf.int32, [])
    w = hf.placeholder(hf.float64, START.shape)
    (g,) = hf.gradients(net(x, w, steps=n), [w])
    found = hf.Session().run(g, {x: X, n: steps, w: START})
    np.testing.assert_allclose(found, slope(X[:steps], START), rtol=1e-6, atol=1e-8)


def test_weights_that_an_iteration_uses_twice_and_a_loop_in_it() -> None:
    """Two products in an iteration are added up in the loop; an inner loop has its own sum."""
    start = RNG.standard_normal((UNITS, UNITS)) / 2
    x = hf.placeholder(hf.float64, [BATCH, UNITS])
    w = hf.placeholder(hf.float64, start.shape)

    def step(t: Any, h: Any) -> Any:
        h = hf.tanh(hf.matmul(hf.tanh(hf.matmul(h, w)), w))
        _, h = hf.while_loop(
            lambda k, h: k < t, lambda k, h: (k + 1, hf.sin(hf.matmul(h, w))), [0, h]
        )
        return t + 1, h

    y = hf.while_loop(lambda t, h: t < 4, step, [0, x])[1]
    (g,) = hf.gradients(y, [w])

    def value(w: np.ndarray) -> float:
        h = X[0][:, :UNITS]
        for t in range(4):
            h = np.tanh(np.tanh(h @ w) @ w)
            for _ in range(t):
                h = np.sin(h @ w)
        return h.sum()

    found = hf.Session().run(g, {x: X[0][:, :UNITS], w: start})
    for i in np.ndindex(*start.shape):
        move = np.zeros_like(start)
        move[i] = 1e-5
        steep = (value(start + move) - value(start - move)) / 2e-5
        np.testing.assert_allclose(found[i], steep, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("ranks, settings", [(1, {}), (2, {}), (2, {"ps": 1}), (4, {"ps": 2})])
def test_training_in_every_mode(ranks: int, settings: dict[str, int]) -> None:
    """Each worker has all samples, so all modes make the steps of one."""

    def body(context: Any) -> Any:
        x = hf.placeholder(hf.float64, [TIME, None, DEPTH])
        w = hf.Variable(START, name="w")
        train = hf.train.GradientDescentOptimizer(0.01).minimize(net(x, w))
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            for _ in range(3):
                session.run(train, {x: X})
            return session.run(w)

    w = START
    for _ in range(3):
        w = w - 0.01 * slope(X, w)
    for found in run_ranks(ranks, body, **settings, **({"sync": "all"} if settings else {})):
        np.testing.assert_allclose(found, w, rtol=1e-6)


@pytest.mark.parametrize("begin", [0.0, 0.5])
@pytest.mark.parametrize("exact", [False, True])
def test_the_gradient_of_a_bias_is_one_sum_behind_the_loop(begin: float, exact: bool) -> None:
    """The oracle is NumPy's backward pass; `begin` is what the sum adds to."""
    bias = RNG.standard_normal(UNITS) / 3

    def body(context: Any) -> Any:
        x, w = hf.placeholder(hf.float64, X.shape), hf.placeholder(hf.float64, START.shape)
        b = hf.placeholder(hf.float64, [UNITS])

        def step(t: Any, h: Any) -> Any:
            return t + 1, hf.tanh(hf.matmul(hf.concat([hf.gather(x, t), h], 1), w) + b)

        first = hf.zeros([BATCH, UNITS], hf.float64)
        h = hf.while_loop(lambda t, _: t < TIME, step, [hf.constant(0), first])[1]
        gradients = hf.gradients(hf.reduce_sum(h * h) + begin * hf.reduce_sum(b), [w, b])
        feeds = {x: X, w: START, b: bias}
        counts = types(context, gradients, feeds)
        with hf.Session(context=context) as session:
            return session.run(gradients, feeds), *counts

    (((dw, db), outside, inside),) = run_ranks(1, body, exact=exact)
    states = [np.zeros((BATCH, UNITS))]
    for row in X:
        states.append(np.tanh(np.concatenate([row, states[-1]], 1) @ START + bias))
    g, slope_w, slope_b = 2 * states[-1], np.zeros_like(START), np.full(UNITS, begin)
    for row, before, after in reversed(list(zip(X, states, states[1:], strict=False))):
        g = g * (1 - after * after)
        slope_w += np.concatenate([row, before], 1).T @ g
        slope_b += g.sum(0)
        g = (g @ START.T)[:, DEPTH:]
    np.testing.assert_allclose(dw, slope_w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(db, slope_b, rtol=1e-10, atol=1e-12)
    assert inside["Sum"] + inside["SumToShape"] == exact
    assert outside["ListRows"] == 2 * (not exact)


def test_rows_that_are_summed_alone_stay_in_the_loop() -> None:
    """Without a product their list would be more memory for no gain."""

    def body(context: Any) -> Any:
        x, b = hf.placeholder(hf.float64, X.shape), hf.placeholder(hf.float64, [DEPTH])

        def step(t: Any, h: Any) -> Any:
            return t + 1, hf.tanh(h * hf.gather(x, t) + b)

        first = hf.ones([BATCH, DEPTH], hf.float64)
        h = hf.while_loop(lambda t, _: t < TIME, step, [hf.constant(0), first])[1]
        fed = {x: X, b: np.ones(DEPTH)}
        return types(context, hf.gradients(hf.reduce_sum(h), [b]), fed)[0]["ListRows"]

    assert run_ranks(1, body) == [0]
