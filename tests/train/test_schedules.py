"""Learning rates of each step against their formulas in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import ShapeError
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

T = hf.train


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with use_context(RankContext(Settings())), hf.Graph().as_default() as graph:
        yield graph


def cosine(part: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * part))


def polynomial(t: int, cycle: bool) -> float:
    whole = 10 * max(1, math.ceil(t / 10)) if cycle else 10
    return (0.5 - 0.01) * (1 - min(t, whole) / whole) ** 2 + 0.01


def restarts(t: int, grow: float, shrink: float, alpha: float) -> float:
    length, height = 4.0, 1.0
    while t >= length - 1e-9:
        t, length, height = t - length, length * grow, height * shrink
    return 0.5 * ((1 - alpha) * height * cosine(t / length) + alpha)


# name -> (ours, of a rate and a step; the formula of a step, at the rate 0.5)
SCHEDULES: dict[str, tuple[Callable[..., Any], Callable[[int], float]]] = {
    "exponential": (
        lambda r, s: T.exponential_decay(r, s, 10, 0.9),
        lambda t: 0.5 * 0.9 ** (t / 10),
    ),
    "exponential in steps": (
        lambda r, s: T.exponential_decay(r, s, 10, 0.9, staircase=True),
        lambda t: 0.5 * 0.9 ** (t // 10),
    ),
    "natural": (
        lambda r, s: T.natural_exp_decay(r, s, 10, 0.3),
        lambda t: 0.5 * math.exp(-0.3 * t / 10),
    ),
    "inverse time": (
        lambda r, s: T.inverse_time_decay(r, s, 10, 0.3, staircase=True),
        lambda t: 0.5 / (1 + 0.3 * (t // 10)),
    ),
    "polynomial": (
        lambda r, s: T.polynomial_decay(r, s, 10, 0.01, 2.0),
        lambda t: polynomial(t, False),
    ),
    "polynomial again and again": (
        lambda r, s: T.polynomial_decay(r, s, 10, 0.01, 2.0, cycle=True),
        lambda t: polynomial(t, True),
    ),
    "cosine": (
        lambda r, s: T.cosine_decay(r, s, 20, 0.1),
        lambda t: 0.5 * (0.9 * cosine(min(t, 20) / 20) + 0.1),
    ),
    "restarts": (
        lambda r, s: T.cosine_decay_restarts(r, s, 4, 2.0, 0.8, 0.1),
        lambda t: restarts(t, 2.0, 0.8, 0.1),
    ),
    "restarts of one length": (
        lambda r, s: T.cosine_decay_restarts(r, s, 4, 1.0, 0.5),
        lambda t: restarts(t, 1.0, 0.5, 0.0),
    ),
    "linear cosine": (
        lambda r, s: T.linear_cosine_decay(r, s, 20, 2.0, 0.1, 0.01),
        lambda t: 0.5 * ((0.1 + 1 - min(t, 20) / 20) * cosine(4 * min(t, 20) / 20) + 0.01),
    ),
    "warm up": (
        lambda r, s: T.linear_warmup(r, s, 10, 0.1),
        lambda t: 0.1 + 0.4 * min(t, 10) / 10,
    ),
    "noam": (
        lambda r, s: T.noam_decay(r, s, 64, 10),
        lambda t: 0.5 / 8 * min((t + 1) ** -0.5, (t + 1) * 10**-1.5),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_step_has_the_rate_of_the_formula(name: str) -> None:
    step = hf.placeholder(hf.int64, [], name="step")
    ours, formula = SCHEDULES[name]
    rate, wide = ours(0.5, step), ours(hf.constant(np.float64(0.5)), step)
    assert (rate.dtype, wide.dtype) == (hf.float32, hf.float64) and rate.shape == ()
    with hf.Session() as session:
        for t in (*range(45), 100):
            found = session.run([rate, wide], {step: t})
            np.testing.assert_allclose(found[0], formula(t), rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(found[1], formula(t), rtol=1e-11, atol=1e-14)


def test_piecewise() -> None:
    step = hf.placeholder(hf.int32, [], name="step")
    rate = T.piecewise_constant(step, [3, 7], [1.0, 0.5, 0.1])
    with hf.Session() as session:
        found = [float(session.run(rate, {step: t})) for t in range(10)]
    np.testing.assert_allclose(found, [1] * 4 + [0.5] * 4 + [0.1] * 2)
    with pytest.raises(ShapeError, match="boundaries need"):
        T.piecewise_constant(step, [3, 7], [1.0, 0.5])
    with pytest.raises(ShapeError, match="do not increase"):
        T.piecewise_constant(step, [7, 7], [1.0, 0.5, 0.1])
    with pytest.raises(ShapeError, match="global_step"):
        T.exponential_decay(0.1, None, 1, 1)


def test_training_follows_the_schedule() -> None:
    step = T.get_or_create_global_step()
    rate = T.linear_warmup(T.exponential_decay(1.0, step, 1, 0.5), step, 2)
    w = hf.Variable(np.float64(0), name="w")
    train = T.GradientDescentOptimizer(rate).minimize(-1.0 * w, step)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        moved = [0.0]
        for _ in range(4):
            session.run(train)
            moved.append(float(session.run(w)))
    np.testing.assert_allclose(np.diff(moved), [0, 0.5 * 0.5, 0.25, 0.125], rtol=1e-6)
