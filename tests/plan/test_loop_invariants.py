"""What is the same in each iteration of a loop is computed in front of it, once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import NumericError
from hpcflow.plan.ir.control_flow_nodes import nested_nodes
from hpcflow.plan.ir.program import Partition

RNG = np.random.default_rng(1)
A, B, MASK = RNG.standard_normal((3, 20, 20)) / 5
STEPS = 6


def types(fetches: Any, feeds: Any) -> tuple[Counter, Counter]:
    """How many nodes of each type are outside and inside of loops."""
    with hf.Session() as session:
        part: Partition
        (part,) = session.plan(fetches, feeds).parts.values()
    inside = Counter(n.type for n in nested_nodes(part.nodes))
    return Counter(n.type for n in part.nodes.values()), inside


def net(a: Any, b: Any, mask: Any, steps: Any = STEPS) -> Any:
    """x = tanh(x (a b * mask)), with a factor of a reduction."""

    def step(t: Any, x: Any) -> Any:
        weights = hf.matmul(a, b) * hf.sigmoid(mask)
        scale = hf.reduce_mean(hf.square(a)) + 1.0
        return t + 1, hf.tanh(hf.matmul(x, weights)) * scale

    start = [hf.constant(0), hf.ones([4, 20], hf.float64)]
    return hf.while_loop(lambda t, *_: t < steps, step, start)[1]


def by_numpy(a: np.ndarray, b: np.ndarray, mask: np.ndarray) -> np.ndarray:
    x = np.ones((4, 20))
    for _ in range(STEPS):
        x = np.tanh(x @ (a @ b / (1 + np.exp(-mask)))) * ((a * a).mean() + 1)
    return x


def placeholders() -> tuple[list[Any], dict[Any, np.ndarray]]:
    fed = [hf.placeholder(hf.float64, [20, 20]) for _ in range(3)]
    return fed, dict(zip(fed, (A, B, MASK), strict=True))


def test_products_and_reductions_of_captures_are_in_front() -> None:
    with hf.Graph().as_default():
        fed, feeds = placeholders()
        x = net(*fed)
        outside, inside = types(x, feeds)
        assert outside["MatMul"] == inside["MatMul"] == 1
        assert outside["Mean"] == outside["Sigmoid"] == 1
        assert not inside["Mean"] and not inside["Sigmoid"] and not inside["Square"]
        with hf.Session() as session:
            np.testing.assert_allclose(session.run(x, feeds), by_numpy(A, B, MASK), 1e-12)


def test_gradients_through_them_are_right() -> None:
    with hf.Graph().as_default(), hf.Session() as session:
        fed, feeds = placeholders()
        slopes = hf.gradients(hf.reduce_sum(net(*fed)), fed)
        found = session.run(slopes, feeds)
    for k in range(3):
        moved = [A.copy(), B.copy(), MASK.copy()]
        moved[k][3, 7] += 1e-6
        change = (by_numpy(*moved) - by_numpy(A, B, MASK)).sum() / 1e-6
        assert found[k][3, 7] == pytest.approx(change, rel=1e-4, abs=1e-6)


def test_what_depends_on_the_iteration_or_acts_stays() -> None:
    """Random numbers, updates and what follows them, and the loop's own variables."""
    with hf.Graph().as_default(), hf.Session() as session:
        a = hf.placeholder(hf.float64, [20, 20])
        v = hf.Variable(np.zeros((20, 20)))

        def step(t: Any, x: Any) -> Any:
            noise = hf.random_uniform([20, 20], dtype=hf.float64)
            added = v.assign_add(hf.ones([20, 20], hf.float64))
            return t + 1, x + hf.matmul(a, noise) + hf.matmul(added, a)

        start = [hf.constant(0), hf.zeros([20, 20], hf.float64)]
        x = hf.while_loop(lambda t, *_: t < 3, step, start)[1]
        assert types(x, {a: A})[1]["MatMul"] == 2
        session.run(hf.global_variables_initializer())
        first = session.run(x, {a: A})
        assert session.run(v)[0, 0] == 3
        assert not np.allclose(first, session.run(x, {a: A}))


def test_a_loop_without_iterations_raises_no_error_of_its_body() -> None:
    with hf.Graph().as_default(), hf.Session() as session:
        a, n = hf.placeholder(hf.float64, [3, 3]), hf.placeholder(hf.int32, [])

        def step(t: Any, x: Any) -> Any:
            return t + 1, x + hf.cholesky(a)

        start = [hf.constant(0), hf.zeros([3, 3], hf.float64)]
        x = hf.while_loop(lambda t, *_: t < n, step, start)[1]
        assert not session.run(x, {a: -np.eye(3), n: 0}).any()
        with pytest.raises(NumericError, match="positive"):
            session.run(x, {a: -np.eye(3), n: 1})


def test_inner_loops_and_large_elementwise_values() -> None:
    """An inner loop's invariants leave all loops; large sums stay in the fused loop of the body."""
    with hf.Graph().as_default(), hf.Session() as session:
        a, big = hf.placeholder(hf.float64, [20, 20]), hf.placeholder(hf.float64, [300, 300])

        def inner(s: Any, y: Any) -> Any:
            return s + 1, y * 0.5 + hf.matmul(a, a)

        def outer(t: Any, x: Any, z: Any) -> Any:
            y = hf.while_loop(lambda s, _: s < 2, inner, [hf.constant(0), x])[1]
            return t + 1, y, hf.tanh(z) * (big + 1.0)

        start = [hf.constant(0), hf.zeros([20, 20], hf.float64), hf.ones([300, 300], hf.float64)]
        results = hf.while_loop(lambda t, *_: t < 2, outer, start)[1:]
        feeds = {a: A, big: np.ones((300, 300))}
        outside, inside = types(results, feeds)
        assert outside["MatMul"] == 1 and not inside["MatMul"] and not outside["Add"]
        y, z = session.run(results, feeds)
    wanted, product = np.zeros((20, 20)), A @ A
    for _ in range(4):
        wanted = wanted * 0.5 + product
    np.testing.assert_allclose(y, wanted, 1e-12)
    np.testing.assert_allclose(z, np.full((300, 300), 2 * np.tanh(2 * np.tanh(1))))
