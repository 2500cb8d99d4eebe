"""Steps of a session that run in one go share one arena: as large as the largest, no more."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DeadlineExceededError, OutOfMemoryError
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

WIDTH = 60
ROWS = (40, 300, 3, 120, 300, 40)  # the arena grows, then is more than is needed
RNG = np.random.default_rng(0)
W = (RNG.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype("f4")
BATCHES = {n: RNG.standard_normal((n, WIDTH)).astype("f4") for n in ROWS}


class Net:
    """Three fetches of one input: a deep one, one with a loop and a branch, one that trains."""

    def __init__(self):
        with hf.Graph().as_default() as self.graph:
            self.x = hf.placeholder(hf.float32, [None, WIDTH])
            w = hf.Variable(W, name="w")
            deep = self.x
            for _ in range(3):
                deep = hf.tanh(hf.matmul(deep, w))
            looped = hf.while_loop(
                lambda i, h: i < 3, lambda i, h: (i + 1, hf.sin(hf.matmul(hf.cos(h), w))),
                [0, self.x],
            )[1]  # fmt: skip
            loss = hf.reduce_mean(hf.square(deep - hf.sin(self.x)))
            grad = hf.gradients(loss, w)[0]
            self.fetches = [deep, looped, [loss, grad]]
            self.start = hf.global_variables_initializer()


def by_numpy(x):
    """What the first two fetches are."""
    deep, looped = x, x
    for _ in range(3):
        deep, looped = np.tanh(deep @ W), np.sin(np.cos(looped) @ W)
    return deep, looped


def flat(values):
    return [np.asarray(v) for v in (values if isinstance(values, list) else [values])]


@pytest.fixture
def session():
    with use_context(RankContext(Settings())):
        net = Net()
        with hf.Session(graph=net.graph) as session:
            session.net = net
            session.run(net.start)
            yield session


def arena_bytes(session):
    return session.context.devices["cpu:0"].held_memory.current["buffers"]


def spoil(session):
    """Fill the arena with NaN: nothing in there is of use to another step."""
    for _, arena in session._arena._memory.arenas.values():
        arena[...] = 0xFF


def alone(fetch, x):
    """The bits of a fetch, and bytes of its buffers, where no other plan runs."""
    with use_context(RankContext(Settings())):
        net = Net()
        with hf.Session(graph=net.graph) as session:
            session.run(net.start)
            values = flat(session.run(net.fetches[fetch], {net.x: x}))
            return values, arena_bytes(session)


@pytest.mark.slow
@pytest.mark.parametrize("deadline", [None, 100])
def test_interleaved_plans_give_the_bits_of_each_alone(session, deadline):
    net, found, largest = session.net, [], 0
    for rows in ROWS:
        for i, fetch in enumerate(net.fetches):
            values = session.run(fetch, {net.x: BATCHES[rows]}, deadline=deadline)
            found.append((rows, i, flat(values), [v.copy() for v in flat(values)]))
            spoil(session)
    for rows, i, values, copies in found:
        expected, nbytes = alone(i, BATCHES[rows])
        largest = max(largest, nbytes)
        for value, copy, right in zip(values, copies, expected, strict=True):
            np.testing.assert_array_equal(value, copy)  # is not in the arena
            np.testing.assert_array_equal(value, right)
        if i < 2:
            np.testing.assert_allclose(values[0], by_numpy(BATCHES[rows])[i], atol=1e-5)
    assert arena_bytes(session) == largest
    memory = session.context.report()["memory"]
    assert memory["buffers"] == largest
    assert memory["peak"] == pytest.approx(memory["predicted"], rel=0.05)


def test_threads_whose_plans_need_ever_more(session):
    net, wrong = session.net, []
    begin = threading.Barrier(4)

    def run(which):
        begin.wait()
        for _ in range(5):
            for rows in ROWS[which:] + ROWS[:which]:
                fetch = which % 2
                value = session.run(net.fetches[fetch], {net.x: BATCHES[rows]})
                if not np.allclose(value, by_numpy(BATCHES[rows])[fetch], atol=1e-5):
                    wrong.append((which, rows))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_callables_see_the_arena_that_there_is(session):
    net = session.net
    call = session.make_callable(net.fetches[0], [net.x])
    for rows in (3, 300, 3, 40, 300):
        x = BATCHES[rows]
        np.testing.assert_allclose(call(x), by_numpy(x)[0], atol=1e-5)
        session.run(net.fetches[2], {net.x: BATCHES[120]})


def test_a_plan_that_is_too_large_leaves_the_others_as_they_were():
    with use_context(RankContext(Settings(memory_limit="1MB"))):
        net = Net()
        with hf.Session(graph=net.graph) as session:
            session.run(net.start)
            x = BATCHES[300]
            first = session.run(net.fetches[0], {net.x: x})
            for _ in range(2):
                with pytest.raises(OutOfMemoryError, match="above its limit of 1 MB"):
                    session.run(net.fetches[0], {net.x: np.ones((10_000, WIDTH), "f4")})
                np.testing.assert_array_equal(session.run(net.fetches[0], {net.x: x}), first)


def test_sessions_share_nothing(session):
    net = session.net
    with hf.Session(graph=net.graph) as other:
        other.run(net.start)
        x = BATCHES[300]
        before = session.run(net.fetches[0], {net.x: x})
        other.run(net.fetches[0], {net.x: x})
        both = arena_bytes(session)
    assert arena_bytes(session) == both // 2  # the other's went with it
    np.testing.assert_array_equal(session.run(net.fetches[0], {net.x: x}), before)


def test_a_step_that_is_late_lets_others_follow(session):
    net = session.net
    for rows in (40, 300):
        with pytest.raises(DeadlineExceededError):
            session.run(net.fetches[0], {net.x: BATCHES[rows]}, deadline=1e-9)
        value = session.run(net.fetches[1], {net.x: BATCHES[120]})
        np.testing.assert_allclose(value, by_numpy(BATCHES[120])[1], atol=1e-5)
