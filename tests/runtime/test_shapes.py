"""Sizes that only the step knows: a thousand of them, without a plan for each, without a leak."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.runtime.step import step_instance
from hpcflow.runtime.step.shape_specialization import SPECIALISED
from tests.runtime.ranks import run_ranks

STEPS = 1000


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts compiled so far."""
    made: list[str] = []
    begin = step_instance.CompiledPartition.__init__

    def counted(self: Any, code: Any, *rest: Any, **more: Any) -> None:
        made.append(code.part.task)
        begin(self, code, *rest, **more)

    monkeypatch.setattr(step_instance.CompiledPartition, "__init__", counted)
    return made


def watched(step: Any, compilations: list[str]) -> None:
    """`step(size)` for a thousand sizes: after some, neither plans nor objects become more."""
    sizes = np.random.default_rng(1).integers(1, 200, STEPS).tolist()
    sizes[25:50] = sizes[:25]  # all plans have run in the arena that they share
    marks = {}
    for i, size in enumerate(sizes):
        step(size)
        if i in (50, STEPS - 1):
            gc.collect()
            marks[i] = len(compilations), len(gc.get_objects())
    (plans, objects), (plans_after, objects_after) = marks.values()
    assert plans_after == plans
    assert objects_after <= objects + 100


@pytest.mark.slow
def test_unique_masks_and_loops_of_a_thousand_sizes(compilations: list[str]) -> None:
    rng = np.random.default_rng(0)
    with hf.Graph().as_default():
        ids, x = hf.placeholder(hf.int64, [None]), hf.placeholder(hf.float32, [None, 8])
        y = hf.placeholder(hf.float32, [None])
        table = hf.Variable(rng.standard_normal((100, 8)).astype("f4") / 9)
        w = hf.Variable(rng.standard_normal((8, 1)).astype("f4") / 9)
        rows, place = hf.unique(ids)
        h = hf.tanh(x + hf.gather(hf.gather(table, rows), place))
        chosen = hf.boolean_mask(h, y > 0)
        count = hf.shape(chosen)[0]
        _, state = hf.while_loop(
            lambda t, s: t < count,
            lambda t, s: (t + 1, hf.tanh(s + hf.gather(chosen, t))),
            [0, hf.zeros([8])],
        )
        loss = hf.reduce_mean(hf.square(hf.matmul(h, w)[:, 0] - y)) + hf.reduce_sum(state**2) / 99
        train = hf.train.AdamOptimizer(0.01).minimize(loss)
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            losses = []

            def step(n: int) -> None:
                features = rng.standard_normal((n, 8)).astype("f4")
                feeds = {ids: rng.integers(0, 100, n), x: features, y: features[:, 0]}
                losses.append(session.run([loss, train], feeds)[0])

            watched(step, compilations)
            assert np.mean(losses[-50:]) < 0.5 * np.mean(losses[:50])


@pytest.mark.slow
def test_batches_of_a_queue_of_a_thousand_sizes(compilations: list[str]) -> None:
    rng = np.random.default_rng(0)
    with hf.Graph().as_default():
        n, values = hf.placeholder(hf.int32, []), hf.placeholder(hf.float32, [None, 4])
        queue = hf.FIFOQueue(1000, [hf.float32], [(4,)])
        put, batch = queue.enqueue_many([values]), queue.dequeue_up_to(n)
        w = hf.Variable(np.ones((4, 1), np.float32))
        train = hf.train.GradientDescentOptimizer(1e-3).minimize(
            hf.reduce_mean(hf.square(hf.matmul(batch, w)))
        )
        size = hf.shape(batch)[0]
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())

            def step(k: int) -> None:
                session.run(put, {values: rng.standard_normal((k, 4)).astype("f4")})
                assert session.run([size, train], {n: k})[0] == k

            watched(step, compilations)


@pytest.mark.slow
def test_a_step_that_sums_over_replicas_is_let_go_with_its_session() -> None:
    def body(context: Any) -> Any:
        x = hf.placeholder(hf.float32, [3])
        with hf.Session() as session:
            session.run(hf.replica_sum(x), {x: np.ones(3, np.float32)})
        return context.executor

    engines = run_ranks(2, body)
    gc.collect()  # here, once: while another thread does it a call does nothing
    steps = (one for one in gc.get_objects() if isinstance(one, step_instance.StepInstance))
    assert not [one for one in steps if one.link.executor in engines]


def test_the_plan_of_any_shape_serves_other_sizes_and_ranks() -> None:
    """Not only those that have what the first ones share: ten columns, two axes."""
    x = hf.placeholder(hf.float32)
    fetches = {
        "mean": hf.reduce_mean(x),
        "shape": hf.shape(x),
        "rank": hf.rank(x),
        "scaled": x * hf.cast(hf.shape(x)[-1], hf.float32),
        "sums": hf.reduce_sum(x, axis=-1),
        "gradient": hf.gradients(hf.reduce_mean(x * x), x)[0],
    }
    session = hf.Session()
    for rows in range(1, SPECIALISED + 1):
        session.run(fetches, {x: np.ones((rows, 10), "f4")})
    for shape in [(9, 10), (9, 20), (3, 4, 6), (8,), (11, 10), (2, 2, 2, 2)]:
        array = np.random.default_rng(1).random(shape, "f4")
        fetched = session.run(fetches, {x: array})
        expected = {
            "mean": array.mean(),
            "shape": array.shape,
            "rank": array.ndim,
            "scaled": array * shape[-1],
            "sums": array.sum(-1),
            "gradient": 2 * array / array.size,
        }
        for name, value in expected.items():
            np.testing.assert_allclose(fetched[name], value, rtol=1e-5, err_msg=f"{name} {shape}")
