"""Micro batches whose gradients are added up train as one large batch."""

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
RNG = np.random.default_rng(16)
X, Y = RNG.standard_normal((24, 3)), RNG.standard_normal((24, 2))
IDS = RNG.integers(0, 5, 24)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with use_context(RankContext(Settings())), hf.Graph().as_default() as graph:
        yield graph


def net(optimizer: Any, dtype: str = "float64", rows: bool = False) -> tuple[Any, ...]:
    """A table, of which `rows` alone may be read, weights, and what trains them."""
    x, y = hf.placeholder(dtype, [None, 3]), hf.placeholder(dtype, [None, 2])
    ids = hf.placeholder("int64", [None])
    table = hf.Variable(np.linspace(-1, 1, 15).reshape(5, 3).astype(dtype), name="table")
    w = hf.Variable(np.linspace(1, 2, 6).reshape(3, 2).astype(dtype), name="w")
    guess = hf.matmul(x * hf.gather(table if rows else table * 1, ids), w)
    loss = hf.reduce_mean(hf.reduce_sum(hf.square(guess - y), 1))
    step = T.get_or_create_global_step()
    train = optimizer.minimize(loss, step)
    return x, y, ids, [table, w, step], train


def trained(
    optimizer: Any, batch: int, pick: Any = None, dtype: str = "float64", sparse: bool = False
) -> list:
    """Values after one epoch in batches of this size; `pick` takes a replica's part of each."""
    with hf.Graph().as_default(), hf.Session() as session:
        x, y, ids, variables, train = net(optimizer(), dtype, sparse)
        session.run(hf.global_variables_initializer())
        for i in range(0, 24, batch):
            rows = np.arange(i, i + batch)
            feeds = {}
            if pick is not None:
                mine = pick(rows)
                feeds[hf.replica_share()] = len(mine) / batch
                rows = mine
            session.run(
                train, {x: X[rows].astype(dtype), y: Y[rows].astype(dtype), ids: IDS[rows], **feeds}
            )
        return session.run([v.value() for v in variables])


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: T.GradientDescentOptimizer(0.05),
        lambda: T.MomentumOptimizer(0.05, 0.9),
        lambda: T.AdamOptimizer(0.05),
        lambda: T.RMSPropOptimizer(0.05),
    ],
)
def test_micro_batches_are_one_large_batch(make: Any) -> None:
    large = trained(make, 12)
    small = trained(lambda: T.AccumulatingOptimizer(make(), 3), 4)
    for mine, theirs in zip(small, large, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
    assert small[-1] == 2  # updates


def test_gradients_of_rows() -> None:
    large = trained(lambda: T.GradientDescentOptimizer(0.05), 12, sparse=True)
    make = lambda: T.AccumulatingOptimizer(T.GradientDescentOptimizer(0.05), 3)  # noqa: E731
    for mine, theirs in zip(trained(make, 4, sparse=True), large, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def test_nothing_changes_between_updates() -> None:
    optimizer = T.AccumulatingOptimizer(T.AdamOptimizer(0.1), 4)
    before = trained(lambda: T.AdamOptimizer(0.0), 24)
    after = trained(lambda: optimizer, 8)  # three of four
    for mine, theirs in zip(after[:2], before[:2], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert after[-1] == 0
    assert {"sum"} < set(optimizer.get_slot_names())
    assert len(optimizer.variables()) > 3


def test_one_step_is_the_optimizer_itself() -> None:
    plain = trained(lambda: T.GradientDescentOptimizer(0.05), 6)
    same = trained(lambda: T.AccumulatingOptimizer(T.GradientDescentOptimizer(0.05), 1), 6)
    for mine, theirs in zip(same, plain, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_sixteen_bits_are_added_in_thirty_two() -> None:
    optimizer = T.AccumulatingOptimizer(T.GradientDescentOptimizer(0.05), 3)
    found = trained(lambda: optimizer, 4, dtype="float16")
    assert all(v.dtype == np.float32 for v in optimizer.variables() if "sum" in v.name)
    expected = trained(lambda: T.GradientDescentOptimizer(0.05), 12)
    np.testing.assert_allclose(found[1], expected[1], rtol=2e-2)


def test_on_replicas() -> None:
    def body(context: Any) -> Any:
        make = lambda: T.AccumulatingOptimizer(T.AdamOptimizer(0.05), 2)  # noqa: E731
        pick = lambda rows: rows[:5] if context.replica == 0 else rows[5:]  # noqa: E731
        return trained(make, 6, pick)

    expected = trained(lambda: T.AdamOptimizer(0.05), 12)
    for found in run_ranks(2, body):
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


SERVERS = [
    {"ps": 1, "sync": "all"},
    {"ps": 2, "sync": "all"},
    {"ps": 2, "sync": "backup:1"},
    {"ps": 2, "sync": "stale:1"},
    {"ps": 1},
    {"ps": 2},
]


@pytest.mark.parametrize("rows", [False, True], ids=["dense", "rows"])
@pytest.mark.parametrize("settings", SERVERS, ids=str)
def test_servers_lose_no_gradient_and_count_each_once(settings: dict[str, Any], rows: bool) -> None:
    """3 workers of 6 gradients of 1 each: 9 updates by their mean; joined, 3 updates of 6."""

    def body(context: Any) -> Any:
        v = hf.Variable(np.zeros((3, 2)), name="v")
        w = hf.Variable(np.zeros(5), name="w")
        loss = hf.reduce_sum(hf.gather(v, [0, 2]) if rows else v) + hf.reduce_sum(w)
        step = T.get_or_create_global_step()
        optimizer = T.AccumulatingOptimizer(T.GradientDescentOptimizer(1.0), 2)
        train = optimizer.minimize(loss, step)
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            for _ in range(6):
                session.run(train)
            context.meet("the end")
            kept = [optimizer.get_slot(v, "sum"), optimizer.get_slot(w, "sum")]
            return session.run([v, w, *kept, optimizer.variables()[0], step])

    joins = settings.get("sync", "")[:3] in ("all", "bac")
    workers = 3 + (settings.get("sync") == "backup:1")
    found = run_ranks(workers + settings["ps"], body, plan_cache="none", **settings)
    v, w, v_sum, w_sum, count, step = next(one for one in found if one is not None)
    backup = count if settings.get("sync") == "backup:1" else 0  # a seventh update may have begun
    assert (count, step) == (backup, 3 if joins else 9)
    np.testing.assert_array_equal(v[0], -float(step))
    np.testing.assert_array_equal(w, -float(step))
    assert (v[1] == (0 if rows else -step)).all()
    assert (w_sum == backup).all() and (v_sum[0] == backup).all()


def test_errors() -> None:
    with pytest.raises(GraphError, match="at least 1, not 0"):
        T.AccumulatingOptimizer(T.AdamOptimizer(), 0)
    with pytest.raises(GraphError, match="cannot skip an update"):
        T.AccumulatingOptimizer(T.LossScaleOptimizer(T.AdamOptimizer(), 2.0), 2)
