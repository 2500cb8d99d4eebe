"""Scaled losses: the same training, whole updates left out, and the scale that follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks

T = hf.train


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with use_context(RankContext(Settings())), hf.Graph().as_default() as graph:
        yield graph


def net(optimizer: Any) -> tuple[Any, ...]:
    """A table, a weight and what they are trained by; a power of two as scale changes no bit."""
    table = hf.Variable(np.linspace(-1, 1, 8).reshape(4, 2), name="table")
    w = hf.Variable(np.array([0.5, -0.25]), name="w")
    x = hf.placeholder(hf.float64, [], name="x")
    loss = hf.reduce_sum(hf.square(hf.gather(table, [1, 1, 3]) * w)) * x
    step = T.get_or_create_global_step()
    return table, w, x, step, optimizer.minimize(loss, step)


def trained(make: Any, xs: list[float]) -> list:
    with hf.Graph().as_default(), hf.Session() as session:
        table, w, x, step, train = net(make())
        session.run(hf.global_variables_initializer())
        for value in xs:
            session.run(train, {x: value})
        return session.run([table, w, step])


@pytest.mark.parametrize("scale", [1024.0, T.DynamicLossScale])
def test_a_scale_changes_nothing_while_all_is_finite(scale: Any) -> None:
    given = scale if isinstance(scale, float) else scale(increment_period=2)
    plain = trained(lambda: T.AdamOptimizer(0.1), [1.0, 2.0, 0.5, 1.0])
    found = trained(lambda: T.LossScaleOptimizer(T.AdamOptimizer(0.1), given), [1.0, 2.0, 0.5, 1.0])
    for mine, theirs in zip(found, plain, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.GradientDescentOptimizer(0.1),
        lambda: T.MomentumOptimizer(0.1, 0.9),
        lambda: T.AdamOptimizer(0.1),
        lambda: T.FtrlOptimizer(0.1),
    ],
)
def test_an_update_that_is_not_finite_is_left_out_whole(make: Any) -> None:
    good = trained(lambda: T.LossScaleOptimizer(make()), [1.0, 2.0, 0.5])
    bad = trained(lambda: T.LossScaleOptimizer(make()), [np.nan, 1.0, np.inf, 2.0, 0.5])
    for mine, theirs in zip(good, bad, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_scale_grows_and_shrinks() -> None:
    scale = T.DynamicLossScale(8.0, increment_period=3, multiplier=4.0)
    *_, x, _, train = net(T.LossScaleOptimizer(T.AdamOptimizer(0.1), scale))
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        found = []
        for value in [1, 1, 1, np.nan, 1, 1, np.nan, np.nan, 1, 1, 1, 1]:
            session.run(train, {x: value})
            found.append(float(session.run(scale())))
    assert found == [8, 8, 32, 8, 8, 8, 2, 1, 1, 1, 4, 4]


@pytest.mark.parametrize(
    "settings",
    [{"ps": 1, "sync": "all"}, {"ps": 1}, {"ps": 2}, {"ps": 2, "sync": "stale:1"}],
    ids=str,
)
def test_servers_shrink_the_scale_once_for_each_update_that_is_left_out(
    settings: dict[str, Any],
) -> None:
    """Each of 3 workers has an infinite gradient in its 4th of 8 steps."""

    def body(context: Any) -> Any:
        w, x = hf.Variable(np.zeros(5, "f4"), name="w"), hf.placeholder("float32", [])
        step, scale = T.get_or_create_global_step(), T.DynamicLossScale(1024.0)
        optimizer = T.LossScaleOptimizer(T.GradientDescentOptimizer(1.0), scale)
        train = optimizer.minimize(hf.reduce_sum(w) * x, step)
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            for k in range(8):
                session.run(train, {x: np.inf if k == 3 else 1.0})
            context.meet("the end")
            return session.run([w, step, scale()])

    found = run_ranks(3 + settings["ps"], body, plan_cache="none", **settings)
    w, step, scale = next(one for one in found if one is not None)
    times = 1 if settings.get("sync") == "all" else 3
    assert (step, scale) == (7 * times, 1024.0 / 2**times)
    np.testing.assert_array_equal(w, -7.0 * times)


def test_float16_gradients_do_not_vanish() -> None:
    def gradient(optimizer: Any) -> float:
        with hf.Graph().as_default(), hf.Session() as session:
            w = hf.Variable(np.float16(1), name="w")
            loss = hf.cast(w * np.float16(2**-13), hf.float32) * np.float32(2**-13)
            ((g, _),) = optimizer.compute_gradients(loss, [w])
            session.run(hf.global_variables_initializer())
            return float(session.run(hf.cast(g, hf.float32)))

    assert gradient(T.GradientDescentOptimizer(1.0)) == 0
    ratio = 2.0**20
    with hf.Graph().as_default(), hf.Session() as session:
        w = hf.Variable(np.float16(1), name="w")
        loss = hf.cast(w * np.float16(2**-13), hf.float32) * np.float32(2**-13)
        (g,) = hf.gradients(loss, [w], hf.constant(np.float32(ratio)))
        session.run(hf.global_variables_initializer())
        assert float(session.run(g)) == ratio * 2.0**-26


def test_an_optimizer_that_cannot_leave_out_an_update() -> None:
    with pytest.raises(GraphError, match="cannot skip an update"):
        T.LossScaleOptimizer(T.Optimizer("mine"))
    T.LossScaleOptimizer(T.Optimizer("mine"), 8.0)
