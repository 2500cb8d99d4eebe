"""Moving averages, against the formulas written out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError, GraphError
from tests.runtime.ranks import run_ranks


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with hf.Graph().as_default():
        yield


def test_the_average_of_a_variable() -> None:
    v = hf.Variable([1.0, 2.0], name="v")
    ema = hf.train.ExponentialMovingAverage(0.9)
    assert ema.average(v) is None and ema.average_name(v) == "v/ExponentialMovingAverage"
    step = v.assign_add([1.0, 1.0])
    with hf.control_dependencies([step]):
        update = ema.apply()
    average = ema.average(v)
    assert average.name == "v/ExponentialMovingAverage" and not average.trainable
    assert hf.moving_average_variables() == [v]
    expected = value = np.array([1.0, 2.0])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        for _ in range(5):
            session.run(update)
            value = value + 1
            expected = 0.9 * expected + 0.1 * value
            np.testing.assert_allclose(session.run(average), expected, rtol=1e-6)


def test_num_updates() -> None:
    v, n = hf.Variable(0.0), hf.Variable(0, trainable=False)
    ema = hf.train.ExponentialMovingAverage(0.99, num_updates=n)
    update = ema.apply([v])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        session.run(v.assign(10.0))
        expected = 0.0
        for i in range(4):
            session.run(n.assign(i))
            session.run(update)
            decay = min(0.99, (1 + i) / (10 + i))
            expected = decay * expected + (1 - decay) * 10
            assert session.run(ema.average(v)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("zero_debias", "expected"),
    [(False, [0, 0.2, 0.38, 0.742]), (True, [0, 2, 2, 2.738007])],
)
def test_the_average_of_a_tensor(zero_debias: bool, expected: list[float]) -> None:
    """TensorFlow's numbers."""
    x = hf.placeholder("float32", [])
    y = x * 2.0
    ema = hf.train.ExponentialMovingAverage(0.9, zero_debias=zero_debias)
    update, found = ema.apply([y]), []
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        found.append(session.run(ema.average(y)))
        for fed in (1.0, 1.0, 2.0):
            session.run(update, {x: fed})
            found.append(session.run(ema.average(y)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_tensors_are_debiased() -> None:
    x = hf.placeholder("float32", [2], name="x")
    ema = hf.train.ExponentialMovingAverage(0.8, zero_debias=True, name="mean")
    update = ema.apply([x])
    average = ema.average(x)
    assert average is ema.average(x) and ema.average_name(x) == "x/mean"
    total = weight = np.zeros(2)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        for i in range(4):
            fed = np.array([i, 1.0], "f4")
            session.run(update, {x: fed})
            total, weight = 0.8 * total + 0.2 * fed, 0.8 * weight + 0.2
            np.testing.assert_allclose(session.run(average), total / weight, rtol=1e-5)


def test_zero_debias_leaves_variables_alone() -> None:
    """Their averages start at the variables' values."""
    v = hf.Variable(5.0)
    ema = hf.train.ExponentialMovingAverage(0.9, zero_debias=True)
    update = ema.apply([v])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        for _ in range(3):
            session.run(update)
            assert session.run(ema.average(v)) == pytest.approx(5.0)
    assert ema.average(v).name == "Variable/ExponentialMovingAverage"


def test_variables_to_restore(tmp_path) -> None:
    v, other = hf.Variable(1.0, name="v"), hf.Variable(7.0, trainable=False, name="other")
    ema = hf.train.ExponentialMovingAverage(0.5)
    update = ema.apply([v])
    restored = ema.variables_to_restore()
    assert restored == {"v/ExponentialMovingAverage": v, "other": other}
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        session.run(v.assign(3.0))
        session.run(update)
        path = hf.train.Saver().save(session, tmp_path, 1)
        assert hf.train.checkpoint_exists(path) and hf.train.checkpoint_exists(tmp_path)
        assert not hf.train.checkpoint_exists(tmp_path / "none")
        hf.train.Saver(restored).restore(session, path)
        assert session.run([v, other]) == [2, 7]


def test_an_average_may_be_updated_by_several_operations() -> None:
    v = hf.Variable(1.0)
    ema = hf.train.ExponentialMovingAverage(0.25)
    first, second = ema.apply([v]), ema.apply([v])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        for op, value in ((first, 2.0), (second, 4.0)):
            v.load(value, session)
            session.run(op)
        assert session.run(ema.average(v)) == (1.0 * 0.25 + 2.0 * 0.75) * 0.25 + 4.0 * 0.75


def test_errors() -> None:
    v = hf.Variable(1.0)
    ema = hf.train.ExponentialMovingAverage(0.5)
    ema.apply([v])
    with pytest.raises(DTypeError, match="an average needs floating-point values"):
        ema.apply([hf.Variable(1)])
    with pytest.raises(GraphError, match="needs a known shape"):
        ema.apply([hf.placeholder("float32", [None])])


@pytest.mark.parametrize(
    ("ranks", "settings"), [(1, {}), (3, {}), (2, {"ps": 1}), (3, {"ps": 2, "shard_bytes": 16})]
)
def test_each_step_updates_an_average_once(ranks: int, settings: dict) -> None:
    """On one rank, on replicas, with a server, and for a variable that is cut over two."""

    def body(context):
        x = hf.placeholder("float32", [None, 4], name="x")
        with hf.variable_scope("m"):
            w = hf.get_variable("w", [4, 2], initializer=hf.ones_initializer())
            own = hf.get_local_variable("own", [], initializer=hf.constant_initializer(4.0))
        loss = hf.reduce_mean(hf.reduce_sum(hf.matmul(x, w), 1))
        train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
        ema = hf.train.ExponentialMovingAverage(0.5)
        with hf.control_dependencies([train]):
            update = ema.apply([w, loss])
        mean, there = ema.average(loss), hf.is_variable_initialized(w)
        with hf.train.TrainingSession() as session:
            for _ in range(3):
                session.step(update, {x: np.ones((2, 4), "f4")})
            return session.run([w, ema.average(w), own, mean, there])

    for w, average, own, mean, there in run_ranks(ranks, body, **settings):
        np.testing.assert_allclose(w, np.full((4, 2), 0.7), rtol=1e-6)
        expected = (((1 + 0.9) / 2 + 0.8) / 2 + 0.7) / 2
        np.testing.assert_allclose(average, np.full((4, 2), expected), rtol=1e-6)
        assert own == 4 and there
        assert mean == pytest.approx(8 * 0.125 + 7.2 * 0.25 + 6.4 * 0.5, rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"ps": 1}, {"ps": 1, "sync": "all"}, {"ps": 2, "sync": "all"}, {"ps": 2}],
    ids=str,
)
def test_the_debiased_average_of_a_constant_is_the_constant(settings: dict) -> None:
    """Two workers: the average and the number of its updates belong together."""

    def body(context):
        x = hf.placeholder("float32", [2], name="x")
        ema = hf.train.ExponentialMovingAverage(0.5, zero_debias=True)
        mean = hf.reduce_mean(x)
        update = ema.apply([mean])
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            for _ in range(3):
                session.run(update, {x: [2.0, 4.0]})
            context.meet("the end")
            return session.run(ema.average(mean))

    ranks = 2 + settings.get("ps", 0)
    for found in run_ranks(ranks, body, plan_cache="none", **settings):
        assert found is None or found == pytest.approx(3.0, rel=1e-6)


def test_names_of_operations_are_tensorflows() -> None:
    v = hf.get_variable("v", [2])
    ema = hf.train.ExponentialMovingAverage(0.5)
    assert ema.apply([v]).name == "ExponentialMovingAverage"
    assert ema.apply([v]).name == "ExponentialMovingAverage_1"
    with hf.variable_scope("tower"):
        assert hf.train.ExponentialMovingAverage(0.5, name="avg").apply([v]).name == "tower/avg"
    names = [op.name for op in hf.get_default_graph().get_operations()]
    assert "ExponentialMovingAverage/AssignMovingAvg/Sub" in names


def test_averages_of_tensors_are_restored_by_their_own_names() -> None:
    """As TensorFlow's: an average is left out only if its name is that of another entry."""
    v, w = hf.get_variable("v", [2]), hf.get_variable("w", [2])
    ema = hf.train.ExponentialMovingAverage(0.5)
    ema.apply([v, w, hf.identity(v, name="t")])
    assert sorted(ema.variables_to_restore()) == [
        "t/ExponentialMovingAverage",
        "v/ExponentialMovingAverage",
        "w/ExponentialMovingAverage",
    ]
    assert {name: x.name for name, x in ema.variables_to_restore([v]).items()} == {
        "v/ExponentialMovingAverage": "v",
        "w": "w",
        "w/ExponentialMovingAverage": "w/ExponentialMovingAverage",
        "t/ExponentialMovingAverage": "t/ExponentialMovingAverage",
    }
