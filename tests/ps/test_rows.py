"""Rows of variables between ranks: only rows move, to servers and between replicas."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from tests.runtime.ranks import run_ranks

START = np.arange(60.0).reshape(20, 3)
TARGET = np.random.default_rng(0).standard_normal((20, 3))


def batches(steps=6, parts=1):
    rng = np.random.default_rng(4)
    return [rng.integers(0, 20, 6 * parts) for _ in range(steps)]


def build():
    """A table whose rows move to those of a target."""
    v = hf.Variable(START, name="v")
    ids = hf.placeholder(hf.int64, [None], name="ids")
    wanted = hf.placeholder(hf.float64, [None, 3], name="wanted")
    loss = hf.reduce_sum(hf.square(hf.gather(v, ids) - wanted)) / 2.0
    (rows,) = hf.gradients(loss, [v])
    return v, ids, wanted, hf.replica_sum(rows)


def expected(steps=6, parts=1):
    v = START.copy()
    for ids in batches(steps, parts):
        np.subtract.at(v, ids, 0.1 * (v[ids] - TARGET[ids]))
    return v


@pytest.mark.parametrize(
    "servers, settings", [(1, {}), (2, {}), (2, {"shard_bytes": 64}), (3, {"shard_bytes": 64})]
)
def test_rows_travel_to_the_servers_and_back(servers, settings):
    def body(context):
        v, ids, wanted, rows = build()
        train = v.scatter_sub(rows.with_values(rows.values * 0.1)).op
        session = hf.Session()
        session.run(v.initializer)
        for at in batches():
            session.run(train, {ids: at, wanted: TARGET[at]})
        plan = session.plan(train, {ids: at, wanted: TARGET[at]})
        moved = [edge.spec for edge in plan.edges if not edge.token]
        return session.run(v), moved

    ((found, moved),) = run_ranks(1 + servers, body, ps=servers, seed=5, **settings)
    np.testing.assert_allclose(found, expected(), rtol=1e-12)
    assert all(len(spec.shape) == 1 or spec.shape[0] in (6, None) for spec in moved)
    assert sum(spec.shape == (None,) or spec.shape == (6,) for spec in moved) >= 1


def test_a_table_over_servers_is_updated_by_every_rule():
    rules = ["update", "add", "sub", "mul", "div", "min", "max"]

    def body(context):
        at = hf.placeholder(hf.int32, [None, 2])
        new = hf.placeholder(hf.float64, [None, 2, 3])
        given = np.array([[19, 0], [7, 19]], np.int32)
        rows = np.arange(12.0).reshape(2, 2, 3) - 4.5
        session, found = hf.Session(), []
        for rule in rules:
            v = hf.Variable(START, name=rule)
            whole = getattr(hf, f"scatter_{rule}")(v, at, new)
            one = getattr(hf, f"scatter_{rule}")(v, [3], np.float64(2))
            session.run(v.initializer)
            session.run(whole, {at: given, new: rows})
            session.run(one)
            read = session.run(v.sparse_read(at), {at: given})
            np.testing.assert_array_equal(read, session.run(v)[given])
            found.append(session.run(v))
        return found

    (cut,) = run_ranks(3, body, ps=2, shard_bytes=64)
    (whole,) = run_ranks(1, body)
    for mine, theirs in zip(cut, whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replicas_gather_their_rows_however_many_each_has(replicas):
    def body(context):
        v, ids, wanted, rows = build()
        w = hf.Variable(np.zeros(3), name="w")
        (dense,) = hf.gradients(hf.reduce_sum(w * 2.0), [w])
        train = hf.group(
            v.scatter_sub(rows.with_values(rows.values * 0.1)), w.assign_add(hf.replica_sum(dense))
        )
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for step, at in enumerate(batches(parts=3)):
            cuts = [0, *sorted([step % 7, 11]), 18] if replicas == 3 else [0, step, 18]
            mine = at[cuts[context.replica] : cuts[context.replica + 1]]
            mine = at if replicas == 1 else mine
            session.run(train, {ids: mine, wanted: TARGET[mine]})
        return session.run([v, w])

    for v, w in run_ranks(replicas, body, seed=9):
        np.testing.assert_allclose(v, expected(parts=3), rtol=1e-12)
        np.testing.assert_array_equal(w, np.full(3, 12.0 * replicas))


OPTIMIZERS = {
    "adagrad": lambda rate: hf.train.AdagradOptimizer(rate, 1.0),
    "adam": lambda rate: hf.train.AdamWOptimizer(0.0, rate),
}


def counted(name, sparse, rate=None):
    """A table whose gradient is 1 everywhere, so that slots count the updates, and its slot."""
    v = hf.Variable(np.zeros((8, 3)), name="v")
    ids = hf.placeholder(hf.int64, [None], name="ids")
    loss = hf.reduce_sum(
        hf.gather(v, ids) if sparse else v * hf.cast(hf.reduce_max(ids) > 0, hf.float64)
    )
    optimizer = OPTIMIZERS[name](0.1 if rate is None else rate)
    train = optimizer.minimize(loss)
    slot = "accumulator" if name == "adagrad" else "step"
    return v, ids, train, optimizer.get_slot(v, slot)


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("settings", [{}, {"shard_bytes": 64}], ids=["whole", "cut"])
def test_no_update_of_an_asynchronous_worker_is_lost(name, sparse, settings):
    """Reads, formula and update run together on the server: nobody else's comes in between."""
    steps = 25

    def body(context):
        rate = hf.placeholder(hf.float64, [], name="rate")  # one more message to wait for
        _, ids, train, slot = counted(name, sparse, rate)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for _ in range(steps):
            session.run(train, {ids: np.arange(8), rate: 0.1})
        context.barrier()
        return session.run(slot)

    for found in run_ranks(5, body, ps=2, seed=3, **settings):
        expected = 1 + 3 * steps if name == "adagrad" else 3 * steps
        np.testing.assert_array_equal(found, np.full(found.shape, expected))


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_of_a_table_over_servers_only_gradients_move_to_train_it(name, sparse):
    def body(context):
        _, ids, train, _ = counted(name, sparse)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        plan = session.plan(train, {ids: np.arange(4)})
        return [(e.source, e.dest, e.spec.shape) for e in plan.edges if not e.token]

    (moved,) = run_ranks(3, body, ps=2, shard_bytes=64)
    for server in ("/job:ps/task:0", "/job:ps/task:1"):
        there = sorted((s for a, b, s in moved if b == server), key=str)
        back = [s for a, b, s in moved if a == server]
        if sparse:
            assert there == [(None, 3), (None,)] and back == []
        else:
            assert there == [(4, 3)] and back == []
