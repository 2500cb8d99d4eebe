"""Optimizers against the papers' formulas in NumPy, and the graph that they build."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import ArgumentError, DTypeError, GradientError
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

from .reference import OPTIMIZERS, data, net, trained


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with use_context(RankContext(Settings())), hf.Graph().as_default() as graph:
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


def test_an_optimizer_serves_any_graph() -> None:
    optimizer = hf.train.AdamOptimizer(0.1)
    found = []
    for _ in range(2):
        with hf.Graph().as_default(), hf.Session() as session:
            w = hf.Variable(np.ones(2, np.float32))
            step = optimizer.minimize(hf.nn.l2_loss(w))
            session.run(hf.global_variables_initializer())
            session.run(step)
            found.append(session.run(w).tolist())
    assert found[0] == found[1] != [1.0, 1.0]


def test_gradients_may_be_kept_in_variables() -> None:
    w, held = hf.Variable([1.0, 2.0]), hf.Variable([0.0, 0.0], trainable=False)
    optimizer = hf.train.GradientDescentOptimizer(3.0)
    ((gradient, _),) = optimizer.compute_gradients(hf.reduce_sum(5 * w), [w])
    keep, step = held.assign(gradient), optimizer.apply_gradients([(held, w)])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        session.run(keep)
        session.run(step)
        assert session.run(w).tolist() == [1.0 - 15.0, 2.0 - 15.0]


def test_gradients_by_tensors_are_given_but_not_applied() -> None:
    x = hf.constant(3.0)
    optimizer = hf.train.GradientDescentOptimizer(3.0)
    ((gradient, by),) = optimizer.compute_gradients(x * x, [x])
    assert by is x and hf.Session().run(gradient) == 6.0
    with pytest.raises(ArgumentError, match="needs a variable"):
        optimizer.apply_gradients([(gradient, x)])


def test_the_training_step_is_in_its_collection() -> None:
    w = hf.Variable([1.0, 2.0])
    step = hf.train.GradientDescentOptimizer(3.0).minimize(hf.reduce_sum(w))
    assert hf.get_collection(hf.GraphKeys.TRAIN_OP) == [step]


def test_integers_are_no_loss() -> None:
    with pytest.raises(DTypeError, match="is int32; gradients need floating-point"):
        hf.train.GradientDescentOptimizer(3.0).minimize(hf.cast(hf.Variable(1.0), "int32"))


def test_constraints_hold_behind_each_update() -> None:
    """The value is that of the constraint, on whatever rows or pieces the update was."""
    clip = functools.partial(hf.clip_by_value, clip_value_min=-0.1, clip_value_max=0.0)
    v = hf.Variable([1.0, 2.0], constraint=clip)
    with hf.variable_scope("layer", constraint=lambda x: hf.maximum(x, 0.5)) as scope:
        w = hf.get_variable("w", initializer=[3.0, 4.0])
        free = hf.get_variable("free", initializer=[3.0, 4.0], constraint=hf.identity)
        assert w.constraint is scope.constraint
    table = hf.get_variable(
        "table",
        [4, 1],
        initializer=hf.ones_initializer(),
        partitioner=hf.fixed_size_partitioner(2),
        constraint=lambda x: hf.minimum(x, 0.25),
    )
    loss = hf.reduce_sum(5 * v + 3 * w + 3 * free) + hf.reduce_sum(
        hf.nn.embedding_lookup(table, [0], partition_strategy="div")
    )
    step = hf.train.GradientDescentOptimizer(3.0).minimize(loss)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        assert session.run(v).tolist() == [1.0, 2.0]
        session.run(step)
        np.testing.assert_array_equal(session.run(v), np.float32([-0.1, -0.1]))
        assert session.run(w).tolist() == [0.5, 0.5]
        assert session.run(free).tolist() == [-6.0, -5.0]
        assert session.run(table.as_tensor()).ravel().tolist()[:2] == [-2.0, 0.25]
    with pytest.raises(ValueError, match="a constraint must be a function"):
        hf.Variable(1.0, constraint=0)


def test_what_is_joined_on_reads_is_not_trained() -> None:
    on_read = hf.VariableSynchronization.ON_READ
    assert not hf.Variable(1.0, synchronization=on_read).trainable
    assert hf.Variable(1.0, synchronization=on_read, trainable=True).trainable
    assert not hf.get_variable("a", [], synchronization=on_read).trainable
    assert hf.get_variable("b", [], aggregation=hf.VariableAggregation.MEAN).trainable
