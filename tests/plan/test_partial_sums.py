"""Sums of what lies on several devices: one value is sent from each, or none is added elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks

from .model import THREE_TASKS, graph, plan_of

TASKS = [f"/job:worker/task:{k}" for k in range(3)]
ORDER = [1, 2, 1, 0, 2, 1]  # the task of each term
FACTORS = 10.0 ** np.arange(len(ORDER), dtype="f4")


def summed(x: Any) -> Any:
    terms = []
    for task, factor in zip(ORDER, FACTORS, strict=True):
        with hf.device(TASKS[task]):
            terms.append(hf.tanh(x * factor) / factor)
    with hf.device(TASKS[0]):
        return hf.add_n(terms)


@pytest.mark.parametrize("exact, expected", [(False, 2), (True, 5)])
def test_each_task_sends_one_value_unless_rounding_must_stay(exact: bool, expected: int) -> None:
    with graph() as g:
        x = hf.placeholder(hf.float32, [500, 400])
        y = summed(x)
    plan = plan_of(g, [y], {x: (500, 400)}, THREE_TASKS, Settings(exact=exact))
    assert sum(edge.dest == TASKS[0] for edge in plan.edges) == expected


@pytest.mark.parametrize("exact", [False, True])
def test_the_sum_is_the_same(exact: bool) -> None:
    value = np.random.default_rng(0).normal(size=(500, 400)).astype("f4")

    def body(context: Any) -> Any:
        x = hf.placeholder(hf.float32, value.shape)
        with hf.Session() as session:
            return session.run(summed(x), {x: value})

    (found,) = run_ranks(3, body, tasks_per_replica=3, exact=exact)
    terms = [np.tanh(value * f) / f for f in FACTORS]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    if exact:
        np.testing.assert_array_equal(found, total)
    np.testing.assert_allclose(found, total, rtol=1e-5, atol=1e-6)


def test_a_sum_of_another_task_alone_is_made_there() -> None:
    with graph() as g:
        x = hf.placeholder(hf.float32, [500, 400])
        with hf.device(TASKS[1]):
            terms = [hf.tanh(x * float(k)) for k in range(4)]
        with hf.device(TASKS[0]):
            y = hf.add_n(terms)
    plan = plan_of(g, [y], {x: (500, 400)}, THREE_TASKS)
    assert sum(edge.dest == TASKS[0] for edge in plan.edges) == 1


def test_exact_gradients_are_the_same_bits_on_any_tasks() -> None:
    """Layer normalizations one after the other, with ways around them, on one rank and on three."""
    rng = np.random.default_rng(3)
    value = rng.normal(size=(17, 33)).astype("f4")
    weights = [rng.normal(size=(33, 33)).astype("f4") for _ in range(4)]

    def body(context: Any, tasks: list[str]) -> Any:
        x = h = hf.placeholder(hf.float32, value.shape)
        for weight, task in zip(weights, tasks, strict=True):
            with hf.device(task):
                mean, variance = hf.nn.moments(h, [-1], keep_dims=True)
                normal = (h - mean) * hf.rsqrt(variance + 1e-5)
                h = hf.tanh(hf.matmul(normal, hf.constant(weight))) + h
        y = hf.reduce_sum(hf.square(h))
        with hf.Session() as session:
            return session.run([h, hf.gradients(y, x)[0]], {x: value})

    one = run_ranks(1, lambda context: body(context, [""] * 4), exact=True)[0]
    order = [TASKS[k] for k in (1, 0, 2, 1)]
    three = run_ranks(3, lambda context: body(context, order), exact=True, tasks_per_replica=3)[0]
    for mine, its in zip(three, one, strict=True):
        np.testing.assert_array_equal(mine, its)
