"""Plans whose steps wait have their buffers in one arena, unless they are in flight together."""

from __future__ import annotations

import itertools
import threading
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.errors import OutOfMemoryError
from hpcflow.runtime.device.shared_arena import ArenaLease, ArenaLeases
from tests.comm.threads import until

from .ranks import run_ranks

WIDTH = 60
ROWS = (40, 300, 3, 120, 300, 40)  # the arena grows, then is more than is needed
RNG = np.random.default_rng(0)
W = (RNG.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype("f4")
BATCHES = {n: RNG.standard_normal((n, WIDTH)).astype("f4") for n in ROWS}


def buffers(context):
    return context.devices["cpu:0"].held_memory.current["buffers"]


def spoil(*lanes):
    """Fill the arenas of steps that have ended with NaN: nothing there is of use to another."""
    for lane in (lane for one in lanes for lane in one._leases if not lane.busy):
        for _, arena in lane._memory.arenas.values():
            arena[...] = 0xFF


def agrees(memory):
    assert memory["peak"] == pytest.approx(memory["predicted"], rel=0.05)


def summing(rows):
    """What a replica that trains with batches of these sizes fetched, and bytes of its buffers."""

    def body(context):
        x = hf.placeholder(hf.float32, [None, WIDTH])
        w = hf.Variable(W, name="w")
        h = hf.tanh(hf.matmul(hf.tanh(hf.matmul(x, w)), w))
        loss = hf.reduce_sum(hf.square(h))
        train = hf.train.GradientDescentOptimizer(1e-4).minimize(loss)
        with hf.train.TrainingSession() as session:
            found = []
            for n in rows:
                spoil(session._lanes)
                found.append(session.run([loss, h, train], {x: BATCHES[n]})[:2])
            return found, session.run(w), buffers(context), context.report()["memory"]

    return run_ranks(2, body)


def by_numpy(rows):
    """Losses and the variable, by the formulas."""
    w, losses = W.astype("f8"), []
    for n in rows:
        x = BATCHES[n].astype("f8")
        a = np.tanh(x @ w)
        h = np.tanh(a @ w)
        losses.append(np.sum(h**2))
        dh = 2 * h * (1 - h**2)
        da = (dh @ w.T) * (1 - a**2)
        w = w - 1e-4 * (a.T @ dh + x.T @ da)
    return losses, w


def test_steps_that_sum_have_one_arena_for_batches_of_all_sizes():
    losses, w = by_numpy(ROWS)
    ((_, _, largest, _), _) = summing([max(ROWS)])
    for found, last, nbytes, memory in summing(ROWS):
        for (loss, _), right in zip(found, losses, strict=True):
            np.testing.assert_allclose(loss, right, rtol=1e-4)
        np.testing.assert_allclose(last, w, rtol=1e-3, atol=1e-5)
        assert nbytes == largest
        agrees(memory)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_steps_over_two_ranks_share_on_both(seed, monkeypatch):
    lanes, make = [], ArenaLeases.__init__

    def made(self, owner):
        make(self, owner)
        lanes.append(self)

    monkeypatch.setattr(ArenaLeases, "__init__", made)

    def body(context):
        x = hf.placeholder(hf.float32, [None, WIDTH])
        with hf.device("/job:worker/task:1"):
            w = hf.Variable(W, name="w")
            a = hf.tanh(hf.matmul(x, w) * 2.0)
        with hf.device("/job:worker/task:0"):
            b = hf.sin(hf.matmul(a, W) + 1.0)
        with hf.device("/job:worker/task:1"):
            c = hf.matmul(hf.cos(hf.matmul(b, w)), w)
        with hf.Session() as session:
            session.run(w.initializer)
            found, most = [], []
            for n in ROWS:
                for fetch in (b, c):
                    spoil(*lanes)
                    found.append(session.run(fetch, {x: BATCHES[n]}))
                most.append(buffers(context))
            return found, most, context.control.ask_report(1)

    ((found, most, other),) = run_ranks(2, body, seed=seed, tasks_per_replica=2)
    for n, b, c in zip(ROWS, found[::2], found[1::2], strict=True):
        x, w = BATCHES[n].astype("f8"), W.astype("f8")
        right = np.sin(np.tanh(2 * x @ w) @ w + 1)
        np.testing.assert_allclose(b, right, atol=1e-4)
        np.testing.assert_allclose(c, np.cos(right @ w) @ w, atol=1e-4)
    assert most[1:] == [most[1]] * 5
    agrees(other["memory"])
    # one may begin there before the last has ended: two arenas at most, in place of ten
    assert other["memory"]["buffers"] < 2.1 * 3 * 4 * max(ROWS) * WIDTH


def test_steps_that_are_in_flight_together_come_apart():
    """One waits for what the other puts in a queue: it has run half, and keeps its values."""

    def body(context):
        x = hf.placeholder(hf.float32, [None, WIDTH])
        queue = hf.FIFOQueue(3, [hf.float32], shapes=[[]])
        before = hf.sin(hf.matmul(x, W))
        with hf.control_dependencies([before]):
            got = queue.dequeue()
        waits = hf.matmul(before, W) * got
        with hf.control_dependencies([hf.matmul(hf.cos(hf.matmul(x, W)), W)]):
            put = queue.enqueue(2.0)
        wrong, lanes = [], []
        with hf.Session() as session:
            for n in ROWS * 2:
                taken, fed = [], {x: BATCHES[n]}

                def take(taken=taken, fed=fed):
                    taken.append(session.run(waits, fed))

                thread = threading.Thread(target=take)
                thread.start()
                until(lambda: any(s.in_flight for f in session._families.values() for s in f.steps))
                spoil(session._lanes)
                session.run(put, fed)
                thread.join(60)
                right = 2 * np.sin(fed[x].astype("f8") @ W) @ W
                if not np.allclose(taken[0], right, atol=1e-4):
                    wrong.append(n)
                lanes.append(len(session._lanes._leases))
            return wrong, lanes, context.report()["memory"]

    ((wrong, lanes, memory),) = run_ranks(1, body)
    assert not wrong
    assert lanes == [2] * len(lanes)
    agrees(memory)


def test_a_plan_that_is_too_large_leaves_the_others_as_they_were():
    def body(context):
        x = hf.placeholder(hf.float32, [None, WIDTH])
        queue = hf.FIFOQueue(3, [hf.float32], shapes=[[]])
        put, got = queue.enqueue(3.0), queue.dequeue()
        y = hf.reduce_sum(hf.sin(hf.matmul(x, W))) * got
        found = []
        with hf.Session() as session:
            for n in (40, 10_000, 40, 10_000, 40):
                session.run(put)
                fed = {x: np.resize(BATCHES[40], (n, WIDTH))}
                try:
                    found.append(float(session.run(y, fed)))
                except OutOfMemoryError as error:
                    assert error.rank == 0
                    found.append(None)
        return found

    ((found,),) = [run_ranks(1, body, memory_limit="1MB")]
    right = pytest.approx(3 * np.sum(np.sin(BATCHES[40].astype("f8") @ W)), rel=1e-4)
    assert found == [right, None, right, None, right]


class Fake:
    """An instance of a plan that needs so many bytes."""

    def __init__(self, compiled):
        self.compiled, self.arena_lease, self.is_bound = compiled, None, True

    def unbind(self):
        assert (
            self.arena_lease is None
            or not self.arena_lease.busy
            or self.arena_lease.user is not self
        )
        self.is_bound = False


@given(st.data())
def test_no_two_in_flight_have_one_lane_and_few_ever_move(data):
    """Plans begin and end at random: a model of lanes that lends memory which does not exist."""
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    plans = [types.SimpleNamespace(arenas={"cpu:0": size}) for size in sizes]

    class Bare(ArenaLease):
        user = None

        def _arena(self, name, size):
            return None, size

    fake = types.SimpleNamespace(devices={}, expected=types.SimpleNamespace(step=lambda *a: 0))
    lanes = ArenaLeases(types.SimpleNamespace(rank=0, **vars(fake)))
    lanes._make_arena = lambda: Bare(types.SimpleNamespace(rank=0, **vars(fake)))
    last, flying, lanes_of = {}, set(), {}
    for which in data.draw(st.lists(st.integers(0, len(plans) - 1), max_size=60)):
        if which in flying:
            flying.discard(which)
            lanes.leave(last[which])
            continue
        one = lanes.enter(plans[which], last.get(which), lambda take, i=which: Fake(plans[i]))
        last[which] = one
        flying.add(which)
        assert one.is_bound
        if one.arena_lease is not None:
            one.arena_lease.user = one
            assert one.arena_lease.nbytes >= sizes[which]
            lanes_of.setdefault(which, []).append(one.arena_lease)
        used = [id(last[i].arena_lease) for i in flying if sizes[i]]
        assert len(set(used)) == len(used)
    moves = sum(a is not b for found in lanes_of.values() for a, b in itertools.pairwise(found))
    assert moves < max(1, len(plans))
    assert len(lanes._leases) <= len(plans)
