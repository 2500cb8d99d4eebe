"""Assignments that lose the updates of other workers are told; those that lose none are not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.listing.plan_text import plan_data, plan_text
from hpcflow.runtime.job.rank_context import RankContext
from tests.plan.model import graph, plan_of
from tests.runtime.ranks import run_ranks

LIMIT_S = 60.0
SERVERS = Cluster(2, 1)


def behind(v: hf.Variable, given: hf.Tensor) -> Any:
    """An assignment of v + given that the server computes when it has `given`."""
    with hf.colocate_with(v):
        given = hf.identity(given)
        with hf.control_dependencies([given]):
            return v.assign(v.read_value() + given)


def too_early(v: hf.Variable, given: hf.Tensor) -> Any:
    with hf.colocate_with(v):
        return v.assign(v.read_value() + hf.identity(given))


def also_elsewhere(v: hf.Variable, given: hf.Tensor) -> Any:
    """What worker and server compute of `v` is added to its newest value."""
    return behind(v, given * hf.reduce_sum(v))


def of_rows(v: hf.Variable, given: hf.Tensor) -> Any:
    return hf.scatter_update(v, [1], hf.gather(v, [1]) + given[:1])


def by_a_loop(v: hf.Variable, given: hf.Tensor) -> Any:
    return v.assign(hf.while_loop(lambda k: k[0] < 5, lambda k: k + 1, [v + given]))


def by_an_optimizer(optimizer: Callable[[], Any]) -> Callable[..., Any]:
    def make(v: hf.Variable, given: hf.Tensor) -> Any:
        return optimizer().minimize(hf.reduce_mean(hf.square(v * given)))

    return make


def average(v: hf.Variable, given: hf.Tensor) -> Any:
    step = by_an_optimizer(lambda: hf.train.GradientDescentOptimizer(0.1))(v, given)
    with hf.control_dependencies([step]):
        return hf.train.ExponentialMovingAverage(0.9, zero_debias=True).apply([v * 2])


LOSING: dict[str, Callable[..., Any]] = {
    "on the worker": lambda v, given: v.assign(0.9 * v + given),
    "without other inputs": lambda v, _: v.assign(hf.clip_by_norm(v, 1.0)),
    "on the server, too early": too_early,
    "by rows": of_rows,
    "by a loop": by_a_loop,
}
SAFE: dict[str, Callable[..., Any]] = {
    "on the server, behind": behind,
    "partly on the server": also_elsewhere,
    "a sum": lambda v, given: v.assign_add(given - v),
    "no older value": lambda v, given: v.assign(given),
    "momentum": by_an_optimizer(lambda: hf.train.MomentumOptimizer(0.1, 0.9)),
    "Adam": by_an_optimizer(lambda: hf.train.AdamOptimizer(0.1)),
    "RMSProp": by_an_optimizer(lambda: hf.train.RMSPropOptimizer(0.1, centered=True)),
    "LAMB": by_an_optimizer(lambda: hf.train.LAMBOptimizer(0.1)),
    "accumulation": by_an_optimizer(
        lambda: hf.train.AccumulatingOptimizer(hf.train.AdamOptimizer(0.1), 2)
    ),
    "scaled loss": by_an_optimizer(
        lambda: hf.train.LossScaleOptimizer(
            hf.train.AdamOptimizer(0.1), hf.train.DynamicLossScale()
        )
    ),
    "moving average": average,
}


def planned(make: Callable[..., Any], cluster: Cluster) -> Any:
    with graph() as made:
        v = hf.get_variable("v", initializer=np.ones(3, np.float32))
        given = hf.placeholder(hf.float32, [3], name="given")
        return plan_of(made, [make(v, given)], {given: (3,)}, cluster)


@pytest.mark.parametrize("name", LOSING)
def test_an_assignment_that_may_lose_updates_is_told_with_its_lines(name: str) -> None:
    plan = planned(LOSING[name], SERVERS)
    (line,) = plan.warnings
    assert "assigns to the variable 'v'" in line and "are lost" in line
    assert line.count("test_lost_updates.py:") == 2 and "use assign_add" in line
    assert f"warning: {line}" in plan_text(plan) and plan_data(plan)["warnings"] == [line]


def test_of_several_values_of_other_tasks_the_first_is_named() -> None:
    """Whatever the hash of their names: all ranks and runs print the same line."""

    def late(v: hf.Variable, given: hf.Tensor) -> Any:
        values = [hf.multiply(given, k, name=f"value_{k}") for k in range(1, 9)]
        with hf.colocate_with(v):
            return v.assign(hf.add_n([v.read_value(), *map(hf.identity, values)]))

    (line,) = planned(late, SERVERS).warnings
    assert "and on 'value_1'" in line


@pytest.mark.parametrize("name", SAFE)
def test_an_assignment_that_loses_none_is_not_told(name: str) -> None:
    assert planned(SAFE[name], SERVERS).warnings == ()


@pytest.mark.parametrize("cluster", [Cluster(), Cluster(2), Cluster(1, 1)], ids=str)
def test_without_servers_or_other_workers_nothing_is_lost(cluster: Cluster) -> None:
    assert planned(LOSING["on the worker"], cluster).warnings == ()


@pytest.mark.parametrize("is_safe", [False, True])
def test_two_workers_that_meet_between_read_and_assignment(
    is_safe: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What is told to lose updates does; the other way counts both workers."""
    caplog.set_level(logging.WARNING, "hpcflow")
    met, done = (threading.Barrier(2, timeout=LIMIT_S) for _ in range(2))

    def meet(count: np.ndarray) -> np.float32:
        met.wait()
        return np.float32(count + 1)

    def body(context: RankContext) -> float:
        count = hf.get_variable("count", initializer=np.float32(0))
        if is_safe:
            one = hf.py_func(meet, [0.0], hf.float32)
            one.set_shape([])
            add = behind(count, one)
        else:
            new = hf.py_func(meet, [count.read_value()], hf.float32)
            new.set_shape([])
            add = count.assign(new)
        with hf.train.TrainingSession() as session:
            session.step(add, {})
            done.wait()
            return float(session.run(count))

    assert run_ranks(3, body, ps=1) == [2.0 if is_safe else 1.0] * 2
    told = [r for r in caplog.records if "are lost" in r.getMessage()]
    assert len(told) == (0 if is_safe else 1)
