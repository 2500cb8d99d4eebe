"""Optimizers against the papers' formulas in NumPy, and the graph that they build."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GradientError, GraphError
from hpcflow.runtime.context import Context
from hpcflow.runtime.job import use
from hpcflow.settings import Settings

from .reference import OPTIMIZERS, data, net, trained


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with use(Context(Settings())), hf.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_follows_the_formulas(name: str) -> None:
    features, labels = data(24)
    batches = [(features[i % 17 : i % 17 + 7], labels[i % 17 : i % 17 + 7]) for i in range(40)]
    x, y, loss, train, parameters = net(OPTIMIZERS[name][0]())
    with hf.train.TrainingSession() as session:
        before = session.run(loss, {x: features, y: labels})
        for some, classes in batches:
            session.run(train, {x: some, y: classes})
        assert session.run(loss, {x: features, y: labels}) < before
        found = session.run(parameters)
    for mine, theirs in zip(found, trained(batches, OPTIMIZERS[name][1]), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=5e-5, atol=5e-6)


def test_the_first_step_of_adam_by_hand() -> None:
    """m_hat = g and v_hat = g^2, so that it moves by the learning rate against the sign of g."""
    w = hf.Variable(np.array([1.0, -2.0]), name="w", dtype=hf.float64)
    train = hf.train.AdamOptimizer(0.25, epsilon=0).minimize(hf.reduce_sum(w * w * 3.0))
    with hf.train.TrainingSession() as session:
        session.run(train)
        np.testing.assert_allclose(session.run(w), [0.75, -1.75], rtol=1e-12)


def test_a_rate_may_change_from_step_to_step() -> None:
    rate = hf.placeholder(hf.float32, [], name="rate")
    w = hf.Variable(np.float32(1), name="w")
    scale = hf.Variable(np.float32(2), trainable=False, name="scale")
    train = hf.train.GradientDescentOptimizer(rate * scale).minimize(w * 3.0)
    with hf.train.TrainingSession() as session:
        session.run(train, {rate: np.float32(0.5)})
        assert session.run(w) == -2
        session.run(train, {rate: np.float32(0)})
        assert session.run(w) == -2


def test_slots_live_beside_their_variable(graph: hf.Graph) -> None:
    with hf.device("/cpu:0"):
        w = hf.Variable(np.ones((3, 2), np.float32), name="w")
    optimizer = hf.train.AdamOptimizer()
    optimizer.minimize(hf.nn.l2_loss(w))
    assert optimizer.get_slot_names() == ["m", "step", "v"]
    slots = [optimizer.get_slot(w, name) for name in ("m", "v", "step")]
    assert [s.name for s in slots if s] == ["w/Adam", "w/Adam_1", "w/Adam_step"]
    assert [(s.shape, s.dtype) for s in slots if s] == [
        ((3, 2), hf.float32),
        ((3, 2), hf.float32),
        ((), hf.int64),
    ]
    for slot in optimizer.variables():
        assert slot.op.colocate == ("w",) and not slot.trainable
    assert hf.trainable_variables() == [w]
    assert optimizer.get_slot(w, "momentum") is None
    (update,) = [op for op in graph.get_operations() if op.type == "ApplyAdam"]
    assert update.colocate == ("w",)


def test_each_gradient_is_summed_over_replicas_once_and_weighed_by_the_share(
    graph: hf.Graph,
) -> None:
    a, b = (hf.Variable(np.ones(3, np.float32), name=n) for n in "ab")
    unused = hf.Variable(np.ones(3, np.float32), name="unused")
    optimizer = hf.train.MomentumOptimizer(0.1, 0.9)
    pairs = optimizer.compute_gradients(hf.reduce_mean(a * b))
    optimizer.apply_gradients(pairs)
    assert [v for _, v in pairs] == [a, b, unused] and pairs[2][0] is None
    sums = [op for op in graph.get_operations() if op.type == "ReplicaSum"]
    assert [op.outputs[0] for op in sums] == [pairs[0][0], pairs[1][0]]
    assert [op.colocate for op in sums] == [("a",), ("b",)]
    updates = [op for op in graph.get_operations() if op.type == "ApplyMomentum"]
    assert [u.inputs[-1].op for u in updates] == sums
    behind = list(sums)
    for op in behind:
        behind += [t.op for t in op.inputs if t.op not in behind]
    assert hf.replica_share().op in behind


def test_global_step_counts_updates() -> None:
    assert hf.train.get_global_step() is None
    step = hf.train.get_or_create_global_step()
    assert hf.train.get_or_create_global_step() is step is hf.train.get_global_step()
    w = hf.Variable(np.float32(1), name="w")
    train = hf.train.GradientDescentOptimizer(0.1).minimize(w * w, global_step=step)
    with hf.train.TrainingSession() as session:
        for _ in range(3):
            session.run(train)
        count = session.run(step)
    assert count == 3 and count.dtype == np.int64
    assert train.name == "GradientDescent"


def test_what_cannot_be_minimized_is_told() -> None:
    x = hf.placeholder(hf.float32, [None, 2], name="x")
    with pytest.raises(GradientError, match="no trainable variables"):
        hf.train.AdamOptimizer().minimize(hf.reduce_mean(x))
    w = hf.Variable(np.ones(2, np.float32), name="w")
    with pytest.raises(GradientError, match="depends on none of w"):
        hf.train.AdamOptimizer().minimize(hf.reduce_mean(x))
    with pytest.raises(GradientError, match="depends on none of w"):
        hf.train.AdamOptimizer().apply_gradients([(None, w)])


def test_an_optimizer_serves_one_graph() -> None:
    optimizer = hf.train.GradientDescentOptimizer(0.1)
    optimizer.minimize(hf.nn.l2_loss(hf.Variable(np.ones(2, np.float32))))
    with hf.Graph().as_default():
        loss = hf.nn.l2_loss(hf.Variable(np.ones(2, np.float32)))
        with pytest.raises(GraphError, match="another graph"):
            optimizer.minimize(loss)
